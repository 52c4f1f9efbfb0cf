"""Another program may import us: every library must stay as it was."""

import json
import subprocess
import sys
from typing import Any

OURS = """
import pkgutil, tsuku_llm
for found in pkgutil.walk_packages(tsuku_llm.__path__, "tsuku_llm."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""
"""Import every module of the package."""

THEIRS = """
for name in json.load(sys.stdin):
    with contextlib.suppress(ImportError):  # some exist only inside their library
        importlib.import_module(name)
"""
"""Import the same libraries without the package, in the same order."""

TOLD = """
import contextlib, importlib, json, sys
before = {*sys.modules}
exec(sys.argv[1])
def told(value):
    fields = [getattr(value, field, None) for field in ("__module__", "__qualname__", "__name__")]
    return [type(value).__qualname__, *(field for field in fields if isinstance(field, str))]
libraries = {}
for name, module in sys.modules.items():
    top = name.partition(".")[0]
    if name in before or top in sys.stdlib_module_names or top == "tsuku_llm":
        continue
    held = getattr(module, "__dict__", {})  # a module that was switched off is None
    libraries[name] = {key: told(value) for key, value in held.items()}
json.dump(libraries, sys.stdout)
"""


def libraries(work: str, text: str = "") -> dict[str, dict[str, Any]]:
    """The foreign modules that a process has loaded at its end, and what their names hold."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD, work], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_library_holds_what_it_holds_without_us() -> None:
    ours = libraries(OURS)
    assert "httpx" in ours
    theirs = libraries(THEIRS, json.dumps([*ours]))
    changed = [
        f"{name}.{key}: {ours[name].get(key)} for {theirs.get(name, {}).get(key)}"
        for name in ours
        for key in {*ours[name], *theirs.get(name, {})}
        if ours[name].get(key) != theirs.get(name, {}).get(key)
    ]
    assert not changed


def test_the_command_line_of_httpx_can_still_be_imported() -> None:
    work = "import httpx, httpx._main\nprint(httpx.main is httpx._main.main)"
    code = f"import importlib\n{OURS}\n{work}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
