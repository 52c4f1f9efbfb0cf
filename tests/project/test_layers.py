"""The import table of the design, as data: every edge that is not in it fails."""

import ast
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "installer" / "tsuku_llm"

OURS = ("tsuku_llm", "tsuku_operator", "tsuku_publish")

ROOMS = {
    "__init__": "",
    "_version": "",
    "ground": "",
    "ground.processes": "",
    "launch": "",
    "launch.compute": "",
    "probe.worker": "",
    "probe.worker.questions": "probe.worker",
    "store.records": "",
    "trust": "",
    "cli.terminal": "ground.processes",
    "fetch.http": "ground.processes",
    "machine": "ground.processes",
    "store": "ground.processes store.records",
    "config": "machine",
    "launch.plan": "launch.compute machine",
    "probe.facts": "machine",
    "catalog": "config machine trust",
    "launch.ask": "ground.processes launch.compute launch.plan",
    "probe": "machine probe.facts",
    "archive.formats": "catalog",
    "choose": "catalog machine",
    "launch.memory": "launch.ask launch.plan machine",
    "launch.failed": "ground.processes launch.ask launch.memory launch.plan machine",
    "archive": "archive.formats catalog machine",
    "choose.chain": "catalog choose machine",
    "fetch.places": "archive.formats catalog config fetch.http ground.processes",
    "launch.gpu": "ground.processes launch.ask launch.memory launch.plan machine",
    "model_caches": "launch.memory",
    "fetch.artifacts": "catalog config fetch.http fetch.places",
    "instances": "ground.processes launch.gpu launch.plan store",
    "launch.run": (
        "ground.processes launch.ask launch.compute launch.failed launch.gpu launch.plan machine"
    ),
    "fetch": "catalog fetch.artifacts fetch.http fetch.places",
    "steps": "catalog config fetch ground.processes machine probe store",
    "steps.choosing": (
        "archive catalog choose choose.chain config launch.compute launch.plan launch.run machine "
        "probe steps store store.records"
    ),
    "steps.drivers": (
        "choose config launch.compute launch.failed launch.gpu launch.memory launch.plan "
        "launch.run machine probe steps store store.records"
    ),
    "steps.metadata": (
        "archive.formats catalog config fetch fetch.http fetch.places "
        "ground.processes steps steps.choosing store trust"
    ),
    "steps.program": "catalog ground.processes machine steps steps.choosing steps.metadata store",
    "steps.install": (
        "archive archive.formats catalog choose config fetch fetch.http fetch.places "
        "ground.processes instances launch.failed launch.plan launch.run machine probe steps "
        "steps.choosing steps.drivers steps.metadata steps.program store store.records"
    ),
    "steps.serve": (
        "choose ground.processes instances launch.ask launch.compute launch.failed launch.gpu "
        "launch.memory launch.plan launch.run machine model_caches probe steps steps.choosing "
        "steps.drivers steps.install steps.metadata store.records"
    ),
    "steps.report": (
        "catalog choose choose.chain config fetch launch.ask launch.compute launch.memory "
        "launch.plan launch.run machine model_caches probe steps steps.choosing steps.drivers "
        "steps.install steps.metadata steps.program steps.serve store store.records"
    ),
    "steps.servers": (
        "config ground.processes instances launch.ask launch.failed launch.gpu launch.plan "
        "launch.run steps steps.choosing steps.drivers steps.install steps.serve store "
        "store.records"
    ),
    "api": (
        "catalog choose config instances launch.plan machine steps steps.choosing steps.install "
        "steps.report steps.servers store.records"
    ),
    "cli.render": (
        "catalog choose choose.chain cli.terminal config launch.memory "
        "machine steps.choosing steps.drivers steps.install steps.metadata steps.program "
        "steps.report steps.serve store store.records"
    ),
    "cli.render.services": (
        "cli.render cli.terminal instances launch.plan steps.serve steps.servers"
    ),
    "cli.services": (
        "cli.render.services cli.terminal ground.processes instances launch.plan steps "
        "steps.serve steps.servers"
    ),
    "cli": (
        "catalog cli.render cli.services cli.terminal config ground.processes instances "
        "launch.plan machine model_caches steps steps.choosing steps.program store "
        "store.records"
    ),
    "__main__": "cli",
    "cli.commands": (
        "catalog cli cli.render cli.render.services cli.services cli.terminal config "
        "ground.processes launch.plan machine model_caches steps steps.choosing steps.install "
        "steps.metadata steps.program steps.report steps.serve steps.servers"
    ),
}
"""Which rooms (folders of tsuku_llm, or modules at its top) each room may import, at any place.

Each row names only rooms of rows above it. Within a room its modules may import each other, but not
in a circle.
"""

