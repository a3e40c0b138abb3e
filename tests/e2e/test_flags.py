"""The flag table and CT129's command line, against the real release that is installed on the host."""

from __future__ import annotations

import json
import re

from driver import ROOT

PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang serve")
ServerArgs.add_cli_args(parser)
known = vars(parser.parse_args(sys.argv[1:]))
print(json.dumps({name: known[name] for name in ("tp_size", "dtype", "mamba_radix_cache_strategy", "speculative_algorithm", "nccl_port")}))
"""


def engine_python(host, *words, script=None):
    """Run the engine's own Python on the host, without any GPU."""
    source = ROOT / script if script else None
    code = source.read_text() if source else PARSE
    return host.check_output(
        "/opt/sglang/instances/demo/current/bin/python -c %s " + " ".join(["%s"] * len(words)) + " 2>/dev/null", code, *words
    )


def test_the_flag_table_is_what_the_release_says(deployed, host):
    printed = json.loads(engine_python(host, script="tools/flag_table.py"))
    assert printed == json.loads((ROOT / "plugins/plugin_utils/data/flags/0.5.23.json").read_text())


def test_the_release_accepts_ct129(deployed, host):
    """The argument list of the rendered unit (checked word by word in tests/unit/test_ct129.py) goes through the release's own parser."""
    unit = (ROOT / "tests/unit/golden/sglang-qwen3-6-27b.service").read_text()
    command = re.search(r"^ExecStart=.*?serve \\\n(.*?)^\w", unit, re.MULTILINE | re.DOTALL).group(1)
    words = command.replace("\\\n", " ").split()
    assert words[:2] == ["--model-type", "llm"], "this one belongs to `sglang serve` and not to the server's parser"
    assert json.loads(engine_python(host, *words[2:])) == {
        "tp_size": 2,
        "dtype": "bfloat16",
        "mamba_radix_cache_strategy": "extra_buffer",
        "speculative_algorithm": "NEXTN",
        "nccl_port": 29000,
    }
