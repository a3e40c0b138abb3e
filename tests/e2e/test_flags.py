"""The table of options, the renderer and CT129's command line, against the real release that is installed on the host."""

from __future__ import annotations

import json
import re

import flag_samples
from ansible_collections.firstlight.sglang.plugins.module_utils import _flags
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from driver import ROOT

INTROSPECTION = (ROOT / "plugins/module_utils/_flag_introspection.py").read_text()
TABLE = flag_tables.table("0.5.23")
MODEL = ["--model-path", "/srv/model"]


def ask(host, lines):
    """What the engine's own parser says of command lines, without any GPU."""
    python = "/opt/sglang/instances/demo/current/bin/python"
    return json.loads(host.check_output(f"{python} -I -c %s %s 2>/dev/null", INTROSPECTION, json.dumps(lines)))


def by_flag(options):
    return {option["flags"][0]: option for option in options}


def test_the_table_is_what_the_release_says(deployed, host):
    assert by_flag(ask(host, [])["options"]) == by_flag(TABLE.options)


def test_every_flag_comes_back_from_the_releases_own_parser_as_it_was_given(deployed, host):
    cases = [(name, *pair) for name, option in TABLE.by_name.items() for pair in flag_samples.samples(option, name)]
    rendered = [_flags.check_args(TABLE, {name: value}, {}) for name, value, _parsed in cases]
    assert [problems for _words, problems in rendered if problems] == []
    lines = ask(host, [[*MODEL, *words] for words, _problems in rendered])["lines"]
    assert len(lines) == len(cases) > len(TABLE.options)
    wrong = []
    for (name, value, parsed), line in zip(cases, lines):
        option = TABLE.by_name[name]
        # a value that is the default is left out of the answer
        found = line["parsed"].get(option["dest"], option["default"]) if line["parsed"] else line["refused"]
        if found != parsed:
            wrong.append((name, value, parsed, found))
    assert wrong == []


def test_the_release_accepts_ct129(deployed, host):
    """The argument list of the rendered unit (checked word by word in tests/unit/test_ct129.py) goes through the release's own parser."""
    unit = (ROOT / "tests/unit/golden/sglang-qwen3-6-27b.service").read_text()
    command = re.search(r"^ExecStart=.*?serve \\\n(.*?)^\w", unit, re.MULTILINE | re.DOTALL).group(1)
    words = command.replace("\\\n", " ").split()
    assert words[:2] == ["--model-type", "llm"], "this one belongs to `sglang serve` and not to the server's parser"
    line = ask(host, [words[2:]])["lines"][0]
    assert line["refused"] is None
    given = {"tp_size": 2, "dtype": "bfloat16", "mamba_radix_cache_strategy": "extra_buffer", "speculative_algorithm": "NEXTN"}
    assert {name: line["parsed"].get(name) for name in (*given, "nccl_port")} == {**given, "nccl_port": 29000}