EVERYWHERE = frozenset({"__init__", "_version", "ground"})
"""The rooms that each room may import."""

MOST_MODULES = 12
"""The most modules that may lie flat in a folder."""

PURE = {
    "launch.compute": {"canary_answer", "judging", "reference_models"},
    "launch.failed": {"diagnosis"},
    "launch.gpu": {"gpu_use", "life", "verdict"},
    "launch.memory": {"fit", "memory_options", "model_header", "need", "placement"},
    "launch.plan": {
        "addresses",
        "build_arguments",
        "devices",
        "report",
        "secret_arguments",
        "wishes",
    },
    "launch.ask": {"last_words", "log"},
}
"""The modules that import nothing that reads, asks or waits, and open no file."""

IO = {"asyncio", "ctypes", "http", "io", "os", "pathlib", "shutil", "socket", "subprocess"}
IO |= {"select", "tempfile", "threading", "time", "urllib"}

OPERATOR = PACKAGE.parent / "tsuku_operator"

OPERATOR_ROOMS = {
    "__init__": "",
    "cli": "",
    "fleet": "ground.processes machine steps steps.program",
    "mirror": (
        "catalog choose config fetch fetch.artifacts fetch.http fetch.places machine probe steps "
        "steps.choosing steps.install steps.metadata trust"
    ),
    "bundle": (
        ".mirror catalog choose fetch fetch.http fetch.places machine probe steps steps.choosing "
        "steps.metadata steps.program"
    ),
    "cli.commands": ".bundle .fleet .mirror cli cli.terminal config",
}
"""Which rooms of the client each room of the operator's package may import; its own have a dot.

A row names only rooms of rows above it.
"""

OPERATOR_HOMES = {
    "ansible_runner": ("fleet",),
    "click": ("cli",),
    "httpx": ("mirror",),
    "packaging": ("bundle",),
}

OPERATOR_MAY_PRINT = ("bundle.bundle_start",)
"""A program of its own, which a bundle runs; it may exit, too."""

PUBLISHER = Path(__file__).parents[2] / "installer" / "tsuku_publish"

PUBLISHER_MAY_IMPORT = {
    "__init__": "",
    "errors": "",
    "isolated": "",
    "archives": "errors",
    "holders": "errors",
    "repository": "errors",
    "secrets": "errors",
    "upstream": "archives errors",
    "packing": "archives errors",
    "building": "archives errors isolated packing",
    "release_files": "archives errors holders repository upstream",
    "signing": "errors holders release_files repository",
    "feed": "archives errors isolated release_files repository upstream",
    "cli": (
        "building errors feed holders packing release_files repository secrets signing upstream"
    ),
    "__main__": "cli",
}
"""Which rooms of the publisher each of its rooms may import: only those of rows above it."""

ROOMS_FOR_THE_PUBLISHER = ("__init__", "_version", "ground", "machine", "trust", "catalog")
ROOMS_FOR_THE_PUBLISHER += ("archive", "fetch", "cli")
"""The rooms of the client, with those inside, that the publisher uses."""

PUBLISHER_HOMES: dict[str, frozenset[str]] = {
    "backports": frozenset({"archives"}),
    "click": frozenset({"cli"}),
    "compression": frozenset({"archives"}),  # of Python 3.14
    "cryptography": frozenset({"holders", "upstream"}),
    "lief": frozenset({"archives"}),
    "filelock": frozenset({"building", "repository"}),
    "msgspec": frozenset({"building", "errors", "feed", "holders", "release_files", "upstream"}),
    "securesystemslib": frozenset({"holders", "release_files", "signing"}),
    "sigstore": frozenset({"upstream"}),
    "tomli": frozenset({"building", "feed", "holders", "release_files", "upstream"}),
    "tomlkit": frozenset({"release_files"}),
    "tuf": frozenset({"signing"}),
    "yaml": frozenset({"upstream"}),
}

