from __future__ import annotations

from ansible_collections.firstlight.sglang.plugins.module_utils._host_needs import room_problems


def test_room():
    assert room_problems([("a", 8, 9.5)]) == []
    assert room_problems([("/opt/x", 15, 3.21)])[0].startswith("expected 15 GB free for /opt/x, found 3.2 GB")
