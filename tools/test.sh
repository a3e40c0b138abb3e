#!/usr/bin/env bash
# The tests of `make test`, after lint: fast ones first, then real containers with the real engine. `test.sh full` adds the slow ones.
# Each stage prints its name and its seconds; the first failure ends the run. Most stages wait or keep one core busy, so two of them run at
# a time: what runs beside is shown, whole where it failed, by the first stage that begins after its end.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" MOLECULE_GLOB='molecule/*/molecule.yml'
mode=${1:-}
beside=
log=$(mktemp)

remove_hosts() {
  for purpose in molecule mol-driver mol-driver-decisions cuda-repo dnf-repo double lxc129 lxc130 lxc131 e2e bare controller; do
    python3 tools/testhost.py destroy "$purpose" >/dev/null || true
  done
}

clean_up() {
  [ -z "$beside" ] || { kill -- "-$beside" 2>/dev/null && sleep 2 || true; }
  remove_hosts
  rm -f "$log"
}
trap clean_up EXIT

finish_beside() {
  local ended=0
  [ -n "$beside" ] || return 0
  wait "$beside" || ended=$?
  beside=
  if [ "$ended" -ne 0 ]; then cat "$log"; else tail -n 3 "$log"; fi
  return "$ended"
}

stage() {
  local name=$1 started=$SECONDS
  shift
  kill -0 "${beside:-$$}" 2>/dev/null || finish_beside # what ended early, it may be with a failure
  echo "=== $name"
  "$@"
  echo "=== $name: $((SECONDS - started)) s"
}

# What needs nothing of the stages below, one after the other.
others() {
  molecule test -s lxc
  molecule test -s cuda_repo
  python3 tools/testhost.py create double --hostname double
  # For the second way of closing helper ports, where systemd's own is not enforced.
  python3 tools/testhost.py exec double -- sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends nftables >/dev/null"
  FIRSTLIGHT_SSH_CONFIG="$PWD/.cache/hosts/double/ssh_config" FIRSTLIGHT_HOST=double pytest -q -m "not slow" tests/host
  tools/other_core.sh alone
}
export -f others

examples=()
[ "$mode" != full ] || examples=(--hypothesis-profile=thorough)

remove_hosts # of a run that was killed
# In a session of its own, so that clean_up ends all that it started.
setsid bash -euc others >"$log" 2>&1 &
beside=$!
stage "unit tests" pytest -q -n auto --dist worksteal "${examples[@]}" tests/unit
stage "sanity of the artifact" tools/sanity.sh
if ! command -v chromium chromium-browser google-chrome-stable google-chrome >/dev/null; then
  apt-get -o DPkg::Lock::Timeout=300 update -qq
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi
stage "reports in a browser" pytest -q tests/browser
stage "molecule" molecule test -s default
# After it, so that no engine runs on the container that these share.
stage "molecule, recorded GPU hosts" molecule test -s 'gpu_*'
FIRSTLIGHT_KEEP=1 stage "end to end" pytest -q -m "not slow" tests/e2e
stage "molecule, packages and devices; services on a host; the other ansible-core (began with the first stage)" finish_beside
stage "the other ansible-core, end to end" tools/other_core.sh site
if [ "$mode" = full ]; then
  FIRSTLIGHT_KEEP=1 stage "slow tests" pytest -q -m slow tests/e2e
  stage "molecule, the driver with dnf" molecule test -s dnf_repo
  stage "molecule, what a kernel driver is refused for" molecule test -s driver_decisions
  stage "molecule, the kernel driver" molecule test -s driver
  DRIVER_SUITE=bookworm stage "molecule, the kernel driver on Debian 12" molecule test -s driver
fi
