# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_choice import problems, warnings

UUIDS = [f"GPU-00000000-0000-4000-8000-00000000000{number}" for number in range(8)]
MIG = "MIG-00000000-0000-4000-8000-000000000010"


def gpu(index, **changes):
    """A GPU that is well: what of it a choice looks at."""
    return {
        "index": index,
        "uuid": UUIDS[index],
        "name": "NVIDIA RTX A6000",
        "pci_bus_id": f"00000000:0{index + 1}:00.0",
        "pci_device_id": "10de:2230",
        "health": "ok",
        "usable": True,
        "memory_total_mib": 49140,
        "memory_used_mib": 1,
        "mig_enabled": None,
        "mig_devices": [],
        "processes": [],
        **changes,
    }


def without_index(number, health, **changes):
    """A GPU that nvidia-smi does not count."""
    return {**gpu(number), "index": None, "uuid": None, "name": None, "health": health, "usable": False, **changes}


def divided(index, *devices):
    """A GPU in MIG mode."""
    return gpu(index, mig_enabled=True, usable=False, mig_devices=[{"uuid": uuid, "name": "1g.10gb"} for uuid in devices])


def problem(code, found, address=None, severity="error"):
    return {"code": code, "severity": severity, "gpu": address, "found": found, "action": "Mend it."}


def inventory(*gpus, driver="580.159.04", told=()):
    return {"driver_version": driver, "gpus": list(gpus), "problems": list(told)}


def instance(*gpus, name="a", release="0.5.23", **changes):
    return {"name": name, "unit": f"sglang-{name}.service", "gpus": list(gpus), "environment": {"release": release}, **changes}


TWO = [gpu(0), gpu(1)]
NO_DRIVER = "expected NVIDIA's driver 580.65.06 or later and the GPUs 0, 1, found no loaded driver"
LOST = without_index(1, "lost")
TOLD_LOST = problem("gpu_lost", "GPU (00000000:02:00.0) is lost", "00000000:02:00.0")

