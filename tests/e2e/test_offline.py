"""The environment installs from a wheelhouse alone. Slow: every wheel of the lock is fetched first."""

from __future__ import annotations

import pytest
import yaml
from driver import ROOT

pytestmark = pytest.mark.slow


def test_an_environment_from_a_wheelhouse(deployed, host, tmp_path):
    locks = ("0.5.23-cpu", "uv")
    copy = [
        {"ansible.builtin.copy": {"src": f"{ROOT}/roles/sglang_venv/files/locks/{name}.txt", "dest": f"/srv/{name}.txt", "mode": "0644"}}
        for name in locks
    ]
    prepare = tmp_path / "prepare.yml"
    prepare.write_text(yaml.safe_dump([{"hosts": "sglang", "gather_facts": False, "become": True, "tasks": copy}]))
    assert deployed.play(str(prepare)).status == "successful"
    host.check_output("python3 -m venv /srv/pip")
    pip = "/srv/pip/bin/pip download -q --no-deps --require-hashes --only-binary :all: -d /srv/wheels"
    for name in locks:
        host.check_output(f"{pip} -r /srv/{name}.txt")
    playbook = tmp_path / "venv.yml"
    roles = [{"role": "firstlight.sglang.sglang_venv"}]
    playbook.write_text(yaml.safe_dump([{"hosts": "sglang", "gather_facts": False, "become": True, "roles": roles}]))
    play = deployed.play(
        str(playbook),
        sglang_root="/opt/offline",
        sglang_venv_wheelhouse="/srv/wheels",
        sglang_venv_uv_cache_dir="/opt/offline/cache",  # an empty one
    )
    assert play.status == "successful", play.output
    assert "--tp-size" in host.check_output("/opt/offline/releases/0.5.23-cpu-*/bin/sglang serve --help 2>/dev/null")
