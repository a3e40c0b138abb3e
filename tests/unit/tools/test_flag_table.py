"""The file of options: what is written is what is read, and a new release adds only what differs."""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_introspection, _flags

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("flag_table", ROOT / "tools/flag_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_file_is_what_the_tool_writes(tool):
    text = tool.OPTIONS.read_text()
    assert tool.written(tool.collapse(tool.expand(json.loads(text)))) == text


def test_a_new_release_adds_the_lines_that_differ(tool):
    before = json.loads(tool.OPTIONS.read_text())
    tables = tool.expand(before)
    newest = before["releases"][-1]
    options = copy.deepcopy(tables[newest])
    gone = options.pop(0)
    options[0]["default"] = "another"
    options.append({**options[1], "flags": ["--brand-new"], "dest": "brand_new"})
    after = tool.collapse({**tables, "0.5.100": options})
    assert after["releases"] == [*before["releases"], "0.5.100"]
    lines = [json.dumps(option) for option in before["options"]]
    added = [option for option in after["options"] if json.dumps(option) not in lines]
    assert len(added) == 4
    assert {(option["flags"][0], option.get("since"), option.get("until")) for option in added} == {
        (gone["flags"][0], None, newest),
        (options[0]["flags"][0], None, newest),
        (options[0]["flags"][0], "0.5.100", None),
        ("--brand-new", "0.5.100", None),
    }
    history = _flags.FlagHistory(after)
    assert history.removed_in(_flags.snake(gone["flags"][0])) == "0.5.100"
    assert history.table("0.5.100").by_name["brand_new"]["dest"] == "brand_new"


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="sglang", exit_on_error=True)
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--on", action="store_true")
    parser.add_argument("--both", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("---internal", type=int)
    parser.add_argument("--sum", nargs="?", const="", choices=["a", ""])
    return parser


def test_what_the_parser_has_is_told_but_no_internal_field(parser):
    options = _flag_introspection.options_of(parser)
    usual = {"nargs": None, "choices": None, "const": None, "deprecated": False}
    assert options == [
        {"flags": ["--tp-size", "--tensor-parallel-size"], "dest": "tp_size", "kind": "value", "type": "int", "default": 1, **usual},
        {"flags": ["--on"], "dest": "on", "kind": "switch", "type": None, "default": False, **usual},
        {"flags": ["--both", "--no-both"], "dest": "both", "kind": "boolean", "type": None, "default": None, **usual},
        {
            "flags": ["--sum"],
            "dest": "sum",
            "kind": "value",
            "type": "str",
            "default": None,
            **usual,
            "nargs": "?",
            "choices": ["", "a"],
            "const": "",
        },
    ]


@pytest.mark.parametrize(
    ("words", "parsed", "refused"),
    [
        (["--tp-size", "2", "--on"], {"tp_size": 2, "on": True}, None),
        (["--tp-size", "1"], {}, None),
        (["--tp-size", "x"], None, "argument --tp-size/--tensor-parallel-size: invalid int value: 'x'"),
        (["--nothing"], None, "unrecognized arguments: --nothing"),
    ],
)
def test_command_lines_go_through_the_parser(parser, words, parsed, refused):
    assert _flag_introspection.parse(parser, words) == {"parsed": parsed, "refused": refused}
