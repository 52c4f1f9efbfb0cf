"""A new build that attacks the machine that starts it: everything is tried for real."""

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_model import write_tiny_model
from support.tools import missing, require_tool

from tsuku_publish.feed.sandbox import SandboxLimits, SandboxStart, start

PYTHON = "/usr/bin/python3"
SECRET = "a-seed-that-nobody-else-may-see"
SHORT = SandboxLimits(to_start=5, in_all=1)
"""For builds that would go on for ever."""

FOLDERS = "for folder in ('/tmp', '/socket'):\n    if not os.path.isdir(folder): continue\n"
"""The folder of the socket, by each of the names that it has had."""
ANSWERS = """
import http.server, socketserver
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.after()
    def do_POST(self): self.do_GET()
    def after(self): pass
    def log_message(self, *words): pass
    def address_string(self): return ''
class Server(socketserver.UnixStreamServer):
    def get_request(self): return super().get_request()[0], ('', 0)
place = sys.argv[sys.argv.index('--host') + 1]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_tool("bwrap")
    if not Path(PYTHON).exists():
        missing(PYTHON)
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def attacked(
    folder: Path, model: Path, code: str, limits: SandboxLimits | None = None, **host: object
) -> SandboxStart:
    """Start a build whose server is Python; it knows the host's places by their names."""
    build = folder / "build"
    build.mkdir(exist_ok=True)
    known = "".join(f"{name} = {value!r}\n" for name, value in host.items())
    server = build / "llama-server"
    server.write_text(
        f"#!{PYTHON}\nimport os, socket, sys, time\n{known}\n"
        "def tried(act):\n"
        "    try:\n        return act()\n"
        "    except OSError as error:\n        return type(error).__name__\n"
        f"{code}\n"
    )
    server.chmod(0o755)
    return start("cpu", build, model, limits)


def said(done: SandboxStart) -> str:
    """The last line of a build that ended with 3, as it says when it has done its worst."""
    assert done.works is False
    before, _, words = done.text.partition("it ended with 3: ")
    assert not before, done.text
    return words


@contextlib.contextmanager
def listening(place: object, family: int = socket.AF_UNIX) -> Iterator[list[bytes]]:
    """A server of the host that answers everything with 200, and keeps what it was asked."""
    asked: list[bytes] = []
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(place)  # type: ignore[arg-type]  # a path, a name or an address
        listener.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        asked.append(connection.recv(1 << 16))
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


# --- what the parent reads ---------------------------------------------------------------------


def test_N09_a_log_that_becomes_a_link_shows_no_file_of_the_host(
    tmp_path: Path, model: Path
) -> None:
    (tmp_path / "seed").write_text(SECRET)
    code = FOLDERS + (
        "    for name in [*os.listdir(folder), 'log', 'output', 'answer']:\n"
        "        tried(lambda: os.unlink(f'{folder}/{name}'))\n"
        "        os.symlink(seed, f'{folder}/{name}')\n"
        "print('done'); sys.exit(3)"
    )
    assert said(attacked(tmp_path, model, code, seed=str(tmp_path / "seed"))) == "done"


def test_N09_a_fifo_for_the_log_or_the_socket_hangs_nobody(tmp_path: Path, model: Path) -> None:
    code = FOLDERS + (
        "    for name in ('log', 'llama.sock'):\n"
        "        tried(lambda: os.unlink(f'{folder}/{name}'))\n"
        "        os.mkfifo(f'{folder}/{name}')\n"
        "print('two fifos', flush=True); time.sleep(99)"
    )
    done = attacked(tmp_path, model, code, SHORT)
    assert (done.works, done.text) == (False, "it was not done after 1 seconds: two fifos")


@pytest.mark.parametrize("when", ["at once", "after an answer"])
def test_N09_a_link_for_the_socket_leads_to_no_server_of_the_host(
    tmp_path: Path, model: Path, when: str
) -> None:
    host = tmp_path / "host.sock"
    swaps = "tried(lambda: os.unlink(place)); os.symlink(host, place)"
    code = f"{ANSWERS}\n{swaps}; time.sleep(99)"
    if when == "after an answer":
        # The answer to the first question, then another server for the second one.
        code = (
            f"{ANSWERS}\nServer(place, Answers).handle_request()\n"
            f"{swaps}\nprint('swapped'); sys.exit(3)"
        )
    with listening(str(host)) as asked:
        done = attacked(tmp_path, model, code, SHORT, host=str(host))
    assert (done.works, asked) == (False, [])


