"""The import table of the design, as data: every edge that is not in it fails."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "installer" / "tsuku_llm"

VALUES = frozenset({"errors", "hardware", "manifest"})

MAY_IMPORT: dict[str, frozenset[str]] = {
    "__init__": frozenset({"_version"}),
    "__main__": frozenset({"cli"}),
    "_version": frozenset(),
    "errors": frozenset(),
    "lazily": frozenset(),
    "process": frozenset(),
    "hardware": frozenset(),
    "child": frozenset({"errors"}),
    "disk": frozenset({"errors"}),
    "embedded": frozenset({"manifests"}),
    "revocations": frozenset({"disk", "durable", "embedded", "errors"}),
    "standing": frozenset({"disk", "durable", "embedded", "errors", "revocations"}),
    "durable": frozenset({"disk", "errors", "ownership"}),
    "ownership": frozenset({"disk", "errors"}),
    "folders": frozenset({"disk", "durable", "errors", "ownership"}),
    "local": frozenset({"child", "errors"}),
    "host": frozenset({"child", "errors", "local"}),
    "snapshot": frozenset({"errors", "host"}),
    "probe": frozenset({"errors", "hardware", "host", "local"}),
    "trust": frozenset({"errors"}),
    "manifest": frozenset({"errors", "trust"}),
    "catalog": frozenset({"disk", "durable", "embedded", "errors", "folders", "manifest"})
    | {"revocations", "standing", "trust"},
    "selection": VALUES,
    "chain": VALUES | {"selection"},
    "fetch": frozenset({"_version", "disk", "errors", "manifest"}),
    "archive": frozenset({"disk", "errors", "manifest"}),
    "packing": frozenset({"archive", "disk", "errors", "manifest"}),
    "store": frozenset({"disk", "durable", "errors", "folders", "lazily", "ownership"})
    | {"process"},
    "launch": frozenset({"errors", "lazily"}),
    "instances": frozenset({"disk", "durable", "errors", "folders", "launch", "process"})
    | {"store"},
    "operations": VALUES
    | {"archive", "catalog", "chain", "fetch", "host", "launch", "packing", "probe"}
    | {"selection", "snapshot"}
    | {"_version", "child", "config", "disk", "durable", "instances", "local", "ownership"}
    | {"revocations", "standing", "store", "trust"},
    "config": frozenset({"disk", "durable", "errors", "ownership"}),
    "cli": VALUES
    | {"_version", "catalog", "chain", "config", "host", "instances", "local", "operations"}
    | {"ownership", "revocations", "selection", "snapshot", "store"},
}
"""Which units (modules or subpackages of tsuku_llm) each unit may import, at any place."""

HOMES: dict[str, frozenset[str]] = {
    "click": frozenset({"cli"}),
    "cryptography": frozenset({"trust"}),
    "filelock": frozenset({"store"}),
    "httpcore": frozenset({"fetch"}),
    "httpx": frozenset({"fetch"}),
    "isal": frozenset({"archive"}),
    "msgspec": frozenset({"manifest"}),
    "packageurl": frozenset({"fetch"}),
    "packaging": frozenset({"fetch", "selection"}),
    "prometheus_client": frozenset({"cli"}),
    "psutil": frozenset({"instances", "process"}),
    "platformdirs": frozenset({"config"}),
    "rich": frozenset({"cli"}),
    "securesystemslib": frozenset({"catalog", "trust"}),
    "socksio": frozenset({"fetch"}),
    "tomli": frozenset({"config"}),
    "tomlkit": frozenset({"config"}),
    "truststore": frozenset({"fetch"}),
    "tuf": frozenset({"catalog", "trust"}),
}
"""The units in which each third-party library may be imported."""

HEAVY = frozenset(
    {
        "cryptography",
        "httpcore",
        "httpx",
        "msgspec",
        "packaging",
        "pip",
        "prometheus_client",
        "psutil",
        "rich",
        "securesystemslib",
        "tomlkit",
        "truststore",
        "tuf",
    }
)
"""Libraries that ``serve``, ``list`` and ``which`` do without."""

LIGHT = (
    "cli.main",
    "cli.entry",
    "cli.commands.serve",
    "cli.commands.servers",
    "cli.commands.versions",
    "cli.session",
    "config",
    "launch",
    "operations.background",
    "operations.serve",
    "operations.tools",
    "operations.versions",
    "store",
)
"""What those commands load: whatever these modules import at their top, everybody pays for."""

SHARED_BY_SOURCES = {"channel", "elf", "icd", "reply", "search", "surroundings"}
"""The modules of ``probe`` that every source of facts may use: how to search, read and answer."""

ABOVE_SOURCES = {"conclusion", "main", "probe", "worker"}
"""The modules of ``probe`` that put the sources together."""

WRITES_SETTINGS = {"tsuku_llm.config.keys.redacted", "tsuku_llm.config.keys.text_of"}
"""The functions that ``cli.render`` may import: they write a setting or a URL as a text."""

WITH_CODE = {"__init__", "archive", "catalog", "chain", "fetch", "instances", "launch", "packing"}
WITH_CODE |= {"probe", "store", "trust"}
"""The packages whose ``__init__`` has more than a docstring."""

MAY_PRINT = ("cli", "probe.worker")
MAY_EXIT = ("cli", "probe.worker", "__main__")

EXITS = {"exit", "quit", "sys.exit", "os._exit", "os.abort"}
STREAMS = {"sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"}


@dataclass(frozen=True)
class Module:
    """One source file: ``name`` is dotted, without the package ("probe.nvidia")."""

    name: str
    is_package: bool
    tree: ast.Module

    @property
    def unit(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Import:
    """``target`` is absolute and dotted; ``top`` is true when importing the module runs it."""

    target: str
    line: int
    top: bool


def sources() -> dict[str, Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package and len(parts) > 1 else parts)
        found[name] = Module(name, is_package, ast.parse(path.read_text("utf-8"), str(path)))
    return found


MODULES = sources()


def imports(module: Module) -> Iterator[Import]:
    deferred = {
        id(node)
        for block in ast.walk(module.tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef) or only_for_types(block)
        for node in ast.walk(block)
    }
    for node in ast.walk(module.tree):
        for target in targets(module, node):
            yield Import(target, node.lineno, id(node) not in deferred)


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING")


def targets(module: Module, node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Import):
        return tuple(alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = ["tsuku_llm", *module.name.split(".")]
            kept = parts[: len(parts) - node.level + module.is_package]
            base = ".".join([*kept, *([base] if base else [])])
        return tuple(f"{base}.{alias.name}" for alias in node.names)
    if isinstance(node, ast.Call) and dotted(node.func) in (
        "importlib.import_module",
        "__import__",
    ):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return (first.value,)
    return ()


def unit_of(target: str) -> str | None:
    """The unit that an import of ours reaches; None for somebody else's module."""
    package, _, rest = target.partition(".")
    if package != "tsuku_llm":
        return None
    unit = rest.partition(".")[0]
    return unit if unit in MAY_IMPORT or unit == "manifests" else "__init__"


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def forbidden_edges(module: Module) -> list[str]:
    allowed = MAY_IMPORT[module.unit] | {module.unit, "__init__"}
    return [
        f"{module.name}:{found.line} imports {found.target}"
        for found in imports(module)
        if (unit := unit_of(found.target)) is not None and unit not in allowed
    ]


