# shellcheck shell=bash
# Sourced: make_environment installs the locked dependencies of the tests in .venv-test/VERSION
# and sets `python` and `programs`; use_environment does that unless PYTHON has all of them.

python=${PYTHON:-python3}

make_environment() {
    venv=.venv-test/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    # Git's bash on Windows, where an environment has another layout; not seen so far.
    programs=$venv/bin
    case $(uname -s) in MINGW* | MSYS*) programs=$venv/Scripts ;; esac
    "$programs/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
    rm -rf build # otherwise setuptools packs modules into the wheel that were removed since
    local pip=("$programs/python" -m pip install --quiet --disable-pip-version-check)
    # The lock has everything. Without --no-deps, older pips look for the newest version of a package
    # that another one needs with an extra, and then refuse it for want of a digest.
    "${pip[@]}" --no-deps --require-hashes -r ci/locks/test.txt
    "${pip[@]}" --no-deps --no-build-isolation .
    python=$programs/python
}

use_environment() {
    "$python" -c 'import pytest, xdist, hypothesis, tsuku_llm' 2>/dev/null || make_environment
}
