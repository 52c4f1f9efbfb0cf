"""A store that another user could change: nothing of it is run, written or obeyed."""

import os
import re
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from support.folder_shop import FolderShop
from support.program import Result, run_program
from support.stored import FILES, install

from tsuku_llm.cli.program import program as click_program
from tsuku_llm.steps.session import FAKE_HARDWARE
from tsuku_llm.store.store import Store

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
needs_root = pytest.mark.skipif(not ROOT, reason="needs root, to act for another user")

Program = Callable[..., Result]
SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
OTHER = 65534

REFUSED = {
    "install": ("install", "--dry-run"),
    "serve": ("serve", "--", "-m", "x.gguf"),
    "serve, become": ("serve", "--exec"),
    "serve, detach": ("serve", "--detach"),
    "chat": ("chat", "--", "-m", "x.gguf"),
    **{f"service {way}": ("service", way) for way in ("systemd", "launchd", "windows")},
    "run": ("run", "llama-cli"),
    "bench": ("bench", "-m", "x.gguf"),
    "update": ("update", "--check"),
    "use": ("use", "b100"),
    "rollback": ("rollback",),
    "fallback, forget": ("fallback", "--forget"),
    "uninstall": ("uninstall", "--all"),
    "prune": ("prune",),
    "mirror": ("mirror", "--dry-run", "mirror"),
    "bundle create": ("bundle", "create", "--no-program", "machines.bundle"),
    "config set": ("config", "set", "llm.fallback", "off"),
    "config unset": ("config", "unset", "llm.channel"),
    "repository add": ("repository", "add", "x", "https://127.0.0.1:1/", "--root", "root.json"),
    "repository refresh": ("repository", "refresh"),
    "repository remove": ("repository", "remove", "x"),
}
"""Commands that write into the store, run what lies there, or do as the settings say."""

LOOKING = {
    "explain": (("explain",), 0),
    "backends": (("backends",), 0),
    "probe": (("probe",), 0),
    "doctor": (("doctor", "--backend", "cpu"), 6),
    "status": (("status",), 0),
    "logs": (("logs",), 7),
    "stop": (("stop",), 7),
    "open": (("open",), 7),
    "launch": (("launch", "claude"), 7),
    "restart": (("restart",), 7),
    "list": (("list",), 0),
    "which": (("which",), 0),
    "fallback": (("fallback",), 0),
    "models": (("models",), 0),
    "verify": (("verify",), 0),
    "config get": (("config", "get", "llm.channel"), 0),
    "config list": (("config", "list"), 0),
    "config path": (("config", "path"), 0),
    "repository list": (("repository", "list"), 0),
}
"""Commands that only look, and their exit codes: they go on."""

NEITHER = {"completion", "help", "self-update", "version", "bundle show"} | {
    f"fleet {name}" for name in ("plan", "apply", "status")
}
"""They touch no store here."""


