#!/bin/sh
# ansible-test sanity on the built artifact: it refuses the links of a checkout, and the artifact is what people install.
# Usage: sanity.sh [directory with ansible-test]
set -eu
cd "$(dirname "$0")/.."
bin=${1:-$PWD/.venv/bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ansible-test fetches pip's bootstrap script from a site that a closed network does not reach; the interpreter brings its own.
cache="$HOME/.ansible/test/cache"
mkdir -p "$cache"
exec 9>"$cache/firstlight.lock"
flock 9 # two runs at a time would share what ansible-test makes there
for version in $(sed -n "s/^ *pip='\(.*\)',$/\1/p" "$("$bin/python" -c 'import ansible_test._internal.python_requirements as m; print(m.__file__)')" | tr . _); do
  file="$cache/get_pip_$version.py"
  [ -s "$file" ] || cat >"$file" <<'PY'
import ensurepip, os, subprocess, sys
ensurepip.bootstrap()  # its pip brings certificates of its own; later ones use the system's
bundles = [path for path in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt") if os.path.exists(path)]
words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", *(["--cert", bundles[0]] if bundles else []), *words]))
PY
done

"$bin/ansible-galaxy" collection build --output-path "$work" >/dev/null
"$bin/ansible-galaxy" collection install --offline --force -p "$work" "$work"/*.tar.gz >/dev/null
cd "$work/ansible_collections/firstlight/sglang"

# Only interpreters that run: a version manager's stand-ins on the PATH would end the test.
mkdir "$work/pythons"
for python in /usr/bin/python3.[0-9]* /usr/local/bin/python3.[0-9]* "$HOME"/.pyenv/versions/*/bin/python3.[0-9]*; do
  name=$(basename "$python")
  if expr "$name" : 'python3\.[0-9]*$' >/dev/null && "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    ln -sf "$python" "$work/pythons/$name"
  fi
done
PATH="$bin:$work/pythons:/usr/sbin:/usr/bin:/sbin:/bin" "$bin/ansible-test" sanity --color no
