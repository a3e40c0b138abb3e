"""What a site sets for its instances, as the roles' defaults do."""

from __future__ import annotations

from ansible_collections.firstlight.sglang.plugins.module_utils import _instances

SETTINGS = _instances.Settings(
    release="0.5.23",
    variant="cuda",
    root="/opt/sglang",
    config_dir="/etc/sglang",
    state_dir="/var/lib/sglang",
    cache_dir="/var/cache/sglang",
    models_dir="/var/lib/sglang/models",
    unit_dir="/etc/systemd/system",
    user="sglang",
)
