# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The catalogue: the model groups of group_vars that say what they are for. Writes docs/catalogue.md."""

from __future__ import annotations

import pathlib
import re
import typing as t

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
GROUP_VARS = ROOT / "group_vars"
PAGE = ROOT / "docs/catalogue.md"
FIRST = ("qwen3_6_27b", "qwen3_6_27b_long")  # CT129's

# The cards that entries name, by memory and age: the order of the page.
CARDS = (
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "l40s",
    "rtx-a6000",
    "rtx-6000-ada",
    "a100-80gb",
    "h100-80gb",
    "rtx-pro-6000",
    "h200",
    "b200",
)

TEXT = """\
# Catalogue

Model groups that are ready to use: put a host into one ([README](../README.md#catalogue)), or ask first what it would get
(`make plan MODEL=<group> GPUS="2x rtx-a6000"`). Each is one file, `group_vars/<group>/sglang_instance.yml`: the repository, the flags with
the reason for each, the parsers of the model's thinking and tool calls, and the fields of `config.json` that the plan reads, so that it
needs no network. This page is made of these files by `python tools/catalogue.py`.

* **Pinned**: a deployment needs the commit of the repository. Where a public document quotes one with its address, the entry has both
  (`revision`, `revision_source`); the address is that document's and was not opened from where the catalogue was made. Where it says
  **no**, the plan works, `site.yml` stops, and `make pin MODEL=<group>` asks the Hub and writes commit, address and date into the file. It
  does so for a pinned one too, when the repository has moved on; `make pin MODEL=<group> CHECK=1` only shows what it would write.
* **Run** says what really happened. **planned only** is just that: the flags are valid for SGLang 0.5.23, and by the plan it starts on
  every card named (tests check both).
* **Licence** is a note, not advice: the repository's own text holds.
* `config` is shortened: what the plan does not read is left out, and lists of module names are written as globs.
"""


class Entry(t.NamedTuple):
    """One model group. instance: its variable as written."""

    group: str
    path: pathlib.Path
    instance: dict[str, t.Any]

    @property
    def about(self) -> dict[str, t.Any]:
        """What people read of it."""
        return dict(self.instance["catalogue"])

    @property
    def pinned(self) -> str:
        """Where its checkpoint comes from, in a word or two."""
        model = self.instance["model"]
        return f"`{model['revision'][:12]}`" if model.get("revision") else "a path on the host" if model.get("path") else "no"


def files(directory: pathlib.Path = GROUP_VARS) -> dict[str, pathlib.Path]:
    """Which file sets the instance of each group, for every group below a group_vars directory."""
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.suffix in (".yml", ".yaml") and path.is_file()):
        for match in re.finditer(r"^sglang_instance_(\w+):", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
            found[match[1]] = path
    return found


def entries(directory: pathlib.Path = GROUP_VARS) -> list[Entry]:
    """The groups that say what they are for, CT129's first."""
    found = []
    for group, path in files(directory).items():
        instance = yaml.safe_load(path.read_text(encoding="utf-8"))[f"sglang_instance_{group}"]
        if "catalogue" in instance:
            found.append(Entry(group, path, instance))
    return sorted(found, key=lambda entry: (FIRST.index(entry.group) if entry.group in FIRST else len(FIRST), entry.group))


def size(gpus: str) -> tuple[int, int]:
    """Where "2x rtx-a6000" comes in the order of the page: by card, then by number."""
    number, _x, card = gpus.partition("x ")
    return CARDS.index(card), int(number)


def page(found: t.Sequence[Entry]) -> str:
    """The whole page."""
    lines = [TEXT, "| group | model | GPUs | licence | pinned | run |", "|---|---|---|---|---|---|"]
    for entry in found:
        name, about = entry.instance["model"]["name"], entry.about
        cells = [f"[{entry.group}](../group_vars/{entry.group}/sglang_instance.yml)", name, ", ".join(about["gpus"]), about["licence"]]
        lines.append(f"| {' | '.join([*cells, entry.pinned, about['run']])} |")
    lines += ["", "## By GPU", "", "| you have | groups |", "|---|---|"]
    for gpus in sorted({gpus for entry in found for gpus in entry.about["gpus"]}, key=size):
        lines.append(f"| {gpus} | {', '.join(entry.group for entry in found if gpus in entry.about['gpus'])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(entries()), encoding="utf-8")
