# Sourced: makes `python` one in which the program and what its tests need can be imported.
# That is the one that PYTHON names, if they are there, or else the environment of ci/test.

python=${PYTHON:-python3}
if ! "$python" -c 'import pytest, xdist, hypothesis, tsuku_llm' 2>/dev/null; then
    venv=.venv-test/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ -x "$venv/bin/pip" ] || "$python" -m venv --clear "$venv"
    rm -rf build # setuptools would put modules that were since removed into the wheel
    "$venv/bin/pip" install --quiet --disable-pip-version-check '.[test]'
    python=$venv/bin/python
fi
