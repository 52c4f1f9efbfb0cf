"""Libraries, processor and surroundings, asked of fake roots by a real child."""

import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.fake_roots import LOADER, library, with_musl, write
from support.stub_drivers import StubDrivers
from support.tools import require_tool

from tsuku_llm.config.keys import parse_probe_timeout, seconds_of
from tsuku_llm.machine.hardware import ApiState, Hardware, Libc
from tsuku_llm.machine.host import DriverAnswer, LocalHost
from tsuku_llm.machine.snapshot import Recording, ReplayHost, parse_recording
from tsuku_llm.probe import QUESTIONS, cpu, libc, platform_key, probe
from tsuku_llm.probe.assemble import parse_os_release
from tsuku_llm.probe.facts.answers import broken, is_absence, not_asked
from tsuku_llm.probe.worker import elf


def put(root: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        write(root, name, content)
    return root


def cache(*entries: tuple[str, str]) -> bytes:
    """An ``ld.so.cache`` of today's format."""
    start = 48 + 24 * len(entries)
    rows, strings = b"", b""
    for name, path in entries:
        key = start + len(strings)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
        rows += struct.pack("<iIIIQ", 0x303, key, key + len(name) + 1, 0, 0)
    return (
        struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(entries), len(strings))
        + rows
        + strings
    )


requires_x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64 files")


# --- C libraries -------------------------------------------------------------------------


@requires_x86_64
def test_library_versions_come_from_the_systems_own_libraries(tmp_path: Path) -> None:
    banner = b"GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8) stable release version 2.39.\n"
    write(tmp_path, LOADER, "")
    write(
        tmp_path,
        "/lib/x86_64-linux-gnu/libc.so.6",
        library("GLIBC_2.2.5", "GLIBC_2.38", extra=banner),
    )
    write(
        tmp_path,
        "/usr/lib64/libstdc++.so.6",
        library("GLIBCXX_3.4.9", "GLIBCXX_3.4.33", "CXXABI_1.3.15"),
    )
    hardware = probe(LocalHost(tmp_path, {}))
    assert hardware.libc == Libc("glibc", "2.39")
    assert hardware.libstdcxx == "3.4.33"


@requires_x86_64
def test_without_a_banner_the_newest_symbol_version_counts(tmp_path: Path) -> None:
    write(tmp_path, LOADER, "")
    write(tmp_path, "/lib64/libc.so.6", library("GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE"))
    assert probe(LocalHost(tmp_path, {})).libc == Libc("glibc", "2.34")


@requires_x86_64
def test_the_linkers_order_is_followed(tmp_path: Path) -> None:
    """LD_LIBRARY_PATH, then the cache, then the default folders; other processors' files never."""
    for folder, version in (("env", "31"), ("cached", "32"), ("usr/lib", "33")):
        write(tmp_path, f"/{folder}/libstdc++.so.6", library(f"GLIBCXX_3.4.{version}"))
    write(tmp_path, "/arm/libstdc++.so.6", library("GLIBCXX_3.4.99", machine=183))
    write(tmp_path, "/junk/libstdc++.so.6", "no library")

    def found(path: str = "") -> str | None:
        return probe(LocalHost(tmp_path, {"LD_LIBRARY_PATH": path})).libstdcxx

    assert found() == "3.4.33"
    write(
        tmp_path,
        "/etc/ld.so.cache",
        cache(("libx.so", "/x"), ("libstdc++.so.6", "/cached/libstdc++.so.6")),
    )
    assert found() == "3.4.32"
    assert found("/arm:/junk:relative:/missing:/env") == "3.4.31"


def test_a_missing_library_is_unknown_and_not_old(tmp_path: Path) -> None:
    hardware = probe(LocalHost(tmp_path, {}))
    assert hardware.libstdcxx is None


@pytest.mark.parametrize("content", [b"", b"glibc-ld.so.cache1.1", b"\xff" * 100, cache()[:47]])
def test_a_broken_linker_cache_is_ignored(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, "/etc/ld.so.cache", content)
    assert probe(LocalHost(tmp_path, {})).libstdcxx is None


