"""``sh FILE``: the program and a build come from one file, on a machine that reaches nothing."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import the_day
from support.builds import NO_DEVICE_STEPS
from support.bundles import PYTHON, ProgramShop, run_bundle
from support.folder_shop import FolderShop
from support.sessions import changed
from support.tools import require_tool

from tsuku_operator.bundle.bundle import BundleReport, create_bundle
from tsuku_operator.bundle.bundle_choice import BundleWish

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "two-h200.json"
CUDA_STEPS = ("out Available devices:", "out   CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> BundleReport:
    """A bundle for the machine with two H200s; its publisher and its index are gone afterwards."""
    folder = tmp_path_factory.mktemp("bundles")
    # The program in a bundle is isolated, so it has the system's day: sign on that day.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in the_day.on(None).items():
            patch.setenv(name, value)
        return bundle_of(FolderShop(folder / "shop"), folder)


def bundle_of(shop: FolderShop, folder: Path) -> BundleReport:
    cpu, cuda = (
        shop.variant(shop.stand_in(f"b1-{name}", devices=steps), backend=name)
        for name, steps in (("cpu", NO_DEVICE_STEPS), ("cuda", CUDA_STEPS))
    )
    shop.publish("b1", {"cuda": cuda, "cpu": cpu})
    program = ProgramShop(folder / "wheels")
    session = changed(shop.session(folder / "operator"), environ=program.environ)
    wish = BundleWish(machines=(SNAPSHOT,), pythons=(PYTHON,), wheel=program.wheel)
    report = create_bundle(session, folder / "h200.bundle", wish, lock=program.lock)
    shutil.rmtree(folder / "shop")
    shutil.rmtree(folder / "wheels")
    return report


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The variables of a user with an empty home, on the recorded machine."""
    home = tmp_path / "home"
    home.mkdir()
    return {
        "HOME": str(home),
        "TSUKU_LLM_FAKE_HARDWARE": str(SNAPSHOT),
        "PIP_INDEX_URL": "file:///",
    }


def files_of(env: dict[str, str]) -> list[str]:
    home = Path(env["HOME"])
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())


