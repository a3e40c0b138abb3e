# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import itertools

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_generations import (
    ATTENTION_RELEASES,
    BY_COMPUTE_CAPABILITY,
    CHIPS,
    DEVICES,
    as_result,
    by_compute_capability,
    by_pci_device_id,
    common_flavours,
    default_attention_backend,
)

OPEN, PROPRIETARY, BOTH = ["open"], ["proprietary"], ["open", "proprietary"]
P40, GTX_1050, RTX_3090, A6000, H100, RTX_5090 = "10de:1b38", "10de:1c81", "10de:2204", "10de:2230", "10de:2330", "10de:2b85"
QWEN3, QWEN3_6 = "Qwen3ForCausalLM", "Qwen3_5ForConditionalGeneration"

# Products with their ids as NVIDIA's own lists have them, and what they are: per chip the first and the last id of the lists among them.
PRODUCTS = [
    ("10de:0fc6", "Kepler", "3.0", PROPRIETARY, 470),  # GTX 650
    ("10de:0ff2", "Kepler", "3.0", PROPRIETARY, 367),  # GRID K1
    ("10de:11bf", "Kepler", "3.0", PROPRIETARY, 367),  # GRID K2
    ("10de:1001", "Kepler", "3.5", PROPRIETARY, 470),  # GTX TITAN Z
    ("10de:102d", "Kepler", "3.7", PROPRIETARY, 470),  # Tesla K80
    ("10de:103c", "Kepler", "3.5", PROPRIETARY, 470),  # Quadro K5200
    ("10de:1180", "Kepler", "3.0", PROPRIETARY, 470),  # GTX 680
    ("10de:11fc", "Kepler", "3.0", PROPRIETARY, 470),  # Quadro K2100M
    ("10de:128b", "Kepler", "3.5", PROPRIETARY, 470),  # GT 710
    ("10de:12ba", "Kepler", "3.5", PROPRIETARY, 470),  # Quadro K510M
    ("10de:1340", "Maxwell", "5.0", PROPRIETARY, 580),  # 830M
    ("10de:137d", "Maxwell", "5.0", PROPRIETARY, 580),  # 940A
    ("10de:1380", "Maxwell", "5.0", PROPRIETARY, 580),  # GTX 750 Ti
    ("10de:13f2", "Maxwell", "5.2", PROPRIETARY, 580),  # Tesla M60
    ("10de:1436", "Maxwell", "5.2", PROPRIETARY, 580),  # Quadro M2200
    ("10de:1667", "Maxwell", "5.2", PROPRIETARY, 580),  # GTX 965M
    ("10de:174d", "Maxwell", "5.0", PROPRIETARY, 580),  # MX130
    ("10de:179c", "Maxwell", "5.0", PROPRIETARY, 580),  # 940MX
    ("10de:17fd", "Maxwell", "5.2", PROPRIETARY, 580),  # Tesla M40
    ("10de:15f9", "Pascal", "6.0", PROPRIETARY, 580),  # Tesla P100
    (P40, "Pascal", "6.1", PROPRIETARY, 580),
    ("10de:1be1", "Pascal", "6.1", PROPRIETARY, 580),  # GTX 1070 Mobile
    (GTX_1050, "Pascal", "6.1", PROPRIETARY, 580),
    ("10de:1d10", "Pascal", "6.1", PROPRIETARY, 580),  # MX150
    ("10de:1db4", "Volta", "7.0", PROPRIETARY, 580),  # Tesla V100
    ("10de:1df6", "Volta", "7.0", PROPRIETARY, 580),  # Tesla V100S
    ("10de:1e02", "Turing", "7.5", BOTH, None),  # TITAN RTX
    ("10de:1e82", "Turing", "7.5", BOTH, None),  # RTX 2080
    ("10de:1eb8", "Turing", "7.5", BOTH, None),  # T4
    ("10de:1ff9", "Turing", "7.5", BOTH, None),  # T1000
    ("10de:2182", "Turing", "7.5", BOTH, None),  # GTX 1660 Ti
    ("10de:21d1", "Turing", "7.5", BOTH, None),  # GTX 1660 Ti Mobile
    ("10de:20b0", "Ampere", "8.0", BOTH, None),  # A100
    ("10de:20fd", "Ampere", "8.0", BOTH, None),  # AX800
    (RTX_3090, "Ampere", "8.6", BOTH, None),
    (A6000, "Ampere", "8.6", BOTH, None),
    ("10de:2238", "Ampere", "8.6", BOTH, None),  # A10M
    ("10de:2414", "Ampere", "8.6", BOTH, None),  # RTX 3060 Ti
    ("10de:25fb", "Ampere", "8.6", BOTH, None),  # RTX A500
    ("10de:2684", "Ada Lovelace", "8.9", BOTH, None),  # RTX 4090
    ("10de:26b9", "Ada Lovelace", "8.9", BOTH, None),  # L40S
    ("10de:27b8", "Ada Lovelace", "8.9", BOTH, None),  # L4
    ("10de:28f8", "Ada Lovelace", "8.9", BOTH, None),  # RTX 2000 Ada
    (H100, "Hopper", "9.0", BOTH, None),
    ("10de:2335", "Hopper", "9.0", BOTH, None),  # H200
    ("10de:233b", "Hopper", "9.0", BOTH, None),  # H200 NVL
    ("10de:2342", "Hopper", "9.0", OPEN, None),  # GH200 480GB
    ("10de:2348", "Hopper", "9.0", OPEN, None),  # GH200 144G
    ("10de:2901", "Blackwell", "10.0", OPEN, None),  # B200
    ("10de:2941", "Blackwell", "10.0", OPEN, None),  # GB200
    ("10de:29bb", "Blackwell", None, OPEN, None),  # DRIVE P2021
    ("10de:2b00", "Blackwell", "11.0", OPEN, None),  # Jetson AGX Thor
    (RTX_5090, "Blackwell", "12.0", OPEN, None),
    ("10de:2bb1", "Blackwell", "12.0", OPEN, None),  # RTX PRO 6000
    ("10de:2c58", "Blackwell", "12.0", OPEN, None),  # RTX 5090 Laptop
    ("10de:2d04", "Blackwell", "12.0", OPEN, None),  # RTX 5060 Ti
    ("10de:2df9", "Blackwell", "12.0", OPEN, None),  # RTX PRO 500
    ("10de:2e12", "Blackwell", "12.1", OPEN, None),  # GB10
    ("10de:2f58", "Blackwell", "12.0", OPEN, None),  # RTX 5070 Ti Laptop
    ("10de:3182", "Blackwell", "10.3", OPEN, None),  # B300
    ("10de:31c2", "Blackwell", "10.3", OPEN, None),  # GB300
]


