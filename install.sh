#!/bin/sh
# From a clone to an installed llama-server: the README's first command.
#
#   ./install.sh [ARGUMENT OF tsuku-llm install...]
#
# The environment is made in .venv/. What upstream's builds and Python need from the system
# is installed on Debian and Ubuntu where it is missing, with sudo unless run by root.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}

missing=
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
# The OpenMP runtime, to which every CPU backend links.
if [ "$(uname -s)" = Linux ] && ! /sbin/ldconfig -p 2>/dev/null | grep -q 'libgomp\.so\.1 '; then
    missing="$missing libgomp1"
fi
if [ -n "$missing" ] && command -v apt-get >/dev/null; then
    echo "installing what the system lacks:$missing" >&2
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    # shellcheck disable=SC2086  # a list of package names
    { $sudo apt-get update -qq && $sudo apt-get install -qq -y --no-install-recommends $missing; } >&2
elif [ -n "$missing" ]; then
    echo "this system may lack (Debian's names):$missing" >&2
fi

rm -rf build # setuptools would put modules that were since removed into the wheel
[ -x .venv/bin/pip ] || "$python" -m venv --clear .venv
# Every dependency, and what builds the package, is locked with its digests (ci/lock).
pip() { .venv/bin/pip install --quiet --disable-pip-version-check "$@"; }
pip --require-hashes -r ci/locks/tool.txt
pip --no-deps --no-build-isolation .
exec .venv/bin/tsuku-llm install --yes "$@"
