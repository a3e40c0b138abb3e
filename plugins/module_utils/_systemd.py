# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

"""The text of a systemd unit: how a word must be written so that systemd reads the same word back.

Three places have three sets of rules:

* a word of a command line (ExecStart=): quotes, backslash escapes, "%" (specifiers) and "$" (variables);
* an assignment or a path in a list (Environment=, ReadWritePaths=, RequiresMountsFor=): the same without "$";
* a value that is the whole rest of the line (WorkingDirectory=, LoadCredential=): "%" alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_BARE = re.compile(r"[A-Za-z0-9_@:,./=+-]+\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class UnitTextError(ValueError):
    """A text that cannot be written into a unit."""


def _check(text: str) -> None:
    for char in text:
        code = ord(char)
        if code == 0:
            raise UnitTextError("a NUL character cannot be part of a unit")
        if 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE:
            raise UnitTextError(f"the character U+{code:04X} is no text: systemd refuses units that hold it")


def _quoted(text: str) -> str:
    out = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif ord(char) < 32 or ord(char) == 127:
            out.append(f"\\x{ord(char):02x}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def quote_word(text: str) -> str:
    """A word of a list: a path, or a whole NAME=value assignment."""
    _check(text)
    doubled = text.replace("%", "%%")
    return doubled if _BARE.match(text) else _quoted(doubled)


def quote_argument(text: str) -> str:
    """A word of a command line that systemd hands on exactly as it is."""
    _check(text)
    doubled = text.replace("%", "%%").replace("$", "$$")
    return doubled if _BARE.match(text) else _quoted(doubled)


def quote_value(text: str) -> str:
    """A value that is the whole rest of a line."""
    _check(text)
    if text != text.strip() or any(ord(char) < 32 for char in text) or text.endswith("\\") or not text:
        raise UnitTextError(f"{text!r} cannot be a value of its own in a unit: no control characters, no blanks or backslash at its ends")
    return text.replace("%", "%%")


def assignment(name: str, value: str) -> str:
    """NAME=value for Environment=."""
    if not _VARIABLE.match(name):
        raise UnitTextError(f"{name!r} is no name of an environment variable: expected letters, digits and _, not starting with a digit")
    if any((ord(char) < 32 and char not in "\n\t") or ord(char) == 127 for char in value):
        raise UnitTextError(f"the value of the environment variable {name} holds a control character, which systemd does not accept")
    return quote_word(f"{name}={value}")


def environment_lines(variables: Mapping[str, object]) -> list[str]:
    """One assignment a line, sorted, so that the order in a dictionary never changes the unit."""
    return [assignment(name, str(variables[name])) for name in sorted(variables)]


def command_lines(argv: Sequence[str]) -> list[str]:
    """A command line, one flag with its values a line; to be joined with a backslash and a line break."""
    words = [str(word) for word in argv]
    if not words or not words[0].startswith("/"):
        raise UnitTextError("the first word of a command line must be an absolute path")
    lines: list[list[str]] = [[quote_word(words[0])]]  # variables are not looked up in the path of the program
    for word in words[1:]:
        if word.startswith("--") and word != "--":
            lines.append([])
        lines[-1].append(quote_argument(word))
    return [" ".join(line) for line in lines]