@pytest.mark.parametrize(
    "endless",
    [
        "self.wfile.write(b'x' * 4096)",
        "self.wfile.write(b'x'); time.sleep(.1)",
        "self.wfile.write(b'HTTP/1.1 100 Continue\\r\\n\\r\\n')",
    ],
    ids=["fast", "dripping", "as headers"],
)
def test_N09_an_answer_without_end_ends(tmp_path: Path, model: Path, endless: str) -> None:
    code = f"{ANSWERS}\ndef after(self):\n    while True: {endless}\nAnswers.after = after\n"
    if "Continue" in endless:
        code += "Answers.do_GET = after\n"
    code += "Server(place, Answers).serve_forever()"
    done = attacked(tmp_path, model, code, SHORT)
    assert done.works is False
    assert done.text.startswith("it was not done after 1 seconds")


def test_N09_output_without_end_ends(tmp_path: Path, model: Path) -> None:
    code = "while True: sys.stdout.write('one line ' * 9999)"
    done = attacked(tmp_path, model, code, SandboxLimits(output=1 << 20))
    assert done.works is False
    assert done.text.startswith("it printed more than 1,048,576 bytes: ")
    assert len(done.text) < 300


def test_N09_its_last_words_move_no_cursor_and_hide_nothing(tmp_path: Path, model: Path) -> None:
    code = "print('fine\\x1b[2K\\x1b]0;title\\a\\u202eend\\x9b5A'); sys.exit(3)"
    words = said(attacked(tmp_path, model, code))
    assert words.isprintable(), ascii(words)
    assert words.startswith("fine")


# --- what it sees of the host --------------------------------------------------------------------


