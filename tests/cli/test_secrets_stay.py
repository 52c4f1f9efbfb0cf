"""N03: secrets through every door, looked for in every output, file and list of processes.

Each door has a secret of its own. One user's home and environment have all of them, and many
commands run there, a server in the background among them. Two kinds of files may hold secrets: the
one that the user wrote, and the credentials that only the user can read.
"""

import base64
import json
import pickle
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.builds import stand_in
from support.program import environment, run_program
from support.stored import install

from tsuku_llm.cli.entry import run
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.safe_text import Secret, has_secret, redacted
from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.secret_arguments import handed_over
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

NOWHERE = "127.0.0.1:1"
DOORS = {
    "mirror_password": "CANARYmirror1",
    "mirror_query": "CANARYmirror2",
    "repository_query": "CANARYrepository",
    "set_query": "CANARYset",
    "variable_mirror": "CANARYvariable",
    "proxy_without_scheme": "CANARYproxy1",
    "proxy": "CANARYproxy2",
    "pip": "CANARYpip",
    "docker": "CANARYdocker",
    "docker_encoded": base64.b64encode(b"user:CANARYdocker").decode(),
    "variable_key": "CANARYvarkey",
    "variable_token": "CANARYvartoken",
    "variable_mcp": "CANARYvarmcp",
    "argument_key": "CANARYkey1",
    "argument_key_equals": "CANARYkey2",
    "argument_token": "CANARYtoken",
    "argument_mcp_header": "CANARYmcp1",
    "argument_mcp_environment": "CANARYmcp2",
    "model_url_password": "CANARYmodel1",
    "model_url_query": "CANARYmodel2",
    "projector_url_query": "CANARYprojector",
}
MCP = {
    "mcpServers": {
        "a": {"url": "https://h/", "headers": {"Authorization": "Bearer CANARYmcp1"}},
        "b": {"command": "b", "env": {"B_KEY": "CANARYmcp2"}},
    }
}
SERVER = (
    *("--port", "0", "--api-key", "CANARYkey1", "--api_key=CANARYkey2", "-hft", "CANARYtoken"),
    *("--mcp-servers-json", json.dumps(MCP)),
)
MODEL = ("-mu", "https://u:CANARYmodel1@h.example/m.gguf?x=CANARYmodel2")
PROJECTOR = ("--mmproj_url", "https://h.example/p.gguf?x=CANARYprojector")
UNREACHABLE = f"https://u:CANARYmirror1@{NOWHERE}/llm?token=CANARYmirror2"

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("config", "set", "llm.mirror", f"https://{NOWHERE}/x?token=CANARYset"),
    ("config", "set", "llm.repository_url", f"https://{NOWHERE}/r?token=CANARYrepository"),
    ("config", "set", "llm.mirror", UNREACHABLE),
    ("config", "set", "llm.mirror", "ftp://u:CANARYmirror1@h/x?token=CANARYmirror2"),
    ("config", "list"),
    ("doctor",),
    ("doctor", "--verbose"),
    ("explain",),
    ("list", "--available"),
    ("install", "--force", "--verbose", "--yes"),
    ("install", "--dry-run", "--verbose"),
    ("install", "--channel", "index", "--yes", "--verbose"),
    ("update", "--verbose"),
    ("update", "--dry-run"),
    ("update", "--systemd-unit"),
    ("update", "--unattended"),
    ("repository", "list"),
    ("repository", "refresh", "--verbose"),
    ("repository", "add", "x", f"https://u:CANARYset@{NOWHERE}/x?token=CANARYset", "--root", "r"),
    ("mirror", "mirrored", "--verbose"),
    ("mirror", "--to", f"oci://{NOWHERE}/llm", "--verbose"),
    ("bundle", "create", "bundle.sh", "--no-program", "--dry-run"),
    ("bundle", "create", "bundle.sh", "--no-program", "--verbose"),
    ("verify",),
    ("prune", "--dry-run"),
    ("models",),
    ("probe",),
    ("which", "llama-server"),
    ("self-update", "--dry-run"),
    ("serve", "--dry-run", "--", *SERVER),
    ("serve", "--dry-run", "--", *SERVER, *MODEL, *PROJECTOR),
    ("service", "systemd", "--output", ".", "--", *SERVER, *MODEL, *PROJECTOR),
    ("service", "systemd", "--exec", "--name", "e", "--", *SERVER, *MODEL, *PROJECTOR),
    ("service", "launchd", "--output", ".", "--", *SERVER, *MODEL, *PROJECTOR),
    ("service", "windows", "--output", ".", "--", *SERVER, *MODEL, *PROJECTOR),
    ("run", "llama-server", "--dry-run", "--", *SERVER, *MODEL),
    ("serve", "--detach", "--", *SERVER),
    ("status",),
    ("status", "--prometheus"),
    ("logs",),
)


