#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write docs/flag-rules.md from the rules about flags. A test fails when it is stale."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "doubles")]

import flag_cases  # noqa: E402
from ansible_collections.firstlight.sglang.plugins.module_utils import (  # noqa: E402
    _flag_rules_gpu,
    _flag_rules_host,
    _flag_rules_speculation,
)
from ansible_collections.firstlight.sglang.plugins.module_utils._flag_facts import Rule  # noqa: E402

PAGE = ROOT / "docs/flag-rules.md"
HEAD = """# Rules about flags

Written by `tools/flag_rules.py` from the rules in `plugins/module_utils/_flag_rules_*.py`; do not edit.

Every flag by itself is checked against the options of its release first. These rules look across flags, the model, the GPUs and the other
instances of a host. An error is refused before a unit is written, a warning is told. A rule holds for the releases named and says nothing
where it lacks a fact. Sources are paths under `sglang/srt` of the release that they begin with, threads, or real starts (`captured`: SGLang
0.5.15.post1 on an H200, by name). What a rule says is shown with an example: what was expected, what was found, and what to do.
"""
PARTS = (
    ("Speculation and hybrid models", _flag_rules_speculation.RULES),
    ("GPUs and parallelism", _flag_rules_gpu.RULES),
    ("Memory, context, modes and ports", _flag_rules_host.RULES),
)


def releases(rule: Rule) -> str:
    """The releases a rule holds for, in words."""
    if rule.first and rule.last:
        return rule.first if rule.first == rule.last else f"{rule.first} to {rule.last}"
    return f"from {rule.first}" if rule.first else f"up to {rule.last}" if rule.last else "all"


def says(rule: Rule) -> str:
    """The rule's message for the first combination that breaks it."""
    broken = (case for case in flag_cases.CASES if case.rule == rule.id and case.says is not None and rule.holds_for(case.release))
    findings = flag_cases.found(next(broken))
    return str(findings[0].message).replace("|", "/")


def page() -> str:
    """The whole document."""
    lines = [HEAD]
    for title, rules in PARTS:
        lines += [f"## {title}", "", "| rule | severity | releases | what | says, for example | source |", "|---|---|---|---|---|---|"]
        lines += [f"| {rule.id} | {rule.severity} | {releases(rule)} | {rule.what} | {says(rule)} | {rule.source} |" for rule in rules]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
