#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_flags
short_description: The options of an installed SGLang, and whether flags are valid for it
version_added: 0.1.0
description:
  - Asks the argument parser of the release that is installed in an environment for its options, and checks flags against them and against
    the rules that need neither the model nor the GPUs.
  - The first look takes some 20 seconds, because the engine imports torch. What it saw is kept in the environment
    (C(.firstlight.flags.json)) for as long as the release and the lock are the same, and is no change. No GPU is needed.
  - C(--model-type) belongs to C(sglang serve) and not to its options. The command line that the collection writes has it.
attributes:
  check_mode:
    description: Runs in check mode.
    support: full
    details: Keeps nothing of the look in check mode.
  diff_mode:
    description: Never changes anything, so there is nothing to show.
    support: none
options:
  path:
    description: The environment, as the module M(firstlight.sglang.engine_environment) makes it.
    type: path
    required: true
  args:
    description: Flags to check, in snake_case, as an instance has them.
    type: dict
    default: {}
  extra_args:
    description: Words that are added to the command line as they are. A flag that the release lacks passes, an abbreviation does not.
    type: list
    elements: str
    default: []
author:
  - Firstlight maintainers (@firstlight)
"""

EXAMPLES = r"""
- name: Check the flags of an instance against the engine that is installed
  firstlight.sglang.sglang_flags:
    path: /opt/sglang/instances/demo/current
    args: {tp_size: 2, mem_fraction_static: 0.85}
  register: flags
  failed_when: not flags.valid
"""

RETURN = r"""
release:
  description: The release that is installed.
  returned: always
  type: str
  sample: 0.5.23
flags:
  description: The names of its options in snake_case, in alphabetical order.
  returned: always
  type: list
  elements: str
  sample: [abort_on_priority_when_disabled, admin_api_key, attention_backend]
valid:
  description: Whether nothing is wrong with the flags.
  returned: always
  type: bool
problems:
  description: What is wrong with them, with what was expected, what was found and what to do.
  returned: always
  type: list
  elements: str
notes:
  description: What the rules warn of.
  returned: always
  type: list
  elements: str
words:
  description: The flags as words of a command line; empty when something is wrong with them.
  returned: always
  type: list
  elements: str
  sample: [--tp-size, "2", --mem-fraction-static, "0.85"]
kept:
  description: Whether the options were known from an earlier look.
  returned: always
  type: bool
"""

import inspect
import os
import tempfile
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_introspection
from ansible_collections.firstlight.sglang.plugins.module_utils import _flags_installed as core
from ansible_collections.firstlight.sglang.plugins.module_utils._engine_environment import LOCK_COPY


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def look(module: AnsibleModule, environment: Path, source: str, release: str) -> list[dict[str, t.Any]]:
    """Ask the engine's own parser."""
    rc, out, err = module.run_command([str(environment / "bin/python"), "-I", "-c", source])
    if rc != 0:
        last = err.strip().splitlines()[-1:] or ["nothing"]
        module.fail_json(
            msg=f"{environment}: expected the engine's Python to print its options, found {last[0]}; build the environment anew"
        )
    options, problem = core.printed(out, release)
    if problem:
        module.fail_json(msg=f"{environment}: {problem}")
    return options


def keep(module: AnsibleModule, path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=module.tmpdir)
    os.write(handle, text.encode("utf-8"))
    os.fchmod(handle, 0o644)
    os.close(handle)
    module.atomic_move(name, str(path))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "args": {"type": "dict", "default": {}},
            "extra_args": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    environment = Path(module.params["path"])
    packages = [path.name for path in environment.glob("lib/python3.*/site-packages/sglang-*.dist-info")]
    release = core.release_of(packages)
    if release is None:
        found = ", ".join(sorted(packages)) or "none"
        module.fail_json(msg=f"{environment}: expected an environment with one SGLang, found {found}; build it with the role sglang_venv")
    source = inspect.getsource(_flag_introspection)
    wanted = core.identity(release, read(environment / LOCK_COPY), source)
    options = core.kept(read(environment / core.KEPT), wanted)
    kept = options is not None
    if options is None:
        options = look(module, environment, source, release)
        if not module.check_mode and os.access(environment, os.W_OK):
            keep(module, environment / core.KEPT, core.to_keep(options, wanted))
    answer = core.answer(release, options, module.params["args"], module.params["extra_args"])
    module.exit_json(
        changed=False,
        release=release,
        flags=core.names(options),
        valid=not answer.problems,
        problems=answer.problems,
        notes=answer.notes,
        words=answer.words,
        kept=kept,
    )


if __name__ == "__main__":
    main()
