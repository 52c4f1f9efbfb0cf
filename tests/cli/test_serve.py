"""``serve`` as a user meets it: what it shows, asks for, refuses and says aloud."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.builds import NO_DEVICE_STEPS
from support.gguf_files import layered_model
from support.processes import gone, only_child
from support.program import COMMAND, Result, environment, run_program
from support.servers import install_stand_in
from support.stored import install

from tsuku_llm.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")


def serve(home: Path, *words: str, **extra: str) -> Result:
    return run_program("serve", *words, env=environment(home, **extra))


def test_X18_a_dry_run_shows_what_would_be_started_and_starts_nothing(
    home: Path, tmp_path: Path
) -> None:
    build = install_stand_in(home / "llm", device="Vulkan0", serve=("kill 9",))
    extra = {
        "LLAMA_ARG_CTX_SIZE": "512",
        "LLAMA_API_KEY": "secret",
        "GGML_VK_VISIBLE_DEVICES": "0",
        "GGML_BACKEND_PATH": "/evil.so",
        "LD_PRELOAD": "libm.so.6",
        "MESA_SHADER_CACHE_MAX_SIZE": "2G",
        "__GL_SHADER_DISK_CACHE": "0",
    }
    env = environment(home, **extra)
    words = ("serve", "--dry-run", "--", "-m", "a b.gguf")
    told = run_program(*words[:2], "--json", *words[2:], env=env, cwd=tmp_path).document["data"]
    server = str(build.tree / "llama-server")
    model = str(tmp_path / "a b.gguf")
    assert told == {
        "id": build.id,
        "argv": [server, "-m", model],
        "cwd": str(tmp_path),
        "environment": {
            "GGML_VK_VISIBLE_DEVICES": "0",
            "LLAMA_API_KEY": "***",
            "LLAMA_ARG_CTX_SIZE": "512",
            # Of the driver's cache, one variable of which the user has set.
            "MESA_SHADER_CACHE_DIR": str(home / "llm" / "cache" / "drivers" / "mesa"),
        },
        "removed": ["GGML_BACKEND_PATH", "LD_PRELOAD"],
        "placement": {
            "devices": [],
            "main": None,
            "reason": "chosen by GGML_VK_VISIBLE_DEVICES=0",
            "layers": [],
            "passed_over": [],
        },
        "preset": None,
    }
    shown = run_program(*words, env=env, cwd=tmp_path)
    assert shown.code == 0
    # As the start itself says it of a release that the manifest does not have.
    assert "no channel of repository official offers it any more" in shown.stderr
    assert shown.stdout.splitlines() == [
        build.receipt.line,
        f"in {tmp_path}",
        "with GGML_VK_VISIBLE_DEVICES=0",
        "with LLAMA_API_KEY=***",
        "with LLAMA_ARG_CTX_SIZE=512",
        f"with MESA_SHADER_CACHE_DIR={home}/llm/cache/drivers/mesa",
        "without GGML_BACKEND_PATH",
        "without LD_PRELOAD",
        "placed: chosen by GGML_VK_VISIBLE_DEVICES=0",
        f"would run: {server} -m '{model}'",
    ]


TWO_CARDS = (
    "out Available devices:",
    "out   Vulkan0: NVIDIA H200 (143771 MiB, 1200 MiB free)",
    "out   Vulkan1: NVIDIA H200 (143771 MiB, 143000 MiB free)",
)


def test_a_dry_run_says_where_the_model_would_be(home: Path, tmp_path: Path) -> None:
    small = str(layered_model(tmp_path / "small.gguf", layers=16, size=3 * 10**9, attends=True))
    installed = install_stand_in(home / "llm", devices=TWO_CARDS, serve=("kill 9",))
    env = environment(home)
    words = ("serve", "--dry-run", "--", "-m", small)
    shown = run_program(*words, env=env).stdout.splitlines()
    assert shown[-2].startswith("placed: Vulkan1: needs ")
    assert shown[-1].endswith(f"--device Vulkan1 -m {small}")
    document = run_program(*words[:2], "--json", *words[2:], env=env).document["data"]
    assert document["placement"]["devices"] == ["Vulkan1"]
    # A tree that was changed is not run, not even for its list of devices.
    ran = tmp_path / "ran"
    (installed.tree / "llama-server").write_text(f"#!/bin/sh\ntouch {ran}\n", encoding="utf-8")
    changed = run_program(*words, env=env)
    assert changed.code == 5
    assert not ran.exists()
    assert "error[tampered-install]" in changed.stderr


@pytest.mark.parametrize("flags", [(), ("--exec",)], ids=["watched", "exec"])
def test_a_start_that_requires_a_gpu_ends_with_8_if_none_is_listed(
    flags: tuple[str, ...], home: Path
) -> None:
    install_stand_in(
        home / "llm", devices=NO_DEVICE_STEPS, serve=("err it was started, listening on :1",)
    )
    done = serve(home, "--require-gpu", *flags, VK_DRIVER_FILES="/nowhere.json")
    assert done.code == 8
    error, *facts, hint = done.stderr[done.stderr.index("error[") :].splitlines()
    assert error.startswith("error[silent-cpu]: the vulkan build would run on the CPU: it lists no")
    assert "  VK_DRIVER_FILES=/nowhere.json is set and can hide devices" in facts
    assert hint.endswith("tsuku-llm config set llm.backend cpu")


def test_require_gpu_refuses_a_build_for_the_processor(home: Path) -> None:
    install_stand_in(home / "llm", backend="cpu", serve=("err it was started, listening on :1",))
    done = serve(home, "--require-gpu")
    assert done.code == 8
    assert "it was started" not in done.stderr
    assert "is a build for the CPU" in done.stderr


def test_a_server_that_falls_back_to_the_processor_ends_with_8(home: Path) -> None:
    steps = ("err load_tensors:   CPU_Mapped model buffer size =  4096.00 MiB", "listen")
    install_stand_in(home / "llm", serve=("err offloaded 0/33 layers to GPU", *steps))
    done = serve(home, "--require-gpu", "--json", "--", "--port", "0")
    assert (done.code, done.document["error"]["code"]) == (8, "silent-cpu")
    assert "layers: offloaded 0/33 layers to GPU" in done.document["error"]["facts"]


def test_a_missing_gpu_is_one_warning_without_require_gpu(home: Path) -> None:
    install_stand_in(
        home / "llm", devices=NO_DEVICE_STEPS, serve=("err it was started, listening on :1",)
    )
    done = serve(home)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    assert (done.code, len(warnings)) == (0, 1)
    assert "it was started" in done.stderr


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_X12_a_start_sets_the_same_modes_with_any_umask(mask: int, home: Path) -> None:
    """The state folder is 0755 and its files are 0644: other users cannot write there."""
    install_stand_in(home / "llm", serve=("err listening on :1", "exit 0"))
    command = [*COMMAND, "serve"]
    subprocess.run(command, env=environment(home), umask=mask, check=True, capture_output=True)
    state = home / "llm" / "state"
    assert oct(state.stat().st_mode & 0o777) == "0o755"
    assert {oct(path.stat().st_mode & 0o777) for path in state.iterdir()} <= {"0o644"}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("flags", [(), ("--exec",)], ids=["watched", "exec"])
def test_X11_root_does_not_run_what_a_user_installed(flags: tuple[str, ...], home: Path) -> None:
    build = install_stand_in(home / "llm", backend="cpu", serve=("out it was started",))
    for path in (home / "llm", *(home / "llm").rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    done = serve(home, *flags)
    assert (done.code, done.stdout) == (6, "")
    assert done.stderr.startswith("error[unsafe-location]: ")
    assert build.tree.is_dir()


def test_the_server_ends_when_serve_is_killed(home: Path) -> None:
    install_stand_in(home / "llm")
    line = [*COMMAND, "serve", "--", "--port", "0"]
    with subprocess.Popen(line, env=environment(home), stderr=subprocess.PIPE) as child:
        assert child.stderr
        assert any(b"listening" in said for said in child.stderr)
        server = only_child(child.pid)
        child.kill()
        assert gone(server)


TELLS_ITS_STREAMS = """#!/bin/sh
out=$(readlink /proc/$$/fd/1)
err=$(readlink /proc/$$/fd/2)
echo "$out" "$err" > "$TOLD"
exit 3
"""


@pytest.mark.parametrize("flags", ["", "--exec"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_end_a_start(closed: str, flags: str, home: Path) -> None:
    """The server's output goes nowhere then. It must not go into a file or pipe of ours."""
    install(Store(home / "llm"), files={"llama-server": TELLS_ITS_STREAMS.encode()}, links={})
    told = home.parent / "told"
    line = f"{' '.join(COMMAND)} serve {flags} {closed}"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env=environment(home, TOLD=str(told)),
        check=False,
        capture_output=True,
    )
    assert done.returncode in {3, 7}, done.stderr
    assert b"Traceback" not in done.stderr
    out, err = told.read_text("utf-8").split()
    assert (out == "/dev/null") == (closed != "2>&-")
    # With --exec its stderr is ours; without, we read it from a pipe.
    assert (err == "/dev/null") == (closed != ">&-" and flags == "--exec")


