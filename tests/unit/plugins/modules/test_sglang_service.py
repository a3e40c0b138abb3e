"""What the module makes of units that are no longer listed, with a host that only pretends."""

from __future__ import annotations

import pytest
from ansible_collections.firstlight.sglang.plugins.modules import sglang_service

INSTANCE = {"name": "demo", "unit": "sglang-demo.service", "host": "127.0.0.1", "port": 30000, "nccl_port": 29000}
UNIT = """[X-Firstlight]
Instance=old
[Service]
ExecStart=/e/python run -- \\
  /e/sglang serve \\
  --host 127.0.0.1 \\
  --port 30000 \\
  --nccl-port 29001
"""


class PretendedHost(sglang_service.Host):
    def __init__(self, shown):
        super().__init__(None)
        self.shown = shown

    def show(self, units):
        return {unit: self.shown for unit in units if self.shown}


@pytest.mark.parametrize(
    ("shown", "refused"),
    [
        ({"ActiveState": "active", "UnitFileState": "disabled"}, True),
        ({"ActiveState": "activating", "UnitFileState": "disabled"}, True),
        ({"ActiveState": "inactive", "UnitFileState": "enabled"}, True),  # at the next boot
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, False),
        ({"ActiveState": "failed", "UnitFileState": "disabled"}, False),
        ({}, True),  # cannot be known
    ],
)
def test_an_unlisted_unit_with_the_same_port(tmp_path, shown, refused):
    (tmp_path / "sglang-old.service").write_text(UNIT)
    (tmp_path / "sglang-others.service").write_text(UNIT.partition("\n")[2])  # not ours
    (tmp_path / "sglang-demo.service").write_text(UNIT)
    host = PretendedHost(shown)
    unlisted = host.unlisted(tmp_path, {"sglang-demo.service"})
    assert list(unlisted) == ["sglang-old.service"]
    problems = sglang_service.conflicts_with_unlisted(host, [INSTANCE], unlisted)
    assert len(problems) == refused
    assert all("sglang-old.service is no longer listed and has port 30000" in problem for problem in problems)
