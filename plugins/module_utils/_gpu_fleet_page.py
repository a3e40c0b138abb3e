# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What the HTML page of a fleet report shows: words, shares and colours' names, so that the template only has to put them in place."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._gpu_fleet import (
    REASON_WORDS,
    SEVERITIES,
    STATUS_WORDS,
    clock_words,
    count,
    gpu_labels,
    limit_words,
    memory_words,
    model_memory_words,
    model_name,
    natural,
    part_of,
    size,
    summary_words,
    used_words,
)

OPEN_HOSTS = 8  # so many hosts are shown unfolded: a small fleet is one picture, a large one a list
LONG_LIST = 8  # longer lists are folded

# Health of a GPU -> what it is called, and the tone: the colours and signs of good, warning, bad, info and none.
HEALTH = {
    "ok": ("healthy", "good"),
    "degraded": ("degraded", "warning"),
    "needs_reset": ("needs a reset", "bad"),
    "lost": ("lost", "bad"),
    "no_driver": ("no driver", "bad"),
    "passed_through": ("given to a VM", "info"),
    "unknown": ("not known", "none"),
}
TONES = {"error": "bad", "warning": "warning", "info": "info"}
SIGNS = {"good": "✓", "warning": "!", "bad": "×", "info": "i", "none": "?"}  # noqa: RUF001  (a sign for bad)
# Words of nvidia-smi topo -m, the nearest first, and what they mean (its legend; NV# is a number of links).
LINKS = (
    ("NV", "NVLink, with the number of links"),
    ("PIX", "one PCIe switch at most"),
    ("PXB", "several PCIe switches"),
    ("PHB", "the CPU's PCIe host bridge"),
    ("NODE", "host bridges of one NUMA node"),
    ("SYS", "from one NUMA node to another"),
)


# Words of problem codes that are not written in small letters.
_SPELLED = {
    "gpu": "GPU",
    "gpus": "GPUs",
    "mig": "MIG",
    "ecc": "ECC",
    "uvm": "UVM",
    "nvml": "NVML",
    "pcie": "PCIe",
    "iommu": "IOMMU",
    "wsl": "WSL",
}


def _share(part: t.Any, whole: t.Any) -> float | None:
    """Per cent, at most 100; None when one of the two is not known."""
    if part is None or not whole:
        return None
    return round(min(100.0, max(0.0, 100.0 * float(part) / float(whole))), 1)


def link_class(word: str) -> str:
    """The name of a link's colour."""
    if re.fullmatch(r"NV\d+", word):
        return "nv"
    known = ("X", *(name for name, _meaning in LINKS[1:]))
    return word.lower() if word in known else "other"


def _bar(used: t.Any, total: t.Any, words: str) -> dict[str, t.Any]:
    """A bar of memory: a share, or unknown when there is none to show."""
    share = _share(used, total)
    return {"share": share, "kind": "unknown" if share is None else "known", "words": words}