# --- the drivers' caches -----------------------------------------------------------------


def dumped(stdout: str) -> dict[str, str]:
    """The environment that a stand-in printed."""
    lines = [line[4:] for line in stdout.splitlines() if line.startswith("env ")]
    return dict(line.partition("=")[::2] for line in lines)


@pytest.mark.parametrize("way", [("serve",), ("serve", "--exec"), ("run", "llama-server")])
def test_every_way_to_a_program_of_the_build_names_the_folders_of_the_drivers(
    way: tuple[str, ...], home: Path
) -> None:
    install_stand_in(home / "llm", serve=("dump", "err listening on :1"))
    env = environment(home, CUDA_CACHE_PATH="/mine", MESA_SHADER_CACHE_MAX_SIZE="3G")
    for name in ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"):
        env.pop(name, None)
    found = dumped(run_program(*way, "--", "-m", "x", env=env).stdout)
    root = home / "llm" / "cache" / "drivers"
    assert found["MESA_SHADER_CACHE_DIR"] == str(root / "mesa")
    assert found["__GL_SHADER_DISK_CACHE_PATH"] == str(root / "nvidia-gl")
    # What the user says is left as it is.
    assert found["MESA_SHADER_CACHE_MAX_SIZE"] == "3G"
    assert found["CUDA_CACHE_PATH"] == "/mine"
    # NVIDIA's driver keeps nothing in a folder that does not exist.
    assert {each.name for each in root.iterdir()} == {"mesa", "nvidia-gl", "in-use"}
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("way", [("serve",), ("serve", "--exec")], ids=["watched", "exec"])
def test_prune_leaves_the_caches_of_a_running_server(way: tuple[str, ...], home: Path) -> None:
    install_stand_in(home / "llm", serve=("out ready", "serve"))
    env = environment(home)
    with subprocess.Popen(
        [*COMMAND, *way, "--", "--port", "0"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
        shader = home / "llm" / "cache" / "drivers" / "mesa" / "shader"
        shader.write_bytes(bytes(2000))
        pruned = run_program("prune", "--caches", env=env)
        server.terminate()
    assert pruned.stdout == (
        "There was nothing to remove.\nkept the drivers' caches: a server uses them\n"
    )
    assert shader.exists()
    pruned = run_program("prune", "--caches", "--json", env=env)
    assert pruned.document["data"]["caches"] == {"size": 2000, "in_use": False}
    assert not shader.exists()
    assert run_program("prune", env=env).stdout == "There was nothing to remove.\n"
