"""The reference deployment: what inventory/ct129.example.yml renders, word by word."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = pathlib.Path(__file__).parent / "golden/sglang-qwen3-6-27b.service"


def render(directory):
    """The unit, as the role's template renders it for the example inventory."""
    play = {
        "hosts": "ct129",
        "connection": "local",
        "gather_facts": False,
        "become": False,
        "vars": {"ansible_become": False, "ansible_python_interpreter": sys.executable},
        "vars_files": [str(ROOT / "roles/sglang_server/defaults/main.yml")],
        "tasks": [
            {
                "ansible.builtin.template": {
                    "src": str(ROOT / "roles/sglang_server/templates/sglang.service.j2"),
                    "dest": str(directory / "{{ item.unit }}"),
                    "mode": "0644",
                },
                "loop": "{{ sglang_server_instances }}",
            }
        ],
    }
    (directory / "play.yml").write_text(yaml.safe_dump([play]))
    command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", "inventory/ct129.example.yml", directory / "play.yml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return (directory / GOLDEN.name).read_text()


def test_the_unit_of_ct129(tmp_path):
    """The lock's digest is the one word that changes when packages do. To accept a change: copy what the failure shows."""
    unit = re.sub(r"(releases/0\.5\.23-cuda-|sglang/0\.5\.23-cuda-)[0-9a-f]{8}", r"\1LOCK", render(tmp_path))
    assert unit == GOLDEN.read_text()
