#!/bin/sh
# Make .venv with the pinned controller tools. Idempotent; installs Debian packages only when something is missing and this is root.
set -eu
cd "$(dirname "$0")/.."
stamp=.venv/requirements.sha256
# The environment that is about to be replaced must not be what makes it.
PATH=$(printf %s "$PATH" | tr : '\n' | grep -vxF "$PWD/.venv/bin" | paste -sd :)
wanted=$(sha256sum requirements.txt | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ] && .venv/bin/python -c "" 2>/dev/null && command -v ssh >/dev/null; then
  exit 0
fi

find_python() {
  for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" - <<'PY' 2>/dev/null
import ensurepip, sys, venv
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PY
    then
      command -v "$candidate"
      return
    fi
  done
}

install_packages() {
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: expected $*; install them and run this again" >&2
    exit 1
  fi
  echo "setup: installing $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 update -qq
  # shellcheck disable=SC2086
  apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $* >/dev/null
}

python=$(find_python)
if [ -z "$python" ]; then
  install_packages python3 python3-venv
  python=$(find_python)
fi
if [ -z "$python" ]; then
  install_packages python3.11 python3.11-venv # Ubuntu 22.04: its python3 is 3.10
  python=$(find_python)
fi
[ -n "$python" ] || { echo "setup: expected Python 3.11 or later with venv, found none" >&2; exit 1; }
command -v ssh >/dev/null || install_packages openssh-client

echo "setup: installing the controller's tools into .venv (about a minute)"
rm -rf .venv
"$python" -m venv .venv
.venv/bin/pip install --quiet --quiet --disable-pip-version-check --requirement requirements.txt
echo "$wanted" >"$stamp"
