# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""What SGLang refuses, ignores or fails at though every flag by itself is right: rules across flags, model, GPUs and instances.

Each rule holds for the releases that it names and is silent where it lacks a fact: no model, no GPUs, no value. Sources are paths under
sglang/srt of the release named, or threads; "captured" is a start of 0.5.15.post1 on an H200. docs/flag-rules.md lists all of them.
"""

from __future__ import annotations

import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_rules_gpu, _flag_rules_host, _flag_rules_speculation
from ansible_collections.firstlight.sglang.plugins.module_utils._flag_facts import ERROR, Args, Facts, Finding, canonical
from ansible_collections.firstlight.sglang.plugins.module_utils._model import Model

RULES = (*_flag_rules_speculation.RULES, *_flag_rules_gpu.RULES, *_flag_rules_host.RULES)


def check(
    release: str,
    args: Args,
    model: Model | None = None,
    gpus: t.Sequence[Args] | None = None,
    others: t.Sequence[Args] = (),
    *,
    topology: Args | None = None,
    host: Args | None = None,
    environment: Args | None = None,
) -> list[Finding]:
    """All that the rules find, errors first.

    args: the instance's flags in snake_case, with those that follow from its keys (port, nccl_port, api_key). gpus: what gpu_info says of
    the instance's GPUs; topology and host of the same result. others: the host's other instances, each {name, args}, told once a pair.
    environment: the service's variables.
    """
    other_args = [{**other, "args": canonical(other["args"])} for other in others]
    facts = Facts(release, canonical(args), model, gpus, topology, host, other_args, environment or {})
    findings = [
        Finding(rule.id, rule.severity, message, rule.source) for rule in RULES if rule.holds_for(release) for message in rule.find(facts)
    ]
    return sorted(findings, key=lambda finding: finding.severity != ERROR)