def foreign(module: Module) -> Iterator[tuple[str, Import]]:
    for found in imports(module):
        library = found.target.partition(".")[0]
        if library != "tsuku_llm" and library not in sys.stdlib_module_names:
            yield library, found


def homeless(module: Module) -> list[str]:
    return [
        f"{module.name}:{found.line} imports {library}"
        for library, found in foreign(module)
        if module.unit not in HOMES.get(library, ())
    ]


def calls(module: Module, names: set[str]) -> list[str]:
    return [
        f"{module.name}:{node.lineno} calls {dotted(node.func)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and dotted(node.func) in names
    ]


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def loaded_by(names: tuple[str, ...]) -> dict[str, Import]:
    """Every import that runs when these modules are imported, by the importing module's name."""
    seen: dict[str, Import] = {}
    queue = list(names)
    visited: set[str] = set()
    while queue:
        name = queue.pop()
        if name in visited or name not in MODULES:
            continue
        visited.add(name)
        for found in imports(MODULES[name]):
            if not found.top:
                continue
            if found.target.startswith("tsuku_llm"):
                rest = found.target.partition(".")[2]
                queue += [rest, rest.rpartition(".")[0]]
            else:
                seen[f"{name}:{found.line} imports {found.target.partition('.')[0]}"] = found
    return seen


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_the_table_allows(name: str) -> None:
    assert MODULES[name].unit in MAY_IMPORT, f"give {name} a row in the table"
    assert not forbidden_edges(MODULES[name])


