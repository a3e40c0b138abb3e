"""Measure site.yml on a fresh container and write docs/benchmarks.md.

Two questions, each answered within one run on one host, so that the numbers can be compared:

- What does an unchanged run cost, against the floor: the same number of trivial tasks (ping) over the same connection?
- Where does the time of a first run go, and how much of it is ours?
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import typing as t

import ansible_runner
import bench_fleet
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
PURPOSE = "bench"
PAIRS = 3
# Actions that never leave the controller.
LOCAL_ACTIONS = (
    "debug",
    "assert",
    "include_",
    "import_",
    "meta",
    "set_fact",
    "fail",
    "sglang_preflight",
    "sglang_report",
    "validate_argument_spec",
)
# Which phase a task's time belongs to, by its action; the rest is ours.
PHASES = {
    "engine_environment": "download and installation",
    "apt": "download and installation",
    "sglang_wait": "SGLang's own start",
    "sglang_probe": "SGLang's answers",
    "sglang_checkpoint": "training the demo model",
}


class Task(t.NamedTuple):
    """One task of a play as it ran on the host."""

    name: str
    action: str
    seconds: float


def run(inventory: pathlib.Path, playbook: pathlib.Path) -> tuple[float, list[Task], int, bool]:
    """Run a playbook. Returns (wall seconds, its remote tasks, how many tasks were executed at all, whether anything changed)."""
    started = datetime.datetime.now(tz=datetime.timezone.utc)
    with tempfile.TemporaryDirectory() as private:
        result = ansible_runner.run(
            private_data_dir=private, project_dir=str(ROOT), playbook=str(playbook), inventory=str(inventory), quiet=True
        )
        wall_s = (datetime.datetime.now(tz=datetime.timezone.utc) - started).total_seconds()
        if result.status != "successful":
            sys.exit(f"{playbook}: {result.status}\n{result.stdout.read()}")
        events = [event for event in result.events if event["event"] == "runner_on_ok"]
    tasks = [
        Task(data["task"], data["task_action"].rpartition(".")[2], data["duration"])
        for data in (event["event_data"] for event in events)
        if not data["task_action"].rpartition(".")[2].startswith(LOCAL_ACTIONS)
    ]
    return wall_s, tasks, len(events), any(event["event_data"]["res"].get("changed") for event in events)


def floor_playbook(tasks: int, directory: pathlib.Path) -> pathlib.Path:
    """A playbook of as many pings as an unchanged run has remote tasks."""
    play = {
        "hosts": "sglang",
        "gather_facts": False,
        "become": True,
        "tasks": [{"name": f"Trivial task {number}", "ansible.builtin.ping": {}} for number in range(tasks)],
    }
    path = directory / "floor.yml"
    path.write_text(yaml.safe_dump([play], sort_keys=False))
    return path


def table(rows: t.Sequence[t.Sequence[str]]) -> str:
    """A Markdown table; the first row is the head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def testhost(*words: str) -> None:
    """Run tools/testhost.py."""
    subprocess.run([sys.executable, str(ROOT / "tools/testhost.py"), *words], check=True)


def write_inventory(directory: pathlib.Path) -> pathlib.Path:
    """The demo's inventory with the bench's own container in it, and the checkout's group_vars beside it."""
    inventory = yaml.safe_load((ROOT / "inventory/demo.yml").read_text())
    host = inventory["sglang"]["children"]["demo"]["hosts"]["ct129"]
    host["ansible_ssh_common_args"] = f"-F {ROOT}/.cache/hosts/{PURPOSE}/ssh_config"
    host["sglang_verify_report_dir"] = str(directory / "reports")
    (directory / "group_vars").symlink_to(ROOT / "group_vars")
    path = directory / "hosts.yml"
    path.write_text(yaml.safe_dump(inventory))
    return path


def answering_s(directory: pathlib.Path) -> float:
    """Seconds that the engine itself took to answer the last verification: the sum over its checks."""
    report = json.loads(next(directory.glob("reports/*/*/report.json")).read_text())
    return sum(check["seconds"] or 0.0 for check in report["checks"])


