#!/bin/sh
# Lint, unit tests and sanity (`other_core.sh alone`), or one site.yml (`other_core.sh site`), on the ansible-core that .venv does not have.
# Python 3.11 takes 2.19.14 and needs a later interpreter for 2.21.5; a later one takes both. Without such an interpreter the whole thing
# runs inside a Debian 13 container.
set -eu
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/firstlight/other-core"

what=${1:?alone or site}
if [ "${2:-}" = inside ]; then # this container's .venv has the other core already
  exec tools/on_core.sh .venv/bin "$what"
fi

here=$(.venv/bin/python -c 'import sys; print("%d%02d" % sys.version_info[:2])')
if [ "$here" -ge 312 ]; then
  core=2.19.14
  python=.venv/bin/python
else
  core=2.21.5
  python=
  for candidate in python3.13 python3.12 python3.14 /usr/bin/python3.1[234] /usr/local/bin/python3.1[234] "$HOME"/.pyenv/versions/3.1[234]*/bin/python3; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
      python=$candidate
      break
    fi
  done
fi

if [ -z "$python" ]; then
  echo "no interpreter for ansible-core $core here: using a Debian 13 container as the controller"
  python3 tools/testhost.py create controller --hostname controller
  # The same path in there, so that the SSH configuration of the host under test holds; the bridge connects the two.
  tar -C / --exclude="${PWD#/}/.venv" -cf - "${PWD#/}" | python3 tools/testhost.py exec controller -- tar -C / -xf -
  exec python3 tools/testhost.py exec controller -- sh -c "cd '$PWD' && tools/setup.sh && tools/other_core.sh $what inside"
fi
venv="$cache/$core-$(basename "$(readlink -f "$python")")"
stamp="$venv/requirements.sha256"
wanted=$(sha256sum requirements.txt)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  sed -E "s/^ansible-core==.*python_version < .*/ansible-core==$core/; /^ansible-core==.*python_version >= /d" requirements.txt >"$venv/requirements.txt"
  "$venv/bin/pip" install --quiet --quiet --disable-pip-version-check --requirement "$venv/requirements.txt"
  echo "$wanted" >"$stamp"
fi
exec tools/on_core.sh "$venv/bin" "$what"
