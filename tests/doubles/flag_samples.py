"""For every option of a release: values as YAML gives them, and what the release's own parser makes of each."""

from __future__ import annotations

import typing as t

# Options whose parser wants text of its own kind: name -> [(value, what it becomes)].
SPECIAL: dict[str, list[tuple[t.Any, t.Any]]] = {
    "cuda_graph_config": [({"decode": {"max_bs": 8}}, {"decode": {"max_bs": 8}})],
    "monokernel_backend": [("amd", True)],
    "quantization_param_path": [("/srv/a b.json", "/srv/a b.json"), ("None", None)],
}
_BY_TYPE: dict[str, list[tuple[t.Any, t.Any]]] = {
    "str": [("a b\"c'd$e", "a b\"c'd$e"), ("-x", "-x")],
    "int": [(7919, 7919), ("7919", 7919), (-1, -1)],
    "float": [(0.8125, 0.8125), (3, 3.0)],
    "human_readable_int": [(7919, 7919), ("8k", 8000), ("2Ki", 2048)],
    "loads": [({"a b": [True, None, 1.5, "é"]}, {"a b": [True, None, 1.5, "é"]}), ('{"a": {}}', {"a": {}})],
    "json_list_type": [([{"a": 1}, "b"], [{"a": 1}, "b"]), ("[]", [])],
}
_LISTS = {"str": (["a b", "c"], ["a b", "c"]), "int": ([3, "5"], [3, 5]), "float": ([0.5, 2], [0.5, 2.0])}


def _kind(choice: str, option: t.Mapping[str, t.Any]) -> t.Any:
    """A choice as the parser has it."""
    return int(choice) if option["type"] == "int" else choice


def samples(option: t.Mapping[str, t.Any], name: str) -> list[tuple[t.Any, t.Any]]:
    """Pairs (value, what the parser makes of it) for one spelling of an option."""
    if name in SPECIAL:
        return SPECIAL[name]
    if option["kind"] == "switch":
        return [(True, True)]
    if option["kind"] == "boolean":
        return [(True, True), (False, False)]
    if option["choices"]:
        values = [_kind(choice, option) for choice in option["choices"]]
        return [([value], [value]) if option["nargs"] in ("+", "*") else (value, value) for value in values]
    if option["nargs"] in ("+", "*"):
        return [_LISTS[option["type"]]]
    return _BY_TYPE[option["type"]] + ([(True, option["const"])] if option["nargs"] == "?" else [])
