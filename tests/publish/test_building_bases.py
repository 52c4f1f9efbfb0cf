"""``tsuku-publish build --base``: a build inside the root file system of another system."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.own_publisher import typed_publisher
from support.processes import gone
from support.program import PUBLISHER as PUBLISHER_COMMAND
from support.program import Result, environment
from support.small_source import EPOCH, FILES, small_source
from support.tools import missing, require_tool
from support.waiting import PROMPTLY, comes, family

from tsuku_publish.building.orders import MARK
from tsuku_publish.building.place import Base
from tsuku_publish.building.result import _copied

Program = Callable[..., Result]
LOOKS = """
file(READ /proc/net/dev interfaces)
file(GLOB homes RELATIVE /tmp /tmp/*)
message(STATUS "saw ${interfaces} and ${homes} in ${CMAKE_BINARY_DIR}")
execute_process(COMMAND touch /usr/touched RESULT_VARIABLE touched ERROR_QUIET)
message(STATUS "touch gave ${touched}")
"""
HANGS = """
add_custom_target(hang ALL VERBATIM
    COMMAND sh -c "cd ${CMAKE_SOURCE_DIR}/.. && echo up > began; sleep 99 && echo late > late")
"""


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer decides what is built, and bubblewrap works here."""
    for tool in ("cmake", "ninja", "c++", "bwrap"):
        require_tool(tool)
    tried = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        missing("bubblewrap's right to make namespaces")
    for name in [name for name in os.environ if re.match(r"GGML_|LLAMA_|CMAKE_|CUDA|CC$|CX", name)]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("DEBOOTSTRAP_MIRROR", raising=False)
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str]) -> Program:
    return typed_publisher(capfd)


def build(program: Program, folder: Path, *words: str | Path, source: Path | None = None) -> Result:
    source = source or small_source(folder / "source")
    places = ("--into", folder / "out", "--work", folder / "work")
    return program("build", *words, "--source", source, *places)


def trees(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def bare_root(root: Path) -> Path:
    """A real, small root: the shell of this machine with its libraries, and no compiler."""
    shell = Path("/bin/sh").resolve()
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    for name in ("/bin/sh", *re.findall(r"/\S+", listed)):
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)
    for name in ("proc", "dev", "tmp", "etc"):
        (root / name).mkdir(exist_ok=True)  # ci/at preloads a library of /etc
    (root / "etc/os-release").write_text("ID=small\nVERSION_ID=1\nPRETTY_NAME='Small 1'\n")
    return root


# --- a build in a base -----------------------------------------------------------------------


def test_a_build_in_a_base_has_the_bytes_of_its_tools_and_names_the_base(
    tmp_path: Path, program: Program
) -> None:
    one, other = tmp_path / "one", tmp_path / "a place with spaces"
    # Of the source, and not of where it is: the base of this test is this machine's system.
    done = build(program, one, "cpu", "--base", "/", "--json")
    assert done.code == 0, done.stderr
    assert done.document["data"]["builds"][0]["base"]["root"] == "/"
    assert build(program, other, "cpu", "--base", "/").code == 0
    assert trees(one / "out") == trees(other / "out")
    assert build(program, tmp_path, "cpu").code == 0
    assert trees(one / "out/cpu/tree") == trees(tmp_path / "out/cpu/tree"), "the same compiler"
    receipt = json.loads((one / "out/cpu/receipt.json").read_bytes())
    told = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines())
    image = receipt["image"]
    assert image["base"].startswith(told["ID"].strip('"'))
    assert image["glibc"] == os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]
    bill = json.loads((one / "out/cpu/sbom.cdx.json").read_bytes())
    tools = {(each["type"], each["name"]) for each in bill["metadata"]["tools"]["components"]}
    assert ("operating-system", image["base"].partition("-")[0]) in tools
    assert {("library", name) for name in image["packages"]} <= tools


def test_a_build_in_a_base_sees_no_network_and_no_files_of_ours(
    tmp_path: Path, program: Program
) -> None:
    source = small_source(tmp_path / "source", CMakeLists_txt=FILES["CMakeLists.txt"] + LOOKS)
    done = build(program, tmp_path, "cpu", "--base", "/", source=source)
    assert done.code == 0, done.stderr
    log = (tmp_path / "work/cpu/build.log").read_text()
    assert re.findall(r"^ *(\w+):", log.partition("-- saw")[2], re.MULTILINE)[0] == "lo"
    assert "and build in /tmp/build/build" in log
    assert "touch gave 1" in log


def test_another_base_begins_again(tmp_path: Path, program: Program) -> None:
    def continued(*words: str) -> bool:
        done = build(program, tmp_path, "cpu", "--json", *words)
        assert done.code == 0, done.stderr
        return bool(done.document["data"]["builds"][0]["result"]["continued"])

    assert not continued()
    assert not continued("--base", "/")
    assert continued("--base", "/")


@pytest.mark.parametrize("base", [(), ("--base", "/")], ids=["here", "base"])
def test_a_killed_build_takes_its_compilers_with_it(tmp_path: Path, base: tuple[str, ...]) -> None:
    source = small_source(tmp_path / "source", CMakeLists_txt=FILES["CMakeLists.txt"] + HANGS)
    began = tmp_path / "work/cpu/began"
    began.parent.mkdir(parents=True)
    (tmp_path / "work" / MARK).touch()
    os.mkfifo(began)
    words = ("build", "cpu", *base, "--source", source, "--into", tmp_path / "out")
    command = [*PUBLISHER_COMMAND, *map(str, words), "--work", str(tmp_path / "work")]
    env = environment(tmp_path / "home")
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as child:
        with open(os.open(began, os.O_RDWR | os.O_NONBLOCK)) as said:  # noqa: PTH123
            assert comes(said, PROMPTLY)
        started = family(child.pid)
        names = set()
        for pid in started:
            with contextlib.suppress(OSError):  # a short process of the build may end meanwhile
                names.add(Path(f"/proc/{pid}/comm").read_text().strip())
        assert {"cmake", "ninja"} <= names
        child.send_signal(signal.SIGKILL)
        child.wait()
        for pid in started:
            assert gone(pid)
    assert not (tmp_path / "work/cpu/late").exists(), "it was killed, and did not end by itself"


def test_links_of_a_base_stay_in_it(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    compiler = tmp_path / "usr/bin/gcc-10"
    compiler.write_text("")
    compiler.chmod(0o755)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/cc").symlink_to("/etc/alternatives/cc")
    (tmp_path / "etc/alternatives/cc").symlink_to("/bin/../../../usr/bin/gcc-10")
    (tmp_path / "usr/bin/ring").symlink_to("ring")
    base = Base(tmp_path)
    assert base.outside(Path("/bin/cc")) == compiler
    assert base.which("cc", "/nowhere:/bin") == Path("/bin/cc")
    assert base.which("/usr/bin/cc", "") == Path("/usr/bin/cc")
    assert base.which("ring", "/bin") is None
    assert base.which("sh", "/bin:/usr/bin") is None, "this machine has one"


def test_packages_of_a_base_are_read_with_their_versions(tmp_path: Path) -> None:
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: gcc-10\nStatus: install ok installed\nDescription: a\n b\nVersion: 10.2.1-6\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    apk = tmp_path / "lib/apk/db/installed"
    apk.parent.mkdir(parents=True)
    apk.write_text("C:Q1\nP:musl\nV:1.2.5-r1\n\nP:gcc\nV:14\n")
    found = [("gcc-10", "10.2.1-6"), ("musl", "1.2.5-r1"), ("gcc", "14")]
    assert [*Base(tmp_path).packages()] == found


# --- what is no base -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "variant", "said"),
    [
        ("debian-12x", "cpu", "bases: debian-11"),
        ("debian11", "cpu", "did you mean debian-11?"),
        ("debian-11", "metal", "metal cannot be built in the base debian-11"),
        ("{0}/empty", "cpu", "is no root file system: it has no /bin/sh"),
        ("{0}/foreign", "cpu", "another architecture"),
        ("{0}/bare", "cpu", "bare has no folder proc"),
    ],
)
def test_what_is_no_base_is_refused_before_anything_is_made(
    tmp_path: Path, program: Program, word: str, variant: str, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    (bare_root(tmp_path / "bare") / "proc").rmdir()
    (tmp_path / "foreign/bin").mkdir(parents=True)
    header = b"\x7fELF\x02\x01" + bytes(12) + (243).to_bytes(2, "little")  # RISC-V
    (tmp_path / "foreign/bin/sh").write_bytes(header)
    done = build(program, tmp_path, variant, "--base", word.format(tmp_path))
    assert (done.code, said in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "work/bases").exists()


def test_a_base_without_a_compiler_names_what_to_install_in_it(
    tmp_path: Path, program: Program
) -> None:
    root = bare_root(tmp_path / "root")
    done = build(program, tmp_path, "cpu", "--base", root)
    assert (done.code, "error[missing-tools]" in done.stderr) == (1, True), done.stderr
    assert f"in the base {root}" in done.stderr


def test_without_bubblewrap_its_package_is_named(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = build(program, tmp_path, "cpu", "--base", "/")
    assert (done.code, "error[missing-tools]: bwrap" in done.stderr) == (1, True), done.stderr
    assert "install the package bubblewrap" in done.stderr


# --- making a named base ---------------------------------------------------------------------


@pytest.fixture
def debootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for debootstrap, which needs a mirror; its folder has what it copies and notes.

    It makes a root without compilers, and waits in the middle while there is a FIFO "wait".
    """
    if os.geteuid() != 0:
        missing("root's right to make a base")
    folder = tmp_path / "stand-in"
    bare_root(folder / "root")
    stub = folder / "debootstrap"
    stub.write_text(f"""#!/bin/sh
echo "$@" >>{folder}/calls
for target; do :; done
mkdir "$target" && cp -a {folder}/root/bin "$target" || exit 1
if [ -p {folder}/wait ]; then echo half > {folder}/wait; sleep 99; fi
cp -a {folder}/root/. "$target"
""")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def roots(folder: Path) -> list[Path]:
    return [path for path in (folder / "work/bases").glob("debian-11-*") if path.is_dir()]


def test_a_base_is_made_once_and_used_again(
    tmp_path: Path, program: Program, debootstrap: Path
) -> None:
    shown = build(program, tmp_path, "show", "cpu", "--base", "debian-11")
    assert "the base debian-11 is not made yet" in shown.stdout
    assert not roots(tmp_path)
    for _ in range(2):
        done = build(program, tmp_path, "cpu", "--base", "debian-11")
        assert "error[missing-tools]" in done.stderr, "the stand-in has no compilers"
        assert len(roots(tmp_path)) == 1
    (call,) = (debootstrap / "calls").read_text().splitlines()
    words = call.split()
    assert {"--variant=minbase", "--force-check-gpg", "bullseye"} <= {*words}
    (packages,) = (word for word in words if word.startswith("--include="))
    assert {"cmake", "ninja-build", "clang-16"} <= {*packages.partition("=")[2].split(",")}


def test_a_killed_run_leaves_no_base_and_the_next_one_makes_it(
    tmp_path: Path, program: Program, debootstrap: Path
) -> None:
    wait = debootstrap / "wait"
    os.mkfifo(wait)
    source = small_source(tmp_path / "source")
    words = ("build", "cpu", "--base", "debian-11", "--source", source, "--into", tmp_path / "out")
    command = [*PUBLISHER_COMMAND, *map(str, words), "--work", str(tmp_path / "work")]
    env = {**environment(tmp_path / "home"), "PATH": os.environ["PATH"]}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as child:
        with open(os.open(wait, os.O_RDWR | os.O_NONBLOCK)) as said:  # noqa: PTH123
            assert comes(said, PROMPTLY)
        started = family(child.pid)
        child.send_signal(signal.SIGKILL)
        child.wait()
        for pid in started:
            assert gone(pid)
    assert not roots(tmp_path)
    wait.unlink()
    assert "error[missing-tools]" in build(program, tmp_path, "cpu", "--base", "debian-11").stderr
    (root,) = roots(tmp_path)
    assert (root / "etc/os-release").is_file()
    assert [path.name for path in (tmp_path / "work/bases").glob(".*.new")] == []


def test_a_base_that_cannot_be_made_shows_debootstraps_own_words(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tool("debootstrap")
    if os.geteuid() != 0:
        missing("root's right to make a base")
    monkeypatch.setenv("DEBOOTSTRAP_MIRROR", f"file://{tmp_path}/no-mirror")
    done = build(program, tmp_path, "cpu", "--base", "debian-11")
    assert done.code == 1
    assert "error[build-failed]: making the base debian-11 failed" in done.stderr
    assert "Failed getting release file" in done.stderr
    assert "log: " in done.stderr
    assert not roots(tmp_path)


FORBIDS = 'echo 0 >/proc/sys/user/max_mnt_namespaces && exec "$@"'
"""In a user namespace of its own, this forbids mount namespaces as some containers do."""


@pytest.mark.parametrize("base", ["debian-11", "/"])
def test_where_namespaces_are_forbidden_nothing_is_made_before_it_says_so(
    tmp_path: Path, debootstrap: Path, base: str
) -> None:
    source = small_source(tmp_path / "source")
    words = ("build", "cpu", "--base", base, "--source", source, "--into", tmp_path / "out")
    forbidding = ["unshare", "--user", "--map-root-user", "sh", "-c", FORBIDS, "sh"]
    command = [*forbidding, *PUBLISHER_COMMAND, *map(str, words), "--work", str(tmp_path / "work")]
    env = {**environment(tmp_path / "home"), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "error[publish]: bubblewrap cannot run anything in a base here" in done.stderr
    assert "allow them, or build on the host" in done.stderr
    assert not (debootstrap / "calls").exists()
    assert not roots(tmp_path)


def test_who_is_not_root_is_told_so(
    tmp_path: Path, program: Program, debootstrap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = build(program, tmp_path, "cpu", "--base", "debian-11")
    assert (done.code, "only root can make the base" in done.stderr) == (1, True), done.stderr
    assert not (debootstrap / "calls").exists()


# --- a source that attacks the machine that builds it ----------------------------------------


def hostile(folder: Path, *commands: str) -> Path:
    """The small source, whose CMakeLists.txt runs shell commands at the end of its configuration.

    Where it can write, it replaces what the parent opens.
    """
    lines = "".join(
        f"execute_process(COMMAND sh -c [==[{each}]==] ERROR_QUIET)\n" for each in commands
    )
    return small_source(folder / "source", CMakeLists_txt=FILES["CMakeLists.txt"] + lines)


@pytest.mark.parametrize("name", ["build.log", "key.json", "source/LICENSE"])
def test_N09_a_source_in_a_base_cannot_swap_what_the_parent_opens(
    tmp_path: Path, program: Program, name: str
) -> None:
    seed = tmp_path / "seed"
    seed.write_text("a-seed\n")
    source = hostile(tmp_path, f"rm -f /tmp/build/{name}; ln -s {seed} /tmp/build/{name}")
    done = build(program, tmp_path, "cpu", "--base", "/", source=source)
    assert done.code == 0, done.stderr
    assert seed.read_text() == "a-seed\n", "a log would have been added to it"
    assert not (tmp_path / "work/cpu" / name).is_symlink()
    assert b"a-seed" not in b"".join(trees(tmp_path / "out/cpu/tree").values())


def test_N09_a_folder_of_programs_that_is_a_link_is_no_build(
    tmp_path: Path, program: Program
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "llama-server").write_text("a-seed")
    hidden = FILES["CMakeLists.txt"].replace("${CMAKE_BINARY_DIR}/bin", "${CMAKE_BINARY_DIR}/other")
    linked = f"execute_process(COMMAND ln -s {host} ${{CMAKE_BINARY_DIR}}/bin)\n"
    source = small_source(tmp_path / "source", CMakeLists_txt=hidden + linked)
    done = build(program, tmp_path, "cpu", "--base", "/", source=source)
    assert (done.code, "is a link, and no folder of a build" in done.stderr) == (1, True)
    assert not (tmp_path / "out/cpu").exists()


def test_N09_a_source_in_a_base_is_not_root_and_has_no_capability(
    tmp_path: Path, program: Program
) -> None:
    code = 'file(READ /proc/self/status said)\nmessage(STATUS "its status: ${said}")\n'
    source = small_source(tmp_path / "source", CMakeLists_txt=FILES["CMakeLists.txt"] + code)
    done = build(program, tmp_path, "cpu", "--base", "/", source=source)
    assert done.code == 0, done.stderr
    log = (tmp_path / "work/cpu/build.log").read_text()
    assert re.search(r"^Uid:\s+65534", log, re.MULTILINE)
    assert {*re.findall(r"^Cap\w+:\s+(\w+)", log, re.MULTILINE)} == {"0" * 16}


def test_N09_a_library_of_a_base_is_not_taken_from_this_machine(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text("a-seed")
    root, tree = tmp_path / "root", tmp_path / "tree"
    (root / "usr/local/cuda/lib64").mkdir(parents=True)
    tree.mkdir()
    (root / "usr/local/cuda/lib64/libcudart.so.12").symlink_to(seed)
    folders = [Path("/usr/local/cuda/lib64")]
    assert not _copied("libcudart.so.12", folders, tree, Base(root))
    # One that leads to a file of the base is its own library.
    (root / "usr/local/cuda/lib64/libcudart.so.12").unlink()
    (root / "usr/local/cuda/lib64/libcudart.so.12").symlink_to("/opt/libcudart.so.12.4")
    (root / "opt").mkdir()
    (root / "opt/libcudart.so.12.4").write_text("its own")
    assert _copied("libcudart.so.12", folders, tree, Base(root))
    assert (tree / "libcudart.so.12").read_text() == "its own"
