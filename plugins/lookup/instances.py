# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: instances
author: Firstlight contributors (@firstlight)
version_added: 0.1.0
short_description: The SGLang instances of a host, united and resolved
description:
  - Collects every variable C(sglang_instance_<group>) that the host sees, fills in all defaults, checks them against the flag table of
    the SGLang release, and returns one list of instances. Every role of the collection reads this list and nothing else.
  - A mistake in any of them is an error that names all mistakes at once.
  - What is written into an instance is in the collection's README, the structure that comes out in docs/design.md.
options:
  release:
    description: SGLang release of instances that do not name one.
    type: str
    default: 0.5.23
    vars: [{name: sglang_release}]
  variant:
    description: Which lock builds the environment, for instances that do not say.
    type: str
    default: cuda
    choices: [cuda, cpu]
    vars: [{name: sglang_variant}]
  root:
    description: Where environments and the links of instances lie.
    type: str
    default: /opt/sglang
    vars: [{name: sglang_root}]
  config_dir:
    description: Where configuration lies; what holds a secret is 0600 and root's.
    type: str
    default: /etc/sglang
    vars: [{name: sglang_config_dir}]
  state_dir:
    description: Home of the services, one directory per instance.
    type: str
    default: /var/lib/sglang
    vars: [{name: sglang_state_dir}]
  models_dir:
    description: Where staged checkpoints lie.
    type: str
    default: /var/lib/sglang/models
    vars: [{name: sglang_models_dir}]
  cache_dir:
    description: Where kernels that are compiled at run time are kept, per environment.
    type: str
    default: /var/cache/sglang
    vars: [{name: sglang_cache_dir}]
  unit_dir:
    description: Where units are written.
    type: str
    default: /etc/systemd/system
    vars: [{name: sglang_unit_dir}]
  user:
    description: The user that the services run as.
    type: str
    default: sglang
    vars: [{name: sglang_user}]
  cuda_home:
    description:
      - The CUDA toolkit that kernels are compiled with at run time, C(CUDA_HOME) of every service of variant V(cuda).
      - Without it, the one that NVIDIA's wheels bring into the instance's own environment. The role C(cuda_toolkit) checks either.
    type: str
    vars: [{name: sglang_cuda_home}]
  unpinned:
    description:
      - What becomes of an instance whose model has neither a revision nor a path nor a script. V(refuse) is a mistake that names
        C(make pin). V(allow) takes it, with C(path) and C(revision) null, for the plan, which needs no checkpoint.
    type: str
    choices: [refuse, allow]
    default: refuse
  raw:
    description: Return C({instances, problems}) as a list of one element in place of an error. For the preflight.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show the command line of every instance of this host
  ansible.builtin.debug:
    msg: "{{ query('firstlight.sglang.instances') | map(attribute='argv') }}"
"""

RETURN = r"""
_raw:
  description: The resolved instances, ordered by the names of their groups.
  type: list
  elements: dict
"""

import functools
import hashlib
import pathlib

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.firstlight.sglang.plugins.module_utils._instances import PREFIX, Catalogue, Settings, resolve
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables

_COLLECTION = pathlib.Path(__file__).resolve().parents[2]
_LOCKS = _COLLECTION / "roles/sglang_venv/files/locks"
_SCRIPTS = _COLLECTION / "roles/sglang_model/files"


@functools.cache
def _sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _lock_sha256(name):
    return _sha256(_LOCKS / name)


def _build_script(name):
    for path in (_SCRIPTS / name, pathlib.Path(name).expanduser().absolute()):
        if path.is_file():
            return str(path), _sha256(path)
    return None


CATALOGUE = Catalogue(
    flag_table=flag_tables.table,
    lock_sha256=_lock_sha256,
    build_script=_build_script,
    environments=tuple(sorted(path.stem for path in _LOCKS.glob("*-*.txt"))),
)


class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):  # noqa: ARG002  # the interface of a lookup
        self.set_options(var_options=variables, direct=kwargs)
        settings = Settings(**{field: self.get_option(field) for field in Settings._fields})
        raw = {name: self._templar.template(variables[name]) for name in variables if name.startswith(PREFIX)}
        instances, problems = resolve(raw, settings, CATALOGUE)
        near = sorted(name for name in variables if name.startswith(("sglang_instances_", "sglang_instance-")) or name == "sglang_instance")
        problems += [f"{name}: not read by anything; is {PREFIX}<group> meant?" for name in near]
        if self.get_option("raw"):
            return [{"instances": instances, "problems": problems}]
        if problems:
            number = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
            raise AnsibleLookupError("\n".join([f"{number} in the instances of this host:", *(f"- {p}" for p in problems)]))
        return instances
