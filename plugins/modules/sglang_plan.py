#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_plan
short_description: Says what fits on the GPUs of a host, with which flags, before anything is started
version_added: 0.1.0
description:
  - For each instance, computes what SGLang's release would make of the GPUs' memory, by that release's own formulas. How many tokens fit,
    how many requests run at once, how long the longest one can be, where every GiB goes, and which changes reach what is asked for.
  - Prints the picture of each instance, and writes it on the controller, as C(<path>/<host>/<instance>/plan.json) and C(plan.md), and all
    instances of a host as one page, C(<path>/<host>/plan.html).
  - Needs no GPU. The fields of the model's configuration come from the instance (C(model.config), as the catalogue has it), else from
    C(config.json) of the checkpoint on the host, else from the Hub, at the instance's revision (C(HF_ENDPOINT) and C(HF_TOKEN) of the
    controller's environment).
  - Fails when an instance cannot be planned, with every reason. A plan that does not fit is an answer, not a failure.
  - This is an action. It runs on the controller, and asks the host for C(config.json) only.
attributes:
  action:
    description: Runs on the controller.
    support: full
  check_mode:
    description: Plans and prints as always, and writes nothing.
    support: full
  diff_mode:
    description: Never changes anything on a host, so there is nothing to show.
    support: none
options:
  instances:
    description:
      - Resolved instances, as the lookup P(firstlight.sglang.instances#lookup) returns them.
    type: list
    elements: dict
    required: true
  gpus:
    description:
      - The result of M(firstlight.sglang.gpu_info) on the host, of which the instance's GPUs are taken with what other processes hold of
        them. What a running SGLang holds is not counted, because it would be started anew. Of an instance that runs on a CPU the memory
        of the host takes the place of a GPU's.
      - Or names, such as V(2x rtx-a6000), for a host that is not there yet.
    type: raw
    required: true
  want:
    description: What is asked of each instance.
    type: dict
    suboptions:
      context:
        description: Tokens of one request, prompt and answer.
        type: int
      concurrency:
        description: Requests at once.
        type: int
  given:
    description: Measured numbers of the GPU with least memory, which take the place of predicted ones. In GiB but for the last.
    type: dict
    suboptions:
      avail_before_weights_gib:
        description: Free memory that the engine logs before it loads weights.
        type: float
      weights_gib:
        description: Memory of the weights on one GPU.
        type: float
      draft_weights_gib:
        description: Memory of the draft's weights on one GPU.
        type: float
      free_after_load_gib:
        description: Free memory after all weights are loaded.
        type: float
      mem_fraction_static:
        description: The fraction that the engine logs.
        type: float
  path:
    description: Directory of the files, made when it is missing. A relative path begins at the directory in which Ansible was started.
    type: path
    default: reports
  formats:
    description: What to write.
    type: list
    elements: str
    choices: [json, md, html]
    default: [json, md, html]
  show:
    description: Whether to print the picture of each instance.
    type: bool
    default: true
  override:
    description: Names of instances that are to be started although their plan does not fit.
    type: list
    elements: str
    default: []
  required:
    description: Whether an instance that cannot be planned is a failure. Otherwise RV(unplanned) says why there is no plan.
    type: bool
    default: true
  record_path:
    description:
      - Where the host remembers earlier starts. The numbers that a start of the same model, release, GPUs and flags logged take the place
        of predicted ones, unless O(given) has some.
    type: path
    default: /var/lib/firstlight/plans.json
author:
  - Firstlight maintainers (@firstlight)
"""

EXAMPLES = r"""
- name: Plan the instances of this host on the GPUs that it has
  firstlight.sglang.sglang_plan:
    instances: "{{ query('firstlight.sglang.instances') }}"
    gpus: "{{ gpu_inventory_result }}"
    want: {context: 131072, concurrency: 4}
  register: plan

- name: Plan them on GPUs that are yet to be bought, and write nothing
  firstlight.sglang.sglang_plan:
    instances: "{{ query('firstlight.sglang.instances') }}"
    gpus: 4x rtx-pro-6000
    formats: []
"""

RETURN = r"""
plans:
  description:
    - The plan of each instance, by its name. All keys are always there; what is not known is null. docs/design.md says what each is.
  returned: success
  type: dict
  sample:
    qwen3-6-27b:
      verdict: fits_with_changes
      sglang_release: 0.5.23
      mem_fraction_static: 0.786051
      max_total_num_tokens: 19198
      max_running_requests: 1
      max_request_tokens: 19197
      per_gpu: [{index: 0, memory_total_mib: 49140, components: {weights: 25.75, kv_pool: 0.59}}]
      alternatives: [{id: mrr, what: at most 4 requests at once, args: {max_running_requests: 4}, verdict: fits}]
verdicts:
  description: V(fits), V(fits_with_changes) or V(does_not_fit), by instance.
  returned: always
  type: dict
  sample: {qwen3-6-27b: fits}
passed_over:
  description: Instances that run on a CPU, where O(gpus) are names, which say nothing of a host's memory.
  returned: always
  type: list
  elements: str
refused:
  description:
    - Instances whose plan does not fit, each with the reason and what would do. Not among them are a model without formulas of its own, and
      what starts when the overheads that are not known are the smallest.
  returned: always
  type: list
  elements: str
overridden:
  description: The same of instances that O(override) names.
  returned: always
  type: list
  elements: str
unplanned:
  description: Why an instance has no plan.
  returned: always
  type: list
  elements: str
record:
  description: What the host remembers of earlier starts, by a digest of model, release, GPUs and flags.
  returned: always
  type: dict
files:
  description: The files that were written.
  returned: always
  type: list
  elements: str
"""