@pytest.mark.parametrize(("device_id", "architecture", "capability", "flavours", "branch_last"), PRODUCTS, ids=[row[0] for row in PRODUCTS])
def test_a_device_id_says_what_its_chip_is(device_id, architecture, capability, flavours, branch_last):
    generation = by_pci_device_id(device_id)
    assert (generation.architecture, generation.compute_capability, generation.driver_branch_last) == (
        architecture,
        capability,
        branch_last,
    )
    assert list(generation.kernel_module_flavours) == flavours


@pytest.mark.parametrize(
    "device_id",
    [
        pytest.param("10de:0f00", id="Fermi, GF108"),
        pytest.param("10de:1080", id="Fermi, GF110, between GK110 and GK104"),
        pytest.param("10de:1140", id="Fermi, GF117, between GK110 and GK104"),
        pytest.param("10de:1251", id="Fermi, GF116, between GK106 and GK208"),
        pytest.param("10de:10f8", id="audio function of TU104"),
        pytest.param("10de:1aef", id="audio function of GA102"),
        pytest.param("10de:22e8", id="audio function of GB202"),
        pytest.param("10de:2f80", id="audio function of GB205"),
        pytest.param("10de:1ad8", id="USB function of TU104"),
        pytest.param("10de:1af1", id="NVSwitch of A100"),
        pytest.param("10de:22a3", id="NVSwitch of H100"),
        pytest.param("10de:22d1", id="bridge of GB10"),
        pytest.param("10de:229c", id="root port of Orin"),
        pytest.param("10de:3000", id="a chip without a product"),
        pytest.param("10de:ffff", id="nothing yet"),
        pytest.param("1002:2230", id="another vendor"),
        pytest.param("NVIDIA RTX A6000", id="a marketing name"),
        pytest.param("2230", id="no vendor"),
        pytest.param("10de:22300", id="too long"),
        pytest.param("10de:2230\n", id="a line"),
        pytest.param("", id="empty"),
    ],
)
def test_a_device_that_no_list_has_is_unknown(device_id):
    assert by_pci_device_id(device_id) is None


def test_a_device_id_may_be_in_upper_case():
    assert by_pci_device_id("10DE:2BB1") == by_pci_device_id("10de:2bb1") is not None


