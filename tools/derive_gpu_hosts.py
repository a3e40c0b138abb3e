#!/usr/bin/env python3
# Copyright: (c) 2026, Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Derive the recorded GPU hosts in tests/fixtures/gpu/hosts from one real capture, by replacing stated values.

The capture is tests/fixtures/gpu/*_h200*: one H200, driver 580.159.04. Everything that a derived host says and the capture does not is in
the tables below, with its source. What nvidia-smi prints as XML and as CSV is made from the same values, so the two agree.

    tools/derive_gpu_hosts.py            write the hosts
    tools/derive_gpu_hosts.py DIRECTORY  write them there (a test compares the two)
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import sys
import textwrap
import types
import typing as t
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "tests/fixtures/gpu"
HOSTS = SAMPLES / "hosts"

NA = "N/A"


def sample(name: str) -> str:
    """One file of the fixtures, as it was captured."""
    return (SAMPLES / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# What is replaced. Keys are paths below <gpu> of `nvidia-smi -q -x`; the CSV is made from them (COLUMNS).
# ---------------------------------------------------------------------------------------------------------------------

# A card without data-centre features, as `nvidia-smi -q` of an RTX A6000 says it (drivers 537.99 and 550): no MIG, ECC off, no memory
# temperature. Part numbers and the like are left out rather than left wrong.
WORKSTATION = {
    "product_brand": "NVIDIA RTX",
    "display_attached": "No",
    "mig_mode/current_mig": NA,
    "mig_mode/pending_mig": NA,
    "board_part_number": NA,
    "gpu_part_number": NA,
    "platformInfo/module_id": "1",
    "inforom_version/img_version": NA,
    "inforom_version/oem_object": NA,
    "inforom_version/ecc_object": NA,
    "c2c_mode": NA,
    "gpu_virtualization_mode/virtualization_mode": "None",
    "pci/pci_sub_class": "0",
    "pci/replay_counter": "0",
    "pci/tx_util": "0 KB/s",
    "pci/rx_util": "0 KB/s",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "1",
    "pci/pci_gpu_link_info/pcie_gen/device_current_link_gen": "1",
    "fan_speed": "30 %",
    "performance_state": "P8",
    "sparse_operation_mode": NA,
    "ecc_mode/current_ecc": "Disabled",
    "ecc_mode/pending_ecc": "Disabled",
    "ecc_errors/*": NA,
    "ecc_errors/channel_repair_pending": NA,
    "ecc_errors/tpc_repair_pending": NA,
    "ecc_errors/unrepairable_memory": NA,
    "remapped_rows/row_remapper_histogram/row_remapper_histogram_max": "192 bank(s)",
    "temperature/*": NA,
    "temperature/gpu_temp": "34 C",
    "gpu_power_readings/power_state": "P8",
    "gpu_power_readings/average_power_draw": "22.10 W",
    "gpu_power_readings/instant_power_draw": "22.10 W",
    "gpu_memory_power_readings/average_power_draw": NA,
    "clocks/graphics_clock": "210 MHz",
    "clocks/sm_clock": "210 MHz",
    "clocks/mem_clock": "405 MHz",
    "clocks/video_clock": "555 MHz",
    "applications_clocks/*": NA,
    "default_applications_clocks/*": NA,
    "max_customer_boost_clocks/graphics_clock": NA,
}


class Card(t.NamedTuple):
    """A model: what replaces the H200's values in the XML, and what only the CSV and PCI know."""

    values: dict[str, str]
    compute_capability: str
    pci_class: str = "0x030000"
    link_speeds: tuple[str, str] = ("2.5 GT/s PCIe", "16.0 GT/s PCIe")  # sysfs: now, at most
    link_widths: tuple[str, str] = ("16", "16")


# Two public `nvidia-smi -q` of the card: 49140 MiB with ECC off (46068 with it on), 569 MiB of them reserved; 100 to 300 W; GA102, 8.6;
# subsystem 10de:1459 as in lspci_nnk_nouveau_bound.txt.
A6000 = Card(
    {
        **WORKSTATION,
        "product_name": "NVIDIA RTX A6000",
        "product_architecture": "Ampere",
        "addressing_mode": "HMM",
        "vbios_version": "94.02.5C.00.02",
        "pci/pci_device_id": "223010DE",
        "pci/pci_sub_system_id": "145910DE",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "4",
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "4",
        "fb_memory_usage/total": "49140 MiB",
        "fb_memory_usage/reserved": "569 MiB",
        "fb_memory_usage/used": "0 MiB",
        "fb_memory_usage/free": "48571 MiB",
        "bar1_memory_usage/total": "65536 MiB",
        "bar1_memory_usage/free": "65535 MiB",
        "gpu_power_readings/current_power_limit": "300.00 W",
        "gpu_power_readings/requested_power_limit": "300.00 W",
        "gpu_power_readings/default_power_limit": "300.00 W",
        "gpu_power_readings/min_power_limit": "100.00 W",
        "gpu_power_readings/max_power_limit": "300.00 W",
        "max_clocks/graphics_clock": "2100 MHz",
        "max_clocks/sm_clock": "2100 MHz",
        "max_clocks/mem_clock": "8001 MHz",
        "max_clocks/video_clock": "1950 MHz",
    },
    "8.6",
)

# Case A09 (four of them): name, 97887 MiB and the addresses; smi_8gpu_minor_not_index.xml: 637 MiB reserved; akash provider-configs#79:
# 10de:2bb4; case A23: 250 to 325 W, 300 by default. The subsystem is the Workstation Edition's (lspci_nnk_no_driver.txt). Clocks at most:
# not known.
PRO_6000_MAX_Q = Card(
    {
        **WORKSTATION,
        "product_name": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "product_architecture": "Blackwell",
        "vbios_version": NA,
        "pci/pci_device_id": "2BB410DE",
        "pci/pci_sub_system_id": "204B10DE",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "5",
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "5",
        "fb_memory_usage/total": "97887 MiB",
        "fb_memory_usage/reserved": "637 MiB",
        "fb_memory_usage/used": "0 MiB",
        "fb_memory_usage/free": "97251 MiB",
        "bar1_memory_usage/total": "131072 MiB",
        "bar1_memory_usage/free": "131071 MiB",
        "gpu_power_readings/current_power_limit": "300.00 W",
        "gpu_power_readings/requested_power_limit": "300.00 W",
        "gpu_power_readings/default_power_limit": "300.00 W",
        "gpu_power_readings/min_power_limit": "250.00 W",
        "gpu_power_readings/max_power_limit": "325.00 W",
        "max_clocks/*": NA,
    },
    "12.0",
    link_speeds=("2.5 GT/s PCIe", "32.0 GT/s PCIe"),
)

# Case A38: 81559 MiB = 479 reserved + 81081 free, one off; 10de:2330, subsystem 10de:16c1, 200 to 700 W as the H200; fabric as on an HGX
# board whose fabric manager has finished.
H100 = Card(
    {
        "product_name": "NVIDIA H100 80GB HBM3",
        "board_part_number": NA,
        "gpu_part_number": NA,
        "inforom_version/img_version": NA,
        "gpu_virtualization_mode/virtualization_mode": "None",
        "vbios_version": "96.00.CF.00.01",
        "pci/pci_device_id": "233010DE",
        "pci/pci_sub_system_id": "16C110DE",
        "fb_memory_usage/total": "81559 MiB",
        "fb_memory_usage/reserved": "479 MiB",
        "fb_memory_usage/used": "0 MiB",
        "fb_memory_usage/free": "81081 MiB",
        "bar1_memory_usage/total": "131072 MiB",
        "bar1_memory_usage/free": "131071 MiB",
        "clocks/mem_clock": "2619 MHz",
        "max_clocks/mem_clock": "2619 MHz",
        "fabric/state": "Completed",
        "fabric/status": "Success",
        "fabric/cliqueId": "0",
        "fabric/clusterUuid": "00000000-0000-0000-0000-000000000000",
    },
    "9.0",
    "0x030200",
    ("32.0 GT/s PCIe", "32.0 GT/s PCIe"),
)

# smi_query_gb10.csv; 10de:2e12 with subsystem 0x10DE and a link of 2.5 GT/s, 1 of 16 lanes, from a public probe (driver 580.142). Limits
# and memory are not there (case A01).
GB10 = Card(
    {
        **WORKSTATION,
        "product_name": "NVIDIA GB10",
        "product_brand": "NVIDIA",
        "product_architecture": "Blackwell",
        "addressing_mode": "ATS",
        "vbios_version": NA,
        "pci/pci_device_id": "2E1210DE",
        "pci/pci_sub_system_id": "000010DE",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "1",
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "1",
        "pci/pci_gpu_link_info/link_widths/current_link_width": "1x",
        "fan_speed": NA,
        "fb_memory_usage/*": NA,
        "bar1_memory_usage/*": NA,
        "ecc_mode/current_ecc": NA,
        "ecc_mode/pending_ecc": NA,
        "remapped_rows/*": NA,
        "temperature/gpu_temp": "35 C",
        "gpu_power_readings/*": NA,
        "gpu_power_readings/power_state": "P8",
        "gpu_power_readings/average_power_draw": "11.17 W",
        "gpu_power_readings/instant_power_draw": "11.17 W",
        "max_clocks/*": NA,
    },
    "12.1",
    link_speeds=("2.5 GT/s PCIe", "2.5 GT/s PCIe"),
    link_widths=("1", "16"),
)

# smi_q_wsl2_510.txt. The PCI ids are not in it: TU117M is 10de:1f95 in the PCI ID database; the subsystem is left out.
GTX_1650_TI = Card(
    {
        **WORKSTATION,
        "product_name": "NVIDIA GeForce GTX 1650 Ti with Max-Q Design",
        "product_brand": "GeForce",
        "product_architecture": "Turing",
        "driver_model/current_dm": "WDDM",
        "driver_model/pending_dm": "WDDM",
        "minor_number": NA,
        "persistence_mode": "Enabled",
        "vbios_version": NA,
        "gsp_firmware_version": NA,
        "pci/pci_device_id": "1F9510DE",
        "pci/pci_sub_system_id": NA,
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "3",
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "3",
        "fan_speed": NA,
        "fb_memory_usage/total": "4096 MiB",
        "fb_memory_usage/reserved": NA,
        "fb_memory_usage/used": "700 MiB",
        "fb_memory_usage/free": "3396 MiB",
        "utilization/*": NA,
        "ecc_mode/current_ecc": NA,
        "ecc_mode/pending_ecc": NA,
        "remapped_rows/*": NA,
        "gpu_power_readings/*": NA,
        "gpu_power_readings/power_state": "P8",
        "max_clocks/*": NA,
    },
    "7.5",
)

# smi_query_mig_h200.csv: the parent's memory; utilization is not there with MIG on. Not passed through as the captured one is.
H200_MIG = Card(
    {
        "mig_mode/current_mig": "Enabled",
        "mig_mode/pending_mig": "Enabled",
        "gpu_virtualization_mode/virtualization_mode": "None",
        "fb_memory_usage/reserved": "614 MiB",
        "fb_memory_usage/used": "55 MiB",
        "fb_memory_usage/free": "143103 MiB",
        "utilization/*": NA,
    },
    "9.0",
    "0x030200",
    ("32.0 GT/s PCIe", "32.0 GT/s PCIe"),
)


class MigDevice(t.NamedTuple):
    """A row of smi_table_mig_h200.txt, with the name from case A07."""

    name: str
    gpu_instance: int
    compute_instance: int
    processors: int
    engines: int
    used: int
    total: int
    bar1_total: int


class Process(t.NamedTuple):
    """One entry below <processes>."""

    pid: int
    type: str
    name: str
    memory: str


class Gpu(t.NamedTuple):
    """One GPU of a host. address: PCI, lower case, 4-digit domain, as in sysfs."""

    card: Card
    address: str
    minor: int
    numa_node: int = -1
    cpus: str = "0-15"
    lost: bool = False
    mig: tuple[MigDevice, ...] = ()
    processes: tuple[Process, ...] = ()


class Pci(t.NamedTuple):
    """Another PCI function: ids as vendor:device; driver empty when none is bound."""

    address: str
    ids: str
    subsystem: str
    pci_class: str
    driver: str = ""


class Host(t.NamedTuple):
    """A recorded host. sources and replaced are for its README."""

    name: str
    sources: str
    replaced: str
    gpus: tuple[Gpu, ...] = ()
    pci: tuple[Pci, ...] = ()
    version: str = ""  # /proc/driver/nvidia/version
    devices: str = ""  # /proc/devices
    nodes: str = ""  # ls -l of the device nodes
    modules: tuple[str, ...] = ()
    topology: str = ""
    smi: bool = True  # nvidia-smi is installed
    fails: tuple[int, str] | None = None  # exit status and text of nvidia-smi, whatever it is asked
    proc: t.Mapping[str, str] = types.MappingProxyType({})  # other files below /proc
    metal: bool = True  # a machine of its own with EFI and an IOMMU
    facts: t.Mapping[str, t.Any] = types.MappingProxyType({})  # what is not a file on the host
    log: str = ""  # of the kernel
    number: int = 0  # in the placeholders of its GPUs; 0: its own. A guest and its hypervisor have one


# ---------------------------------------------------------------------------------------------------------------------
# nvidia-smi
# ---------------------------------------------------------------------------------------------------------------------

# A CSV column, the XML element that says the same, and how the CSV prints it: "cell" puts N/A in brackets, "plain" does not.
COLUMNS = {
    "name": ("product_name", "plain"),
    "uuid": ("uuid", "plain"),
    "serial": ("serial", "cell"),
    "pci.bus_id": ("pci/pci_bus_id", "plain"),
    "driver_version": ("gsp_firmware_version", "driver"),
    "memory.total": ("fb_memory_usage/total", "cell"),
    "memory.used": ("fb_memory_usage/used", "cell"),
    "memory.free": ("fb_memory_usage/free", "cell"),
    "memory.reserved": ("fb_memory_usage/reserved", "cell"),
    "ecc.mode.current": ("ecc_mode/current_ecc", "cell"),
    "ecc.mode.pending": ("ecc_mode/pending_ecc", "cell"),
    "ecc.errors.corrected.volatile.total": ("ecc_errors/volatile/dram_correctable", "cell"),
    "ecc.errors.uncorrected.volatile.total": ("ecc_errors/volatile/dram_uncorrectable", "cell"),
    "ecc.errors.corrected.aggregate.total": ("ecc_errors/aggregate/dram_correctable", "cell"),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_errors/aggregate/dram_uncorrectable", "cell"),
    "remapped_rows.correctable": ("remapped_rows/remapped_row_corr", "cell"),
    "remapped_rows.uncorrectable": ("remapped_rows/remapped_row_unc", "cell"),
    "remapped_rows.pending": ("remapped_rows/remapped_row_pending", "cell"),
    "remapped_rows.failure": ("remapped_rows/remapped_row_failure", "cell"),
    "mig.mode.current": ("mig_mode/current_mig", "cell"),
    "mig.mode.pending": ("mig_mode/pending_mig", "cell"),
    "persistence_mode": ("persistence_mode", "cell"),
    "compute_mode": ("compute_mode", "plain"),
    "power.draw": ("gpu_power_readings/average_power_draw", "cell"),
    "power.draw.instant": ("gpu_power_readings/instant_power_draw", "cell"),
    "power.limit": ("gpu_power_readings/current_power_limit", "cell"),
    "power.default_limit": ("gpu_power_readings/default_power_limit", "cell"),
    "power.min_limit": ("gpu_power_readings/min_power_limit", "cell"),
    "power.max_limit": ("gpu_power_readings/max_power_limit", "cell"),
    "clocks.current.sm": ("clocks/sm_clock", "cell"),
    "clocks.current.memory": ("clocks/mem_clock", "cell"),
    "clocks.max.sm": ("max_clocks/sm_clock", "cell"),
    "clocks.max.memory": ("max_clocks/mem_clock", "cell"),
    "temperature.gpu": ("temperature/gpu_temp", "plain"),
    "temperature.memory": ("temperature/memory_temp", "plain"),
    "utilization.gpu": ("utilization/gpu_util", "cell"),
    "utilization.memory": ("utilization/memory_util", "cell"),
    "pstate": ("performance_state", "plain"),
    "pcie.link.gen.current": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen", "cell"),
    "pcie.link.gen.max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen", "cell"),
    "pcie.link.gen.gpucurrent": ("pci/pci_gpu_link_info/pcie_gen/device_current_link_gen", "cell"),
    "pcie.link.gen.hostmax": ("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen", "cell"),
    "pcie.link.width.current": ("pci/pci_gpu_link_info/link_widths/current_link_width", "cell"),
    "pcie.link.width.max": ("pci/pci_gpu_link_info/link_widths/max_link_width", "cell"),
    "vbios_version": ("vbios_version", "cell"),
    "addressing_mode": ("addressing_mode", "cell"),
    "driver_model.current": ("driver_model/current_dm", "cell"),
    "driver_model.pending": ("driver_model/pending_dm", "cell"),
    "gpu_recovery_action": ("gpu_recovery_action", "cell"),
    "fabric.state": ("fabric/state", "plain"),
    "fabric.status": ("fabric/status", "plain"),
    "pci.domain": ("pci/pci_domain", "hex"),
    "pci.bus": ("pci/pci_bus", "hex"),
    "pci.device": ("pci/pci_device", "hex"),
    "pci.device_id": ("pci/pci_device_id", "hex"),
    "pci.sub_device_id": ("pci/pci_sub_system_id", "hex"),
}
# These the capture's CSV does not hold; the driver knows them (smi_h200_help_query.txt).
ADDED_COLUMNS = [
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "driver_model.current",
    "driver_model.pending",
    "gpu_recovery_action",
]


def uuid(host: int, gpu: int, kind: str = "GPU") -> str:
    """A placeholder: the number of the host and of the GPU at its end."""
    return f"{kind}-00000000-0000-4000-8000-{host * 100 + gpu:012d}"


def set_text(block: ET.Element, path: str, text: str) -> None:
    """Replace the text of one element, or with /* of all elements without children below it."""
    if path.endswith("/*"):
        elements = [element for element in required(block, path[:-2]).iter() if len(element) == 0]
    else:
        elements = [required(block, path)]
    for element in elements:
        element.text = text


def required(block: ET.Element, path: str) -> ET.Element:
    """The element, which the capture must have: a wrong path is a mistake in the tables."""
    element = block.find(path)
    if element is None:
        raise KeyError(path)
    return element


def fragment(text: str, depth: int) -> list[ET.Element]:
    """Elements from text, with nvidia-smi's indentation at this depth."""
    indented = textwrap.indent(textwrap.dedent(text).strip().replace("    ", "\t"), "\t" * depth)
    elements = list(ET.fromstring(f"<x>\n{indented}\n</x>"))  # noqa: S314 - our own text
    for element in elements:
        element.tail = "\n" + "\t" * depth
    if elements:
        elements[-1].tail = "\n" + "\t" * (depth - 1)
    return elements


def fill(parent: ET.Element, text: str, depth: int) -> None:
    """Put elements in the place of what a parent holds."""
    for child in list(parent):
        parent.remove(child)
    elements = fragment(text, depth)
    parent.text = "\n" + "\t" * (depth if elements else depth - 1)
    parent.extend(elements)


def mig_xml(device: MigDevice, index: int) -> str:
    return f"""
        <mig_device>
            <index>{index}</index>
            <gpu_instance_id>{device.gpu_instance}</gpu_instance_id>
            <compute_instance_id>{device.compute_instance}</compute_instance_id>
            <device_attributes>
                <shared>
                    <multiprocessor_count>{device.processors}</multiprocessor_count>
                    <copy_engine_count>{device.engines}</copy_engine_count>
                    <encoder_count>0</encoder_count>
                    <decoder_count>{device.engines}</decoder_count>
                    <ofa_count>0</ofa_count>
                    <jpg_count>{device.engines}</jpg_count>
                </shared>
            </device_attributes>
            <ecc_error_count>
                <volatile_count>
                    <sram_uncorrectable>0</sram_uncorrectable>
                </volatile_count>
            </ecc_error_count>
            <fb_memory_usage>
                <total>{device.total} MiB</total>
                <reserved>0 MiB</reserved>
                <used>{device.used} MiB</used>
                <free>{device.total - device.used} MiB</free>
            </fb_memory_usage>
            <bar1_memory_usage>
                <total>{device.bar1_total} MiB</total>
                <used>0 MiB</used>
                <free>{device.bar1_total} MiB</free>
            </bar1_memory_usage>
        </mig_device>"""


def process_xml(process: Process) -> str:
    return f"""
        <process_info>
            <gpu_instance_id>N/A</gpu_instance_id>
            <compute_instance_id>N/A</compute_instance_id>
            <pid>{process.pid}</pid>
            <type>{process.type}</type>
            <process_name>{process.name}</process_name>
            <used_memory>{process.memory}</used_memory>
        </process_info>"""


def gpu_block(host: int, number: int, gpu: Gpu) -> ET.Element:
    """The capture's <gpu> with the values of another."""
    block = required(ET.fromstring(sample("smi_h200_qx.xml")), "gpu")  # noqa: S314 - our own file
    domain, bus, device = re.split("[:.]", gpu.address.upper())[:3]
    bus_id = f"{domain.rjust(8, '0')}:{bus}:{device}.0"
    identity = {
        "uuid": uuid(host, number),
        "minor_number": str(gpu.minor),
        "board_id": f"0x{int(bus, 16):x}00",
        "pci/pci_bus": bus,
        "pci/pci_device": device,
        "pci/pci_domain": domain,
        "pci/pci_bus_id": bus_id,
    }
    # What stands for a whole group first, then what differs in it.
    for path, text in sorted({**identity, **gpu.card.values}.items(), key=lambda item: not item[0].endswith("/*")):
        set_text(block, path, text)
    block.set("id", bus_id)
    if gpu.mig:
        fill(required(block, "mig_devices"), "".join(mig_xml(device, index) for index, device in enumerate(gpu.mig)), 3)
    fill(required(block, "processes"), "".join(map(process_xml, gpu.processes)), 3)
    clocks = "<value>{}</value>\n<supported_graphics_clock>{}</supported_graphics_clock>".format(
        *(required(block, f"max_clocks/{name}").text for name in ("mem_clock", "graphics_clock"))
    )
    fill(required(block, "supported_clocks"), f"<supported_mem_clock>\n{textwrap.indent(clocks, '    ')}\n</supported_mem_clock>", 3)
    return block


def smi_xml(blocks: t.Sequence[ET.Element], attached: int) -> str:
    """`nvidia-smi -q -x`."""
    text = sample("smi_h200_qx.xml")
    log = ET.fromstring(text)  # noqa: S314 - our own file
    template = required(log, "gpu")
    position = list(log).index(template)
    log.remove(template)
    required(log, "attached_gpus").text = str(attached)
    for offset, block in enumerate(blocks):
        block.tail = "\n\n" if block is blocks[-1] else "\n\t"
        log.insert(position + offset, block)
    head = "".join(text.splitlines(keepends=True)[:2])
    return head + ET.tostring(log, encoding="unicode", short_empty_elements=False) + "\n"


def cell(block: ET.Element, column: str, driver: str) -> str:
    """One cell of the CSV, printed as nvidia-smi prints it."""
    path, style = COLUMNS[column]
    if style == "driver":
        return driver
    text = required(block, path).text or ""
    if style == "hex" and text != NA:
        return f"0x{text}"
    if text == NA:
        return NA if style == "plain" else f"[{NA}]"
    if column.startswith("temperature."):
        return text.removesuffix(" C")
    return text.removesuffix("x") if column.startswith("pcie.link.width") else text


def smi_csv(rows: t.Sequence[tuple[int, Gpu, ET.Element]], driver: str) -> tuple[list[str], str]:
    """The columns, and `nvidia-smi --query-gpu=<columns> --format=csv`."""
    header, captured = (line.split(", ") for line in sample("smi_h200_query.csv").splitlines())
    header = header + ADDED_COLUMNS
    columns = [name.split(" ")[0] for name in header]
    lines = [", ".join(header)]
    for index, gpu, block in rows:
        other = {**dict(zip(columns, captured)), "index": str(index), "compute_cap": gpu.card.compute_capability}
        lines.append(", ".join(cell(block, name, driver) if name in COLUMNS else other[name] for name in columns))
    return columns, "\n".join(lines) + "\n"


def smi_list(rows: t.Sequence[tuple[int, Gpu, ET.Element]], host: int) -> str:
    """`nvidia-smi -L`. The name of a MIG device is padded (case A07)."""
    lines = []
    for index, gpu, block in rows:
        lines.append(f"GPU {index}: {required(block, 'product_name').text} (UUID: {required(block, 'uuid').text})")
        lines += [
            f"  MIG {device.name:<12}Device {number:>2}: (UUID: {uuid(host, 50 + number, 'MIG')})" for number, device in enumerate(gpu.mig)
        ]
    return "\n".join(lines) + "\n"


def smi_help(columns: t.Sequence[str]) -> str:
    """`nvidia-smi --help-query-gpu`: the lines with names of the columns that are recorded; what they mean is left out."""
    lines = sample("smi_h200_help_query.txt").splitlines()
    names = [line for line in lines if line.startswith('"') and re.findall('"([^"]+)"', line)[0] in columns]
    return "\n\n".join([lines[0], *names]) + "\n"


def smi_topology(host: Host) -> str:
    """`nvidia-smi topo -m`: a sample, or the capture's for one GPU."""
    return host.topology or sample("smi_h200_topo_ansi.txt")


def smi_apps(rows: t.Sequence[tuple[int, Gpu, ET.Element]]) -> tuple[list[str], str]:
    """The columns (those of the capture and the bus id), and `nvidia-smi --query-compute-apps=<columns> --format=csv`."""
    header = [*sample("smi_h200_apps_none.csv").strip().split(", "), "gpu_bus_id"]
    lines = [", ".join(header)]
    for _index, gpu, block in rows:
        identity = [required(block, path).text or "" for path in ("uuid", "pci/pci_bus_id")]
        for process in gpu.processes:
            if process.type == "C":
                memory = f"[{NA}]" if process.memory == NA else process.memory
                lines.append(", ".join([str(process.pid), process.name, identity[0], memory, identity[1]]))
    return [name.split(" ")[0] for name in header], "\n".join(lines) + "\n"


def smi_answers(number: int, host: Host) -> list[dict[str, t.Any]]:
    """nvidia-smi.json: every answer that is recorded, by its arguments."""

    def answer(argv: list[str], stdout: str, seconds: float) -> dict[str, t.Any]:
        return {"argv": argv, "rc": status, "stdout": complaint + stdout, "stderr": "", "seconds": seconds}

    if host.fails:
        return [{"argv": ["*"], "rc": host.fails[0], "stdout": host.fails[1], "stderr": "", "seconds": 0.02}]
    lost = [index for index, gpu in enumerate(host.gpus) if gpu.lost]
    # The line of smi_query_610_one_of_four_lost.csv comes first, on standard output, whatever is asked (case A09: so it does before the
    # table). The exit status is not known: 255 is nvidia-smi's for an unknown error.
    complaint = sample("smi_query_610_one_of_four_lost.csv").splitlines(keepends=True)[0] if lost else ""
    status = 255 if lost else 0
    rows = [(index, gpu, gpu_block(number, index, gpu)) for index, gpu in enumerate(host.gpus) if not gpu.lost]
    columns, csv = smi_csv(rows, "580.159.04")
    app_columns, apps = smi_apps(rows)
    answers = [
        answer(["-q", "-x"], smi_xml([block for _index, _gpu, block in rows], len(host.gpus)), 0.1),
        answer([f"--query-gpu={','.join(columns)}", "--format=csv"], csv, 0.05),
        answer([f"--query-compute-apps={','.join(app_columns)}", "--format=csv"], apps, 0.02),
        answer(["-L"], smi_list(rows, number), 0.02),
        answer(["topo", "-m"], smi_topology(host), 0.04),
    ]
    complaint, status = "", 0
    return [*answers, answer(["--help-query-gpu"], smi_help(columns), 0.02), answer(["--version"], sample("smi_h200_version.txt"), 0.02)]


# ---------------------------------------------------------------------------------------------------------------------
# /proc and /sys
# ---------------------------------------------------------------------------------------------------------------------


# Below /sys, of a machine that is no virtual one: its maker, Secure Boot off (four bytes of attributes, then the value), DMA through the
# IOMMU.
METAL = {
    "class/dmi/id/sys_vendor": "Example\n",
    "class/dmi/id/product_name": "GPU Server\n",
    "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": "\x06\0\0\0\0",
    "kernel/iommu_groups/1/type": "DMA-FQ\n",
}
METAL_LINKS = {"class/iommu/dmar0": "../../devices/virtual/iommu/dmar0"}


def meminfo(total_kib: int, available_kib: int) -> str:
    return f"MemTotal:       {total_kib:>9} kB\nMemFree:        {available_kib:>9} kB\nMemAvailable:   {available_kib:>9} kB\n"


def gpu_information(number: int, index: int, gpu: Gpu, firmware: str) -> str:
    """/proc/driver/nvidia/gpus/<address>/information. Of a lost GPU the driver cannot read what is in its firmware [assumed]."""
    lines = sample("proc_driver_gpu_information_h200.txt").splitlines()[1:]
    values = {
        "Model": gpu.card.values.get("product_name", "NVIDIA H200"),
        "IRQ": str(41 + index),
        "GPU UUID": "GPU-????????-????-????-????-????????????" if gpu.lost else uuid(number, index),
        "Video BIOS": "??.??.??.??.??" if gpu.lost else gpu.card.values.get("vbios_version", "96.00.a5.00.1a").lower(),
        "Bus Location": gpu.address,
        "Device Minor": str(gpu.minor),
        "GPU Firmware": firmware,
    }
    changed = []
    for line in lines:
        label, space, text = re.split(r"(:\s+)", line, maxsplit=1)
        changed.append(f"{label}{space}{values.get(label, text)}\n")
    return "".join(changed)


def pci_files(address: str, ids: str, subsystem: str, pci_class: str, more: dict[str, str]) -> dict[str, str]:
    """/sys/bus/pci/devices/<address>/*."""
    vendor, device = ids.split(":")
    values = {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": pci_class, "revision": "0xa1", **more}
    if subsystem:
        values["subsystem_vendor"], values["subsystem_device"] = (f"0x{part}" for part in subsystem.split(":"))
    return {f"bus/pci/devices/{address}/{name}": f"{value}\n" for name, value in values.items()}


def swapped(text: str) -> str:
    """223010DE as 10de:2230."""
    return f"{text[4:]}:{text[:4]}".lower()


def sys_files(host: Host) -> tuple[dict[str, str], dict[str, str]]:
    """Files below /sys, and the links `driver` of those devices that have one."""
    files = dict(METAL) if host.metal else {}
    links = {}
    for gpu in host.gpus:
        ids = {"pci/pci_device_id": "233510DE", "pci/pci_sub_system_id": "18BF10DE", **gpu.card.values}
        more = {
            "numa_node": str(gpu.numa_node),
            "local_cpulist": gpu.cpus,
            "current_link_speed": "Unknown" if gpu.lost else gpu.card.link_speeds[0],
            "current_link_width": "63" if gpu.lost else gpu.card.link_widths[0],
            "max_link_speed": gpu.card.link_speeds[1],
            "max_link_width": gpu.card.link_widths[1],
        }
        pair = swapped(ids["pci/pci_device_id"]), swapped(ids["pci/pci_sub_system_id"])
        files.update(pci_files(gpu.address, *pair, gpu.card.pci_class, more))
        links[gpu.address] = "nvidia"
    for function in host.pci:
        files.update(pci_files(function.address, function.ids, function.subsystem, function.pci_class, {"numa_node": "0"}))
        if function.driver:
            links[function.address] = function.driver
    targets = {f"bus/pci/devices/{address}/driver": f"../../../bus/pci/drivers/{driver}" for address, driver in links.items()}
    return files, {**targets, **(METAL_LINKS if host.metal else {})}


def proc_files(number: int, host: Host) -> dict[str, str]:
    """Files below /proc."""
    files = {
        "cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet\n",
        "devices": host.devices,
        "meminfo": meminfo(131072000, 122880000),
        "modules": modules(host.modules),
        **host.proc,
    }
    if host.version:
        files["driver/nvidia/version"] = host.version
        firmware = re.search(r"\d{3}\.\d+\.\d+", host.version)
        for index, gpu in enumerate(host.gpus):
            information = gpu_information(number, index, gpu, firmware[0] if firmware else "")
            files[f"driver/nvidia/gpus/{gpu.address}/information"] = information
    return files


def modules(names: t.Sequence[str]) -> str:
    """/proc/modules; sizes are not real."""
    return "".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in names)


# ---------------------------------------------------------------------------------------------------------------------
# The hosts
# ---------------------------------------------------------------------------------------------------------------------


def nodes(minors: t.Sequence[int], uvm: int, caps: dict[int, t.Sequence[int]] | None = None, switches: int = 0) -> str:
    """`ls -l` of the device nodes, as ls_dev_nvidia_h200.txt. caps: the major of nvidia-caps and the minors below it."""

    def line(mode: str, major: int, minor: int, path: str) -> str:
        return f"{mode} 1 root root {major}, {minor:>3} Dec  1 02:31 {path}\n"

    text = "".join(line("crw-rw-rw-", 195, minor, f"/dev/nvidia{minor}") for minor in minors)
    text += line("crw-rw-rw-", 195, 255, "/dev/nvidiactl")
    text += "".join(line("crw-rw-rw-", 239, number, f"/dev/nvidia-nvswitch{number}") for number in range(switches))
    if switches:
        text += line("crw-rw-rw-", 239, 255, "/dev/nvidia-nvswitchctl")
    text += line("crw-rw-rw-", uvm, 0, "/dev/nvidia-uvm") + line("crw-rw-rw-", uvm, 1, "/dev/nvidia-uvm-tools")
    for major, below in (caps or {}).items():
        text += "\n/dev/nvidia-caps:\ntotal 0\n"
        text += "".join(line("cr--------" if minor == 1 else "cr--r--r--", major, minor, f"nvidia-cap{minor}") for minor in below)
    return text


NO_NODES = "ls: cannot access '/dev/nvidia*': No such file or directory\n"
NVIDIA_MODULES = ("nvidia_uvm", "nvidia")
# What any machine has: a bridge, a disk, and a display adapter that is not NVIDIA's.
ORDINARY = (
    Pci("0000:00:00.0", "8086:1237", "1af4:1100", "0x060000"),
    Pci("0000:00:02.0", "1a03:2000", "1a03:2000", "0x030000", "ast"),
    Pci("0000:00:05.0", "1af4:1042", "1af4:1100", "0x010000", "virtio-pci"),
)
PLAIN_DEVICES = "".join(
    line for line in sample("proc_devices_h200.txt").splitlines(keepends=True) if "nvidia" not in line and "infiniband" not in line
)

H100_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
H100_NUMA = ((0, "0-23,96-119"),) * 3 + ((1, "24-47,120-143"),) + ((2, "48-71,144-167"),) * 3 + ((3, "72-95,168-191"),)

RECORDED = (
    Host(
        "2x_a6000",
        "topo_2x3090_nvlink.txt and proc_devices_511_236.txt; inside an LXC container, as CT129",
        "the card, addresses, minors, NUMA node and CPUs, device nodes, memory of the host, environment of process 1",
        tuple(Gpu(A6000, address, minor, 0, "0-31") for minor, address in enumerate(("0000:01:00.0", "0000:41:00.0"))),
        (Pci("0000:01:00.1", "10de:1aef", "10de:1459", "0x040300", "snd_hda_intel"),),
        sample("proc_driver_version_h200.txt"),
        sample("proc_devices_511_236.txt"),
        nodes((0, 1), 511, {236: (1, 2)}),
        NVIDIA_MODULES,
        sample("topo_2x3090_nvlink.txt"),
        proc={"1/environ": "container=lxc\0TERM=linux\0"},
        facts={"shm_total_mib": 64, "shm_free_mib": 64},
    ),
    Host(
        "none",
        "nothing of the capture but the other lines of /proc/devices",
        "all: no NVIDIA device, no driver, nvidia-smi is not installed",
        pci=ORDINARY,
        devices=PLAIN_DEVICES,
        nodes=NO_NODES,
        smi=False,
    ),
    Host(
        "lost",
        "smi_query_610_one_of_four_lost.csv (case A09: its addresses and its error line) and dmesg_xid79_xid119.txt (its first two lines)",
        "the card, addresses, minors, device nodes; the second GPU is lost. What comes after the error line, the exit status 255 and the"
        " lost GPU's /proc and link are assumed",
        tuple(
            Gpu(PRO_6000_MAX_Q, address, minor, 0, "0-63", lost=minor == 1)
            for minor, address in enumerate(("0000:16:00.0", "0000:34:00.0", "0000:ac:00.0", "0000:ca:00.0"))
        ),
        version=sample("proc_driver_version_h200.txt"),
        devices=sample("proc_devices_h200.txt"),
        nodes=nodes((0, 1, 2, 3), 238),
        modules=NVIDIA_MODULES,
        topology="\tGPU0\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNODE\tNODE\t0-63\t0\t\tN/A\n"
        "GPU2\tNODE\t X \tNODE\t0-63\t0\t\tN/A\n"
        "GPU3\tNODE\tNODE\t X \t0-63\t0\t\tN/A\n",
        log="".join(sample("dmesg_xid79_xid119.txt").splitlines(keepends=True)[:2]).replace("0000:0b:00", "0000:34:00"),
    ),
    Host(
        "mig",
        "smi_query_mig_h200.csv and smi_table_mig_h200.txt (case A07)",
        "address, memory of the parent, utilization; three MIG devices, of which two share a GPU instance",
        (
            Gpu(
                H200_MIG,
                "0000:83:00.0",
                0,
                1,
                "16-31",
                mig=(
                    MigDevice("1c.3g.71gb", 2, 0, 16, 3, 22, 71424, 59237),
                    MigDevice("2c.3g.71gb", 2, 1, 32, 3, 22, 71424, 59237),
                    MigDevice("2g.35gb", 3, 0, 32, 2, 17, 33280, 29618),
                ),
            ),
        ),
        version=sample("proc_driver_version_h200.txt"),
        devices=sample("proc_devices_h200.txt"),
        # GPU instance n of GPU 0 has the minors from 3 + 9n on: itself, then its compute instances (/proc/driver/nvidia-caps/mig-minors).
        nodes=nodes((0,), 238, {241: (1, 2, 21, 22, 23, 30, 31)}),
        modules=NVIDIA_MODULES,
    ),
    Host(
        "mismatch",
        "proc_driver_version_open.txt and smi_err_nvml_mismatch.txt (case A14)",
        "the card, address, device nodes; nvidia-smi fails whatever it is asked, with exit status 18 (the number of NVML's error)",
        (Gpu(A6000, "0000:01:00.0", 0, 0, "0-15"),),
        version=sample("proc_driver_version_open.txt"),
        devices=sample("proc_devices_511_236.txt"),
        nodes=nodes((0,), 511),
        modules=NVIDIA_MODULES,
        fails=(18, sample("smi_err_nvml_mismatch.txt")),
    ),
    Host(
        "8x_h100",
        "topo_8xh100_nvswitch.txt",
        "the card, addresses, minors, NUMA nodes and CPUs, device nodes; four NVSwitches (10de:22a3, subsystem 10de:1796)",
        tuple(Gpu(H100, f"0000:{bus}:00.0", minor, *H100_NUMA[minor]) for minor, bus in enumerate(H100_BUSES)),
        tuple(Pci(f"0000:{bus:02x}:00.0", "10de:22a3", "10de:1796", "0x068000", "nvidia-nvswitch") for bus in (7, 8, 9, 10)),
        sample("proc_driver_version_h200.txt"),
        sample("proc_devices_h200.txt"),
        nodes(range(8), 238, {241: (1, 2)}, switches=4),
        NVIDIA_MODULES,
        sample("topo_8xh100_nvswitch.txt"),
    ),
    Host(
        "gb10",
        "smi_query_gb10.csv and meminfo_gb10.txt (cases A01 and A02)",
        "the card, address, PCI link, processes",
        (
            Gpu(
                GB10,
                "000f:01:00.0",
                0,
                0,
                "0-19",
                processes=(
                    Process(4155, "C", "VLLM::EngineCore", "69564 MiB"),
                    Process(4155, "G", "VLLM::EngineCore", "69564 MiB"),
                    Process(300, "C", "python3", NA),
                ),
            ),
        ),
        version=sample("proc_driver_version_h200.txt"),
        devices=sample("proc_devices_511_236.txt"),
        nodes=nodes((0,), 511),
        modules=NVIDIA_MODULES,
        proc={"meminfo": sample("meminfo_gb10.txt")},
    ),
    Host(
        "nouveau",
        "lspci_nnk_nouveau_bound.txt (case C15)",
        "all: an RTX A6000 that nouveau holds; no driver, nvidia-smi is not installed",
        pci=(
            Pci("0000:01:00.0", "10de:2230", "10de:1459", "0x030000", "nouveau"),
            Pci("0000:01:00.1", "10de:1aef", "10de:1459", "0x040300", "snd_hda_intel"),
        ),
        devices=PLAIN_DEVICES,
        nodes=NO_NODES,
        modules=("nouveau",),
        smi=False,
    ),
    Host(
        "vfio",
        "lspci_nnk_vfio_turing_4_functions.txt (case C24)",
        "all: an RTX 2080 with four functions that are passed through; no driver, nvidia-smi is not installed",
        pci=tuple(
            Pci(f"0000:65:00.{function}", f"10de:{device}", "10de:12a3", pci_class, "vfio-pci")
            for function, device, pci_class in (
                (0, "1e82", "0x030000"),
                (1, "10f8", "0x040300"),
                (2, "1ad8", "0x0c0330"),
                (3, "1ad9", "0x0c8000"),
            )
        ),
        devices=PLAIN_DEVICES,
        nodes=NO_NODES,
        modules=("vfio_pci",),
        smi=False,
    ),
    Host(
        "wsl2",
        "smi_q_wsl2_510.txt (case A22)",
        "the card; no PCI device, no /proc/driver/nvidia, /dev/dxg alone",
        (Gpu(GTX_1650_TI, "0000:01:00.0", 0),),
        devices=PLAIN_DEVICES,
        nodes="crw-rw-rw- 1 root root 10, 125 Dec  1 02:31 /dev/dxg\n",
        proc={
            "version": "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@build) #1 SMP Tue Nov 5 00:21:55 UTC 2024\n",
        },
        metal=False,
    ),
    # Its first two GPUs are those of 2x_a6000.
    Host(
        "4x_a6000_hypervisor",
        "proc_devices_511_236.txt; a Proxmox hypervisor, of which 2x_a6000 is a container",
        "the card, addresses, minors, NUMA node and CPUs, device nodes, links between GPUs",
        tuple(Gpu(A6000, f"0000:{bus}:00.0", minor, 0, "0-31") for minor, bus in enumerate(("01", "41", "81", "c1"))),
        tuple(Pci(f"0000:{bus}:00.1", "10de:1aef", "10de:1459", "0x040300", "snd_hda_intel") for bus in ("01", "41", "81", "c1")),
        sample("proc_driver_version_h200.txt"),
        sample("proc_devices_511_236.txt"),
        nodes((0, 1, 2, 3), 511, {236: (1, 2)}),
        NVIDIA_MODULES,
        "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV4\tNODE\tNODE\t0-31\t0\t\tN/A\n"
        "GPU1\tNV4\t X \tNODE\tNODE\t0-31\t0\t\tN/A\n"
        "GPU2\tNODE\tNODE\t X \tNV4\t0-31\t0\t\tN/A\n"
        "GPU3\tNODE\tNODE\tNV4\t X \t0-31\t0\t\tN/A\n",
        number=1,
    ),
)


def readme(host: Host) -> str:
    return f"Built from the H200 capture with {host.sources}; values replaced: {host.replaced}.\n"


def write_host(directory: pathlib.Path, number: int, host: Host) -> None:
    """One recorded host. Only a directory that this script made is emptied first."""
    files, links = sys_files(host._replace(gpus=()) if host.name == "wsl2" else host)
    texts = {f"sys/{path}": text for path, text in files.items()}
    texts.update({f"proc/{path}": text for path, text in proc_files(number, host).items()})
    texts["dev/ls-l.txt"] = host.nodes
    texts["facts.json"] = json.dumps({"shm_total_mib": 64000, "shm_free_mib": 64000, **host.facts}) + "\n"
    if host.log:
        texts["dmesg.txt"] = host.log
    if host.smi:
        texts["nvidia-smi.json"] = json.dumps(smi_answers(number, host), indent=1) + "\n"
    for path, text in texts.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="")
    for path, text in links.items():
        (directory / f"sys/{path}").parent.mkdir(parents=True, exist_ok=True)
        (directory / f"sys/{path}").symlink_to(text)


def main() -> None:
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HOSTS
    for number, host in enumerate(RECORDED, 1):
        if (target / host.name).exists():
            shutil.rmtree(target / host.name)
        (target / host.name).mkdir(parents=True)
        (target / host.name / "README.md").write_text(readme(host), encoding="utf-8")
        write_host(target / host.name, host.number or number, host)


if __name__ == "__main__":
    main()
