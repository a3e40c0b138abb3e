# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

"""Filters about a Proxmox hypervisor and its containers: what is made at boot, and whether both sides fit together."""

from __future__ import annotations

from ansible_collections.firstlight.sglang.plugins.module_utils import _proxmox


class FilterModule:
    """The filters of this file."""

    def filters(self):
        return {
            "proxmox_boot_nodes": _proxmox.boot_nodes,
            "proxmox_boot_commands": _proxmox.boot_commands,
            "proxmox_list_problems": _proxmox.list_problems,
            "proxmox_given": _proxmox.given,
            "proxmox_guest_problems": _proxmox.guest_problems,
            "proxmox_said_problems": _proxmox.said_problems,
        }