@requires_x86_64
def test_musl_is_reported_with_its_version(tmp_path: Path) -> None:
    assert probe(LocalHost(with_musl(tmp_path), {})).libc == Libc("musl", "1.2.5")


def test_the_interpreters_own_library_counts_if_no_other_is_known() -> None:
    assert libc.parse(DriverAnswer((), "done"), "glibc 2.36") == Libc("glibc", "2.36")
    assert libc.parse(DriverAnswer((), "done")) == Libc("unknown", None)


def test_this_machines_libstdcxx_is_found_without_loading_it() -> None:
    require_tool("gcc")  # which comes with libstdc++
    code = (
        "from tsuku_llm.machine.host import LocalHost; from tsuku_llm.probe import probe; "
        "print(probe(LocalHost()).libstdcxx, 'libstdc++' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, loaded = done.stdout.split()
    assert version.startswith("3.4.")
    assert loaded == "False"


@pytest.mark.parametrize("cut", range(0, 300, 7))
def test_a_truncated_library_is_an_error_and_not_a_crash(cut: int) -> None:
    data = library("GLIBCXX_3.4.1", "GLIBCXX_3.4.2")
    with pytest.raises(ValueError, match=r"."):
        elf.version_definitions(data[:cut])


def test_circular_version_definitions_are_read_once() -> None:
    data = bytearray(library("A", "B"))
    at = data.find(struct.pack("<HHHHIII", 1, 0, 1, 1, 0, 20, 28))
    struct.pack_into("<I", data, at + 16, 0xFFFFFFFF)
    assert elf.version_definitions(bytes(data)) == ["A"]


# --- processor and memory ----------------------------------------------------------------

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"), [("sse2", 1), (V2, 2), (V3, 3), (V4, 4), (V4.replace("fma", ""), 2)]
)
def test_x86_levels(flags: str, level: int) -> None:
    text = (
        f"processor : 0\nvendor_id\t: AuthenticAMD\nmodel name\t: A\nflags\t\t: {flags}\n\nflags: x"
    )
    found = cpu.parse_cpuinfo(text, "amd64")
    assert (found.vendor, found.name, found.level) == ("AuthenticAMD", "A", level)
    assert set(found.features) == set(flags.split())


def test_an_arm_processor_has_features_and_no_level() -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"
    found = cpu.parse_cpuinfo(text, "arm64")
    assert (found.vendor, found.features, found.level) == ("0x41", ("asimd", "fp", "sve"), None)


def test_without_cpuinfo_the_level_is_unknown() -> None:
    assert cpu.parse_cpuinfo(None, "amd64").level is None


@pytest.mark.parametrize(
    ("meminfo", "limit", "size"),
    [
        ("MemTotal:       1024 kB\n", None, 1 << 20),
        ("MemTotal: 1024 kB\n", "max\n", 1 << 20),
        ("MemTotal: 1024 kB\n", "4096\n", 4096),
        ("MemTotal: 1024 kB\n", "99999999999", 1 << 20),
        ("MemTotal: \u00b2 kB\n", None, None),
        ("x", None, None),
        (None, None, None),
    ],
)
def test_memory(meminfo: str | None, limit: str | None, size: int | None) -> None:
    assert cpu.parse_memory(meminfo, limit) == size


# --- surroundings ------------------------------------------------------------------------


def slugs(hardware: Hardware) -> list[str]:
    return [problem.slug for problem in hardware.problems]


def test_row_11_in_wsl_its_own_driver_comes_before_the_distributions(
    stubs: StubDrivers, tmp_path: Path
) -> None:
    root = put(tmp_path, **{"/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n"})
    own = root / "usr" / "lib" / "wsl" / "lib" / "libcuda.so.1"
    own.parent.mkdir(parents=True)
    own.write_bytes(stubs.library("cuda").read_bytes())
    write(root, "/dev/dxg", "")
    hardware = probe(stubs.host("cuda", root=root))
    assert hardware.api("cuda").library == str(own)
    assert hardware.api("cuda").gpus
    assert slugs(hardware) == []


def test_row_11_wsl_without_a_gpu_is_named(tmp_path: Path) -> None:
    put(tmp_path, **{"/proc/sys/kernel/osrelease": "5.15.0-microsoft-standard-WSL2\n"})
    assert slugs(probe(LocalHost(tmp_path, {}))) == ["wsl-without-gpu"]


