# shellcheck shell=bash
# Sourced: make_environment installs the locked dependencies of the tests in .venv-test/VERSION
# and sets `python` and `programs`; use_environment does that unless PYTHON has all of them.
# `whole_suite` are pytest's arguments for all tests.

python=${PYTHON:-python3}

# One file is one worker's, as its tests share what is expensive; tests/conftest.py puts the long
# files first. Three workers for two cores: many tests wait for a server or another process. A test
# that waits for ever would say nothing: after a quarter of an hour it fails, and shows where it was.
# shellcheck disable=SC2034 # for those who source this
whole_suite=(-n 3 --dist loadfile --no-loadscope-reorder --timeout 900)

make_environment() {
    venv=.venv-test/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    # Git's bash on Windows, where an environment has another layout; not seen so far.
    programs=$venv/bin
    case $(uname -s) in MINGW* | MSYS*) programs=$venv/Scripts ;; esac
    if ! "$programs/python" -m pip --version >/dev/null 2>&1; then
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$python cannot make an environment: install python3-venv (Debian's name)" >&2
            return 3
        fi
        "$python" -m venv --clear "$venv"
    fi
    rm -rf build # otherwise setuptools packs modules into the wheel that were removed since
    local pip=("$programs/python" -m pip install --disable-pip-version-check)
    # The lock has everything. Without --no-deps, older pips look for the newest version of a package
    # that another one needs with an extra, and then refuse it for want of a digest.
    "${pip[@]}" --no-deps --require-hashes -r ci/locks/test.txt | what_is_new
    "${pip[@]}" --quiet --no-deps --no-build-isolation . ./installer/publish
    python=$programs/python
}

# pip's progress, a line for each package, without those that are there.
what_is_new() {
    grep --line-buffered --invert-match -e '^Requirement already' -e '^ ' || : # 1: no line is left
}

use_environment() {
    "$python" -c 'import pytest, pytest_timeout, xdist, hypothesis, tsuku_llm, tsuku_publish' 2>/dev/null || make_environment
}
