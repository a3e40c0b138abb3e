# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Behaves like the module pynvml, from a recording (nvml.json of tools/record_gpu_host.py) or from calls that a test writes down.

A recorded call is {"function": ..., "arguments": [...]} with one of

    "value": ...                      what it returned; a structure is an object, a handle {"handle": "gpu0"}, bytes {"bytes": "..."}
    "error": 3, "text": "..."         the NVMLError it raised
    "absent": true                    that nvidia-ml-py does not have it (arguments [])
    "raise": exception                any other exception (only a test can write that down)

Handles are their names in the arguments. A field value is recorded for each field: arguments ["gpu0", 230],
value {"nvmlReturn": 0, "valueType": 1, "value": 0}. What a function writes into a structure of the caller is its value.

What is asked for but not recorded is listed in `misses`, and raises an error, so that a test can see that it is not lost in a guard.
"""

from __future__ import annotations

import ctypes
import json
import pathlib
import types
import typing as t

Call = dict[str, t.Any]
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NVMLError(Exception):
    """As of pynvml: carries NVML's code as .value and prints NVML's text."""

    texts: t.ClassVar[dict[int, str]] = {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost", 16: "GPU requires restart"}

    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text or self.texts.get(value, f"NVML Error with code {value}"))
        self.value = value


class FabricInfo(ctypes.Structure):
    """The part of nvmlGpuFabricInfo_v2_t that is read."""

    _fields_ = (("state", ctypes.c_uint),)


class NvmlRecording:
    """pynvml, replayed. Later calls replace earlier ones of the same function and arguments."""

    NVMLError = NVMLError
    c_nvmlGpuFabricInfoV_t = FabricInfo  # noqa: N815  # the name that pynvml gives it

    def __init__(self, calls: t.Iterable[Call]) -> None:
        self.calls = {(call["function"], *call["arguments"]): call for call in calls}
        self.asked: list[tuple[t.Any, ...]] = []  # every question, in order
        self.misses: list[tuple[t.Any, ...]] = []

    @classmethod
    def load(cls, path: pathlib.Path, *changes: Call) -> NvmlRecording:
        return cls([*json.loads(path.read_text())["calls"], *changes])

    def __getattr__(self, name: str) -> t.Callable[..., t.Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if self.calls.get((name,), {}).get("absent"):
            raise AttributeError(name)
        return lambda *arguments: self.answer(name, arguments)

    def answer(self, function: str, arguments: tuple[t.Any, ...]) -> t.Any:
        plain = [argument.name if isinstance(argument, types.SimpleNamespace) else argument for argument in arguments]
        self.asked.append((function, *plain))
        if function == "nvmlDeviceGetFieldValues" and (function, plain[0]) not in self.calls:
            return [self.field(plain[0], identifier) for identifier in plain[1]]
        output = plain.pop()._obj if function == "nvmlDeviceGetGpuFabricInfoV" else None
        value = self.replay((function, *plain))
        if output is None:
            return value
        output.state = value.state
        return 0

    def replay(self, asked: tuple[t.Any, ...]) -> t.Any:
        call = self.calls.get(asked)
        if call is None:
            self.misses.append(asked)
            raise NVMLError(999, f"not recorded: {asked}")
        if "raise" in call:
            raise call["raise"]
        if "error" in call:
            raise NVMLError(call["error"], call.get("text", ""))
        return alive(call["value"])

    def field(self, handle: str, identifier: int) -> types.SimpleNamespace:
        value = self.replay(("nvmlDeviceGetFieldValues", handle, identifier))
        members = {MEMBERS[value.valueType]: value.value} if value.valueType < len(MEMBERS) else {}
        return types.SimpleNamespace(
            fieldId=identifier, nvmlReturn=value.nvmlReturn, valueType=value.valueType, value=types.SimpleNamespace(**members)
        )


def alive(value: t.Any) -> t.Any:
    """A recorded value as pynvml would return it."""
    if isinstance(value, list):
        return [alive(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"bytes"}:
        return value["bytes"].encode()
    if set(value) == {"handle"}:
        return types.SimpleNamespace(name=value["handle"])
    return types.SimpleNamespace(**{name: alive(member) for name, member in value.items()})