def test_N09_no_process_there_has_our_environment_or_names_our_folders(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSUKU_LLM_PASSPHRASE", SECRET)
    code = (
        "found = ''\n"
        "for number in filter(str.isdecimal, os.listdir('/proc')):\n"
        "    for name in ('environ', 'cmdline'):\n"
        "        found += tried(lambda: open(f'/proc/{number}/{name}').read())\n"
        "print(secret in found, where in found, 'HOME=/' in found); sys.exit(3)"
    )
    done = attacked(tmp_path, model, code, secret=SECRET, where=str(tmp_path))
    assert said(done) == "False False True"


def test_N09_no_root_or_folder_of_a_process_leads_to_the_host(tmp_path: Path, model: Path) -> None:
    (tmp_path / "seed").write_text(SECRET)
    code = (
        "tried_all = [tried(lambda: open(f'/proc/{number}/{way}{seed}').read())\n"
        "    for number in filter(str.isdecimal, os.listdir('/proc'))\n"
        "    for way in ('root', 'cwd', 'root/..', 'root/proc/1/root', 'cwd/../..')]\n"
        "print(sorted(set(tried_all))); sys.exit(3)"
    )
    done = attacked(tmp_path, model, code, seed=str(tmp_path / "seed"))
    assert said(done) == "['FileNotFoundError']"


def test_N09_our_process_gets_no_signal_and_no_tracer(tmp_path: Path, model: Path) -> None:
    code = (
        "import ctypes, signal\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "traced = [libc.ptrace(16, pid, 0, 0) for pid in ours]\n"  # PTRACE_ATTACH
        "killed = [tried(lambda: os.kill(pid, signal.SIGTERM)) for pid in ours]\n"
        "everybody = tried(lambda: os.kill(-1, 0))\n"
        "seen = len([name for name in os.listdir('/proc') if name.isdecimal()])\n"
        "print(traced, killed, seen < 6); sys.exit(3)"
    )
    done = attacked(tmp_path, model, code, ours=[os.getpid(), os.getppid()])
    assert said(done) == "[-1, -1] ['ProcessLookupError', 'ProcessLookupError'] True"


def test_N09_no_socket_of_the_host_answers(tmp_path: Path, model: Path) -> None:
    name = f"\0tsuku-{os.getpid()}"
    code = (
        "def connected(family, place):\n"
        "    socket.socket(family, socket.SOCK_STREAM).connect(place)\n"
        "print(tried(lambda: connected(socket.AF_UNIX, abstract)),"
        " tried(lambda: connected(socket.AF_INET, address))); sys.exit(3)"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    with listening(name) as one, listening(address, socket.AF_INET) as other:
        done = attacked(tmp_path, model, code, abstract=name, address=address)
    assert said(done) == "ConnectionRefusedError ConnectionRefusedError"
    assert (one, other) == ([], [])


def test_N09_no_open_file_of_ours_is_there(tmp_path: Path, model: Path) -> None:
    (tmp_path / "seed").write_text(SECRET)
    with (tmp_path / "seed").open("rb") as held:
        os.set_inheritable(held.fileno(), True)
        # The folder's own descriptor is the fourth one.
        code = "print(sorted(map(int, os.listdir('/proc/self/fd')))); sys.exit(3)"
        done = attacked(tmp_path, model, code)
    assert said(done) == "[0, 1, 2, 3]"


def test_N09_a_link_in_the_build_leads_to_no_file_of_the_host(tmp_path: Path, model: Path) -> None:
    (tmp_path / "seed").write_text(SECRET)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "libggml.so").symlink_to(tmp_path / "seed")
    code = (
        "print(tried(lambda: open('/build/libggml.so').read()),"
        " tried(lambda: os.unlink('/build/libggml.so')),"
        " tried(lambda: open('/build/new', 'w'))); sys.exit(3)"
    )
    assert said(attacked(tmp_path, model, code)) == "FileNotFoundError OSError OSError"
    assert [*(tmp_path / "build").iterdir()]


# --- what it can do there ----------------------------------------------------------------------


def test_N09_it_is_not_root_and_has_no_capability_and_gets_none(
    tmp_path: Path, model: Path
) -> None:
    code = (
        "import ctypes, subprocess\n"
        "status = open('/proc/self/status').read()\n"
        "caps = {line.split()[1] for line in status.splitlines() if line.startswith('Cap')}\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "new = libc.unshare(0x10000000)\n"  # CLONE_NEWUSER
        "mounted = libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)\n"
        "root = subprocess.run(['su', '-c', 'id -u'], capture_output=True, stdin=-3).stdout\n"
        "print(os.getuid() == 0, sorted(caps), 'NoNewPrivs:\\t1' in status, new, mounted, root)\n"
        "sys.exit(3)"
    )
    expected = "False ['0000000000000000'] True -1 -1 b''"
    assert said(attacked(tmp_path, model, code)) == expected


def test_N09_no_terminal_takes_what_it_types(tmp_path: Path, model: Path) -> None:
    code = (
        "import fcntl, termios\n"
        "def typed(): fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), termios.TIOCSTI, b'x')\n"
        "print(tried(typed), [os.isatty(number) for number in range(3)]); sys.exit(3)"
    )
    assert said(attacked(tmp_path, model, code)) == "OSError [False, False, False]"


def test_N09_a_bomb_of_processes_goes_out(tmp_path: Path, model: Path) -> None:
    # They ignore what they can, and are in sessions of their own.
    code = (
        "import signal\n"
        "for number in range(1, 32): tried(lambda: signal.signal(number, signal.SIG_IGN))\n"
        "made = 0\n"
        "while made < 4000:\n"
        "    if tried(os.fork) == 0: os.setsid(); time.sleep(99); os._exit(0)\n"
        "    made += 1\n"
        "print('made all', flush=True); time.sleep(99)"
    )
    done = attacked(tmp_path, model, code, SandboxLimits(threads=64))
    assert done.works is False
    # As root of the host, no limit of the kernel holds, and our own does.
    assert re.match("it started more than 64 threads|it ended with", done.text), done.text
    assert "made all" not in done.text


def test_N09_it_writes_to_memory_alone_and_little_there(tmp_path: Path, model: Path) -> None:
    code = (
        "written = 0\n"
        "for folder in ('/', '/dev', '/dev/shm', '/home', '/etc', '/build', '/socket', '/tmp'):\n"
        "    for part in range(6):\n"
        "        def fill():\n"
        "            global written\n"
        "            with open(f'{folder}/{part}', 'wb', buffering=0) as file:\n"
        "                for _ in range(100): written += file.write(bytes(1 << 20))\n"
        "        tried(fill)\n"
        "print(written); sys.exit(3)"
    )
    written = int(said(attacked(tmp_path, model, code, SandboxLimits(files=8 << 20))))
    assert 0 < written <= 8 << 20


def test_N09_a_flood_of_empty_files_ends(tmp_path: Path, model: Path) -> None:
    code = FOLDERS + "    number = 0\n    while True:\n"
    code += "        number += 1; open(f'{folder}/{number}', 'w').close()"
    done = attacked(tmp_path, model, code, SandboxLimits(names=500))
    assert (done.works, done.text) == (False, "it made more than 500 files: it said nothing")


def test_N09_memory_without_end_ends(tmp_path: Path, model: Path) -> None:
    code = "kept = []\nwhile True: kept.append(b'x' * (1 << 20)); time.sleep(.001)"
    done = attacked(tmp_path, model, code, SandboxLimits(memory=64 << 20))
    assert done.works is False
    assert done.text.startswith("it used more than 67,108,864 bytes of memory")


def test_N09_what_stays_behind_ends_with_it(tmp_path: Path, model: Path) -> None:
    # A child that has closed its output, in a session of its own.
    mark = f"left-{os.getpid()}"
    code = (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for number in range(3): os.close(number)\n"
        "    os.execv(sys.executable, [mark, '-c', 'import time; time.sleep(99)'])\n"
        "sys.exit(3)"
    )
    assert attacked(tmp_path, model, code, mark=mark).works is False
    alive = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            alive += path.read_bytes()
    assert mark.encode() not in alive
