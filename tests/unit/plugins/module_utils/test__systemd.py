from __future__ import annotations

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _systemd
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "argument", "word"),
    [
        ("--port", "--port", "--port"),
        ("", '""', '""'),
        ("a b", '"a b"', '"a b"'),
        ("100%", '"100%%"', '"100%%"'),
        ("$HOME", '"$$HOME"', '"$HOME"'),
        ('{"a": 1}', '"{\\"a\\": 1}"', '"{\\"a\\": 1}"'),
        ("back\\slash", '"back\\\\slash"', '"back\\\\slash"'),
        ("two\nlines\t", '"two\\nlines\\t"', '"two\\nlines\\t"'),
        ("\x1b", '"\\x1b"', '"\\x1b"'),
        ("Größe", '"Größe"', '"Größe"'),
        (";", '";"', '";"'),
        ("#comment", '"#comment"', '"#comment"'),
        ("it's", '"it\'s"', '"it\'s"'),
    ],
)
def test_quoting(text, argument, word):
    assert _systemd.quote_argument(text) == argument
    assert _systemd.quote_word(text) == word


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\ufffe", "\ufdd0"])
def test_what_no_unit_can_hold_is_refused(text):
    for quote in (_systemd.quote_argument, _systemd.quote_word, _systemd.quote_value):
        with pytest.raises(_systemd.UnitTextError):
            quote(text)


def test_a_value_of_its_own():
    assert _systemd.quote_value("/srv/100% sure") == "/srv/100%% sure"
    for text in ("", " x", "x ", "a\nb", "x\\"):
        with pytest.raises(_systemd.UnitTextError):
            _systemd.quote_value(text)


def test_environment_is_sorted_and_checked():
    assert _systemd.environment_lines({"B": 1, "A": "x y"}) == ['"A=x y"', "B=1"]
    for name, value in (("1A", "x"), ("A-B", "x"), ("A", "\x1b"), ("A=B", "x")):
        with pytest.raises(_systemd.UnitTextError):
            _systemd.environment_lines({name: value})


def test_one_flag_a_line():
    assert _systemd.command_lines(["/x/$y", "serve", "--tp-size", 2, "--flag", "--", "z"]) == [
        '"/x/$y" serve',
        "--tp-size 2",
        "--flag -- z",
    ]
    for argv in ([], ["sglang"], ["-/bin/sh"]):
        with pytest.raises(_systemd.UnitTextError):
            _systemd.command_lines(argv)


@given(st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\0"), max_size=40))
def test_a_quoted_word_stays_on_its_line_and_names_nothing(text):
    quoted = _systemd.quote_argument(text)
    assert "\n" not in quoted
    assert "$" not in quoted.replace("$$", "")
    assert "%" not in quoted.replace("%%", "")
    assert not quoted.startswith(("#", ";"))
