# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pathlib

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_key import fingerprints

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures/driver"
# As gpg --list-keys printed them when the keys were made.
ED25519 = "00B1828C52D63802D86CBB9F92A5F22EAD3E8333"
RSA2048 = "C8B9B05A913A74CA646D586853ADC724C33CB8D2"


def key(name):
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (key("key_ed25519.asc"), [ED25519]),
        (key("key_rsa2048.asc"), [RSA2048]),
        (key("key_ed25519.asc").replace("\n", "\r\n"), [ED25519]),
        # A second key in the file would be trusted too: it must be seen.
        (key("key_ed25519.asc") + key("key_rsa2048.asc"), [ED25519, RSA2048]),
        ("<html>404</html>", []),
        ("", []),
        (key("key_rsa2048.asc")[:400] + "\n-----END PGP PUBLIC KEY BLOCK-----", []),
    ],
    ids=["ed25519", "rsa", "crlf", "two keys", "html", "empty", "cut off"],
)
def test_fingerprints(text, expected):
    assert fingerprints(text) == expected


@hypothesis.given(st.binary(max_size=60), st.integers(0, 300))
def test_no_text_raises_and_a_changed_key_has_another_fingerprint(junk, place):
    text = key("key_ed25519.asc")
    body = text.encode()
    changed = (body[:place] + junk + body[place + len(junk) :]).decode("latin-1")
    assert fingerprints(changed) in ([], [ED25519]) or ED25519 not in fingerprints(changed)