def _memory(gpu: t.Mapping[str, t.Any], host: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    total, available = host["memory_total_mib"], host["memory_available_mib"]
    words = memory_words(gpu, total)
    if gpu["memory_kind"] != "unified":
        return _bar(gpu["memory_used_mib"], gpu["memory_total_mib"], words)
    if total is None or available is None:
        return {**_bar(None, None, words), "kind": "unknown"}
    used = max(0, total - available)
    return {**_bar(used, total, f"{part_of(used, total)}, shared with the host"), "kind": "unified"}


def _pcie(gpu: t.Mapping[str, t.Any]) -> str | None:
    """The link as it is and could be. A narrower one than possible is worth a word; a slower one only means that the GPU is idle."""
    width, width_max, generation = gpu["pcie_width"], gpu["pcie_width_max"], gpu["pcie_generation_max"] or gpu["pcie_generation"]
    if width is None or generation is None:
        return None
    words = f"PCIe {generation} x{width}"
    return f"{words} (x{width_max} possible)" if width_max is not None and width < width_max else words


def _processes(processes: t.Sequence[t.Mapping[str, t.Any]]) -> str | None:
    """How many, and what they hold when all of them say so: of unified memory nothing else tells what the GPU's work takes."""
    held = [process["memory_used_mib"] for process in processes if process.get("memory_used_mib") is not None]
    words = count(len(processes), "process", "processes")
    return None if not processes else words if len(held) < len(processes) else f"{words} with {size(sum(held))}"


def _facts(gpu: t.Mapping[str, t.Any]) -> list[str]:
    draw, limit = gpu["power_draw_w"], gpu["power_limit_w"]
    facts = [
        None if gpu["temperature_c"] is None else f"{gpu['temperature_c']} °C",
        None if draw is None else f"{draw:.0f} W" if limit is None else f"{draw:.0f} of {limit:.0f} W",
        _pcie(gpu),
        None if gpu["numa_node"] is None else f"NUMA {gpu['numa_node']}",
        {True: "ECC on", False: "ECC off", None: None}[gpu["ecc_enabled"]],
        _processes(gpu["processes"] or ()),
    ]
    return [fact for fact in facts if fact is not None]


def _mig_devices(gpu: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    devices = []
    instances: set[t.Any] = set()
    for device in gpu["mig_devices"] or ():
        total, used, instance = device.get("memory_total_mib"), device.get("memory_used_mib"), device.get("gpu_instance_id")
        words = size(total) if used is None or total is None else part_of(used, total)
        shares = instance is not None and instance in instances
        instances.add(instance)
        devices.append(
            {
                "index": device.get("index"),
                "name": device.get("name") or "MIG device",
                "uuid": device.get("uuid"),
                "instance": f"{'-' if instance is None else instance} / {_or_dash(device.get('compute_instance_id'))}",
                "memory": _bar(used, total, f"{words}, shared with the one above" if shares else words),
            }
        )
    return devices


def _or_dash(value: t.Any) -> str:
    return "-" if value is None or value == "" else str(value)


def _card(gpu: t.Mapping[str, t.Any], host: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    words, tone = HEALTH.get(gpu["health"], ("not known", "none"))
    split = gpu["mig_enabled"] is True
    identity = [gpu["pci_bus_id"], gpu["uuid"], f"serial {gpu['serial']}" if gpu["serial"] else None]
    return {
        "label": "GPU" if gpu["index"] is None else f"GPU {gpu['index']}",
        "model": model_name(gpu),
        "health": f"{words}, split by MIG" if split and tone == "good" else words,
        "tone": tone,
        "memory": _memory(gpu, host),
        "facts": _facts(gpu),
        "identity": [one for one in identity if one],
        "mig": _mig_devices(gpu),
    }


def _topology(host: t.Mapping[str, t.Any]) -> dict[str, t.Any] | None:
    topology = host["topology"] or {}
    matrix, indices = topology.get("matrix") or [], topology.get("indices") or []
    if len(matrix) < 2 or any(len(row) != len(matrix) for row in matrix) or len(indices) != len(matrix):
        return None
    groups = [
        f"{group['size']}: GPU {', '.join(str(index) for index in group.get('indices') or ())}"
        + (f" ({group['link']})" if group.get("link") else "")
        for group in host["gpu_groups"] or ()
        if (group.get("size") or 0) > 1
    ]
    rows = [
        {"index": index, "cells": [{"word": str(word), "class": link_class(str(word))} for word in row]}
        for index, row in zip(indices, matrix)
    ]
    return {"indices": indices, "rows": rows, "groups": groups}


def _host_facts(host: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    reasons = host["reasons"] or {}

    def told(field: str, value: str | None = None) -> str:
        if host[field] is None:
            return REASON_WORDS.get(reasons.get(field, ""), "unknown")
        return str(host[field]) if value is None else value

    driver = told("driver_version") + (f" ({host['driver_flavour']})" if host["driver_flavour"] else "")
    if host["driver_userland_version"] not in (None, host["driver_version"]):
        driver += f", libraries {host['driver_userland_version']}"
    memory = told("memory_total_mib", size(host["memory_total_mib"]))
    if host["memory_available_mib"] is not None:
        memory += f", {size(host['memory_available_mib'])} available"
    facts = [
        ("Driver", driver),
        ("Newest CUDA", told("cuda_driver_version")),
        ("Kind", told("virtualization", "bare metal" if host["virtualization"] == "none" else None)),
        ("Memory", memory),
        ("/dev/shm", told("shm_total_mib", size(host["shm_total_mib"]))),  # noqa: S108  (a name)
        ("Secure Boot", told("secure_boot")),
        ("IOMMU", told("iommu")),
        ("Groups", ", ".join(host["group_names"] or ()) or "none"),
    ]
    if host["nvswitches"]:
        facts.insert(5, ("NVSwitches", f"{len(host['nvswitches'])}, fabric {told('fabric_state')}"))
    return facts


def _models_of(gpus: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    numbers: dict[str, int] = {}
    for gpu in gpus:
        numbers[model_name(gpu)] = numbers.get(model_name(gpu), 0) + 1
    return ", ".join(f"{number} × {name}" for name, number in numbers.items())  # noqa: RUF001


def _host(
    host: t.Mapping[str, t.Any],
    gpus: t.Sequence[t.Mapping[str, t.Any]],
    problems: t.Sequence[t.Mapping[str, t.Any]],
    labels: t.Mapping[tuple[str, str], str],
) -> dict[str, t.Any]:
    worst = problems[0]["severity"] if problems else None
    tone = TONES.get(worst, "none") if worst else "good"
    same = sum(problem["severity"] == worst for problem in problems)
    known = [gpu for gpu in gpus if gpu["memory_total_mib"] is not None and gpu["memory_used_mib"] is not None]
    memory = None
    if known:
        used, total = sum(gpu["memory_used_mib"] for gpu in known), sum(gpu["memory_total_mib"] for gpu in known)
        memory = _bar(used, total, part_of(used, total))
    return {
        "name": host["host"],
        "tone": tone,
        "state": "no problems" if worst is None else count(same, "note" if worst == "info" else worst),
        "models": _models_of(gpus) or "no GPU",
        "memory": memory,
        "facts": _host_facts(host),
        "problems": [_problem(problem, labels) for problem in problems],
        "cards": [_card(gpu, host) for gpu in gpus],
        "topology": _topology(host),
    }


def _problem(problem: t.Mapping[str, t.Any], labels: t.Mapping[tuple[str, str], str]) -> dict[str, t.Any]:
    severity, found = problem["severity"], str(problem["found"] or "")
    place = labels.get((problem["host"], problem["gpu"]), problem["gpu"])
    return {
        "host": problem["host"],
        "gpu": None if not place or place in found or str(problem["gpu"]) in found else place,
        "found": found,
        "action": problem["action"],
        "severity": severity,
        "tone": TONES.get(severity, "none"),
    }


def _problem_groups(document: t.Mapping[str, t.Any], labels: t.Mapping[tuple[str, str], str]) -> list[dict[str, t.Any]]:
    """The same problem of many hosts is one entry: the worst first, then the most frequent. What to do is said once when it is the same."""
    groups: dict[tuple[t.Any, t.Any], list[dict[str, t.Any]]] = {}
    for problem in document["problems"]:
        groups.setdefault((problem["severity"], problem["code"]), []).append(_problem(problem, labels))
    entries = [
        {
            "severity": severity,
            "tone": TONES.get(severity, "none"),
            "title": " ".join(_SPELLED.get(word, word) for word in str(code or "").split("_")),
            "action": items[0]["action"] if len({item["action"] for item in items}) == 1 else None,
            "where": items,
            "hosts": len({item["host"] for item in items}),
        }
        for (severity, code), items in groups.items()
    ]
    order = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    return sorted(entries, key=lambda entry: (order.get(entry["severity"], len(order)), -entry["hosts"]))


def _tiles(document: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """Each with a number and notes; a note is (words, tone)."""
    summary = document["summary"]
    silent, without = summary["hosts"] - summary["hosts_answered"], summary["hosts_without_gpus"]
    total, unified, used = summary["memory_total_mib"], summary["memory_unified_mib"], used_words(summary)
    errors, warnings, notes = (summary["problems"][severity] for severity in SEVERITIES)
    hosts = [(f"{silent} without an answer", "bad") if silent else ("all answered", "none")]
    hosts += [(f"{without} without a GPU", "none")] if without else []
    hosts += [(limit_words(summary), "warning")] if limit_words(summary) else []
    gpus = [(f"{summary['gpus_usable']} usable", "none")]
    gpus += [(f"{count(summary['mig_devices'], 'MIG device')} on {summary['gpus_mig']}", "none")] if summary["mig_devices"] else []
    memory = [(used, "none")] if used else []
    memory += [(f"{size(unified)} more, shared with hosts", "none")] if unified else []
    found = [(count(errors, "error"), "bad")] if errors else []
    found += [(count(warnings, "warning"), "warning")] if warnings else []
    found += [(count(notes, "note"), "none")] if notes else []
    return [
        {"label": "Hosts", "value": summary["hosts"], "notes": hosts},
        {"label": "GPUs", "value": summary["gpus"], "notes": gpus},
        {"label": "GPU memory", "value": "-" if total is None else size(total), "notes": memory},
        {"label": "Problems", "value": errors + warnings + notes, "notes": found or [("none found", "none")]},
    ]


def page(document: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Everything that the template shows of a fleet document."""
    gpus: dict[str, list[t.Mapping[str, t.Any]]] = {}
    for gpu in document["gpus"]:
        gpus.setdefault(gpu["host"], []).append(gpu)
    problems: dict[str, list[t.Mapping[str, t.Any]]] = {}
    for problem in document["problems"]:
        problems.setdefault(problem["host"], []).append(problem)
    labels = gpu_labels(document)
    shown, without = [], []
    for host in document["hosts"]:
        name = host["host"]
        if host["gpu_count"] or (host["status"] == "answered" and name in problems):
            shown.append(_host(host, gpus.get(name, []), problems.get(name, []), labels))
        elif host["status"] == "answered":
            without.append(name)
    tones = ("bad", "warning", "info", "none", "good")
    shown.sort(key=lambda host: (tones.index(host["tone"]), natural(host["name"])))
    names = {host["name"]: f"h{number}" for number, host in enumerate(shown)}
    links_used = {cell["class"] for host in shown if host["topology"] for row in host["topology"]["rows"] for cell in row["cells"]}
    return {
        "clock": clock_words(document["generated_at"]),
        "generated_at": document["generated_at"],
        "sentence": summary_words(document),
        "tiles": _tiles(document),
        "problems": _problem_groups(document, labels),
        "unanswered": [{**one, "status": STATUS_WORDS[one["status"]]} for one in document["unanswered"]],
        "models": [
            {
                **model,
                "memory": model_memory_words(model),
                "numbers": [
                    (model["gpus"], count(model["gpus"], "GPU")),
                    (model["usable"], f"{model['usable']} usable"),
                    (model["hosts"], count(model["hosts"], "host")),
                ],
                "bar": _bar(
                    None if model["memory_used_unknown"] else model["memory_used_mib"],
                    model["memory_total_mib"],
                    "" if model["memory_total_mib"] is None else used_words(model),  # a memory that is not known is told once
                ),
            }
            for model in document["models"]
        ],
        "hosts": shown,
        "anchors": names,
        "unfold": len(shown) <= OPEN_HOSTS,
        "without": without,
        "links": [(name, meaning, name.lower()) for name, meaning in LINKS if name.lower() in links_used],
        "long_list": LONG_LIST,
        "signs": SIGNS,
    }
