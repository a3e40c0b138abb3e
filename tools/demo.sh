#!/bin/sh
# The main job on this machine: a container, the real engine, a verified completion. `demo.sh destroy` removes it.
set -eu
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
  echo "demo: expected root, found $(id -un): a system container is made on this machine. Run it with sudo, or deploy to a host of yours:" \
    "make deploy INVENTORY=..." >&2
  exit 1
fi
if [ "${1:-}" = destroy ]; then
  python=.venv/bin/python
  [ -x "$python" ] || python=python3
  "$python" tools/testhost.py destroy demo
  rm -rf reports/demo
  rmdir reports .cache/hosts .cache 2>/dev/null || true
  exit 0
fi
tools/setup.sh
started=$(date +%s)
.venv/bin/python tools/testhost.py create demo --hostname ct129
PATH="$PWD/.venv/bin:$PATH" ansible-playbook -i inventory/demo.yml playbooks/site.yml
echo "The demo is running ($(($(date +%s) - started)) s). 'make demo' again changes nothing; 'make demo-destroy' removes it."
