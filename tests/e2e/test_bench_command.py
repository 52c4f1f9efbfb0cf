"""``bench``: the variants of a shop, each as fast as its stand-in says, on a recorded machine."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.builds import NO_DEVICE_STEPS, VULKAN_STEPS, stand_in
from support.gguf_files import layered_model
from support.processes import gone
from support.program import COMMAND, Result, run_on_terminal
from support.release_server import ReleaseServer, User
from support.waiting import PROMPTLY

from tsuku_llm.steps.session import FAKE_HARDWARE

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "h200-working-vulkan.json"


def published(shop: ReleaseServer, home: Path, **serve: tuple[str, ...]) -> User:
    """A user of release b1, whose variants do as they are told while they serve."""
    variants = {}
    for name, steps in serve.items():
        gpu = {} if name == "cpu" else {"devices": VULKAN_STEPS}
        packed = shop.stand_in(f"b1-{name}", serve=(*steps, "listen"), **gpu)
        variants[name] = shop.variant(packed, backend=name)
    shop.publish("b1", variants)
    user = shop.user(home)
    return User(user.home, {**user.env, FAKE_HARDWARE: str(SNAPSHOT)})


@pytest.fixture
def user(shop: ReleaseServer, tmp_path: Path) -> User:
    return published(shop, tmp_path / "home", vulkan=("speed 4000 120",), cpu=("speed 400 20",))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return layered_model(tmp_path / "model.gguf", layers=1, size=4096)


def bench(user: User, model: Path, *words: str) -> Result:
    return user.run("bench", "-m", str(model), *words)


def data(result: Result) -> Any:
    assert result.code == 0, result.stderr
    return result.document["data"]


def test_every_variant_is_measured_and_the_fastest_comes_first(user: User, model: Path) -> None:
    found = data(bench(user, model, "--yes", "--json"))
    figures = [
        (each["variant"], each["release"], round(each["prompt"]), round(each["generation"]))
        for each in found["results"]
    ]
    assert figures == [("vulkan", "b1", 4000, 120), ("cpu", "b1", 400, 20)]
    speeds = [speed for each in found["results"] for speed in each["speeds"]]
    assert len(speeds) == 2 * 3
    assert {(speed["prompt_tokens"], speed["generated_tokens"]) for speed in speeds} == {(512, 128)}
    assert (found["results"][0]["variant"], found["hints"], found["failed"], found["saved"]) == (
        "vulkan",
        [],
        [],
        None,
    )
    assert user.versions() == found_versions(found)
    versions = user.run("list", "--json").document["data"]["versions"]
    assert [each["active"] for each in versions] == [False, False], "that is the user's to decide"


def test_a_server_that_wants_a_key_is_measured_with_it(
    shop: ReleaseServer, tmp_path: Path, model: Path
) -> None:
    """The real b10068 answered "Invalid API Key" to its own benchmark."""
    steps = {"vulkan": ("key", "speed 4000 120"), "cpu": ("key", "speed 400 20")}
    user = published(shop, tmp_path / "home", **steps)
    found = data(bench(user, model, "--yes", "--json", "--", "--api-key", "a-word-of-its-own"))
    assert [each["variant"] for each in found["results"]] == ["vulkan", "cpu"]


def found_versions(found: Any) -> list[str]:
    return sorted(each["id"] for each in found["results"])


def says(folder: Path, *nats: float | None) -> str:
    """Return the step for answers with these nats, one for each likely token; None is NaN.

    From the 51st answer on it is another token, because an endless repetition is another fault.
    """
    folder.mkdir()
    for number in range(2):
        rows = [{"id": each, "logprob": n and -n} for each, n in enumerate(nats)]
        told = {"completion_probabilities": [{"id": number, "top_logprobs": rows}]}
        (folder / str(number)).write_text(json.dumps(told), "utf-8")
    return f"says {folder / '0'} 50 {folder / '1'}"


@pytest.mark.parametrize(
    ("nats", "words"),
    [
        ((None, None), "its answers are wrong: the probabilities of its"),
        ((0.1, 3.0), "so it is not recommended"),
    ],
    ids=["no-numbers", "other-answers"],
)
def test_a_variant_that_answers_wrongly_is_not_recommended(
    nats: tuple[float | None, ...], words: str, shop: ReleaseServer, tmp_path: Path, model: Path
) -> None:
    """However fast it is."""
    vulkan = ("speed 4000 120", says(tmp_path / "wrong", *nats))
    cpu = ("speed 400 20", says(tmp_path / "right", 2.5, 0.1))
    user = published(shop, tmp_path / "home", vulkan=vulkan, cpu=cpu)
    done = bench(user, model, "--yes", "--rounds", "1")
    assert done.code == 0, done.stderr
    assert words in " ".join((done.stdout + done.stderr).split())
    assert "the fastest is vulkan" not in done.stdout


def test_the_text_has_a_table_bars_and_advice(user: User, model: Path) -> None:
    done = bench(user, model, "--yes", "--rounds", "1")
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert [line.split()[:6] for line in lines[:3]] == [
        [*("variant", "release", "prompt/s", "generation/s"), "deviation", "divergence"],
        ["vulkan", "b1", "4,000", "120", "0.0%", "unknown"],
        ["cpu", "b1", "400", "20.0", "0.0%", "unknown"],
    ]
    bars = [(line.split()[0], line.count("#")) for line in lines if "#" in line]
    assert bars == [("vulkan", 40), ("cpu", 7), ("vulkan", 40), ("cpu", 4)]
    assert lines[-1] == (
        "the fastest is vulkan; to use it: tsuku-llm config set llm.backend vulkan"
    )


def test_nothing_is_installed_without_a_confirmation(
    shop: ReleaseServer, user: User, model: Path
) -> None:
    assert user.run("install", "--backend", "cpu").code == 0
    before = len(shop.downloads())
    found = data(bench(user, model, "--json", "--rounds", "1"))
    assert [each["variant"] for each in found["results"]] == ["cpu"]
    (skipped,) = found["skipped"]
    assert (skipped["variant"], skipped["reason"]) == (
        "vulkan",
        "not installed; --yes installs it",
    )
    assert skipped["size"] > 0
    assert len(shop.downloads()) == before


def test_nothing_to_measure_is_one_error(user: User, model: Path) -> None:
    done = bench(user, model, "--json")
    assert (done.code, done.document["error"]["code"]) == (7, "launch-failed")
    assert "vulkan: not installed; --yes installs it" in done.document["error"]["facts"]


def test_the_fastest_is_saved_and_used(user: User, model: Path) -> None:
    assert user.run("install", "--backend", "cpu").code == 0
    assert data(bench(user, model, "--yes", "--save", "--rounds", "1", "--json"))["saved"] == (
        "vulkan"
    )
    assert user.run("config", "get", "llm.backend").stdout == "vulkan\n"
    assert "-vulkan-" in user.run("which").stdout


@pytest.mark.parametrize(
    ("typed", "measured", "backend"),
    [(b"y\ny\n", 2, "vulkan"), (b"y\nn\n", 2, "auto"), (b"n\n", 1, "auto")],
)
def test_on_a_terminal_the_user_confirms_before_installing_and_saving(
    typed: bytes, measured: int, backend: str, user: User, model: Path
) -> None:
    assert user.run("install", "--backend", "cpu").code == 0
    words = ("bench", "-m", str(model), "--rounds", "1")
    code, said = run_on_terminal(typed, *words, env=user.env)
    assert code == 0, said
    # A round is never silent; the server's own log is.
    assert "cpu: it answers twice, and the second answer is measured" in said
    assert ("cpu: it reads a text, to compare the variants" in said) == (measured == 2)
    assert "llama_model_loader" not in said
    assert "vulkan fits too and is not installed. Install it (" in said
    assert ("vulkan is the fastest. Use vulkan from now on?" in said) == (measured == 2)
    assert len(user.versions()) == measured
    assert user.run("config", "get", "llm.backend").stdout == f"{backend}\n"


def test_an_active_build_of_ones_own_is_measured_and_saves_nothing(
    user: User, model: Path, tmp_path: Path
) -> None:
    stand_in(tmp_path / "own", devices=NO_DEVICE_STEPS, serve=("speed 800 200", "listen"))
    assert user.run("install", "--from", str(tmp_path / "own"), "--yes").code == 0
    done = bench(user, model, "--yes", "--save", "--rounds", "1", "--json")
    found = data(done)
    measured = [(each["variant"], each["unsigned"]) for each in found["results"]]
    assert measured == [("own-cpu", str(tmp_path / "own")), ("vulkan", None), ("cpu", None)]
    assert found["saved"] is None
    assert "nothing was saved: own-cpu is a build of your own" in done.stderr
    assert user.run("config", "get", "llm.backend").stdout == "auto\n"
    # A later update compares its server with signed builds alone.
    (speeds,) = user.home.rglob("speeds.json")
    (kept,) = json.loads(speeds.read_bytes())["models"]
    assert {name: round(speed) for name, speed in kept["speeds"].items()} == {
        "vulkan": 120,
        "cpu": 20,
    }
    # One that is installed, but is not the active version, is left out.
    assert user.run("use", "cpu").code == 0
    again = data(bench(user, model, "--rounds", "1", "--json"))
    assert "own-cpu" not in {each["variant"] for each in again["results"]}


def test_beside_a_build_of_ones_own_the_chosen_channel_is_measured(
    user: User, model: Path, tmp_path: Path
) -> None:
    stand_in(tmp_path / "own", devices=NO_DEVICE_STEPS)
    assert user.run("install", "--from", str(tmp_path / "own"), "--yes").code == 0
    named = User(user.home, {**user.env, "TSUKU_LLM_CHANNEL": "nightly"})
    done = bench(named, model, "--yes", "--json")
    assert done.document["error"]["code"] == "unknown-request"
    assert "nightly" in done.document["error"]["message"]


def test_a_saved_backend_does_not_narrow_the_next_bench(user: User, model: Path) -> None:
    assert user.run("config", "set", "llm.backend", "cpu").code in (0, 3)
    found = data(bench(user, model, "--yes", "--json", "--rounds", "1"))
    assert len(found["results"]) == 2


@pytest.mark.parametrize(("speed", "hinted"), [("24.9", True), ("25.1", False), ("10", True)])
def test_a_gpu_that_is_hardly_faster_gets_a_hint(
    speed: str, hinted: bool, shop: ReleaseServer, model: Path, tmp_path: Path
) -> None:
    user = published(
        shop, tmp_path / "home", vulkan=(f"speed 4000 {speed}",), cpu=("speed 400 20",)
    )
    hints = data(bench(user, model, "--yes", "--json", "--rounds", "1"))["hints"]
    assert bool(hints) == hinted
    if hinted:
        assert hints[0].startswith(f"vulkan generates only {float(speed) / 20:.2f} times as fast")


UNKNOWN_END = (
    "the server did not start: it ended before it served, and this program does not know why"
)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            ("err cannot do it", "exit 3"),
            f"{UNKNOWN_END}; cannot do it",
        ),
        ((), "the server's answers lack what a measurement needs"),
        (("refuse 500 500",), "the server refused to be measured: "),
        (
            (
                "err load_tensors: offloaded 0/33 layers to GPU",
                "err load_tensors:          CPU model buffer size = 1000.00 MiB",
                "speed 4000 120",
            ),
            "the server does not run on the GPU: vulkan should use one",
        ),
    ],
)
def test_a_variant_that_fails_is_named_and_the_others_measured(
    steps: tuple[str, ...], reason: str, shop: ReleaseServer, model: Path, tmp_path: Path
) -> None:
    user = published(shop, tmp_path / "home", vulkan=steps, cpu=("speed 400 20",))
    found = data(bench(user, model, "--yes", "--json"))
    assert [each["variant"] for each in found["results"]] == ["cpu"]
    (failed,) = found["failed"]
    assert failed["variant"] == "vulkan"
    assert failed["reason"].startswith(reason)


def test_the_fastest_is_not_advised_if_it_computes_wrongly_since_a_change_of_its_driver(
    shop: ReleaseServer, model: Path, tmp_path: Path
) -> None:
    """As with one of two cards in KoboldCpp's issue 1826: fast, and garbage."""
    wrong = "MESA_WRONG_DRIVER"
    fast = {
        "serve": ("speed 4000 120", "listen"),
        "compute": (f"answers-with {wrong} repeated", "listen"),
        "devices": VULKAN_STEPS,
    }
    packed = {
        "vulkan": shop.stand_in("b1-vulkan", **fast),
        "cpu": shop.stand_in("b1-cpu", serve=("speed 400 20", "listen")),
    }
    shop.publish("b1", {name: shop.variant(each, backend=name) for name, each in packed.items()})
    user = shop.user(tmp_path / "home")
    user = User(user.home, {**user.env, FAKE_HARDWARE: str(SNAPSHOT)})
    assert data(bench(user, model, "--yes", "--json", "--rounds", "1"))["failed"] == []
    words = ("bench", "-m", str(model), "--rounds", "1", "--save")
    done = user.run(*words, **{wrong: "1"})
    assert (done.code, done.stdout.splitlines()[-1]) == (0, "saved: llm.backend = cpu")
    assert "failed: vulkan: the vulkan build does not compute here: its answers are" in done.stdout


