"""The plan of a start: argument list, working folder and environment.

Pure, except for two questions: whether this is WSL, and what is in the working folder.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.ground.errors import UnsafeLocation, UsageError
from tsuku_llm.ground.foreign import kernel_text
from tsuku_llm.launch.plan.addresses import csv_fields, csv_line, hosts_in
from tsuku_llm.launch.plan.secret_arguments import handed_over
from tsuku_llm.launch.plan.wishes import spelled

if TYPE_CHECKING:
    from tsuku_llm.launch.plan.report import Placement
    from tsuku_llm.launch.plan.upstream_config import ConfigValue

# ruff: noqa: SIM905  (words read better than a column of quotes)

WSL_LIBRARIES = "/usr/lib/wsl/lib"
"""The folder in which WSL provides the libraries of Windows' drivers."""

SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""Bytes that a Unix socket's path may have: ``sun_path`` ends with a zero byte."""

_KERNEL_RELEASE = "/proc/sys/kernel/osrelease"

# Variables that make the loader, glibc or ggml load a library from anywhere.
_LOADER_NAMES = frozenset({"GCONV_PATH", "GGML_BACKEND_PATH"})
_LOADER_PREFIXES = ("LD_", "DYLD_")
_OF_ROUTERS = frozenset({"LLAMA_SERVER_ROUTER_PORT", "LLAMA_SERVER_CHILD_MODE", "LLAMA_APP_CMD"})
"""Variables of upstream's router for the servers that it starts (tools/server/server-models.cpp).

A tool that such a server runs inherits them. With the first one a server that we start for it would
wait for words of that router on its stdin, and end at once.
"""

# llama-server's options whose value is one path.
_ONE_PATH = frozenset(
    """
    -m --model -mm --mmproj -md --model-draft --spec-draft-model -mv --model-vocoder
    --grammar-file -jf --json-schema-file --chat-template-file --log-file --log-prompts-dir
    -lcs --lookup-cache-static -lcd --lookup-cache-dynamic --path --media-path
    --models-dir --models-preset --slot-save-path --mcp-servers-config
    --ui-config-file --webui-config-file --api-key-file --ssl-key-file --ssl-cert-file
    """.split()
)
_PATH_LISTS = frozenset({"--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled"})
"""Options with paths separated by commas, since autumn 2025.

``FNAME:SCALE`` stays valid when a folder is put before it.
"""

_PATH_VARIABLES = frozenset(
    """
    LLAMA_ARG_MODEL LLAMA_ARG_MMPROJ LLAMA_ARG_MODEL_DRAFT LLAMA_ARG_SPEC_DRAFT_MODEL
    LLAMA_ARG_CHAT_TEMPLATE_FILE LLAMA_ARG_LOG_FILE LLAMA_LOG_FILE LLAMA_ARG_STATIC_PATH
    LLAMA_ARG_MODELS_DIR LLAMA_ARG_MODELS_PRESET LLAMA_ARG_MCP_SERVERS_CONFIG
    LLAMA_ARG_UI_CONFIG_FILE LLAMA_ARG_WEBUI_CONFIG_FILE LLAMA_ARG_API_KEY_FILE
    LLAMA_ARG_SSL_KEY_FILE LLAMA_ARG_SSL_CERT_FILE LLAMA_CACHE
    """.split()
)

_PLUGIN = re.compile(
    # Windows also looks there for the libraries that a plugin or a driver needs.
    r".*\.dll" if sys.platform == "win32" else r"(?:lib)?ggml-.*\.(?:so|dll|dylib)",
    re.IGNORECASE,
)
"""The names that ``ggml_backend_load_best`` loads as plugins (ggml-backend-reg.cpp)."""

PROJECTOR_DEVICE = "MTMD_BACKEND_DEVICE"
"""The variable that names the device of a projector for images (upstream's tools/mtmd)."""


class Build(NamedTuple):
    """An unpacked build. ``tree`` is absolute; ``server`` is relative to it.

    ``arguments`` are fixed by the variant. ``reinstall`` is the command that installs it again, ""
    if it is not known. ``takes`` are the lines of its help with its arguments, if they are known.
    ``reads_config``: it reads upstream's ``config.ini``.
    """

    tree: Path
    server: str
    backend: str
    arguments: tuple[str, ...] = ()
    reinstall: str = ""
    takes: tuple[str, ...] = ()
    reads_config: bool = False

    @property
    def executable(self) -> Path:
        """The path of the server."""
        return self.tree / self.server


