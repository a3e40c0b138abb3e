# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Reading fields of a config.json that anyone may have written: every value is checked, every problem is told, and reading goes on."""

from __future__ import annotations

import typing as t

REQUIRED = object()
HIGHEST = 10**9  # no dimension of a model is larger


def shown(value: t.Any) -> str:
    """A value as a problem shows it: short, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def is_whole(value: t.Any) -> bool:
    """Whether a value is a whole number; true and false are none, 4.0 is one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 10**18 and value == int(value)


class Fields:
    """Fields of one (sub)configuration. An unusable one gives its problem, kept once, and a harmless value, so that all are told."""

    def __init__(
        self,
        values: t.Mapping[str, t.Any],
        problems: dict[str, str],
        path: str = "",
        defaults: t.Mapping[str, t.Any] | None = None,
    ) -> None:
        self.values = values
        self.problems = problems
        self.path = path
        self.defaults = defaults or {}

    def value(self, key: str) -> t.Any:
        """What is there as it is; null is nothing."""
        found = self.values.get(key)
        return self.defaults.get(key) if found is None else found

    def problem(self, key: str, expected: str, found: str, action: str) -> None:
        """Keep a problem, the first of a key."""
        self.problems.setdefault(self.path + key, f"{self.path}{key}: expected {expected}, found {found}; {action}")

    def _found(self, keys: str | t.Sequence[str]) -> t.Tuple[str, t.Any]:  # noqa: UP006
        names = [keys] if isinstance(keys, str) else list(keys)
        for name in names:
            if self.value(name) is not None:
                return name, self.value(name)
        return names[0], None

    def has(self, *keys: str) -> bool:
        """Whether one of the keys has a value."""
        return self._found(keys)[1] is not None

    def whole(self, keys: str | t.Sequence[str], default: t.Any = REQUIRED, low: int = 1, high: int = HIGHEST) -> int:
        """A whole number within bounds; the first of several keys that has a value counts."""
        key, value = self._found(keys)
        if value is None and default is not REQUIRED:
            return int(default)
        if value is None:
            also = "" if isinstance(keys, str) else " (or " + ", ".join(keys[1:]) + ")"
            self.problem(key, "a whole number" + also, "nothing", "take the config.json that was published with the model")
            return max(low, 1)
        if not is_whole(value) or not low <= value <= high:
            self.problem(key, f"a whole number from {low} to {high}", shown(value), "correct it")
            return max(low, 1)
        return int(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(key, "true or false", shown(value), "correct it")
            return default
        return value

    def word(self, keys: str | t.Sequence[str], default: str = "") -> str:
        """A text."""
        key, value = self._found(keys)
        if value is None:
            return default
        if not isinstance(value, str):
            self.problem(key, "text", shown(value), "correct it")
            return default
        return value

    def items(self, key: str, kinds: t.Tuple[type, ...], length: int | None = None) -> t.List[t.Any] | None:  # noqa: UP006
        """A list of values of certain types, None where there is none. With a length it must have at least so many, and is cut to them."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(not isinstance(each, kinds) for each in value):
            self.problem(key, "a list of " + " or ".join(kind.__name__ for kind in kinds), shown(value), "correct it")
            return None
        if length is not None and len(value) < length:
            self.problem(key, f"a list of {length} (num_hidden_layers)", f"{len(value)}", "correct one of the two")
            return None
        return value if length is None else value[:length]

    def part(self, *keys: str) -> Fields | None:
        """A nested configuration, None where there is none."""
        key, value = self._found(keys)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.problem(key, "an object", shown(value), "correct it")
            return None
        return Fields(value, self.problems, f"{self.path}{key}.")