PURE_PUBLISHER = (
    "archives.fatbin",
    "building.recipe",
    "feed.choosing",
    "feed.drafts",
    "feed.report",
    "feed.to_do",
    "packing.parts",
    "release_files.documents",
    "signing.signing",
    *(f"upstream.source.{name}" for name in ("arguments", "builds", "cmake")),
    *(f"upstream.source.{name}" for name in ("expressions", "publishing", "scripts", "workflows")),
)
"""Modules of the publisher that decide: no file is opened there, nothing is fetched or run."""

HOMES: dict[str, frozenset[str]] = {
    "click": frozenset({"cli"}),
    "cryptography": frozenset({"trust"}),
    "filelock": frozenset({"store"}),
    "httpcore": frozenset({"fetch"}),
    "httpx": frozenset({"fetch"}),
    "isal": frozenset({"archive"}),
    "msgspec": frozenset({"catalog"}),
    "packageurl": frozenset({"fetch"}),
    "packaging": frozenset({"fetch", "choose", "steps"}),
    "prometheus_client": frozenset({"cli"}),
    "psutil": frozenset({"instances", "ground.processes"}),
    "platformdirs": frozenset({"config"}),
    "securesystemslib": frozenset({"catalog", "trust"}),
    "socksio": frozenset({"fetch"}),
    # Settings, the causes of failed starts, and the receipt of uv.
    "tomli": frozenset({"config", "launch.failed", "machine", "steps.program", "steps.report"}),
    "tomlkit": frozenset({"config"}),
    "truststore": frozenset({"fetch"}),
    "tuf": frozenset({"catalog", "trust"}),
}
"""The rooms, with those inside, in which each third-party library may be imported."""

HEAVY = frozenset(
    {
        *("cryptography", "httpcore", "httpx", "msgspec", "packaging", "pip", "prometheus_client"),
        *("psutil", "securesystemslib", "tomlkit", "truststore", "tuf"),
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
    "launch.run.monitor",
    "launch.run.replace_process",
    "steps.servers.background",
    "steps.serve.serve",
    "steps.serve.tools",
    "steps.install.versions",
    "steps.servers.watching",
    "steps.choosing.which",
    "store.reader",
)
"""What those commands load: whatever these modules import at their top, everybody pays for."""

MOST_NOQA = 32
"""The lines of the client that ignore a rule of ruff; the number may only fall.

A rule that a whole folder breaks for one reason is named in ``pyproject.toml``, with it. So are the
doors: the modules that functions import because a start does without them.
"""

SHARED_BY_SOURCES = {"answers", "elf", "environment", "icd", "machine", "protocol"}
SHARED_BY_SOURCES |= {"place", "search"}
"""The modules of ``probe`` that every source of facts may use: how to search, read and answer."""

ABOVE_SOURCES = {"assemble", "facts", "main", "probe", "questions", "visible", "worker"}
"""The modules of ``probe`` that put the sources together, and its folders."""

WRITES_SETTINGS = {
    "tsuku_llm.machine.backends.build_name",
    "tsuku_llm.config.keys.text_of",
    "tsuku_llm.config.settings.warning_of",
}
"""The functions that ``cli.render`` may import: they write a setting or build as a text."""

WITH_CODE = {"__init__", "fetch", "probe", "trust"}
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

    @property
    def room(self) -> str:
        return room_of(self.name)


@dataclass(frozen=True)
class Import:
    """``target`` is absolute and dotted; ``top`` is true when importing the module runs it."""

    target: str
    line: int
    top: bool


def sources(package: Path) -> dict[str, Module]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package and len(parts) > 1 else parts)
        found[name] = Module(name, is_package, ast.parse(path.read_text("utf-8"), str(path)))
    return found


MODULES = sources(PACKAGE)
OPERATING = sources(OPERATOR)
PUBLISHING = sources(PUBLISHER)
ALL = {"tsuku_llm": MODULES, "tsuku_operator": OPERATING, "tsuku_publish": PUBLISHING}


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


def room_of(name: str) -> str:
    """Return the room of a module, or of a name in one: the longest row that it begins with."""
    while name and name not in ROOMS:
        name = name.rpartition(".")[0]
    return name or "__init__"