@pytest.fixture
def home(tsuku_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home with one version and settings, on a recorded machine."""
    tsuku_home.mkdir(mode=0o755)
    (tsuku_home / "config.toml").write_text('[llm]\nchannel = "nightly"\n', "utf-8")
    install(Store(tsuku_home / "llm"), files={**FILES, "llama-server": b"#!/bin/sh\necho ran\n"})
    monkeypatch.setenv(FAKE_HARDWARE, str(SNAPSHOTS / "debian-12-vm-no-gpu.json"))
    monkeypatch.chdir(tmp_path)
    return tsuku_home


def everything(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Each name below a folder: mode, inode, and the bytes of files."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_ino,
            path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else b"",
        )
        for path in folder.rglob("*")
    }


def commands(group: click.Command = click_program, prefix: str = "") -> Iterator[str]:
    if not isinstance(group, click.Group):
        yield prefix
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        yield from commands(command, f"{prefix} {name}".strip())


def test_every_command_is_in_one_of_the_tables() -> None:
    """A new command is refused unless it says that it only looks: put it into a table."""
    known = {name.partition(",")[0] for name in REFUSED} | LOOKING.keys() | NEITHER
    assert set(commands()) == known


@pytest.mark.parametrize("name", REFUSED)
def test_T10_commands_that_write_or_run_refuse_a_store_that_everyone_can_write(
    name: str, program: Program, home: Path
) -> None:
    home.chmod(0o777)
    before = everything(home)
    done = program(*REFUSED[name])
    assert done.code == 6, done.stderr
    assert "error[unsafe-location]: every user can write to" in done.stderr
    assert f"chmod o-w '{home}'" in done.stderr
    assert (everything(home), done.stdout) == (before, "")


@pytest.mark.parametrize("name", LOOKING)
def test_T10_commands_that_only_read_ignore_settings_of_others(
    name: str, program: Program, home: Path
) -> None:
    home.chmod(0o777)
    before = everything(home)
    words, code = LOOKING[name]
    done = program(*words)
    assert done.code == code, done.stderr
    assert "nightly" not in done.stdout
    if name not in ("config path", "verify"):
        assert "config.toml is not used: every user can write to" in done.stdout + done.stderr
    assert everything(home) == before


def test_T10_doctor_names_who_could_write_and_runs_nothing(program: Program, home: Path) -> None:
    """The build is for the processor, and would have said so."""
    home.chmod(0o777)
    done = program("doctor", "--backend", "cpu")
    assert done.code == 6, done.stderr
    assert f"broken   installed tree  every user can write to {home}" in done.stdout
    (home / "config.toml").unlink()
    other = program("doctor", "--backend", "vulkan")
    assert f"warning: every user can write to {home}" in other.stderr
    assert f"chmod o-w '{home}'" in other.stderr


def test_T10_the_command_of_the_hint_repairs_it(program: Program, home: Path) -> None:
    (home / "llm").chmod(0o777)
    home.chmod(0o772)
    for _ in range(2):
        done = program("use", "b100")
        assert done.code == 6
        command = next(re.finditer(r"^hint: run: (.*)$", done.stderr, re.MULTILINE))[1]
        subprocess.run(shlex.split(command), check=True)
    assert program("use", "b100").code == 0


@pytest.mark.parametrize("name", REFUSED)
def test_T11_dots_after_a_link_are_resolved_like_the_system_does(
    name: str, program: Program, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text without "link/.." names another folder, which is safe."""
    (home.parent / "elsewhere" / "deep").mkdir(parents=True)
    moved = home.rename(home.parent / "elsewhere" / "home")
    (home.parent / "link").symlink_to("elsewhere/deep")
    monkeypatch.setenv("TSUKU_HOME", str(home.parent / "link" / ".." / "home"))
    moved.chmod(0o777)
    before = everything(home.parent)
    done = program(*REFUSED[name])
    assert done.code == 6, done.stderr
    assert f"every user can write to {moved}, " in done.stderr
    assert everything(home.parent) == before


def mode_of_others(path: Path) -> None:
    path.chmod(0o757)


def sticky(path: Path) -> None:
    path.chmod(0o1777)


def owner(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama-server", mode_of_others),
        pytest.param("llama-server", owner, marks=needs_root),
        (".", sticky),
    ],
)
@pytest.mark.parametrize(
    "words", [("serve", "--exec"), ("use", "b100"), ("doctor", "--backend", "cpu")]
)
def test_T10_a_build_that_others_can_change_is_not_run(
    words: tuple[str, ...], name: str, change: Callable[[Path], None], program: Program, home: Path
) -> None:
    """The folders above are safe, and the content is still the right one."""
    (tree,) = (home / "llm" / "versions").glob("*/tree")
    change(tree / name)
    done = program(*words)
    assert (done.code, "\nran" in done.stdout) == (6, False), done.stderr
    fix = re.search(r"(?:chmod -R go-w|chown -R 0) '.*'", done.stdout + done.stderr)
    assert fix
    subprocess.run(shlex.split(fix[0]), check=True)
    assert program("use", "b100").code == 0


@pytest.mark.parametrize("folder", ["metadata", "metadata/official"])
def test_T10_nothing_starts_if_others_could_remove_revocations(
    folder: str, program: Program, home: Path
) -> None:
    place = home / "llm" / folder
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    done = program("serve", "--exec")
    assert done.code == 6, done.stderr
    assert f"every user can write to {place}, " in done.stderr


