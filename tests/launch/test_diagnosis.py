"""What servers and loaders say when they do not start, and what is made of it."""

import re
import signal

import pytest
from support.last_words import ROWS, Row

from tsuku_llm.launch.causes import TABLE
from tsuku_llm.launch.diagnosis import diagnose
from tsuku_llm.launch.packages import family_of, package_of


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_X14_a_failed_start_has_a_cause(row: Row) -> None:
    diagnosis = diagnose(row.code, f"0.00.001 I srv: starting\n{row.tail}srv: exiting\n")
    assert diagnosis is not None
    assert (diagnosis.slug, diagnosis.fault) == (row.slug, row.fault)
    assert row.named in diagnosis.cause
    assert diagnosis.fix
    assert diagnosis.facts
    assert "{" not in diagnosis.cause + diagnosis.fix


def test_every_row_of_the_table_has_an_excerpt() -> None:
    tails = [row.tail for row in ROWS]
    patterns = [re.compile(row.pattern, re.IGNORECASE) for row in TABLE]
    assert [each.pattern for each in patterns if not any(map(each.search, tails))] == []


MLOCK = """\
warning: failed to mlock 8388608-byte buffer (after previously locking 0 bytes): \
Cannot allocate memory
"""


@pytest.mark.parametrize("tail", ["error: invalid argument: --bogus\n", MLOCK, ""])
def test_an_unknown_failure_has_no_cause(tail: str) -> None:
    assert diagnose(1, tail) is None


def test_a_missing_library_comes_with_the_package_that_has_it() -> None:
    tail = "x: error while loading shared libraries: {}: cannot open shared object file\n"
    for library, package in (
        ("libvulkan.so.1", "libvulkan1"),
        ("libgomp.so.1", "libgomp1"),
        ("libcudart.so.13", "companion"),
        ("libcuda.so.1", "NVIDIA's driver"),
        ("libodd.so.7", "libodd.so.7"),
    ):
        diagnosis = diagnose(127, tail.format(library))
        assert diagnosis is not None
        assert package in diagnosis.fix


def test_nt_statuses_may_be_signed() -> None:
    assert diagnose(0xC0000135 - (1 << 32), "") == diagnose(0xC0000135, "")


def test_the_cpu_is_offered_to_a_gpu_build_only() -> None:
    diagnosis = diagnose(1, "vk::Queue::submit: ErrorDeviceLost\n")
    assert diagnosis is not None
    assert diagnosis.hint("vulkan").endswith("tsuku-llm config set llm.backend cpu")
    assert "config set" not in diagnosis.hint("cpu")


def test_the_matching_line_is_a_fact() -> None:
    said = "./llama-server: /lib64/libm.so.6: version `GLIBC_2.38' not found (required by x)"
    diagnosis = diagnose(1, f"one line\n  {said}\nanother")
    assert diagnosis is not None
    assert diagnosis.facts == (said,)


def test_the_kernels_out_of_memory_kill_is_recognised() -> None:
    killed = diagnose(-signal.SIGKILL, "", oom_killed=True)
    assert killed is not None
    assert killed.slug == "oom-killed"
    assert diagnose(-signal.SIGSEGV, "", oom_killed=True) == diagnose(-signal.SIGSEGV, "")


@pytest.mark.parametrize(
    ("release_file", "family"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "debian"),
        ("ID=ubuntu\nID_LIKE=debian\n", "debian"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\n", "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "fedora"),
        ("ID=manjaro\nID_LIKE=arch\n", "arch"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "suse"),
        ("ID=nixos\n", ""),
        ("", ""),
        ("junk", ""),
    ],
)
def test_the_family_of_a_distribution(release_file: str, family: str) -> None:
    assert family_of(release_file) == family


@pytest.mark.parametrize(
    ("family", "advice"),
    [
        ("debian", "run: apt install libvulkan1"),
        ("fedora", "run: dnf install vulkan-loader"),
        ("arch", "run: pacman -S vulkan-icd-loader"),
        ("suse", "run: zypper install libvulkan1"),
    ],
)
def test_a_missing_library_comes_with_the_systems_install_command(family: str, advice: str) -> None:
    assert package_of("libvulkan.so.1", family) == advice
    assert "install it again" in package_of("libllama.so.0", family)
    assert "libodd.so.7" in package_of("/x/libodd.so.7", family)