def room_reached(target: str) -> str | None:
    """Return the room that an import reaches; None for a module of another package."""
    package, _, rest = target.partition(".")
    if package != "tsuku_llm":
        return None
    return "manifests" if rest.partition(".")[0] == "manifests" else room_of(rest)


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def forbidden_edges(module: Module) -> list[str]:
    allowed = {*ROOMS[module.room].split(), *EVERYWHERE, module.room}
    if module.name == "__init__":
        allowed.add("api")  # on demand, for ``tsuku_llm.api``
    if module.name == "catalog.embedded":
        allowed.add("manifests")
    return [
        f"{module.name}:{found.line} imports {found.target}"
        for found in imports(module)
        if (room := room_reached(found.target)) is not None and room not in allowed
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
        if not within(module.name, tuple(HOMES.get(library, ())))
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


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    modules = [module for module in MODULES.values() if module.room == room]
    assert modules, "a row without a room"
    assert not [edge for module in modules for edge in forbidden_edges(module)]


def test_every_module_is_in_a_room() -> None:
    lost = [name for name in MODULES if room_of(name) == "__init__" and name != "__init__"]
    assert not lost, "give them a row in the table"


def test_each_row_names_only_rows_above_it() -> None:
    seen: set[str] = set()
    for room, allowed in ROOMS.items():
        assert set(allowed.split()) <= seen, room
        seen.add(room)


@pytest.mark.parametrize("package", ALL)
def test_no_module_is_in_a_circle(package: str) -> None:
    edges = {
        name: {other for found in imports(module) for other in modules_of(found.target, package)}
        - {name}
        for name, module in ALL[package].items()
        if name != "__init__"
    }
    require_one_way(edges)


def modules_of(target: str, package: str = "tsuku_llm") -> Iterator[str]:
    """Yield the module of the package that an import loads for a name in it; none for itself."""
    modules = ALL[package]
    first, _, rest = target.partition(".")
    name = rest if rest in modules else rest.rpartition(".")[0]
    if first == package and name in modules and name != "__init__":
        yield name


@pytest.mark.parametrize("package", ALL)
def test_few_modules_lie_flat_in_a_folder(package: str) -> None:
    folders = [
        name.rpartition(".")[0] for name, module in ALL[package].items() if not module.is_package
    ]
    full = {name: folders.count(name) for name in folders if folders.count(name) > MOST_MODULES}
    assert not full


def test_a_third_party_library_has_one_home() -> None:
    assert not [each for module in MODULES.values() for each in homeless(module)]


def test_only_the_command_line_prints() -> None:
    others = [module for name, module in MODULES.items() if not within(name, MAY_PRINT)]
    assert not [each for module in others for each in calls(module, {"print", *STREAMS})]


def test_only_the_command_line_exits() -> None:
    others = [module for name, module in MODULES.items() if not within(name, MAY_EXIT)]
    assert not [each for module in others for each in calls(module, {"SystemExit", *EXITS})]


def test_only_trust_makes_verified_bytes() -> None:
    makers = {"VerifiedBytes", "trust.VerifiedBytes"}
    others = [module for name, module in MODULES.items() if name != "trust"]
    assert not [each for module in others for each in calls(module, makers)]


def test_sources_of_facts_do_not_import_each_other() -> None:
    parts = {name for name, module in MODULES.items() if module.unit == "probe"}
    shared = {name for name in parts if name.rpartition(".")[2] in SHARED_BY_SOURCES}
    above = {name for name in parts if name.rpartition(".")[2] in ABOVE_SOURCES}
    crossed = [
        f"{name} imports {found.target}"
        for name in parts - shared - above
        for found in imports(MODULES[name])
        for other in parts - shared - {"probe", "probe.facts", "probe.worker", name}
        if f"{found.target}.".startswith(f"tsuku_llm.{other}.")
    ]
    assert not crossed


def test_what_renders_answers_imports_value_types_only() -> None:
    others = [
        f"{name} imports {found.target}"
        for name, module in [*MODULES.items(), *OPERATING.items()]
        if within(name, ("cli.render",))
        for found in imports(module)
        # And what makes a text safe for its reader.
        if found.target.partition(".")[0] in OURS
        and (room := room_reached(found.target)) not in ("_version", "ground")
        and not str(room).startswith("cli")
        and found.target not in WRITES_SETTINGS
        and not is_class(found.target)
    ]
    assert not others


def is_class(target: str) -> bool:
    module, _, name = target.rpartition(".")
    return isinstance(getattr(import_module(module), name, None), type)


def test_a_package_has_a_docstring_and_no_code() -> None:
    full = {name for name, module in MODULES.items() if module.is_package and has_code(module)}
    assert full == WITH_CODE


def test_no_class_name_is_used_twice() -> None:
    names = [
        node.name
        for path in sorted(PUBLISHER.parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    # Ansible wants this name in each module of documentation.
    repeated = {name for name in names if names.count(name) > 1} - {"ModuleDocFragment"}
    assert sorted(repeated) == []


def has_code(module: Module) -> bool:
    return any(not isinstance(node, ast.Expr) for node in module.tree.body)


def test_the_light_commands_import_nothing_heavy() -> None:
    heavy = [
        text for text, found in loaded_by(LIGHT).items() if found.target.split(".")[0] in HEAVY
    ]
    assert not heavy


def test_few_lines_ignore_a_rule() -> None:
    found = [
        f"{path}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if "# noqa" in line or "ruff: noqa" in line
    ]
    assert len(found) == MOST_NOQA, "\n".join(found)


def require_one_way(rows: Mapping[str, AbstractSet[str]]) -> None:
    """Assert that the rows can be put in an order in which each uses only earlier ones."""
    order: list[str] = []
    rest = dict(rows)
    while rest:
        free = [row for row, allowed in rest.items() if allowed <= set(order)]
        assert free, f"a circle among {sorted(rest)}"
        order += free
        rest = {row: allowed for row, allowed in rest.items() if row not in free}


@pytest.mark.parametrize("room", PURE)
def test_a_module_that_only_decides_reads_nothing(room: str) -> None:
    pure = {f"{folder}.{name}" for folder, names in PURE.items() for name in names}
    for name in PURE[room]:
        module = MODULES[f"{room}.{name}"]
        assert not {found.target.partition(".")[0] for found in imports(module)} & IO
        assert not calls(module, {"open"})
        used = {other for found in imports(module) for other in modules_of(found.target)}
        assert {other for other in used if within(other, ("launch",))} <= pure


# --- the operator's package --------------------------------------------------------------


@pytest.mark.parametrize("package", ["tsuku_operator", "tsuku_publish"])
def test_the_client_imports_nothing_of_the_other_packages(package: str) -> None:
    assert not [
        f"{name}:{found.line}"
        for name, module in MODULES.items()
        for found in imports(module)
        if package in found.target
    ]


def operator_room(name: str) -> str:
    """Return the room of a module of the operator, or of a name in one."""
    while name and name not in OPERATOR_ROOMS:
        name = name.rpartition(".")[0]
    return name or "__init__"


@pytest.mark.parametrize("name", OPERATING)
def test_a_room_of_the_operator_imports_only_what_the_table_allows(name: str) -> None:
    room = operator_room(name)
    allowed = {*OPERATOR_ROOMS[room].split(), *EVERYWHERE, f".{room}"}
    for found in imports(OPERATING[name]):
        package, _, rest = found.target.partition(".")
        if package == "tsuku_operator":
            assert f".{operator_room(rest)}" in allowed, found
        elif package == "tsuku_llm":
            assert room_reached(found.target) in allowed, found
        elif package not in sys.stdlib_module_names:
            assert within(name, OPERATOR_HOMES[package]), found


def test_each_row_of_the_operator_is_a_room_and_names_only_rows_above_it() -> None:
    assert {operator_room(name) for name in OPERATING} == set(OPERATOR_ROOMS)
    seen: set[str] = set()
    for room, allowed in OPERATOR_ROOMS.items():
        assert set(allowed.split()) <= seen | ROOMS.keys(), room
        seen.add(f".{room}")


def test_the_operators_modules_print_and_exit_only_in_the_program_of_a_bundle() -> None:
    others = [each for name, each in OPERATING.items() if not within(name, OPERATOR_MAY_PRINT)]
    assert not [
        found
        for module in others
        for found in calls(module, {"print", *STREAMS, "SystemExit", *EXITS})
    ]


# --- the publisher's package -------------------------------------------------------------


def reached(found: Import) -> str | None:
    """The row that an import of the publisher needs; None for another package."""
    package, _, rest = found.target.partition(".")
    return (rest.partition(".")[0] or "__init__") if package == "tsuku_publish" else None


@pytest.mark.parametrize("room", PUBLISHER_MAY_IMPORT)
def test_a_room_of_the_publisher_imports_only_what_the_table_allows(room: str) -> None:
    allowed = {*PUBLISHER_MAY_IMPORT[room].split(), room, None}
    for module in (each for each in PUBLISHING.values() if each.unit == room):
        for found in imports(module):
            assert reached(found) in allowed, f"{module.name}:{found.line} imports {found.target}"
            of_client = room_reached(found.target)
            assert of_client is None or within(of_client, ROOMS_FOR_THE_PUBLISHER), found.target


@pytest.mark.parametrize("name", PUBLISHING)
def test_a_library_of_the_publisher_has_its_homes(name: str) -> None:
    for library, found in foreign(PUBLISHING[name]):
        if library != "tsuku_publish":
            assert PUBLISHING[name].unit in PUBLISHER_HOMES.get(library, ()), found


@pytest.mark.parametrize(
    "name", [name for name in PUBLISHING if not within(name, ("cli", "__main__"))]
)
def test_only_the_publishers_command_line_prints_and_exits(name: str) -> None:
    assert not calls(PUBLISHING[name], {"print", *STREAMS, "SystemExit", *EXITS})


@pytest.mark.parametrize("name", PURE_PUBLISHER)
def test_what_decides_opens_and_fetches_nothing(name: str) -> None:
    assert not calls(PUBLISHING[name], {"open", "Path"})
    doors = {"os", "subprocess", "tempfile", "tsuku_llm.ground.files", "tsuku_llm.fetch"}
    assert not [found for found in imports(PUBLISHING[name]) if within(found.target, (*doors,))]


def test_each_row_of_the_publisher_is_a_room_and_names_only_rows_above_it() -> None:
    assert {module.unit for module in PUBLISHING.values()} == set(PUBLISHER_MAY_IMPORT)
    seen: set[str] = set()
    for room, allowed in PUBLISHER_MAY_IMPORT.items():
        assert set(allowed.split()) <= seen, room
        seen.add(room)


# --- the checks themselves ---------------------------------------------------------------


def example(source: str, name: str = "store.locks", *, is_package: bool = False) -> Module:
    return Module(name, is_package, ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import tsuku_llm.fetch",
        "from tsuku_llm import fetch",
        "from tsuku_llm.fetch import x",
        "from ..fetch import x",
        "from .. import fetch",
        "def f():\n    from tsuku_llm import fetch",
        "import importlib\nimportlib.import_module('tsuku_llm.fetch')",
    ],
)
def test_a_forbidden_import_is_seen(source: str) -> None:
    assert forbidden_edges(example(source))


def test_an_import_of_the_own_or_a_lower_layer_is_allowed() -> None:
    assert not forbidden_edges(example("from tsuku_llm.ground.errors import StoreError"))
    assert not forbidden_edges(example("from . import locks", "store", is_package=True))


def test_a_circle_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"a circle among \['a', 'b'\]"):
        require_one_way({"a": {"b"}, "b": {"a", "c"}, "c": set()})


def test_a_library_away_from_home_is_seen() -> None:
    assert homeless(example("def f():\n    import httpx"))
    assert homeless(example("import some_new_library"))
    assert not homeless(example("import filelock"))


def test_an_import_in_a_function_does_not_load_with_the_module() -> None:
    (inner, outer) = sorted(
        imports(example("import json\ndef f():\n    import httpx")), key=lambda found: found.target
    )
    assert (inner.target, inner.top) == ("httpx", False)
    assert (outer.target, outer.top) == ("json", True)


def test_prints_and_exits_are_seen() -> None:
    assert calls(example("print('x')"), {"print"})
    assert calls(example("import sys\nsys.exit(1)"), EXITS)
    assert calls(example("raise SystemExit(1)"), {"SystemExit"})
