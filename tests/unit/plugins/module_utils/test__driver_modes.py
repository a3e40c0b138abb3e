# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _driver_modes, _gpu_inventory, _gpu_smi
from ansible_collections.firstlight.sglang.plugins.module_utils._driver_modes import Modes
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_cell import Reading

SAMPLES = pathlib.Path(__file__).parents[3] / "fixtures/gpu"
A100 = "smi_mig_a100_v11.xml"


def inventory(text, container=False):
    system = Reading("system", host={"container": container, "virtualization": "lxc" if container else "none"})
    return _gpu_inventory.unite([system, _gpu_smi.parse_xml(text, 0)])


def sample(name, *changes):
    text = (SAMPLES / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def pair(mode, current, pending):
    return f"<current_{mode}>{current}</current_{mode}>\n\t\t\t<pending_{mode}>{pending}</pending_{mode}>"


# The A100's XML as recorded: ECC and MIG are on.
ON = {mode: pair(mode, "Enabled", "Enabled") for mode in ("ecc", "mig")}


def a100(container=False, **states):
    """states: mode -> (current, pending)."""
    return inventory(sample(A100, *((ON[mode], pair(mode, *words)) for mode, words in states.items())), container)


@pytest.mark.parametrize(
    ("modes", "states", "expected"),
    [
        (Modes(), {}, []),
        (Modes(ecc=True, mig=True), {}, []),
        (Modes(ecc=False), {}, [("ecc", "-e", "0")]),
        (Modes(ecc=False, mig=False), {}, [("ecc", "-e", "0"), ("mig", "-mig", "0")]),
        (Modes(ecc=False), {"ecc": ("Enabled", "Disabled")}, []),  # it waits: a second run says nothing
        (Modes(ecc=True), {"ecc": ("Enabled", "Disabled")}, [("ecc", "-e", "1")]),  # what waits is taken back
        (Modes(mig=True), {"mig": ("Disabled", "Disabled")}, [("mig", "-mig", "1")]),
        (Modes(mig=False), {"mig": ("N/A", "N/A")}, []),
    ],
)
def test_a_gpu_is_told_where_what_it_will_have_differs(modes, states, expected):
    found = a100(**states)
    (uuid,) = (gpu["uuid"] for gpu in found["gpus"])
    changes = _driver_modes.changes(modes, found)
    assert [(one["mode"], *one["argv"][3:]) for one in changes] == expected
    assert all(one["argv"][:3] == ["nvidia-smi", "-i", uuid] for one in changes)
    assert _driver_modes.problems(modes, found) == []


def test_a_gpu_without_the_mode_is_named_before_anything_is_touched():
    (problem,) = _driver_modes.problems(Modes(mig=True), a100(mig=("N/A", "N/A")))
    assert problem.code == "mig_not_supported"
    assert "A100" in problem.text
    assert "leave gpu_driver_mig out" in problem.text
    assert _driver_modes.changes(Modes(mig=True), a100(mig=("N/A", "N/A"))) == []


def test_a_container_changes_nothing_and_waits_for_nothing():
    found = a100(container=True, ecc=("Disabled", "Enabled"))
    (problem,) = _driver_modes.problems(Modes(ecc=True, mig=False), found)
    assert problem.code == "modes_in_container"
    assert "a hypervisor: in host_vars or group_vars of its own" in problem.text
    assert _driver_modes.problems(Modes(), found) == []
    assert _driver_modes.pending(found) == []


def test_gpus_that_no_driver_answers_for_are_no_problem_yet():
    card = {"pci_bus_id": "00000000:01:00.0", "pci_device_id": "10de:2230", "kernel_driver": None}
    found = _gpu_inventory.unite([Reading("system", host={"container": False}), Reading("sysfs", gpus=[card])])
    assert _driver_modes.problems(Modes(ecc=True, mig=True), found) == []
    assert _driver_modes.changes(Modes(ecc=True, mig=True), found) == []


def test_what_waits_is_told_with_the_services_that_were_sized_for_what_is():
    found = a100(ecc=("Disabled", "Enabled"))
    assert [text.partition(" on 0")[0] for text in _driver_modes.pending(found)] == ["ECC is off and will be on"]
    found["gpus"][0]["processes"] = [{"pid": 7, "unit": "sglang-main.service"}, {"pid": 8, "unit": None}]
    (note,) = _driver_modes.notes(found, [])
    assert note.startswith("sglang-main.service runs on 00000000:")
    assert "present ECC mode" in note
    both = _driver_modes.notes(found, _driver_modes.changes(Modes(mig=False), found))
    assert "present ECC and MIG mode" in both[0]
    assert _driver_modes.notes(a100(), []) == []


def test_memory_that_is_to_be_set_aside_waits_too():
    found = inventory(sample("smi_h200_qx.xml", ("<remapped_row_pending>No<", "<remapped_row_pending>Yes<")))
    assert [text.partition(" on 0")[0] for text in _driver_modes.pending(found)] == ["bad memory is to be set aside"]