# (instances, inventory, the beginnings of all sentences)
CASES = {
    "a CPU instance needs nothing": ([instance()], inventory(driver=None), []),
    "by index": ([instance(0, 1)], inventory(*TWO), []),
    "an index as text": ([instance("0", "1")], inventory(*TWO), []),
    "by UUID": ([instance(UUIDS[1])], inventory(*TWO), []),
    "no driver and no GPU": (
        [instance(0), instance(1, name="b")],
        inventory(driver=None),
        [f"{NO_DRIVER}. Install the driver first; in a container, on its host."],
    ),
    "a hypervisor": (
        [instance(0, 1)],
        inventory(without_index(0, "passed_through"), driver=None),
        [f"{NO_DRIVER}; there is 00000000:01:00.0 (is passed through to a guest). Install the driver first"],
    ),
    "no driver, the cause is known, and all of it is told": (
        [instance(0, 1)],
        inventory(
            without_index(0, "no_driver"),
            driver=None,
            told=[problem("secure_boot_refused", "Secure Boot is on"), problem("dkms_build_missing", "no module for 6.17")],
        ),
        [
            f"{NO_DRIVER}: Secure Boot is on. Mend it.",
            "expected that the GPUs 0, 1 can be used, found that no module for 6.17. Mend it.",
        ],
    ),
    "the driver is too old": ([instance(0)], inventory(*TWO, driver="550.163.01"), ["expected NVIDIA's driver 580.65.06 or later"]),
    "what it serves": (
        [instance(0)],
        {**inventory(*TWO, driver="550.163.01"), "cuda_driver_version": "12.4"},
        [
            "expected NVIDIA's driver 580.65.06 or later (SGLang brings CUDA 13.0), found 550.163.01 loaded, "
            "which serves CUDA 12.4 at most. Upgrade the driver."
        ],
    ),
    "just new enough": ([instance(0)], inventory(*TWO, driver="580.65.06"), []),
    "an older release": ([instance(0, release="0.5.10.post1")], inventory(*TWO, driver="570.86.10"), []),
    "a version that is not known does not pass": (
        [instance(0)],
        inventory(*TWO, driver=None),
        ["expected NVIDIA's driver 580.65.06 or later (SGLang brings CUDA 13.0), found a driver that does not say its version."],
    ),
    "everything at once": (
        [instance(5, name="b"), instance(UUIDS[7])],
        inventory(*TWO, driver="550.163.01"),
        [
            "expected NVIDIA's driver 580.65.06 or later (SGLang brings CUDA 13.0), found 550.163.01 loaded. Upgrade the driver.",
            "b: expected the GPU 5, found 0, 1. Change gpus.",
            f"a: expected the GPU {UUIDS[7]}, found {UUIDS[0]}, {UUIDS[1]}. Change gpus.",
        ],
    ),
    "a driver, and no GPU": ([instance(0)], inventory(), ["a: expected the GPU 0, found no GPUs. Change gpus."]),
    "no MIG device": ([instance(MIG)], inventory(*TWO), [f"a: expected the GPU {MIG}, found no MIG devices. Change gpus."]),
    "the library is another": (
        [instance(0)],
        inventory(
            without_index(0, "unknown"),
            told=[problem("driver_library_mismatch", "the loaded module is 580.126.09, the library 580.159.04")],
        ),
        ["expected that the GPUs 0 can be used, found that the loaded module is 580.126.09, the library 580.159.04. Mend it."],
    ),
    "CUDA has no device node": (
        [instance(0)],
        inventory(*TWO, told=[problem("uvm_missing", "/dev/nvidia-uvm is no device but a file")]),
        ["expected that the GPUs 0 can be used, found that /dev/nvidia-uvm is no device but a file. Mend it."],
    ),
    "another GPU without a driver": (
        [instance(0)],
        inventory(gpu(0), without_index(1, "no_driver"), told=[problem("nouveau_bound", "nouveau drives GPU (00000000:02:00.0)")]),
        [],
    ),
    "this GPU without a driver": (
        [instance(1)],
        inventory(gpu(0), without_index(1, "no_driver"), told=[problem("nouveau_bound", "nouveau drives GPU (00000000:02:00.0)")]),
        [
            "expected that the GPUs 1 can be used, found that nouveau drives GPU (00000000:02:00.0). Mend it.",
            "a: expected the GPU 1, found 0, 00000000:02:00.0 (has no NVIDIA driver). Change gpus.",
        ],
    ),
    "one is passed through": (
        [instance(1)],
        inventory(gpu(0), without_index(1, "passed_through")),
        ["a: expected the GPU 1, found 0, 00000000:02:00.0 (is passed through to a guest). Change gpus."],
    ),
    "a lost one is asked for, and indices beside it": (
        [instance(0, 1)],
        inventory(gpu(0), gpu(2), LOST, told=[TOLD_LOST]),
        [
            "a: expected the GPU 1, found 0, 2, 00000000:02:00.0 (is lost). Change gpus.",
            "a: expected UUIDs in gpus, since GPU (00000000:02:00.0) is lost and CUDA may count the others differently; found indices. "
            f"Write {UUIDS[0]}.",
        ],
    ),
    "UUIDs beside a lost one": ([instance(UUIDS[0], UUIDS[2])], inventory(gpu(0), gpu(2), LOST, told=[TOLD_LOST]), []),
    "the lost one still has a number": (
        [instance(UUIDS[1])],
        inventory(gpu(0), gpu(1, health="lost", usable=False), told=[TOLD_LOST]),
        [f"a: expected that the GPU {UUIDS[1]} can be used, found that GPU (00000000:02:00.0) is lost. Mend it."],
    ),
    "needs a reset": (
        [instance(UUIDS[0])],
        inventory(gpu(0, health="needs_reset", usable=False)),
        [f"a: expected that the GPU {UUIDS[0]} can be used, found that GPU 0 (00000000:01:00.0, NVIDIA RTX A6000) needs a reset."],
    ),
    "a MIG device": ([instance(MIG)], inventory(divided(0, MIG), gpu(1)), []),
    "a MIG device of a GPU that needs a reset": (
        [instance(MIG)],
        inventory({**divided(0, MIG), "health": "needs_reset"}),
        [f"a: expected that the GPU {MIG} can be used, found that GPU 0 (00000000:01:00.0"],
    ),
    "UUIDs of MIG devices are not known": ([instance(MIG)], inventory(divided(0, None)), []),
    "the parent of MIG devices": (
        [instance(UUIDS[0])],
        inventory(divided(0, MIG)),
        [f"a: expected a GPU of its own, found that {UUIDS[0]} is divided (MIG). Choose one of its devices in gpus: {MIG} (1g.10gb)."],
    ),
    "MIG is on and no device is made": (
        [instance(UUIDS[0])],
        inventory(divided(0)),
        [f"a: expected a GPU of its own, found that {UUIDS[0]} is divided (MIG). Make MIG devices on it, or switch MIG off."],
    ),
    "the parent of MIG devices by index": (
        [instance(0)],
        inventory(divided(0, MIG)),
        ["a: expected a GPU of its own, found that 0 is divided (MIG)."],
    ),
    "an index beside a divided GPU": (
        [instance(1)],
        inventory(divided(0, MIG), gpu(1)),
        [
            f"a: expected UUIDs in gpus, since GPU 0 (00000000:01:00.0, NVIDIA RTX A6000) is divided (MIG) "
            f"and CUDA may count the others differently; found indices. Write {UUIDS[1]}."
        ],
    ),
    "another MIG device": (
        [instance(MIG.replace("10", "11"))],
        inventory(divided(0, MIG)),
        [f"a: expected the GPU {MIG.replace('10', '11')}, found {MIG} (1g.10gb). Change gpus."],
    ),
    "different models": (
        [instance(0, 1)],
        inventory(
            gpu(0, name="NVIDIA GeForce RTX 5090", memory_total_mib=32607), gpu(1, name="NVIDIA RTX PRO 6000", memory_total_mib=97887)
        ),
        [
            "a: expected equal GPUs (each gets an equal part of the model), found 0 (NVIDIA GeForce RTX 5090, 32607 MiB); "
            "1 (NVIDIA RTX PRO 6000, 97887 MiB). Change gpus, or set allow_unequal_gpus: true."
        ],
    ),
    "the same model with other memory": (
        [instance(0, 1)],
        inventory(gpu(0, memory_total_mib=10240), gpu(1, memory_total_mib=20480)),
        ["a: expected equal GPUs"],
    ),
    "ECC takes a little of one": ([instance(0, 1)], inventory(gpu(0), gpu(1, memory_total_mib=46068)), []),
    "different models that were allowed": (
        [instance(0, 1, allow_unequal_gpus=True)],
        inventory(gpu(0, name="NVIDIA GeForce RTX 5090"), gpu(1)),
        [],
    ),
    "different models of two instances": ([instance(0), instance(1, name="b")], inventory(gpu(0, name="Other"), gpu(1)), []),
    "memory is not known (unified)": ([instance(0)], inventory(gpu(0, memory_total_mib=None)), []),
    "one GPU by index and by UUID": (
        [instance(0), instance(UUIDS[0], name="b")],
        inventory(*TWO),
        [f"b: expected a GPU of its own, found that {UUIDS[0]} is 0 of a. Change gpus."],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_problems(case):
    instances, found, expected = CASES[case]
    sentences = problems(instances, found)
    assert len(sentences) == len(expected), sentences
    for sentence, beginning in zip(sentences, expected):
        assert sentence.startswith(beginning), sentence


FOREIGN = problem("foreign_processes", "GPU 0: memory is held by x (pid 1, 900 MiB)", "00000000:01:00.0", "warning")
ECC = problem("ecc_change_pending", "GPU 0: ECC changes at the next reboot", "00000000:01:00.0", "warning")


@pytest.mark.parametrize(
    ("gpus", "told", "running", "expected"),
    [
        ([gpu(0), gpu(1)], [], [], []),
        ([gpu(0), gpu(1)], [ECC], [], ["a: GPU 0: ECC changes at the next reboot. Mend it."]),
        ([gpu(0), gpu(1)], [{**ECC, "gpu": "00000000:02:00.0"}], [], []),
        ([gpu(0), gpu(1)], [{**ECC, "severity": "info"}], [], []),
        ([gpu(0), gpu(1)], [problem("unequal_gpus", "the GPUs are not alike", severity="warning")], [], []),
        # One that is lost may keep new processes from every other one (case A09).
        ([gpu(0), LOST], [TOLD_LOST], [], ["GPU (00000000:02:00.0) is lost. Mend it."]),
        (
            [gpu(0)],
            [problem("reboot_required", "module 595.80 is installed", severity="warning")],
            [],
            ["module 595.80 is installed. Mend it."],
        ),
        # A GPU without an address (Jetson) is not what a problem of the host is about.
        ([gpu(0, pci_bus_id=None)], [{**ECC, "gpu": None}], [], ["GPU 0: ECC"]),
        ([gpu(0, memory_used_mib=20000)], [], [], ["a: 20000 MiB of the GPU 0 are in use by nothing that can be seen from here."]),
        ([gpu(0, memory_used_mib=20000)], [], ["sglang-a.service"], []),
        ([gpu(0, memory_used_mib=20000, processes=[{"pid": 1}])], [], [], []),
        ([gpu(0, memory_used_mib=None)], [], [], []),
        # What holds memory may be the running engine, where its unit is not known (a container).
        ([gpu(0, processes=[{"pid": 1, "unit": None}])], [FOREIGN], ["sglang-a.service"], []),
        ([gpu(0, processes=[{"pid": 1, "unit": None}])], [FOREIGN], [], ["a: GPU 0: memory is held"]),
        ([gpu(0, processes=[{"pid": 1, "unit": "x.service"}])], [FOREIGN], ["sglang-a.service"], ["a: GPU 0: memory is held"]),
    ],
)
def test_warnings(gpus, told, running, expected):
    sentences = warnings([instance(0), instance(name="cpu")], inventory(*gpus, told=told), running)
    assert len(sentences) == len(expected), sentences
    assert all(sentence.startswith(beginning) for sentence, beginning in zip(sentences, expected)), sentences


BLANK = [without_index(0, "no_driver"), without_index(1, "no_driver")]
NOUVEAU = problem("nouveau_bound", "nouveau drives it")


@pytest.mark.parametrize(
    ("asked", "gpus", "told", "container", "expected"),
    [
        ([0, 1], BLANK, [NOUVEAU], False, []),
        ([0, 2], BLANK, [NOUVEAU], False, ["a: expected the GPU 2, found 0, 1. Change gpus."]),
        (
            [0, 1],
            [*BLANK[1:], without_index(0, "passed_through")],
            [],
            False,
            ["a: expected the GPU 1, found 0, 00000000:01:00.0 (is passed"],
        ),
        ([UUIDS[7]], BLANK, [NOUVEAU], False, []),
        ([0, 5], BLANK, [NOUVEAU], True, []),
        (
            [0, 1],
            [BLANK[0], LOST],
            [TOLD_LOST],
            False,
            ["a: expected that the GPU 1 can be used, found that GPU", "a: expected UUIDs in gpus"],
        ),
        ([0], BLANK, [problem("driver_hangs", "it hangs")], False, ["expected that the GPUs 0 can be used, found that it hangs"]),
        ([0, 2], TWO, [problem("driver_library_mismatch", "they differ")], False, ["a: expected the GPU 2, found 0, 1. Change gpus."]),
        ([0, 1], [gpu(0), gpu(1, name="NVIDIA L4")], [], False, ["a: expected equal GPUs"]),
    ],
)
def test_before_a_driver_comes_only_what_none_mends_is_told(asked, gpus, told, container, expected):
    found = problems([instance(*asked)], {**inventory(*gpus, driver="550.163.01", told=told), "container": container}, True)
    assert len(found) == len(expected), found
    assert all(text.startswith(beginning) for text, beginning in zip(found, expected))


def test_a_mig_device_that_could_not_be_checked_is_told():
    assert warnings([instance(MIG)], inventory(divided(0, None))) == [
        f"a: whether {MIG} exists could not be checked. Compare it with nvidia-smi -L."
    ]


@pytest.mark.parametrize(
    ("release", "driver", "cuda"),
    [("0.5.10", "525.60.13", "12.8"), ("0.5.11", "580.65.06", "13.0"), ("0.5.12rc1", "580.65.06", "13.0"), ("1.0", "580.65.06", "13.0")],
)
def test_the_driver_that_a_release_needs(release, driver, cuda):
    (text,) = problems([instance(0, release=release)], inventory(gpu(0), driver="520.61.05"))
    assert text.startswith(f"expected NVIDIA's driver {driver} or later (SGLang brings CUDA {cuda}), found 520.61.05 loaded")
    assert problems([instance(0, release=release)], inventory(gpu(0), driver=driver)) == []
