"""The gate with servers that behave as broken and healthy ones do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.builds import (
    NO_DEVICE_STEPS,
    compile_library,
    compile_stand_in,
    stand_in,
    stand_in_script,
)
from support.processes import gone
from support.tools import require_tool

from tsuku_llm.ground.errors import GateFailed, SystemLimitReached
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.launch.run.gate import GateReport, gate, list_devices

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

ENVIRON = {"PATH": os.environ["PATH"]}
OVERRIDE = "tsuku-llm config set llm.backend cpu"


def gated(build: Build, *, expected: str | None = None, **environ: str) -> GateReport:
    return gate(build, {**ENVIRON, **environ}, expected=expected)


def refused(build: Build, **environ: str) -> GateFailed:
    with pytest.raises(GateFailed) as caught:
        gate(build, {**ENVIRON, **environ})
    assert caught.value.exit_code == 7
    assert caught.value.hint
    return caught.value


def test_a_healthy_build_passes(tmp_path: Path) -> None:
    report = gated(stand_in(tmp_path), expected="NVIDIA H200")
    assert report.version == "version: 0.5.0 (build 10434, commit 0123456)"
    assert [device.name for device in report.devices] == ["Vulkan0"]
    assert report.device == "Vulkan0"


def test_an_unexpected_device_is_left_to_the_server(tmp_path: Path) -> None:
    assert gated(stand_in(tmp_path), expected="AMD Radeon").device is None
    assert gated(stand_in(tmp_path)).device is None


def test_a_cpu_build_only_has_to_start(tmp_path: Path) -> None:
    build = stand_in(tmp_path, backend="cpu", devices=("hang",))
    assert gated(build, expected="NVIDIA H200") == GateReport(
        "version: 0.5.0 (build 10434, commit 0123456)"
    )


def test_the_fixed_arguments_are_passed(tmp_path: Path) -> None:
    made = stand_in(tmp_path, backend="cpu", version=("dump", "exit 3"))
    error = refused(Build(made.tree, made.server, "cpu", ("--device", "none")), MARK="x")
    assert "env MARK=x" in error.facts  # the last line of what it printed


def test_the_list_may_be_on_stderr(tmp_path: Path) -> None:
    steps = ("err Available devices:", "err   CUDA0: NVIDIA A10G (22723 MiB, 22500 MiB free)")
    assert gated(stand_in(tmp_path, backend="cuda", devices=steps)).devices[0].name == "CUDA0"


def test_an_unknown_prefix_is_tolerated(tmp_path: Path) -> None:
    steps = ("out Available devices:", "out   VK0: NVIDIA H200 (1 MiB, 1 MiB free)")
    assert gated(stand_in(tmp_path, devices=steps), expected="NVIDIA H200").device == "VK0"


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (NO_DEVICE_STEPS, "lists no device"),
        (("out nothing of use",), "lists no device"),
        ((), "lists no device"),
        (("out Available devices:", "out   CUDA0: NVIDIA H200"), "lists only CUDA0"),
        (("out Available devices:", "out   BLAS: OpenBLAS"), "lists only BLAS"),
    ],
    ids=["none", "no-list", "silence", "another-backend", "no-gpu"],
)
def test_a_list_that_contradicts_the_backend_fails(
    devices: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    error = refused(stand_in(tmp_path, devices=devices))
    assert named in error.message
    assert "vulkaninfo" in error.hint
    assert error.hint.endswith(OVERRIDE)


def test_the_drivers_message_is_the_cause(tmp_path: Path) -> None:
    said = "err ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient"
    error = refused(stand_in(tmp_path, backend="cuda", devices=(said, *NO_DEVICE_STEPS)))
    assert "driver is too old" in error.message


def test_variables_that_hide_devices_are_named(tmp_path: Path) -> None:
    build = stand_in(tmp_path, backend="cuda", devices=NO_DEVICE_STEPS)
    assert refused(build, CUDA_VISIBLE_DEVICES="-1").facts == (
        "CUDA_VISIBLE_DEVICES=-1 is set and can hide devices",
    )


def test_the_users_own_variable_is_named_and_not_the_one_that_a_start_sets(tmp_path: Path) -> None:
    """Seen on two H200s: ``CUDA_VISIBLE_DEVICES=`` gave the blame to a variable nobody had set."""
    build = stand_in(tmp_path, devices=NO_DEVICE_STEPS)
    error = refused(build, CUDA_VISIBLE_DEVICES="", GGML_VK_VISIBLE_DEVICES="")
    assert "CUDA_VISIBLE_DEVICES= leaves it none" in error.message
    assert error.hint.startswith("correct or unset CUDA_VISIBLE_DEVICES")
    own = refused(build, GGML_VK_VISIBLE_DEVICES="")
    assert own.facts == ("GGML_VK_VISIBLE_DEVICES= is set and can hide devices",)


@pytest.mark.parametrize("mode", ["version", "devices"])
@pytest.mark.parametrize(
    ("steps", "named"),
    [
        (("err srv: odd", "exit 3"), "exit code 3"),
        (("kill 9",), "SIGKILL"),
        (("kill 11",), "SIGSEGV"),
        (("kill 4",), "instruction"),
        (("kill 31",), "SIGSYS"),
        (("kill 10",), "SIGUSR1"),
        (("err what(): vk::Queue::submit: ErrorDeviceLost", "kill 6"), "device lost"),
    ],
)
def test_a_server_that_dies_fails(
    mode: str, steps: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    error = refused(stand_in(tmp_path, **{mode: steps}))
    assert named in error.message


@pytest.mark.parametrize("mode", ["version", "devices"])
def test_a_hanging_server_is_ended_with_its_children(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tsuku_llm.launch.run.gate.GATE_LIMIT", 0.5)
    error = refused(stand_in(tmp_path, **{mode: ("spawn", "hang")}))
    assert "within 0.5 seconds" in error.message
    (spawned,) = (fact.split()[1] for fact in error.facts if fact.startswith("spawned"))
    assert gone(int(spawned))


def test_a_grandchild_does_not_outlive_a_good_answer(tmp_path: Path) -> None:
    steps = ("out Available devices:", "out   Vulkan0: NVIDIA H200", "spawn")
    listing = list_devices(stand_in(tmp_path, devices=steps), ENVIRON)
    (spawned,) = (line.split()[1] for line in listing.text.splitlines() if "spawned" in line)
    assert gone(int(spawned))


def test_only_the_end_of_endless_output_is_kept(tmp_path: Path) -> None:
    error = refused(stand_in(tmp_path, version=("flood 200000", "exit 3")))
    assert len(error.facts) == 8
    assert error.facts[-1] == "flood 199999"


def test_X14_a_missing_library_is_named(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "libneeded.so.1", "int needed(void) { return 0; }")
    build = stand_in_script(tmp_path)
    compile_stand_in(tmp_path / "llama-server", "-DNEEDS=needed", str(library))
    library.unlink()
    error = refused(build)
    assert "shared library libneeded.so.1 is missing" in error.message
    assert "cannot open shared object file" in error.facts[0]


def test_X14_a_c_library_that_is_too_old_is_named(tmp_path: Path) -> None:
    code = "int needed(void) { return 0; }"
    versions = tmp_path / "versions"
    versions.write_text("GLIBCXX_3.4.99 { global: needed; };\n")
    target = tmp_path / "libneeded.so.1"
    compile_library(target, code, f"-Wl,--version-script={versions}")
    build = stand_in_script(tmp_path)
    flags = ("-DNEEDS=needed", str(target), "-Wl,-rpath,$ORIGIN")
    compile_stand_in(tmp_path / "llama-server", *flags)
    compile_library(target, code, f"-Wl,--version-script={_older(versions)}")
    assert "(GLIBCXX_3.4.99 is missing)" in refused(build).message


def _older(versions: Path) -> Path:
    versions.write_text("GLIBCXX_3.4.1 { global: needed; };\n")
    return versions


def test_X14_another_architecture_is_named(tmp_path: Path) -> None:
    build = stand_in(tmp_path)
    image = bytearray(build.executable.read_bytes())
    image[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    build.executable.write_bytes(image)
    assert "another processor architecture" in refused(build).message


def test_X14_a_damaged_server_is_named(tmp_path: Path) -> None:
    build = stand_in(tmp_path)
    build.executable.write_bytes(b"<html>Not found</html>\n")
    assert "damaged" in refused(build).message


def test_X14_a_build_for_another_c_library_is_named(tmp_path: Path) -> None:
    build = stand_in_script(tmp_path)
    compile_stand_in(tmp_path / "llama-server", "-Wl,--dynamic-linker=/lib/ld-absent.so.1")
    assert "another C library" in refused(build).message


def test_X14_a_missing_server_is_named(tmp_path: Path) -> None:
    error = refused(stand_in_script(tmp_path))
    assert "does not exist" in error.message
    assert str(tmp_path) in error.facts[0]


def test_X14_a_device_list_of_a_missing_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GateFailed, match="does not exist"):
        list_devices(stand_in_script(tmp_path), ENVIRON)


def test_X14_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "does not exist" in refused(Build(tmp_path / "absent", "llama-server", "cpu")).message


def test_X14_a_server_that_is_not_executable_is_named(tmp_path: Path) -> None:
    build = stand_in(tmp_path)
    build.executable.chmod(0o644)
    assert "does not allow" in refused(build).message


def test_X14_a_noexec_mount_is_named(tmp_path: Path) -> None:
    build = stand_in(tmp_path / "build")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    launcher = Path(__file__).parents[1] / "support/launcher.py"
    script = (
        f"mount -t tmpfs -o noexec tmpfs {mounted} && cp {build.tree}/* {mounted} && "
        f"exec {sys.executable} {launcher} gate {mounted} llama-server cpu"
    )
    unshare = [require_tool("unshare"), "--mount", "--map-root-user"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    ended = subprocess.run([*unshare, "sh", "-c", script], check=False, capture_output=True)
    assert ended.returncode == 7
    assert b"noexec" in ended.stderr


def test_X07_X08_the_gate_uses_the_same_environment_as_a_start(tmp_path: Path) -> None:
    build = stand_in(tmp_path, version=("dump", "exit 3"))
    evil = {"LD_PRELOAD": "/evil.so", "GGML_BACKEND_PATH": "/evil.so", "AAA": "kept"}
    evil["LLAMA_ARG_DEVICE"] = "evil0"  # for a server that serves; here it would be a fault
    facts = refused(build, **evil).facts
    assert "env AAA=kept" in facts
    assert not [fact for fact in facts if "evil" in fact]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMFILE, errno.ENOMEM])
def test_a_limit_of_the_system_is_no_fault_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise each variant would be fetched in turn, to fail for the same reason."""
    build = stand_in(tmp_path / "build")

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(SystemLimitReached) as caught:
        gate(build, ENVIRON)
    assert caught.value.exit_code == 7
    assert caught.value.hint
