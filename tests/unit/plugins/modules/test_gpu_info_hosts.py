"""The module on every recorded host, with the double in the place of nvidia-smi."""

from __future__ import annotations

import pytest
from recorded_hosts import look


@pytest.mark.parametrize(
    ("host", "health", "problems", "groups", "together"),
    [
        ("2x_a6000", ["ok", "ok"], [], ["gpu_rtx_a6000", "gpu_arch_ampere"], [[0], [0, 1]]),
        ("4x_a6000_hypervisor", ["ok"] * 4, [], ["gpu_rtx_a6000", "gpu_arch_ampere"], [[0], [0, 1], [0, 1, 2, 3]]),
        ("none", [], [], ["gpu_none"], []),
        (
            "lost",
            ["ok", "lost", "ok", "ok"],
            ["gpu_lost"],
            ["gpu_rtx_pro_6000_blackwell_max_q_workstation_edition", "gpu_arch_blackwell"],
            [[0], [0, 2]],
        ),
        ("mig", ["ok"], [], ["gpu_h200", "gpu_arch_hopper"], []),
        ("mismatch", ["unknown"], ["driver_library_mismatch"], ["gpu_rtx_a6000", "gpu_arch_ampere"], []),
        ("8x_h100", ["ok"] * 8, [], ["gpu_h100_80gb_hbm3", "gpu_arch_hopper"], [[0], [0, 1], [0, 1, 2, 3], list(range(8))]),
        ("gb10", ["ok"], ["foreign_processes"], ["gpu_gb10", "gpu_arch_blackwell"], [[0]]),
        ("nouveau", ["no_driver"], ["nouveau_bound"], ["gpu_arch_ampere"], []),
        ("vfio", ["passed_through"], ["passed_through"], ["gpu_none"], []),
        ("wsl2", ["ok"], ["wsl"], ["gpu_geforce_gtx_1650_ti_with_max_q_design", "gpu_arch_turing"], [[0]]),
    ],
)
def test_a_host_is_what_it_was_built_to_be(host, health, problems, groups, together):
    result = look(host)
    assert [gpu["health"] for gpu in result["gpus"]] == health
    assert [problem["code"] for problem in result["problems"]] == problems
    assert result["group_names"] == groups
    assert [group["indices"] for group in result["gpu_groups"]] == together


def test_mig_devices_have_the_uuids_that_the_list_gives():
    """The XML has none (DTD v13)."""
    (gpu,) = look("mig")["gpus"]
    assert [(device["name"], device["uuid"][-3:]) for device in gpu["mig_devices"]] == [
        ("1c.3g.71gb", "450"),
        ("2c.3g.71gb", "451"),
        ("2g.35gb", "452"),
    ]
    assert gpu["mig_memory_total_mib"] == 71424 + 33280
