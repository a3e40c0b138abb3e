#!/bin/sh
# What must hold on every supported ansible-core. Usage: on_core.sh <directory with its ansible-playbook> alone|site
# alone: what needs no host. site: a site.yml on the host that the end-to-end tests left.
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "$1" && pwd):$PATH"
ansible --version | head -1
if [ "$2" = site ]; then
  FIRSTLIGHT_HOST=ready pytest -q tests/e2e -k second_run_changes_nothing
  exit
fi
ANSIBLE_HOST_PATTERN_MISMATCH=ignore ansible-lint -q
# What knows nothing of Ansible is tested once, by the other interpreter.
pytest -q -n auto --dist worksteal --ignore tests/unit/plugins/module_utils --ignore tests/unit/tools --ignore tests/unit/test_catalogue.py \
  --ignore tests/unit/test_gpu_double.py --ignore tests/unit/roles/test_sglang_model_scripts.py tests/unit
tools/sanity.sh "${PATH%%:*}"