@pytest.mark.parametrize("name", MODULES)
def test_a_third_party_library_has_one_home(name: str) -> None:
    assert not homeless(MODULES[name])


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, MAY_PRINT)])
def test_only_the_command_line_prints(name: str) -> None:
    assert not calls(MODULES[name], {"print", *STREAMS})


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, MAY_EXIT)])
def test_only_the_command_line_exits(name: str) -> None:
    assert not calls(MODULES[name], {"SystemExit", *EXITS})


@pytest.mark.parametrize("name", [name for name in MODULES if name != "trust"])
def test_only_trust_says_that_bytes_are_verified(name: str) -> None:
    assert not calls(MODULES[name], {"VerifiedBytes", "trust.VerifiedBytes"})


def test_a_source_of_facts_does_not_know_another() -> None:
    parts = {name for name, module in MODULES.items() if module.unit == "probe"}
    shared = {name for name in parts if name.rpartition(".")[2] in SHARED_BY_SOURCES}
    above = {name for name in parts if name.rpartition(".")[2] in ABOVE_SOURCES}
    crossed = [
        f"{name} imports {found.target}"
        for name in parts - shared - above
        for found in imports(MODULES[name])
        for other in parts - shared - {"probe", "probe.worker", name}
        if f"{found.target}.".startswith(f"tsuku_llm.{other}.")
    ]
    assert not crossed


def test_what_renders_answers_imports_value_types_only() -> None:
    others = [
        f"{name} imports {found.target}"
        for name, module in MODULES.items()
        if within(name, ("cli.render",))
        for found in imports(module)
        if unit_of(found.target) not in (None, "cli")
        and found.target not in WRITES_SETTINGS
        and not is_class(found.target)
    ]
    assert not others


def is_class(target: str) -> bool:
    module, _, name = target.rpartition(".")
    return isinstance(getattr(import_module(module), name, None), type)


def test_a_package_has_a_docstring_and_no_code() -> None:
    full = {name for name, module in MODULES.items() if module.is_package and has_code(module)}
    assert full <= WITH_CODE


def has_code(module: Module) -> bool:
    return any(not isinstance(node, ast.Expr) for node in module.tree.body)


def test_the_light_commands_import_nothing_heavy() -> None:
    heavy = [
        text for text, found in loaded_by(LIGHT).items() if found.target.split(".")[0] in HEAVY
    ]
    assert not heavy


def test_the_table_runs_one_way() -> None:
    order: list[str] = []
    rest = {unit: set(allowed) - {"manifests"} for unit, allowed in MAY_IMPORT.items()}
    while rest:
        free = [unit for unit, allowed in rest.items() if allowed <= set(order)]
        assert free, f"a circle among {sorted(rest)}"
        order += free
        rest = {unit: allowed for unit, allowed in rest.items() if unit not in free}


def test_every_row_of_the_table_is_a_module() -> None:
    units = {module.unit for module in MODULES.values()}
    assert set(MAY_IMPORT) - units <= {"__main__"}


# --- the checks themselves ---------------------------------------------------------------


def example(source: str, name: str = "store", *, is_package: bool = False) -> Module:
    return Module(name, is_package, ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import tsuku_llm.fetch",
        "from tsuku_llm import fetch",
        "from tsuku_llm.fetch import x",
        "from .fetch import x",
        "from . import fetch",
        "def f():\n    from tsuku_llm import fetch",
        "import importlib\nimportlib.import_module('tsuku_llm.fetch')",
    ],
)
def test_a_forbidden_import_is_seen(source: str) -> None:
    assert forbidden_edges(example(source))


def test_an_import_of_oneself_and_of_a_lower_layer_is_allowed() -> None:
    assert not forbidden_edges(example("from tsuku_llm.errors import StoreError"))
    assert not forbidden_edges(example("from . import locks", "store", is_package=True))


def test_a_library_away_from_home_is_seen() -> None:
    assert homeless(example("def f():\n    import httpx"))
    assert homeless(example("import some_new_library"))
    assert not homeless(example("import filelock"))


def test_an_import_in_a_function_is_not_a_cost_of_the_module() -> None:
    (inner, outer) = sorted(
        imports(example("import json\ndef f():\n    import httpx")), key=lambda found: found.target
    )
    assert (inner.target, inner.top) == ("httpx", False)
    assert (outer.target, outer.top) == ("json", True)


def test_prints_and_exits_are_seen() -> None:
    assert calls(example("print('x')"), {"print"})
    assert calls(example("import sys\nsys.exit(1)"), EXITS)
    assert calls(example("raise SystemExit(1)"), {"SystemExit"})
