"""What ``ci/test`` does where tools are missing: it installs them, or tests say what they lack."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.program import environment
from support.tools import missing, require_tool, untested

ROOT = Path(__file__).parents[2]
PACKAGES = """# What the tests need.
here-1 here-2 # found
lost-1 # not found
lost-2 unknown
ci: lost-for-ci # only there
"""
DPKG = """#!/bin/sh
shift 2
for name; do case $name in here-*) printf ' %s=installed ' "$name" ;; esac; done
exit 1
"""
APT_CACHE = """#!/bin/sh
case $2 in unknown | "$NO_LISTS") ;; *) echo "$2 | 1.0 | of some place" ;; esac
"""
APT_GET = """#!/bin/sh
echo "$*" >>"$LOG"
case "$*" in *"$FAILS"*) exit 9 ;; esac
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Debian's tools")


class Debian:
    """A machine with some packages of a list, whose apt-get is logged and installs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tools, self.log = folder, folder / "tools", folder / "log"
        self.tools.mkdir(parents=True)
        (folder / "ci").mkdir()
        shutil.copy(ROOT / "ci/packages.sh", folder / "ci")
        (folder / "ci/packages.txt").write_text(PACKAGES)
        for name, text in (("dpkg-query", DPKG), ("apt-cache", APT_CACHE), ("apt-get", APT_GET)):
            self.write(name, text)
        # Like the real one it reads what it is given, or who writes that would end by SIGPIPE.
        self.write("sudo", '#!/bin/sh\necho "sudo $*" >>"$LOG"\n[ "$1" != sh ] || cat >/dev/null\n')
        self.write("id", "#!/bin/sh\necho 1000\n")

    def write(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def run(self, words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.tools}:/usr/bin:/bin"
        env = environment(self.folder, LOG=str(self.log), FAILS="-never-", NO_LISTS="-")
        return subprocess.run(
            [require_tool("bash"), "-euo", "pipefail", "-c", f". ci/packages.sh; {words}"],
            cwd=self.folder,
            env=env | {"PATH": path} | extra,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def debian(tmp_path: Path) -> Debian:
    return Debian(tmp_path / "debian")


@pytest.mark.parametrize(
    ("words", "extra", "wanted"),
    [
        ("missing_packages", {}, ["lost-1", "lost-2"]),
        ("missing_packages ci", {}, ["lost-1", "lost-2", "lost-for-ci"]),
        # Before the first update of its lists, apt knows no package at all.
        ("missing_packages", {"NO_LISTS": "python3"}, ["lost-1", "lost-2", "unknown"]),
    ],
)
def test_what_is_missing_is_found(
    words: str, extra: dict[str, str], wanted: list[str], debian: Debian
) -> None:
    done = debian.run(words, **extra)
    assert (done.returncode, done.stdout.split()) == (0, wanted), done.stderr


def test_a_user_installs_with_sudo_and_no_service_starts(debian: Debian) -> None:
    done = debian.run("install_packages")
    assert done.returncode == 0, done.stderr
    calls = [line.removeprefix("sudo ") for line in debian.log.read_text().splitlines()]
    apt = "env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0"
    assert calls[0] == f"{apt} update"
    assert f"{apt} install -y --no-install-recommends lost-1 lost-2" in calls
    if not Path("/usr/sbin/policy-rc.d").exists():
        # Debian asks it before it starts a service; it goes away again.
        assert calls[1].startswith("sh -c cat >/usr/sbin/policy-rc.d")
        assert calls[-1] == "rm -f /usr/sbin/policy-rc.d"


def test_a_failing_update_stops_it(debian: Debian) -> None:
    debian.write("sudo", '#!/bin/sh\nexec "$@"\n')
    done = debian.run("install_packages; echo went on", FAILS="update")
    assert (done.returncode, done.stdout) == (9, "")
    assert "install" not in debian.log.read_text()


def test_without_root_and_sudo_nothing_may_be_installed(debian: Debian) -> None:
    (debian.tools / "sudo").unlink()
    assert debian.run("may_install", PATH=str(debian.tools)).returncode in (1, 127)
    debian.write("id", "#!/bin/sh\necho 0\n")
    assert debian.run("may_install").returncode == 0


def test_both_commands_install_from_one_list() -> None:
    listed = re.sub(r"#.*|ci:", "", (ROOT / "ci/packages.txt").read_text("utf-8")).split()
    assert len(listed) == len({*listed})
    for script in ("ci/test", ".ci/run"):
        assert "missing_packages" in (ROOT / script).read_text("utf-8")


def test_a_test_is_skipped_in_its_own_thread_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TSUKU_LLM_REQUIRE_TOOLS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="the program x is not installed"):
        missing("the program x")
    raised: list[BaseException] = []

    def elsewhere() -> None:
        try:
            missing("the program x")
        except BaseException as error:  # noqa: BLE001 - also what pytest raises
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert isinstance(raised[0], RuntimeError)


def test_the_summary_counts_what_was_not_tested(pytester_like: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "conftest", pytester_like],
        cwd=pytester_like.parent,
        env=environment(pytester_like.parent, PYTHONPATH=f"{ROOT / 'tests'}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    *_, two, one, how, last = done.stdout.splitlines()
    assert two == "2 tests need the program no-such-1"
    assert one == "1 test needs the library no-such-2"
    assert "without --no-install" in how
    assert "1 passed, 4 skipped" in last
    assert untested([]) == {}


@pytest.fixture
def pytester_like(tmp_path: Path) -> Path:
    test = tmp_path / "suite" / "test_tools.py"
    test.parent.mkdir()
    test.write_text(
        "import pytest\nfrom support.tools import require_library, require_tool\n\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_tool(number): require_tool('no-such-1')\n\n"
        "def test_library(): require_library('no-such-2')\n\n"
        "def test_other(): pytest.skip('another reason')\n\n"
        "def test_works(): pass\n"
    )
    return test
