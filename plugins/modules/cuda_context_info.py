#!/usr/bin/python
# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_context_info
author: Firstlight maintainers (@firstlight)
version_added: 0.1.0
short_description: Whether a user can make a CUDA context on every GPU
description:
  - Loads the driver's library for CUDA as the user, and makes and releases a context on each GPU. This takes some hundred MiB of its memory
    for a moment.
  - All of it happens in a process of its own with a time limit, so that a driver that hangs or crashes is told too.
options:
  inventory:
    description: The result of M(firstlight.sglang.gpu_info) on this host. Without a GPU that a driver answers for nothing is tried.
    type: dict
    required: true
  user:
    description: Who must be able to.
    type: str
    required: true
  library:
    description: Name or path of the library.
    type: str
    default: libcuda.so.1
  timeout_s:
    description: Seconds that all of it may take, 1 to 3600.
    type: int
    default: 120
attributes:
  check_mode:
    description: Runs in check mode too, since it leaves nothing behind.
    support: full
"""

EXAMPLES = r"""
- name: Look at the GPUs
  firstlight.sglang.gpu_info:
  register: gpus

- name: Try CUDA as the user of the services
  firstlight.sglang.cuda_context_info:
    inventory: "{{ gpus }}"
    user: sglang
  register: cuda
  failed_when: cuda.problems | length > 0
"""

RETURN = r"""
tried:
  description: Whether there was a GPU to try.
  returned: always
  type: bool
problems:
  description: What does not work, one sentence each, with what was expected, what was found and what to do.
  returned: always
  type: list
  elements: str
notes:
  description: What to know, such as why nothing was tried.
  returned: always
  type: list
  elements: str
gpus:
  description: PCI address to whether a context could be made.
  returned: always
  type: dict
"""

import ctypes
import json
import os
import pwd
import select
import signal
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firstlight.sglang.plugins.module_utils import _cuda_context as core
from ansible_collections.firstlight.sglang.plugins.module_utils import _gpu_inventory


def try_cuda(library: str, pipe: int) -> None:
    """Call the driver's library, and tell of each call before and after it."""

    def tell(line: dict[str, t.Any]) -> None:
        os.write(pipe, f"{json.dumps(line)}\n".encode())

    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        tell({"error": str(error)})
        return

    def call(name: str, *arguments: t.Any, gpu: str | None = None) -> bool:
        tell({"call": name, "gpu": gpu})
        code = getattr(cuda, name)(*arguments)
        word = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(word))
        tell({"call": name, "gpu": gpu, "code": code, "name": (word.value or b"").decode("ascii", errors="replace")})
        return bool(code == 0)

    count = ctypes.c_int()
    if not call("cuInit", 0) or not call("cuDeviceGetCount", ctypes.byref(count)):
        return
    tell({"count": count.value})
    for number in range(count.value):
        device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(32)
        if not call("cuDeviceGet", ctypes.byref(device), number):
            continue
        cuda.cuDeviceGetPCIBusId(address, 32, device)
        gpu = address.value.decode("ascii", errors="replace") or str(number)
        if call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device, gpu=gpu):
            call("cuDevicePrimaryCtxRelease_v2", device, gpu=gpu)


def become(entry: pwd.struct_passwd) -> None:
    if os.geteuid() == 0:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)


def in_child(entry: pwd.struct_passwd, library: str, timeout_s: int) -> tuple[str, int | None]:
    """What try_cuda told, in a process of its own, and the signal that ended it (0: none, None: it did not end in time)."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receiver)
            # The choice of whoever runs this is no part of the attempt.
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            become(entry)
            try_cuda(library, sender)
        finally:
            os._exit(0)
    os.close(sender)
    data, deadline = b"", time.monotonic() + timeout_s
    while True:
        ready = select.select([receiver], [], [], max(0.0, deadline - time.monotonic()))[0]
        chunk = os.read(receiver, 1 << 16) if ready else b""
        if not chunk:
            break
        data += chunk
    os.close(receiver)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    # A process that hangs inside the kernel cannot be ended: it is left behind.
    status = None
    until = time.monotonic() + 5
    while status is None and time.monotonic() < until:
        done, code = os.waitpid(pid, os.WNOHANG)
        status = code if done else None
        time.sleep(0 if done else 0.05)
    return data.decode(errors="replace"), None if not ready or status is None else status & 0x7F


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "inventory": {"type": "dict", "required": True},
            "user": {"type": "str", "required": True},
            "library": {"type": "str", "default": "libcuda.so.1"},
            "timeout_s": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    inventory, user, timeout_s = module.params["inventory"], module.params["user"], module.params["timeout_s"]
    if not 1 <= timeout_s <= 3600:
        module.fail_json(msg=f"timeout_s: expected 1 to 3600 seconds, found {timeout_s}.")
    lacking = _gpu_inventory.lacking(inventory, (), ("index", "health", "mig_enabled"))
    if lacking:
        module.fail_json(msg=f"inventory: expected the result of gpu_info, found none of its {lacking}.")
    why_not = core.not_tried(inventory)
    if why_not:
        module.exit_json(changed=False, tried=False, problems=[], notes=[why_not], gpus={})
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        module.fail_json(msg=f"user: expected a user of this host, found {user}, which is none.")
    told, ended = in_child(entry, module.params["library"], timeout_s)
    found = core.outcome(told, ended, inventory, user, timeout_s)
    module.exit_json(changed=False, tried=True, **found._asdict())


if __name__ == "__main__":
    main()
