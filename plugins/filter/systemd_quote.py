# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

"""Filters that write words, environments and command lines the way systemd reads them back."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.firstlight.sglang.plugins.module_utils import _systemd


def _guarded(function):
    def call(value, *args):
        try:
            return function(value, *args)
        except _systemd.UnitTextError as error:
            raise AnsibleFilterError(str(error)) from error

    return call


def _quote(value, context="argument"):
    contexts = {"argument": _systemd.quote_argument, "word": _systemd.quote_word, "value": _systemd.quote_value}
    if context not in contexts:
        raise AnsibleFilterError(f"systemd_quote: expected one of {', '.join(sorted(contexts))}, found {context!r}")
    return contexts[context](str(value))


class FilterModule:
    """The filters of this file."""

    def filters(self):
        return {
            "systemd_quote": _guarded(_quote),
            "systemd_environment": _guarded(_systemd.environment_lines),
            "systemd_command": _guarded(_systemd.command_lines),
        }