def test_wsl_1_has_no_gpu_whatever_windows_has(tmp_path: Path) -> None:
    """The kernel's release as ollama/ollama#1778 and microsoft/WSL#5554 show it."""
    put(tmp_path, **{"/proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft\n"})
    (problem,) = probe(LocalHost(tmp_path, {})).problems
    assert problem.slug == "wsl-without-gpu"
    assert "wsl --set-version NAME 2" in problem.fix
    assert "--update" not in problem.fix


def test_a_container_in_wsl_needs_no_dxg(tmp_path: Path) -> None:
    put(
        tmp_path,
        **{"/proc/sys/kernel/osrelease": "5.15.0-microsoft-standard-WSL2\n", "/.dockerenv": ""},
    )
    assert slugs(probe(LocalHost(tmp_path, {}))) == []


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n"},
        {"/proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0"},
    ],
)
def test_row_15_a_jetson_is_named(tmp_path: Path, files: dict[str, str]) -> None:
    assert slugs(probe(LocalHost(put(tmp_path, **files), {}))) == ["jetson"]


def test_the_name_of_the_system_is_read() -> None:
    assert parse_os_release('ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n') == (
        "Debian GNU/Linux 12 (bookworm)"
    )
    assert parse_os_release("PRETTY_NAME='Alpine Linux v3.20'") == "Alpine Linux v3.20"
    assert parse_os_release(None) is None


def test_the_platform_is_known_without_asking_a_driver() -> None:
    assert platform_key(LocalHost()) == probe(LocalHost()).platform


def test_an_endless_name_of_a_recorded_system_is_cut() -> None:
    recording = Recording({"os": "o" * 100_000, "machine": "m" * 100_000})
    assert len(probe(ReplayHost(recording, "x")).platform) < 100


# --- a child that could not be started ---------------------------------------------------


def not_started(*questions: str, reason: str | None = "no more processes or threads") -> Recording:
    answer = DriverAnswer(end="not-started", during=reason)
    return Recording({}, answers=dict.fromkeys(questions, answer))


@pytest.mark.parametrize("system", sorted(QUESTIONS))
def test_a_machine_whose_drivers_could_not_be_asked_has_one_problem(system: str) -> None:
    told = {"linux": "linux", "darwin": "darwin", "windows": "win32"}[system]
    asked = not_started(*QUESTIONS[system])
    files = {"/proc/driver/nvidia/version": "NVRM version: x  580.95.05\n"}
    recording = replace(asked, system={"os": told, "machine": "x86_64"}, files=files)
    hardware = probe(ReplayHost(recording, "x"))
    (problem,) = hardware.all_problems
    assert (problem.slug, problem.transient) == ("drivers-not-asked", True)
    assert problem.text == "no driver could be asked: no more processes or threads"
    assert "ulimit -u" in problem.fix
    states = {api.state for api in hardware.apis if api.name != "openvino"}
    assert states == {ApiState.NOT_STARTED}


def test_drivers_that_could_not_be_asked_are_named_if_others_answered() -> None:
    recording = not_started("hip", "opencl", reason=None)
    answered = {"cuda": DriverAnswer((), "done"), **recording.answers}
    (problem,) = not_asked(answered)
    assert problem.text == "not all (hip, opencl) could be asked: the child process does not start"
    assert "start processes" in problem.fix


@pytest.mark.parametrize("raw", [0, -1, True, "20", 1e300, [20]])
def test_a_limit_that_no_question_had_is_not_read_from_a_recording(raw: object) -> None:
    document = {"format": 1, "answers": {"cuda": {"end": "timed-out", "limit": raw}}}
    assert parse_recording(json.dumps(document).encode()).answers["cuda"].limit is None


def test_a_recording_with_a_number_that_is_none_is_refused() -> None:
    document = {"format": 1, "answers": {"cuda": {"end": "timed-out", "limit": float("nan")}}}
    with pytest.raises(ValueError, match="NaN is not a number"):
        parse_recording(json.dumps(document).encode())