class LaunchPlan(NamedTuple):
    """A start that can be made as it is; ``argv[0]`` is an absolute path.

    ``reinstall`` is the command that installs its build again, ``takes`` are its arguments.
    ``configured`` is what the server reads in upstream's ``config.ini``. ``env`` has that as
    variables, for all who ask what the server is told; the server itself reads the files.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    backend: str
    reinstall: str = ""
    takes: tuple[str, ...] = ()
    configured: tuple[ConfigValue, ...] = ()

    @property
    def own_env(self) -> dict[str, str]:
        """The environment of the server: without what it reads in files."""
        read = {each.variable for each in self.configured}
        return {name: value for name, value in self.env.items() if name not in read}

    def placed(self, placement: Placement, fixed: int, *, draft: bool) -> LaunchPlan:
        """Add the devices of a placement behind the program and ``fixed`` arguments of the variant.

        The user's arguments stay last: llama-server takes the last value of an option. ``draft`` is
        for a draft model without a device of its own.
        """
        words = placement.arguments(draft=draft)
        at = 1 + fixed
        env = dict(self.env)
        if placement.main:
            # Otherwise a projector for images goes to the first GPU that the build lists.
            env.setdefault(PROJECTOR_DEVICE, placement.main)
        return self._replace(argv=(*self.argv[:at], *words, *self.argv[at:]), env=env)


def environment(base: Mapping[str, str], build: Build) -> dict[str, str]:
    """Return ``base`` without the variables that load foreign code into the server.

    Those with which upstream's router tells its servers what they are go as well.

    ``LD_LIBRARY_PATH`` stays, as NVIDIA's containers find the driver through it. The build's
    own folder comes first, since the variable wins over the RUNPATH of the libraries.
    Relative entries are dropped, since the working folder changes. In WSL, Windows' driver comes
    before one that the distribution has installed.
    """
    # This drops LD_LIBRARY_PATH too, with the other LD_*; it is put together again below.
    kept = {
        name: value
        for name, value in base.items()
        if name not in _LOADER_NAMES | _OF_ROUTERS and not name.startswith(_LOADER_PREFIXES)
    }
    paths: list[str] = []
    with suppress(OSError):
        # Not the variables WSL_*: its services do not inherit them.
        if "microsoft" in kernel_text(_KERNEL_RELEASE).lower():
            paths = [WSL_LIBRARIES]
    paths += re.split("[:;]", base.get("LD_LIBRARY_PATH", ""))
    entries = [entry for entry in paths if Path(entry).is_absolute()]
    own = str(build.executable.parent)
    # Without the variable if the name of ``own`` contains a separator: the variable cannot
    # name such a folder, and other folders must not come before it.
    if entries and not re.search("[:;]", own):
        kept["LD_LIBRARY_PATH"] = ":".join([own, *entries])
    return kept


def plan_server(
    build: Build,
    arguments: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    runs_in: Path | None = None,
) -> LaunchPlan:
    """Plan a start; relative paths are relative to ``cwd``, the user's folder.

    The server runs in ``runs_in`` (None: in ``cwd``). It may be another folder, so every path in
    ``arguments`` and in the server's environment variables is made absolute. A path that only the
    server reads, in a preset or in the request of a tool, is relative to ``runs_in``.
    """
    env = environment(environ, build)
    read: Mapping[str, ConfigValue] = {}
    if build.reads_config:
        from tsuku_llm.launch.plan.upstream_config import configured

        read = configured(env, build.takes)
    for name, each in read.items():
        # The server reads these files itself, where it runs.
        is_path = name in _PATH_VARIABLES
        env[name] = _absolute(each.value, runs_in or cwd) if is_path else each.value
    for name in _PATH_VARIABLES & env.keys():
        env[name] = _absolute(env[name], cwd)
    if "LLAMA_ARG_HOST" in env:
        env["LLAMA_ARG_HOST"] = _hosts(env["LLAMA_ARG_HOST"], cwd)
    # Every program that a plan starts, and a program that becomes one: secrets are no arguments.
    user = handed_over(tuple(_absolute_arguments(arguments, cwd)))
    return LaunchPlan(
        argv=(str(build.executable), *build.arguments, *user.argv),
        cwd=runs_in or cwd,
        env=user.added_to(env),
        backend=build.backend,
        reinstall=build.reinstall,
        takes=build.takes,
        configured=tuple(read.values()),
    )


def plan_question(build: Build, arguments: Sequence[str], environ: Mapping[str, str]) -> LaunchPlan:
    """Plan a question to a build or to one of its tools, such as ``--version``.

    It does not get the user's settings for a server (LLAMA_*). One of them could make a good
    build fail (LLAMA_ARG_DEVICE) or write a file (LLAMA_ARG_LOG_FILE).
    """
    env = {name: value for name, value in environ.items() if not name.startswith("LLAMA_")}
    # Only root can put a plugin there. On Windows the root of a drive is open to more users, and
    # the program's own folder is the first that is searched anyway.
    folder = build.executable.parent if sys.platform == "win32" else Path(os.sep)
    argv = (str(build.executable), *arguments)
    return LaunchPlan(argv, folder, environment(env, build), build.backend)


def plan_tool(
    build: Build, arguments: Sequence[str], *, cwd: Path, environ: Mapping[str, str]
) -> LaunchPlan:
    """Plan the start of another of the build's tools; ``build.server`` is the tool.

    A tool gets its arguments unchanged, but for secrets, and stays in the user's folder: only the
    tool knows which of them are paths (llama-quantize IN OUT). A tool chooses its devices itself.
    """
    words = handed_over(arguments)
    env = words.added_to(environment(environ, build))
    argv = (str(build.executable), *words.argv)
    return LaunchPlan(argv, cwd, env, build.backend, build.reinstall)


def require_no_plugins(folder: Path) -> None:
    """Refuse a working folder that contains ggml plugins: ggml would load them.

    Raises UnsafeLocation. A folder that cannot be listed is accepted: ggml cannot list it
    either.
    """
    try:
        found = sorted(filter(_PLUGIN.fullmatch, os.listdir(folder)))  # names
    except PermissionError:
        return
    if found:
        raise UnsafeLocation(
            f"the build would load {found[0]} from the current folder",
            facts=(f"folder: {folder}",),
            hint="change to another folder, and give paths of files from there",
        )


def _absolute_arguments(arguments: Sequence[str], cwd: Path) -> Iterator[str]:
    """Yield ``arguments``, with the paths among them made absolute."""
    # llama.cpp does not read ``--option=value``: a value is always the next argument.
    rewrite: Callable[[str, Path], str] | None = None
    for word in arguments:
        if rewrite:
            # A value is not read as an option, even if it looks like one.
            yield rewrite(word, cwd)
            rewrite = None
            continue
        yield word
        option = spelled(word)
        if option in _ONE_PATH:
            rewrite = _absolute
        elif option in _PATH_LISTS:
            rewrite = _absolute_list
        elif option == "--host":
            rewrite = _hosts


def _absolute(value: str, cwd: Path) -> str:
    """Put ``cwd`` before a relative path; ``..`` stays, as a folder may be a symbolic link."""
    return os.path.join(cwd, value) if value else value


def _absolute_list(value: str, cwd: Path) -> str:
    """Make each field of a comma-separated list absolute; llama.cpp reads quotes as in CSV."""
    return csv_line(_absolute(field, cwd) for field in csv_fields(value))


def _hosts(value: str, cwd: Path) -> str:
    """Make the Unix sockets among the hosts of ``--host`` absolute.

    Raises UsageError for a path that is too long for a socket.
    """
    hosts = hosts_in(value)
    paths = {host: _absolute(host, cwd) for host in hosts if host.endswith(".sock")}
    for path in paths.values():
        # llama-server would only say that it could not listen.
        if (size := len(os.fsencode(path))) > SOCKET_PATH_BYTES:
            raise UsageError(
                f"the path of the socket is too long: {path}",
                facts=(f"it has {size} bytes; the system takes {SOCKET_PATH_BYTES}",),
                hint="choose a shorter one with --host, such as one in /tmp or $XDG_RUNTIME_DIR",
            )
    return csv_line(paths.get(host, host) for host in hosts) if paths else value