def test_if_no_variant_can_be_measured_every_reason_is_told(
    shop: ReleaseServer, model: Path, tmp_path: Path
) -> None:
    user = published(shop, tmp_path / "home", cpu=("exit 3",))
    done = bench(user, model, "--yes", "--json")
    assert (done.code, done.document["error"]["message"]) == (7, "no variant could be measured")
    assert done.document["error"]["facts"] == [
        f"cpu: {UNKNOWN_END}; it said nothing; it ended with exit code 3"
    ]


@pytest.mark.parametrize("content", [None, b"", b"GGU", b"<html>", "folder"])
def test_a_bad_model_is_refused_before_anything_runs(
    content: bytes | str | None, shop: ReleaseServer, user: User, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    before = len(shop.downloads())
    done = bench(user, path, "--yes", "--json")
    assert (done.code, done.document["error"]["code"]) == (7, "bad-model")
    assert str(path) in str(done.document["error"])
    assert len(shop.downloads()) == before
    assert user.run("bench").code == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_it_and_leaves_nothing_running(
    number: int, code: int, shop: ReleaseServer, model: Path, tmp_path: Path
) -> None:
    user = published(shop, tmp_path / "home", cpu=("out here", "hang"))
    assert user.run("install").code == 0
    line = [*COMMAND, "bench", "-m", str(model)]
    with subprocess.Popen(line, env=dict(user.env), stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"here\n"
        server = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0]
        child.send_signal(number)
        assert child.wait() == code
    assert gone(int(server))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_measures_ends_the_request_that_the_server_waits_for(
    number: int, code: int, shop: ReleaseServer, model: Path, tmp_path: Path
) -> None:
    """With llama-server b10068, 'timeout 25 tsuku-llm bench' was still there after ten minutes.

    Upstream's server ends only after the client of a running request has hung up.
    """
    left = tmp_path / "left"
    user = published(shop, tmp_path / "home", cpu=("speed 400 20", f"patient {left}"))
    assert user.run("install").code == 0
    line = [*COMMAND, "bench", "-m", str(model)]
    with subprocess.Popen(line, env=dict(user.env), stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        assert any("it answers twice" in said for said in child.stderr)
        child.send_signal(number)
        assert "stopped on request" in child.communicate(timeout=PROMPTLY)[1]
    assert child.returncode == code
    assert left.exists()


def test_the_variants_take_turns(user: User, model: Path) -> None:
    done = bench(user, model, "--yes", "--rounds", "2")
    turns = re.findall(r"round (\d) of 2: (\w+)", done.stderr)
    assert turns == [("1", "vulkan"), ("1", "cpu"), ("2", "cpu"), ("2", "vulkan")]
