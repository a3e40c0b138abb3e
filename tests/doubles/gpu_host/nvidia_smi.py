#!/usr/bin/env python3
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Answers as nvidia-smi did on a recorded host: exit status, both outputs and duration. For tests only; Python 3.9, standard library.

The recorded host is the directory that FIRSTLIGHT_GPU_HOST names, or `host` beside this file. Its nvidia-smi.json is a list of
{"argv", "rc", "stdout", "stderr", "seconds"}. Arguments are answered

- as recorded, in any order; a recorded ["*"] answers what nothing else does;
- --query-gpu and --query-compute-apps with any of the recorded columns, noheader, nounits, by selection from the recorded table;
- -i (or --id=) with these, with -L and with -q -x, by index, UUID or bus id.

Anything else was not recorded: that is said on standard error, with exit status 2.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import time
import typing as t

# Some columns of --query-compute-apps have a second name; those of --query-gpu are in the recorded --help-query-gpu.
APP_NAMES = [["used_gpu_memory", "used_memory"], ["process_name", "name"]]


class Answer(t.NamedTuple):
    argv: list[str]
    rc: int
    stdout: str
    stderr: str = ""
    seconds: float = 0.0


def load(directory: pathlib.Path) -> list[Answer]:
    """The recorded answers. Raises OSError, ValueError or TypeError when there are none that can be read."""
    return [Answer(**entry) for entry in json.loads((directory / "nvidia-smi.json").read_text(encoding="utf-8"))]


def take_option(argv: t.Sequence[str], short: str, long: str) -> tuple[str | None, list[str]]:
    """The value of an option and the other arguments."""
    value, rest = None, []
    words = iter(argv)
    for word in words:
        if word == short:
            value = next(words, "")
        elif word.startswith(f"{long}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return value, rest


def query_of(argv: t.Sequence[str]) -> tuple[str, list[str], list[str]] | None:
    """What is queried, the columns, the words of --format; None when it is no query."""
    kinds = {word.partition("=")[0]: word.partition("=")[2] for word in argv}
    formats = kinds.pop("--format", "").split(",")
    if len(kinds) != 1 or "csv" not in formats:
        return None
    kind, columns = kinds.popitem()
    return (kind, columns.split(","), formats) if kind.startswith("--query-") else None


class Table:
    """A recorded query: the lines before it, its heading, its rows."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        query = query_of(answer.argv)
        self.columns = query[1] if query else []
        lines = answer.stdout.splitlines()
        start = next((number for number, line in enumerate(lines) if len(line.split(", ")) == len(self.columns)), len(lines))
        self.before = "".join(f"{line}\n" for line in lines[:start])
        self.heading = lines[start].split(", ") if start < len(lines) else []
        self.rows = [dict(zip(self.columns, line.split(", "))) for line in lines[start + 1 :]]


class Recording:
    def __init__(self, answers: t.Sequence[Answer]) -> None:
        self.answers = answers
        self.tables = {query[0]: Table(answer) for answer in answers for query in [query_of(answer.argv)] if query and query[2] == ["csv"]}
        listed = next((answer.stdout for answer in answers if answer.argv == ["--help-query-gpu"]), "")
        self.names = [*APP_NAMES, *(re.findall(r'"([\w.]+)"', line) for line in listed.splitlines() if line.startswith('"'))]

    def exactly(self, argv: t.Sequence[str]) -> Answer | None:
        return next((answer for answer in self.answers if sorted(answer.argv) == sorted(argv)), None)

    def gpus(self, wanted: str) -> list[dict[str, str]]:
        """Rows of the GPUs that -i names."""
        table = self.tables.get("--query-gpu")
        names = [name.strip().lower() for name in wanted.split(",")]
        rows = table.rows if table else []
        return [row for row in rows if {row.get(key, "").lower() for key in ("index", "uuid", "pci.bus_id")} & set(names)]

    def select(self, kind: str, columns: t.Sequence[str], formats: t.Sequence[str], gpus: t.Sequence[dict[str, str]] | None) -> Answer:
        """A query, from the recorded table."""
        table = self.tables[kind]
        names = []
        for asked in columns:
            same = [asked, *(name for group in self.names if asked in group for name in group)]
            known = [name for name in same if name in table.columns]
            if not known:
                return Answer([], 2, f'Field "{asked}" is not a valid field to query.\n\n')
            names.append(known[0])
        rows = table.rows
        if gpus is not None:
            keys = {row["uuid"] for row in gpus}
            rows = [row for row in rows if row.get("uuid", row.get("gpu_uuid")) in keys]
        lines = [] if "noheader" in formats else [[table.heading[table.columns.index(name)] for name in names]]
        for row in rows:
            cells = [row[name] for name in names]
            lines.append([re.sub(r"^(-?[\d.]+) \S+$", r"\1", cell) for cell in cells] if "nounits" in formats else cells)
        return table.answer._replace(stdout=table.before + "".join(f"{', '.join(line)}\n" for line in lines))

    def reply(self, argv: t.Sequence[str]) -> Answer | None:
        """The answer; None when nothing was recorded for these arguments."""
        answer = self.exactly(argv)
        if answer:
            return answer
        wanted, rest = take_option(argv, "-i", "--id")
        gpus = None if wanted is None else self.gpus(wanted)
        query = query_of(rest)
        answer = self.exactly(rest)
        everything = self.exactly(["*"])
        if query and query[0] in self.tables:
            answer = self.select(*query, gpus)
        elif answer and gpus is not None and sorted(rest) == ["-q", "-x"]:
            kept = "|".join(re.escape(row["pci.bus_id"]) for row in gpus)
            answer = answer._replace(stdout=re.sub(rf'\t<gpu id="(?!{kept}").*?</gpu>\n\n?', "", answer.stdout, flags=re.DOTALL))
        elif answer and gpus is not None and rest == ["-L"]:
            blocks = re.split(r"^(?=GPU )", answer.stdout, flags=re.MULTILINE)
            answer = answer._replace(stdout="".join(block for block in blocks if any(row["uuid"] in block for row in gpus)))
        elif gpus is not None or answer is None:
            return everything
        return Answer([], 6, "No devices were found\n") if gpus == [] and answer.rc == 0 else answer


def main() -> int:
    directory = pathlib.Path(os.environ.get("FIRSTLIGHT_GPU_HOST") or pathlib.Path(__file__).resolve().parent / "host")
    try:
        recording = Recording(load(directory))
    except (OSError, ValueError, TypeError) as problem:
        print(f"nvidia-smi double: no recorded host that can be read in {directory}: {problem}", file=sys.stderr)
        return 2
    answer = recording.reply(sys.argv[1:])
    if answer is None:
        known = "; ".join(" ".join(entry.argv)[:60] for entry in recording.answers)
        print(f"nvidia-smi double: nothing was recorded for: {' '.join(sys.argv[1:])}. Recorded: {known}", file=sys.stderr)
        return 2
    time.sleep(answer.seconds)
    sys.stdout.write(answer.stdout)
    sys.stderr.write(answer.stderr)
    return answer.rc


if __name__ == "__main__":
    sys.exit(main())
