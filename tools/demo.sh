#!/bin/sh
# The main job on this machine: a container, the real engine, a verified completion. `demo.sh destroy` removes it.
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" = destroy ]; then
  python3 tools/testhost.py destroy demo
  rm -rf reports/ct129
  exit 0
fi
started=$(date +%s)
.venv/bin/python tools/testhost.py create demo --hostname ct129
PATH="$PWD/.venv/bin:$PATH" ansible-playbook -i inventory/demo.yml playbooks/site.yml
echo
cat reports/ct129/demo/report.md
echo
echo "The demo is running ($(($(date +%s) - started)) s). 'make demo' again changes nothing; 'make demo-destroy' removes it."
