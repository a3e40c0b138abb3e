#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_probe
short_description: Asks SGLang instances questions and judges the answers
version_added: 0.1.0
description:
  - A healthy port proves little. This module checks, on the target, that each instance answers as itself and correctly.
  - In turn - C(/health); the served name in C(/v1/models); model path and release in C(/server_info), as another server may own the port;
    a B(sampled) warm-up completion with a budget of its own, because the first sampled request compiles kernels; every question at
    temperature 0; the first question again as a stream; thinking told apart from the answer.
  - All checks are reported, failed or not, and the module fails with all failed ones in one message.
  - The key is read on the target from the file in C(api_key_path) and is never shown. No proxy of the environment is used.
attributes:
  check_mode:
    description: Runs in check mode.
    support: partial
    details: Sends no request in check mode, and says what it would ask.
  diff_mode:
    description: Never changes anything, so there is nothing to show.
    support: none
options:
  instances:
    description:
      - Resolved instances, as the lookup P(firstlight.sglang.instances#lookup) returns them.
      - Of each, C(name), C(url), C(served_model_name), C(api_key_path), C(model.path), C(environment.release) and C(verify) are read.
    type: list
    elements: dict
    required: true
  questions:
    description: For instances without C(verify.questions).
    type: list
    elements: dict
    default: []
    suboptions:
      prompt:
        description: What to ask.
        type: str
        required: true
      expect:
        description: Words that the answer must have. Case and spaces do not matter.
        type: str
        required: true
      max_tokens:
        description: Longest answer, 256 when not given.
        type: int
  request_timeout_s:
    description: Seconds for one answer after the warm-up.
    type: float
    default: 120
author:
  - Firstlight maintainers (@firstlight)
"""

EXAMPLES = r"""
- name: Check that the instances answer correctly
  firstlight.sglang.sglang_probe:
    instances: "{{ query('firstlight.sglang.instances') }}"
    questions:
      - prompt: What is the capital of France? Answer with one word.
        expect: Paris
"""

RETURN = r"""
instances:
  description: One probe per instance, in the given order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The instance.
      type: str
      sample: demo
    url:
      description: Where it was asked.
      type: str
      sample: http://127.0.0.1:30000
    ok:
      description: Whether no check failed.
      type: bool
    checks:
      description:
        - Each has C(name), C(state), C(ok), C(expected), C(found) and C(seconds).
        - C(state) is V(passed), V(failed), V(not_applicable) or V(skipped); V(skipped) means that an earlier failure forbids it.
        - C(ok) is null for the last two.
      type: list
      elements: dict
      sample:
        - {name: health, state: passed, ok: true, expected: HTTP 200 from /health, found: HTTP 200, seconds: 1.003}
    server:
      description: What C(/server_info) says, without anything secret.
      type: dict
      sample: {version: 0.5.23, max_total_num_tokens: 20000, max_running_requests: 4}
    model:
      description: C(id) and C(max_model_len) of C(/v1/models).
      type: dict
      sample: {id: tiny-qa, max_model_len: 4096}
    warm_up_seconds:
      description: How long the sampled warm-up completion took.
      type: float
      sample: 0.4
    first_token_seconds:
      description: From the request to the first chunk with text, in the stream.
      type: float
      sample: 0.05
    answer_seconds:
      description: From the request to the end, in the stream.
      type: float
      sample: 0.11
"""

import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils._http_client import Answer, request
from ansible_collections.firstlight.sglang.plugins.module_utils._probe import Probe, check, failure_text, question_faults, run_probe
from ansible_collections.firstlight.sglang.plugins.module_utils._status import InputError, check_instances, read_api_key


def questions_of(instance: dict[str, t.Any], default: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    return (instance.get("verify") or {}).get("questions") or default


def unreadable_key(instance: dict[str, t.Any], why: str) -> Probe:
    expected = f"a line `api-key: VALUE` in {instance['api_key_path']}"
    return {
        "name": instance["name"],
        "url": instance["url"],
        "ok": False,
        "checks": [check("key", False, expected, why, 0.0)],
        "server": {},
        "model": {},
        "warm_up_seconds": None,
        "first_token_seconds": None,
        "answer_seconds": None,
    }


def probe_one(instance: dict[str, t.Any], questions: list[dict[str, t.Any]], request_timeout_s: float) -> Probe:
    key = ""
    if instance.get("api_key_path"):
        try:
            key = read_api_key(Path(instance["api_key_path"]).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            return unreadable_key(instance, f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'not UTF-8'}")
        if not key:
            return unreadable_key(instance, "no such line")

    def ask(path: str, payload: t.Any, timeout_s: float) -> Answer:
        return request(instance["url"], path, payload=payload, key=key, timeout_s=timeout_s)

    return run_probe(instance, questions, ask=ask, request_timeout_s=request_timeout_s, secrets=[key] if key else [])


def main() -> t.NoReturn:
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "dict", "required": True},
            "questions": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "prompt": {"type": "str", "required": True},
                    "expect": {"type": "str", "required": True},
                    "max_tokens": {"type": "int", "no_log": False},
                },
            },
            "request_timeout_s": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    instances = module.params["instances"]
    default = module.params["questions"]
    try:
        check_instances(instances, ("name", "url", "served_model_name"))
    except InputError as error:
        module.fail_json(msg=str(error))
    faults = [f"{instance['name']}: {fault}" for instance in instances for fault in question_faults(questions_of(instance, default))]
    if faults:
        module.fail_json(msg="verify.questions: " + "; ".join(faults))
    if module.check_mode:
        would = [
            f"{instance['name']}: would ask {len(questions_of(instance, default))} question(s) of {instance['url']}"
            for instance in instances
        ]
        module.exit_json(changed=False, instances=[], msg="; ".join(would))
    probes = [probe_one(instance, questions_of(instance, default), module.params["request_timeout_s"]) for instance in instances]
    failures = [text for text in map(failure_text, probes) if text]
    if failures:
        module.fail_json(msg="\n".join(failures), instances=probes)
    module.exit_json(changed=False, instances=probes)


if __name__ == "__main__":
    main()