def test_the_limit_of_a_slow_driver_is_recorded() -> None:
    slow = DriverAnswer((), "timed-out", "cuInit", 90.0)
    document = {"format": 1, "answers": {"cuda": asdict(slow)}}
    recording = parse_recording(json.dumps(document).encode())
    assert recording.answers["cuda"] == slow
    problem = probe(ReplayHost(replace(recording, system={"os": "linux"}), "x")).api("cuda").problem
    assert problem
    assert "within 90 s (cuInit)" in problem.text
    assert "llm.probe_timeout 270s" in problem.fix


@pytest.mark.parametrize("limit", [1.0, 20.0, 1300.0, 3600.0])
def test_a_slow_driver_is_given_more_time_as_far_as_the_setting_goes(limit: float) -> None:
    problem = broken(DriverAnswer((), "timed-out", "cuInit", limit), "a driver")
    assert problem
    assert "restart the machine" in problem.fix
    told = re.search(r"llm.probe_timeout (\w+)", problem.fix)
    assert (told is None) is (limit == 3600.0)
    if told:
        assert seconds_of(parse_probe_timeout(told[1])) > limit


# --- libraries that a limit keeps from being loaded ----------------------------------------


def unloaded(name: str, error: str) -> DriverAnswer:
    line = {"call": "open", "library": None, "names": [name], "errors": [f"{name}: {error}"]}
    return DriverAnswer((line,), "done")


OPENING = "cannot open shared object file: "
LIBRARIES = {
    "cuda": "libcuda.so.1",
    "hip": "libamdhip64.so.7",
    "vulkan": "libvulkan.so.1",
    "opencl": "libOpenCL.so.1",
    "level_zero": "libze_loader.so.1",
}


@pytest.mark.parametrize("question", LIBRARIES)
@pytest.mark.parametrize(
    ("why", "fix"), [("Too many open files", "ulimit -n"), ("Cannot allocate memory", "memory")]
)
def test_a_limit_is_not_taken_for_a_missing_driver(question: str, why: str, fix: str) -> None:
    """glibc words the error alike for a library that is there and for one that is not."""
    answer = unloaded(LIBRARIES[question], OPENING + why)
    recording = Recording({"os": "linux", "machine": "x86_64"}, answers={question: answer})
    (problem,) = probe(ReplayHost(recording, "x")).all_problems
    assert (problem.slug, problem.transient) == ("driver-not-loaded", True)
    assert why in problem.text
    assert fix in problem.fix


def test_a_library_that_cannot_be_mapped_is_not_to_be_installed_again() -> None:
    """As with ``ulimit -v``: the library is there, so a package of it changes nothing."""
    why = "failed to map segment from shared object"
    loader = {"call": "open", "library": "/usr/lib/libvulkan.so.1", "name": "libvulkan.so.1"}
    file = {"call": "icd", "file": "/a/lvp.json", "library": "libvulkan_lvp.so"}
    driver = DriverAnswer((loader, file | {"error": f"libLLVM-15.so.1: {why}"}), "done")
    for answers, slug in (
        ({"cuda": unloaded("libcuda.so.1", why)}, "driver-not-loaded"),
        ({"vulkan": driver}, "vulkan-icd-broken"),
    ):
        recording = Recording({"os": "linux", "machine": "x86_64"}, answers=answers)
        (problem,) = probe(ReplayHost(recording, "x")).all_problems
        assert problem.slug == slug
        assert "ulimit -v" in problem.fix
        assert "install" not in problem.fix


def test_musl_s_words_for_a_limit_are_not_taken_for_a_missing_driver() -> None:
    error = "Error loading shared library libcuda.so.1: {}"
    assert is_absence("libcuda.so.1", error.format("No such file or directory"))
    assert not is_absence("libcuda.so.1", error.format("Too many open files"))


@pytest.mark.parametrize("why", ["No such file or directory", ""])
def test_a_missing_library_is_no_problem(why: str) -> None:
    answer = unloaded("libcuda.so.1", (OPENING + why) if why else OPENING[:-2])
    recording = Recording({"os": "linux", "machine": "x86_64"}, answers={"cuda": answer})
    assert probe(ReplayHost(recording, "x")).all_problems == ()
