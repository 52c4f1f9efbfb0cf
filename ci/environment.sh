# Sourced: make_environment installs what the tests need, as locked, in .venv-test/VERSION
# and sets `python` and `venv`; use_environment does so unless PYTHON has all of it already.

python=${PYTHON:-python3}

make_environment() {
    venv=.venv-test/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ -x "$venv/bin/pip" ] || "$python" -m venv --clear "$venv"
    rm -rf build # setuptools would put modules that were since removed into the wheel
    local pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)
    "${pip[@]}" --require-hashes -r ci/locks/test.txt
    "${pip[@]}" --no-deps --no-build-isolation .
    python=$venv/bin/python
}

use_environment() {
    "$python" -c 'import pytest, xdist, hypothesis, tsuku_llm' 2>/dev/null || make_environment
}
