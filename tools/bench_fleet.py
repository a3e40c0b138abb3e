"""How long the fleet report of a thousand hosts takes, in one process without Ansible. Prints a section of docs/benchmarks.md.

The hosts are made from a captured machine with eight GPUs (tests/doubles/gpu_results.py), with changed identifiers.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
import time
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/doubles")]

import gpu_results  # noqa: E402
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_fleet as fleet  # noqa: E402
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_fleet_page as fleet_page  # noqa: E402
from ansible_collections.firstlight.sglang.plugins.plugin_utils import report  # noqa: E402

HOSTS = 1000
ROUNDS = 3


def section() -> str:
    """What a report of many hosts costs."""
    results = gpu_results.large_fleet(HOSTS)
    now = "2026-12-01T00:00:00Z"
    document = fleet.fleet({host: fleet.outcome(result) for host, result in results.items()}, now)
    earlier = fleet.json_text(document)
    steps: dict[str, t.Callable[[], object]] = {
        "uniting the results": lambda: fleet.fleet({host: fleet.outcome(result) for host, result in results.items()}, now),
        "comparing with the earlier report": lambda: fleet.difference(json.loads(earlier), document),
        "JSON": lambda: fleet.json_text(document),
        "CSV": lambda: fleet.csv_text(document),
        "Markdown": lambda: fleet.markdown_text(document),
        "HTML": lambda: report.html("gpu_fleet.html.j2", page=fleet_page.page(document)),
    }
    rows = [("", "seconds", "MB")]
    total_s = 0.0
    for name, step in steps.items():
        taken = []
        made: object = None
        for _ in range(ROUNDS):
            started = time.perf_counter()
            made = step()
            taken.append(time.perf_counter() - started)
        seconds = statistics.median(taken)
        total_s += seconds
        rows.append((name, f"{seconds:.2f}", f"{len(made.encode()) / 1e6:.1f}" if isinstance(made, str) else ""))
    rows.append(("all", f"{total_s:.2f}", ""))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    table = "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
    return f"""## The fleet report of {HOSTS} hosts

{document["summary"]["gpus"]} GPUs, in one process without Ansible; medians of {ROUNDS}.

{table}
"""


if __name__ == "__main__":
    print(section())