class Pair(t.NamedTuple):
    """One unchanged run and its floors, taken one after the other."""

    run_s: float
    engine_s: float
    floor_all_s: float
    floor_remote_s: float


def unchanged_section(executed: int, remote: int, pairs: t.Sequence[Pair]) -> str:
    """What an unchanged run costs."""
    run_s, engine_s, all_s, remote_s = (statistics.median(column) for column in zip(*pairs))
    ratio_all = statistics.median((pair.run_s - pair.engine_s) / pair.floor_all_s for pair in pairs)
    ratio_remote = statistics.median((pair.run_s - pair.engine_s) / pair.floor_remote_s for pair in pairs)
    rows = [
        ["", "value"],
        ["tasks executed", str(executed)],
        ["of them on the host", str(remote)],
        ["unchanged site.yml", f"{run_s:.1f} s"],
        ["of it, the engine's own answering time", f"{engine_s:.1f} s"],
        [f"floor: {executed} pings", f"{all_s:.1f} s"],
        ["ratio without the engine's time, as many pings as tasks", f"{ratio_all:.2f}"],
        [f"floor: {remote} pings", f"{remote_s:.1f} s"],
        ["ratio without the engine's time, as many pings as tasks on the host", f"{ratio_remote:.2f}"],
    ]
    return f"""## An unchanged run against the floor

The floor is a play with as many trivial tasks (pings, over the same connection) as the run executes; the limit is 1.5 times that.
A second, harder comparison counts only the tasks that go to the host. It is no limit: a module that looks at services or copies takes
longer than a ping, and every task that is saved makes this ratio worse.
Medians of {len(pairs)} rounds, taken in turns.

{table(rows)}
"""


def first_section(wall_s: float, tasks: t.Sequence[Task]) -> str:
    """Where the time of a first run goes."""
    phases: dict[str, float] = {}
    for task in tasks:
        phase = PHASES.get(task.action, "ours: everything else on the host")
        phases[phase] = phases.get(phase, 0.0) + task.seconds
    phases["ours: Ansible between tasks"] = wall_s - sum(phases.values())
    ours_s = sum(seconds for phase, seconds in phases.items() if phase.startswith("ours"))
    rows = [["phase", "seconds", "share"]]
    rows += [[phase, f"{seconds:.0f}", f"{seconds / wall_s:.0%}"] for phase, seconds in sorted(phases.items(), key=lambda item: -item[1])]
    rows.append(["all", f"{wall_s:.0f}", "100%"])
    return f"""## Where the time of a first run goes

{table(rows)}

Ours: {ours_s / wall_s:.1%} of the wall time.
"""


def real_gpu_section(page: str) -> str:
    """The section that tools/gpu_machine.py was run for, as it stands: this machine has no GPU to measure it again."""
    return page[page.index("## On a real GPU") :]


def main() -> None:
    """Measure and write."""
    os.chdir(ROOT)
    site = ROOT / "playbooks/site.yml"
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        inventory = write_inventory(directory)
        testhost("destroy", PURPOSE)
        testhost("create", PURPOSE, "--hostname", "ct129")
        try:
            first_s, first, _executed, _changed = run(inventory, site)
            pairs = []
            for _ in range(PAIRS):
                wall_s, tasks, executed, changed = run(inventory, site)
                if changed:
                    sys.exit("an unchanged run changed something")
                engine_s = answering_s(directory)
                floors = [run(inventory, floor_playbook(count, directory))[0] for count in (executed, len(tasks))]
                pairs.append(Pair(wall_s, engine_s, *floors))
        finally:
            testhost("destroy", PURPOSE)
    text = f"""# Benchmarks

Written by `make bench` on {datetime.date.today()}: {os.cpu_count()} cores, Python {platform.python_version()} on the controller;
the host is a container on the same machine, the engine runs on the CPU. Downloads come from the cache of earlier runs when there is one.
Ratios are taken within one run.

{unchanged_section(executed, len(tasks), pairs)}
{first_section(first_s, first)}
{bench_fleet.section()}
{real_gpu_section((ROOT / "docs/benchmarks.md").read_text())}"""
    (ROOT / "docs/benchmarks.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