@pytest.mark.parametrize(
    ("capability", "architecture", "flavours", "branch_first", "branch_last", "data_types"),
    [
        ("3.5", "Kepler", PROPRIETARY, None, 470, []),
        ("5.2", "Maxwell", PROPRIETARY, None, 580, []),
        ("6.1", "Pascal", PROPRIETARY, None, 580, []),
        ("7.0", "Volta", PROPRIETARY, None, 580, []),
        ("7.5", "Turing", BOTH, None, None, ["fp16"]),
        ("8.0", "Ampere", BOTH, None, None, ["bf16", "fp16"]),
        ("8.6", "Ampere", BOTH, None, None, ["bf16", "fp16"]),
        ("8.7", "Ampere", OPEN, None, None, ["bf16", "fp16"]),  # Jetson Orin
        ("8.9", "Ada Lovelace", BOTH, 520, None, ["bf16", "fp16", "fp8"]),
        ("9.0", "Hopper", OPEN, 520, None, ["bf16", "fp16", "fp8"]),  # H100 or Grace Hopper
        ("10.0", "Blackwell", OPEN, 570, None, ["bf16", "fp16", "fp8", "fp4"]),
        ("10.3", "Blackwell", OPEN, 580, None, ["bf16", "fp16", "fp8", "fp4"]),
        ("11.0", "Blackwell", OPEN, 580, None, ["bf16", "fp16", "fp8", "fp4"]),  # Jetson Thor
        ("12.0", "Blackwell", OPEN, 570, None, ["bf16", "fp16", "fp8", "fp4"]),
        ("12.1", "Blackwell", OPEN, 580, None, ["bf16", "fp16", "fp8", "fp4"]),  # GB10
    ],
)
def test_a_compute_capability_says_its_generation(capability, architecture, flavours, branch_first, branch_last, data_types):
    generation = by_compute_capability(capability)
    assert (generation.architecture, generation.compute_capability) == (architecture, capability)
    assert (generation.driver_branch_first, generation.driver_branch_last) == (branch_first, branch_last)
    assert (list(generation.kernel_module_flavours), list(generation.data_types)) == (flavours, data_types)


@pytest.mark.parametrize("capability", ["2.1", "7.2", "8.8", "9", "10", "13.0", "86", "N/A", ""])
def test_a_compute_capability_that_no_list_has_is_unknown(capability):
    assert by_compute_capability(capability) is None


def test_no_id_is_in_two_blocks_and_every_block_is_in_order():
    bounds = [bound for first, last, _, _ in CHIPS for bound in (first, last)]
    assert bounds == sorted(set(bounds))


def test_an_exception_says_something_that_its_block_does_not():
    for number, generation in DEVICES.items():
        assert all(block != generation for first, last, _, block in CHIPS if first <= number <= last), hex(number)


def test_every_device_agrees_with_what_its_compute_capability_and_its_architecture_say():
    by_architecture = {generation.architecture: generation for generation in BY_COMPUTE_CAPABILITY.values()}
    for generation in [*(row[3] for row in CHIPS), *DEVICES.values()]:
        known = BY_COMPUTE_CAPABILITY[generation.compute_capability] if generation.compute_capability else by_architecture["Blackwell"]
        assert (generation.architecture, generation.data_types) == (known.architecture, known.data_types)
        assert set(known.kernel_module_flavours) <= set(generation.kernel_module_flavours), (
            "a device allows at least what its generation does"
        )
    assert {row[3].architecture for row in CHIPS} == set(by_architecture)


def test_every_generation_has_flavours_and_branches_that_are_possible():
    for generation in [*BY_COMPUTE_CAPABILITY.values(), *(row[3] for row in CHIPS), *DEVICES.values()]:
        assert generation.kernel_module_flavours
        assert set(generation.kernel_module_flavours) <= {"open", "proprietary"}
        if generation.driver_branch_last:
            assert list(generation.kernel_module_flavours) == PROPRIETARY, "what ended is older than the open modules"
            assert not generation.driver_branch_first
    assert all(len(set(group)) == len(group) for group in (ATTENTION_RELEASES, [row[:2] for row in CHIPS]))


@pytest.mark.parametrize(
    ("device_ids", "flavours"),
    [
        pytest.param([A6000], BOTH, id="one A6000"),
        pytest.param([RTX_3090, A6000, H100], BOTH, id="all of them take either"),
        pytest.param([A6000, RTX_5090], OPEN, id="Blackwell decides"),
        pytest.param([A6000, P40], PROPRIETARY, id="Pascal decides"),
        pytest.param([H100, "10de:2342"], OPEN, id="Grace Hopper decides"),
        pytest.param([P40, RTX_5090], [], id="Pascal beside Blackwell"),
        pytest.param([A6000, P40, RTX_5090], [], id="a third one does not help"),
        pytest.param([], [], id="no GPU"),
    ],
)
def test_one_host_needs_one_flavour_for_all_its_gpus(device_ids, flavours):
    for order in itertools.permutations(map(by_pci_device_id, device_ids)):
        assert common_flavours(order) == flavours


