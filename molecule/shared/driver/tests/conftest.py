"""The role against the container, with other variables than the scenario's, and what is on the container before and after.

Every test asks for the host, directly or through one of these: pytest would run one that does not after all the others.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

SHARED = Path(__file__).resolve().parents[1]
CHECKOUT = SHARED.parents[2]


@pytest.fixture
def role(tmp_path):
    """Run the role; what Ansible printed, with the lines of long messages joined."""

    def run(*options, ok=True, **variables):
        (tmp_path / "vars.yml").write_text(yaml.safe_dump(variables))
        arguments = ["-i", SHARED / "inventory/hosts.yml", SHARED / "role.yml", "-e", f"@{tmp_path / 'vars.yml'}", *options]
        done = subprocess.run(
            ["ansible-playbook", *arguments],
            cwd=CHECKOUT,
            env={**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        out = done.stdout + done.stderr
        assert (done.returncode == 0) == ok, out
        return " ".join(out.replace("''", "'").split())

    return run


@pytest.fixture
def state(host):
    """Files of the system and installed packages, to be compared."""

    def look():
        files = host.check_output("find /etc /usr/local /var/lib/firstlight -type f -exec sha256sum {} + 2>/dev/null | sort || true")
        return files, host.check_output("dpkg-query -W -f='${binary:Package} ${Version} ${db:Status-Abbrev}\\n'")

    return look


@pytest.fixture
def kernel(host):
    """The kernel that the module is built for: see prepare.yml."""
    return host.check_output("cat /srv/kernel")