@pytest.fixture
def in_namespace() -> list[str]:
    """The words before a command in a namespace that has nothing but its own loopback."""
    unshare = require_tool("unshare")
    return [unshare, "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "in-namespace"]


def test_a_machine_without_a_network_gets_program_and_build(
    made: BundleReport, env: dict[str, str], in_namespace: list[str]
) -> None:
    root = made.description.fingerprint
    done = run_bundle(made.path, "--fingerprint", root, env=env, before=in_namespace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Installed the CUDA build b1 for NVIDIA H200.")
    link = Path(env["HOME"]) / ".local/bin/tsuku-llm"
    # The bundle is not needed any more, and its server runs without a network, too.
    script = (
        'set -e; "$0" serve --detach -- --port 8099 >/dev/null; "$0" status --json; "$0" stop >&2'
    )
    words = [*in_namespace, "sh", "-c", script, str(link)]
    served = subprocess.run(
        words,
        env={**env, "PATH": f"/usr/sbin:{os.defpath}", "TSUKU_LLM_CANARY": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.returncode == 0, served.stderr
    (server,) = json.loads(served.stdout)["data"]["servers"]
    assert server["state"] == "running", server
    assert server["report"]["selected"] == "cuda"
    # A second run finds everything there.
    again = run_bundle(made.path, env=env, before=in_namespace)
    assert again.returncode == 0, again.stderr
    assert "is installed already" in again.stdout
    assert "installing tsuku-llm into" not in again.stderr
    updater = subprocess.run(
        [link, "self-update", "--json"], env=env, capture_output=True, text=True, check=False
    )
    assert json.loads(updater.stdout)["error"]["code"] == "no-updater"


def test_a_refused_build_leaves_no_program(made: BundleReport, env: dict[str, str]) -> None:
    """The repository is unknown, so nothing of it may be installed; the program goes again."""
    done = run_bundle(made.path, env=env)
    assert done.returncode == 5, done.stderr
    assert "error[bad-metadata]" in done.stderr
    assert not [name for name in files_of(env) if "tsuku-llm-program" in name or "bin/" in name]


def test_S43_a_flipped_byte_never_starts_the_program(
    made: BundleReport, env: dict[str, str], tmp_path: Path
) -> None:
    good = made.path.read_bytes()
    script = good.index(b"PK\3\4")
    rng = random.Random(81)  # noqa: S311
    for position in [script, len(good) - 1, *(rng.randrange(script, len(good)) for _ in range(6))]:
        bad = tmp_path / "bad.bundle"
        shutil.copyfile(made.path, bad)
        with bad.open("r+b") as file:
            file.seek(position)
            file.write(bytes([good[position] ^ 1 << rng.randrange(8)]))
        done = run_bundle(bad, env=env)
        assert (done.returncode, done.stdout) == (5, ""), (position, done.stderr)
        assert done.stderr.startswith("error[bad-bundle]"), position
        assert "Traceback" not in done.stderr
    assert not files_of(env)


@pytest.mark.parametrize("cut", [-1, -(1 << 20), 4000])
def test_a_file_that_is_cut_off_does_nothing(
    made: BundleReport, env: dict[str, str], tmp_path: Path, cut: int
) -> None:
    (tmp_path / "bad").write_bytes(made.path.read_bytes()[:cut])
    done = run_bundle(tmp_path / "bad", env=env)
    assert done.returncode == 5
    assert "is not whole" in done.stderr
    assert not files_of(env)


def test_another_python_or_platform_is_refused(
    made: BundleReport, env: dict[str, str], tmp_path: Path
) -> None:
    python = tmp_path / "python3"
    for line, message in (
        ("sys.version_info = (3, 14, 0, 'final', 0)", "is not for linux-"),
        ("platform.machine = lambda: 'riscv64'", "is not for linux-riscv64"),
        ("platform.libc_ver = lambda: ('glibc', '2.4')", "needs glibc"),
        ("platform.libc_ver = lambda: ('', '')", "has another C library"),
    ):
        # The bundle gives -I and -c: no variable and no file beside it can do this.
        other = tmp_path / "other.py"
        other.write_text(f"import platform, sys\n{line}\nexec(sys.argv.pop(1))\n")
        text = f'shift 2\nexec {sys.executable} -I -c "$(cat {other})" "$@"\n'
        python.write_text(f"#!/bin/sh\n{text}")
        python.chmod(0o755)
        done = run_bundle(made.path, env={**env, "PYTHON": str(python)})
        assert (done.returncode, message in done.stderr) == (3, True), done.stderr
    python.write_text("#!/bin/sh\nexit 1\n")
    done = run_bundle(made.path, env={**env, "PYTHON": str(python)})
    assert (done.returncode, "needs Python 3.10" in done.stderr) == (3, True)
    assert not files_of(env)


def test_a_folder_of_the_user_is_never_removed(
    made: BundleReport, env: dict[str, str], tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "pyvenv.cfg").write_text("mine")
    done = run_bundle(made.path, "--program-only", "--into", str(mine), env=env)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)
    assert (mine / "pyvenv.cfg").read_text() == "mine"
    file = tmp_path / "file"
    file.write_text("mine")
    done = run_bundle(made.path, "--program-only", "--into", str(file), env=env)
    assert (done.returncode, file.read_text()) == (6, "mine")
    assert run_bundle(made.path, "--program-only", "--backend", "x", env=env).returncode == 2
    assert run_bundle(made.path, "--into", env=env).returncode == 2
    assert run_bundle(made.path, "--help", env=env).stdout.startswith("Usage: sh FILE")
    assert not files_of(env)


def test_the_script_has_no_mistake_of_a_shell(made: BundleReport, tmp_path: Path) -> None:
    data = made.path.read_bytes()
    (tmp_path / "head.sh").write_bytes(data[: data.index(b"PK\3\4")])
    done = subprocess.run(
        [require_tool("shellcheck"), tmp_path / "head.sh"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