def test_T15_dots_after_a_missing_folder_change_no_mode(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setenv("TSUKU_HOME", str(place / "missing" / ".." / "home"))
    assert program("config", "set", "llm.fallback", "off").code == 0
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777


@needs_root
@pytest.mark.parametrize("name", REFUSED)
def test_T11_a_link_of_another_user_in_the_path_is_not_followed(
    name: str, program: Program, home: Path
) -> None:
    """The folder is sticky, as /tmp, and what the link leads to is ours."""
    (home / "llm").rename(home.parent / "elsewhere")
    (home / "llm").symlink_to(home.parent / "elsewhere")
    os.chown(home / "llm", OTHER, OTHER, follow_symlinks=False)
    home.chmod(0o1777)
    before = everything(home.parent)
    done = program(*REFUSED[name])
    if name.startswith("config"):
        assert done.code == 0, "the settings lie on another way"
        return
    assert done.code == 6, done.stderr
    assert f"the link llm belongs to another user (uid {OTHER})" in done.stderr
    assert f"chown -h 0 '{home / 'llm'}'" in done.stderr
    assert everything(home.parent) == before


@needs_root
@pytest.mark.parametrize("owned", ["file", "link"])
@pytest.mark.parametrize("name", REFUSED)
def test_T12_settings_of_another_user_are_not_obeyed(
    name: str, owned: str, program: Program, home: Path
) -> None:
    home.chmod(0o1777)
    config = home / "config.toml"
    if owned == "link":
        config.rename(home / "other.toml")
        config.symlink_to("other.toml")
    os.chown(config, OTHER, OTHER, follow_symlinks=False)
    before = everything(home)
    done = program(*REFUSED[name])
    assert done.code == 6, done.stderr
    assert f"config.toml belongs to another user (uid {OTHER})" in done.stderr
    assert everything(home) == before
    looked = program("config", "get", "llm.channel")
    assert (looked.code, looked.stdout) == (0, "stable\n")
    assert "config.toml is not used" in looked.stderr


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_T12_settings_that_others_can_write_are_not_obeyed(
    mode: int, program: Program, home: Path
) -> None:
    (home / "config.toml").chmod(mode)
    done = program("use", "b100")
    assert done.code == 6, done.stderr
    assert f"-w '{home / 'config.toml'}'" in done.stderr


# --- another user at work during an install -----------------------------------------------------

INTRUDER = """
echo ready
until set -- "$home"/llm/staging/*/tree/llama-server; test -e "$1"; do :; done
mv "$home/llm" "$home/away"
mkdir -p "${1%/*}"
echo '#!/bin/sh' >"$1"
echo "id -u >'$proof'" >>"$1"
chmod 755 "$1"
echo swapped
"""
"""It waits for a staged server and puts a program of its own in its place."""


@pytest.fixture
def reachable(tmp_path: Path) -> Path:
    """A folder that another user gets to."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path


@needs_root
@pytest.mark.parametrize(("mode", "group"), [(0o777, 0), (0o2775, OTHER)], ids=["0777", "2775"])
@pytest.mark.parametrize("words", [("install",), ("install", "--force"), ("update",)])
def test_T13_a_server_that_another_user_put_into_staging_is_not_run(
    words: tuple[str, ...], mode: int, group: int, reachable: Path
) -> None:
    shop = FolderShop(reachable / "shop")
    shop.publish("b1", {"cpu": shop.variant(shop.stand_in("b1-cpu", padding=4_000_000))})
    home, proof = reachable / "home", reachable / "proof"
    home.mkdir(mode=0o755)
    user = shop.user(home)
    if words != ("install",):
        assert user.run("install").code == 0
    if words == ("update",):
        shop.publish("b2", {"cpu": shop.variant(shop.stand_in("b2-cpu", padding=4_000_000))})
    os.chown(home, 0, group)
    home.chmod(mode)
    before = everything(home)
    with subprocess.Popen(
        ["/bin/sh", "-c", INTRUDER],
        env={"PATH": os.defpath, "home": str(home), "proof": str(proof)},
        stdout=subprocess.PIPE,
        text=True,
        user=OTHER,
        group=OTHER,
        extra_groups=(),
        cwd="/",
    ) as intruder:
        try:
            assert intruder.stdout
            assert intruder.stdout.readline() == "ready\n"
            done = user.run(*words)
        finally:
            intruder.kill()
        assert intruder.stdout.read() == ""
    assert done.code == 6, done.stderr
    assert not proof.exists()
    assert everything(home) == before
    assert f"-w '{home}'" in done.stderr
    home.chmod(0o755)
    assert user.run(*words).code == 0


@needs_root
def test_T14_a_folder_that_another_user_made_first_is_not_filled(reachable: Path) -> None:
    """In a sticky folder a name that is not there yet is anybody's."""
    place = reachable / "sticky"
    place.mkdir()
    place.chmod(0o1777)
    home = place / "home"
    (home / "llm").mkdir(parents=True)
    for folder in (home, home / "llm"):
        os.chown(folder, OTHER, OTHER)
        folder.chmod(0o777)
    env = {**os.environ, "TSUKU_HOME": str(home)}
    done = run_program("repository", "refresh", env=env)
    assert (done.code, list((home / "llm").iterdir())) == (6, [])
    assert f"home belongs to another user (uid {OTHER})" in done.stderr