def test_the_result_is_what_the_design_promises():
    assert as_result(by_pci_device_id(A6000)) == {
        "architecture": "Ampere",
        "kernel_module_flavours": ["open", "proprietary"],
        "driver_branch_last": None,
        "data_types": ["bf16", "fp16"],
    }
    assert as_result(by_pci_device_id(GTX_1050))["driver_branch_last"] == 580


NEXTN = {"speculative_algorithm": "NEXTN"}


@pytest.mark.parametrize(
    ("capability", "release", "architecture", "flags", "backend"),
    [
        # What engines 0.5.15.post1 on an H200 said in /server_info.
        ("9.0", "0.5.15.post1", QWEN3_6, {}, "fa3"),
        ("9.0", "0.5.15.post1", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "fa3"),
        ("9.0", "0.5.15.post1", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1, "kv_cache_dtype": "fp8_e4m3"}, "fa3"),
        ("9.0", "0.5.15.post1", QWEN3, {"page_size": 64}, "fa3"),
        ("9.0", "0.5.15.post1", QWEN3, {"kv_cache_dtype": "fp8_e5m2"}, "triton"),
        # What the resolver of 0.5.23 answered for these GPUs.
        ("7.5", "0.5.23", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "flashinfer"),
        ("8.6", "0.5.23", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "flashinfer"),
        ("8.9", "0.5.23", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "flashinfer"),
        ("9.0", "0.5.23", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "fa3"),
        ("10.0", "0.5.23", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "trtllm_mha"),
        ("12.0", "0.5.23", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "flashinfer"),
        # What the source says beyond that.
        ("9.0", "0.5.12", QWEN3, NEXTN, "fa3"),
        ("9.0", "0.5.12", QWEN3, {**NEXTN, "speculative_eagle_topk": 4}, "flashinfer"),
        ("9.0", "0.5.12", QWEN3, {**NEXTN, "speculative_eagle_topk": 1, "page_size": 64}, "flashinfer"),
        ("10.0", "0.5.8", QWEN3, {}, "trtllm_mha"),
        ("10.3", "0.5.23", "Qwen3MoeForCausalLM", {"page_size": 64}, "trtllm_mha"),
        ("10.0", "0.5.23", QWEN3, NEXTN, "flashinfer"),
        ("10.0", "0.5.23", QWEN3, {**NEXTN, "speculative_eagle_topk": 4}, "flashinfer"),
        ("10.0", "0.5.22", QWEN3, {"speculative_algorithm": "DFLASH"}, "flashinfer"),
        ("10.0", "0.5.23", QWEN3, {"speculative_algorithm": "DFLASH"}, "trtllm_mha"),
        ("12.1", "0.5.23", QWEN3, {"kv_cache_dtype": "fp8_e5m2"}, "flashinfer"),
        ("10.0", "0.5.9", QWEN3_6, {**NEXTN, "speculative_eagle_topk": 1}, "triton"),
        ("10.0", "0.5.10", QWEN3_6, NEXTN, "triton"),
    ],
)
def test_the_default_attention_backend_follows_the_gpu_and_the_flags(capability, release, architecture, flags, backend):
    assert default_attention_backend(capability, release, architecture, **flags) == backend


@pytest.mark.parametrize(
    ("capability", "release", "architecture"),
    [
        pytest.param("7.0", "0.5.23", QWEN3, id="the engine refuses Volta"),
        pytest.param("13.0", "0.5.23", QWEN3, id="a GPU of the future"),
        pytest.param("8.6", "0.5.24", QWEN3, id="a release that nobody read"),
        pytest.param("8.6", "0.5.15", QWEN3, id="only its first fix was read"),
        pytest.param("9.0", "0.5.23", "DeepseekV3ForCausalLM", id="a model with a choice of its own"),
        pytest.param("8.6", "0.5.8", QWEN3_6, id="older than the model"),
        pytest.param("10.0", "0.5.23", QWEN3_6, id="the state cache's strategy decides"),
    ],
)
def test_an_attention_backend_that_no_fact_settles_is_unknown(capability, release, architecture):
    assert default_attention_backend(capability, release, architecture) is None
