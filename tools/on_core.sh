#!/bin/sh
# What must hold on every supported ansible-core. Usage: on_core.sh <directory with its ansible-playbook>
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "$1" && pwd):$PATH"
ansible --version | head -1
ANSIBLE_HOST_PATTERN_MISMATCH=ignore ansible-lint -q
# What knows nothing of Ansible is tested once, by the other interpreter.
pytest -q -n auto --dist worksteal --ignore tests/unit/plugins/module_utils --ignore tests/unit/test_catalogue.py tests/unit
tools/sanity.sh "${PATH%%:*}"
FIRSTLIGHT_HOST=ready pytest -q tests/e2e -k second_run_changes_nothing