@dataclass
class Seen:
    """What a user's commands wrote, left in files, and showed of their processes."""

    said: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("secrets")
    home, work, docker = folder / "home", folder / "work", folder / "docker"
    for each in (home, work, docker):
        each.mkdir(mode=0o755)
    build = stand_in(folder / "build", backend="cpu")
    files = {path.name: path.read_bytes() for path in build.tree.iterdir()}
    install(Store(home / "llm"), files=files, links={})
    auths = {NOWHERE: {"auth": base64.b64encode(b"user:CANARYdocker").decode()}}
    (docker / "config.json").write_text(json.dumps({"auths": auths}))
    env = environment(
        home,
        HTTPS_PROXY=f"user:CANARYproxy1@{NOWHERE}",
        ALL_PROXY=f"http://user:CANARYproxy2@{NOWHERE}",
        PIP_INDEX_URL=f"https://user:CANARYpip@{NOWHERE}/simple",
        PIP_RETRIES="0",
        DOCKER_CONFIG=str(docker),
        LLAMA_API_KEY="CANARYvarkey",
        HF_TOKEN="CANARYvartoken",
        LLAMA_ARG_MCP_SERVERS_JSON='{"x": {"headers": {"K": "CANARYvarmcp"}}}',
        HOME=str(work),
    )
    other = {**env, "TSUKU_LLM_MIRROR": f"https://{NOWHERE}/x?token=CANARYvariable"}
    found = Seen()

    def run_all(lines: Iterable[tuple[str, ...]], env: Mapping[str, str], kind: str = "") -> None:
        for line in lines:
            done = run_program(*line, env=env, cwd=work)
            found.said[kind + " ".join(line)] = done.stdout + done.stderr
            assert "error[bug]" not in done.stderr, (line, done.stderr)

    instances = Instances(home / "llm" / "state")
    try:
        run_all(COMMANDS, env)
        once = {"mirror", "bundle"}
        again = [line for line in COMMANDS if line[0] not in once and "--detach" not in line]
        run_all([(line[0], "--json", *line[1:]) for line in again], env)
        run_all([("config", "list"), ("service", "systemd"), ("update",)], other, "variable: ")
        (record,) = instances.all()
        found.processes = living()
        _require_handed_over(record, found.processes)
        run_all([("stop", "--all")], env)
    finally:
        for process in [
            each for left in instances.all() for each in (left.server, left.supervisor)
        ]:
            if process:
                process.send(signal.SIGKILL)
    for path in (*home.rglob("*"), *work.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found.files[path.relative_to(folder).as_posix()] = path.read_bytes()
    for path in (home / "config.toml", *(home / "llm/state/credentials").iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
    return found


def living() -> list[str]:
    """The command lines of all processes, as every user can read them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            lines.append(f"{path.parent.name}: {line}")
    return lines


def _require_handed_over(record: Record, processes: list[str]) -> None:
    """The server has its secrets, and it and its supervisor were among those looked at."""
    assert record.server is not None
    assert record.state.is_up
    mine = {str(record.server.pid), str(record.supervisor.pid)}
    assert mine <= {each.partition(":")[0] for each in processes}
    environ = Path(f"/proc/{record.server.pid}/environ").read_bytes()
    assert b"LLAMA_API_KEY=CANARYkey1,CANARYkey2\0" in environ
    assert b"CANARYmcp1" in environ


@pytest.mark.parametrize("door", DOORS)
def test_N03_a_secret_is_in_no_output_file_or_list_of_processes(door: str, seen: Seen) -> None:
    secret = DOORS[door]
    shown = [line for line, text in seen.said.items() if secret in text]
    kept = [
        path
        for path, content in seen.files.items()
        if secret.encode() in content
        and not path.startswith("home/llm/state/credentials/")
        and path != "home/config.toml"
    ]
    running = [line for line in seen.processes if secret in line]
    assert (shown, kept, running) == ([], [], [])


def test_N03_the_doors_were_open(seen: Seen) -> None:
    """Else the looks above find nothing because nothing was there."""
    kept = b"".join(seen.files.values()).decode("utf-8", "replace")
    inside = ("mirror_password", "mirror_query", "repository_query", "variable_key")
    inside += ("argument_key", "argument_token", "argument_mcp_header", "model_url_query")
    for door in inside:
        assert DOORS[door] in kept, door
    assert "***" in "".join(seen.said.values())
    assert "running" in seen.said["status"]


# --- an error of ours ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "invalid literal: 'https://u:CANARY@h/x'",
        "cannot open https://h/x?token=CANARY",
        "https://h/x#CANARY",
        "u:CANARY@proxy:3128",
        "['--api-key', 'CANARY']",
        "KeyError: CANARY",
        "Invalid header value b'Bearer CANARY'",
        '{"headers": {"X": "CANARY"}}',
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_N03_a_bug_tells_no_secret(
    words: str,
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "CANARY")

    def fail(_argv: object, _console: Console) -> object:
        raise ValueError(words) from KeyError(words)

    assert run(["serve", *more, "--", "--api-key", "CANARY"], fail) == 1  # type: ignore[arg-type]
    told = "".join(capfd.readouterr())
    assert "ValueError" in told
    assert "CANARY" not in told


# --- the type --------------------------------------------------------------------------------


def test_N03_a_secret_prints_as_stars() -> None:
    secret = Secret("CANARY", "https://h/")
    shown = (repr(secret), str(secret), f"{secret}", f"{secret!r:>9}", f"{[secret]} {(secret,)}")
    assert not any("CANARY" in each for each in shown)
    for write in (json.dumps, pickle.dumps):
        with pytest.raises(TypeError):
            write(secret)


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("https://host.example/other?x=1", True),
        ("https://HOST.example:443/", True),
        ("https://user@host.example/", True),
        ("http://host.example/", False),
        ("https://host.example:8443/", False),
        ("https://host.example.evil/", False),
        ("https://evil/host.example", False),
        ("https://host.example@evil/", False),
        ("https://[::1/", False),
        ("//host.example/", False),
        ("", False),
    ],
)
def test_N03_a_secret_is_for_one_scheme_host_and_port(url: str, is_own: bool) -> None:
    assert Secret("x", "https://host.example/v2/").for_url(url) == ("x" if is_own else None)
    assert Secret("x").for_url(url) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:K@h/x", "https://***@h/x"),
        ("https://token@h/x", "https://***@h/x"),
        ("https://u:p/K@h/x", "https://***@h/x"),
        ("https://u:p@K@h/x", "https://***@h/x"),
        ("https://u:p@K/K@h/x,https://v:K@i/", "https://***@h/x,https://***@i/"),
        ("https://h/x?token=K", "https://h/x?***"),
        ("https://h/x#K", "https://h/x#***"),
        ("https://h/x?a=K,K,https://i/y?K", "https://h/x?***,https://i/y?***"),
        ("u:K@proxy:3128", "***@proxy:3128"),
        ("HTTPS_PROXY=u:K@proxy:3128", "HTTPS_PROXY=***@proxy:3128"),
        ("socks5h://u:K@[::1]:1080", "socks5h://***@[::1]:1080"),
        ("https://h:8443/a@b", "https://h:8443/a@b"),
        ("pkg:pypi/x@1?file_name=x.whl", "pkg:pypi/x@1?file_name=x.whl"),
        ("is it at https://h/x? yes", "is it at https://h/x? yes"),
        ("oci://h/name:tag", "oci://h/name:tag"),
    ],
)
def test_N03_every_form_of_a_url_is_shown_without_its_secret(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert has_secret(text) == (text != shown)
    assert redacted(shown) == shown


def test_N03_only_what_has_a_variable_leaves_the_arguments() -> None:
    words = (
        "-m",
        "x",
        "--api-key-file",
        "k",
        "--new-token",
        "K",
        "-mu",
        "https://h/m",
        "--api-key",
    )
    assert handed_over(words).argv == words
    assert handed_over(("--api-key", "a", "--api-key", "b")).secrets == {
        "LLAMA_API_KEY": Secret("a,b")
    }
    last = handed_over(("-hft", "a", "--hf_token", "b", "-c", "1"))
    assert (last.argv, last.secrets) == (("-c", "1"), {"HF_TOKEN": Secret("b")})
