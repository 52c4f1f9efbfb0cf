"""What servers and loaders say when they do not start, and what is made of it."""

import errno
import re
import signal
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.last_words import ROWS, Row, one_of_each
from support.program import SUDO

from tsuku_llm.launch.ask.child import LastWords
from tsuku_llm.launch.ask.last_words import complaints
from tsuku_llm.launch.failed.diagnosis import Fault, diagnose, ending, known_causes, unknown
from tsuku_llm.launch.failed.failure import explain, why_not_started
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.machine.packages import family_of, package_of


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
    patterns = [re.compile(row.pattern, re.IGNORECASE) for row in known_causes()[0]]
    assert [each.pattern for each in patterns if not any(map(each.search, tails))] == []


def test_each_row_is_the_first_one_for_some_words_of_an_excerpt() -> None:
    """A row that always stands below a wider one could never be the answer."""
    table, _ = known_causes()
    patterns = [re.compile(row.pattern, re.IGNORECASE) for row in table]
    first = set()
    for part in (part for row in ROWS for part in (row.tail, *row.tail.splitlines())):
        said = "\n".join(complaints(part))
        first.add(next((at for at, each in enumerate(patterns) if each.search(said)), None))
    assert [row.pattern for at, row in enumerate(table) if at not in first] == []


def test_the_texts_of_the_table_name_only_what_is_there() -> None:
    """``diagnose`` leaves out a name that it does not know."""
    said, ends = known_causes()
    known = {"option", "line", "package"}
    for row in said:
        groups = {name.split("_")[0] for name in re.compile(row.pattern).groupindex}
        assert set(re.findall(r"{(\w+)}", row.told.cause + row.told.fix)) <= known | groups, row
    for row in ends.values():
        assert set(re.findall(r"{(\w+)}", row.told.cause + row.told.fix)) <= {"end"}, row
    kinds = (*said, *ends.values())
    assert {row.told.fault for row in kinds} == set(get_args(Fault))


def test_there_are_many_texts_each_with_its_source() -> None:
    said = [row for row in ROWS if row.tail.strip()]
    assert len({row.tail for row in said}) >= 180
    assert [row for row in ROWS if len(row.source) < len("Apple dyld")] == []


# Two of them in a row, or with something between: texts that end by what they say.
TEXTS = [row for row in ROWS if row.tail.strip() and row.slug not in ("killed", "crashed")]
TEXTS = [row for row in TEXTS if row.slug not in ("ended-from-outside", "mapping-lost")]

RETRIED = """\
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 912.50 MiB on device 0: cudaMalloc failed: \
out of memory
ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 956825600
graph_reserve: failed to allocate compute buffers
llama_context: compute buffer allocation failed, retrying without pipeline parallelism
"""
PINNED = """\
ggml_cuda_host_malloc: failed to allocate 1024.00 MiB of pinned memory: out of memory
ggml_vulkan: Failed to allocate pinned memory (vk::Device::allocateMemory: ErrorOutOfDeviceMemory)
"""
MLOCK = """\
warning: failed to mlock 8388608-byte buffer (after previously locking 0 bytes): \
Cannot allocate memory
Try increasing RLIMIT_MEMLOCK ('ulimit -l' as root).
"""
CHATML = "common_chat_templates_init: failed to parse chat template (defaulting to chatml): x\n"
TRANSLATED = (
    "srv load_model: the draft model 'd' is not compatible with the target model 'm'. "
    "tokens will be translated between the draft and target models.\n"
)
# A server that found no GPU, and went on to load the model on the processor.
WENT_ON = """\
ggml_cuda_init: failed to initialize CUDA: unknown error
warning: no usable GPU found, --gpu-layers option will be ignored
llama_model_loader: loaded meta data with 22 key-value pairs and 291 tensors from m.gguf (V3)
"""
KEYS = """\
llama_model_loader: - kv   1:   general.name str   = version 'GLIBC_2.99' not found (required by x)
llama_model_loader: - kv  24: tokenizer.chat_template str = {{ 'CUDA error: out of memory' }}...
print_info: EOG token        = 7 'error: invalid argument: --x'
load: control token:      3 'ErrorDeviceLost' is not marked as EOG
"""
TEMPLATE = """\
srv          init: chat template, chat_template: {%- for m in messages %}
x: /lib/libm.so.6: version `GLIBC_2.99' not found (required by x)
CUDA error: out of memory in the example
  {{ raise_exception('failed to open GGUF file x.gguf') }}
{%- endfor %}, example_format: '<|im_start|>system
vk::Queue::submit: ErrorDeviceLost<|im_end|>
'
srv    operator(): cleaning up before exit...
"""
HARMLESS = {
    "retried": RETRIED,
    "pinned": PINNED,
    "mlock": MLOCK,
    "chatml": CHATML,
    "translated": TRANSLATED,
    "went-on": WENT_ON,
    "keys": KEYS,
    "template": TEMPLATE,
}


@pytest.mark.parametrize("harmless", HARMLESS.values(), ids=HARMLESS)
def test_what_the_server_survived_or_printed_of_the_model_is_no_cause(harmless: str) -> None:
    assert diagnose(1, harmless) is None
    assert diagnose(0, f"{harmless}some last line\n") is None


@given(st.sampled_from(list(HARMLESS.values())), st.sampled_from(TEXTS))
def test_a_cause_is_the_same_after_harmless_words(harmless: str, row: Row) -> None:
    assert diagnose(row.code, harmless + row.tail) == diagnose(row.code, row.tail)


@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS))
def test_the_last_cause_in_time_counts(first: Row, last: Row) -> None:
    """Whatever was said before the server tried again or went on does not count."""
    went_on = (
        "llama_context: compute buffer allocation failed, retrying without pipeline parallelism\n"
    )
    found = diagnose(last.code, first.tail + went_on + last.tail)
    assert found == diagnose(last.code, last.tail)


def test_of_two_causes_the_later_one_counts() -> None:
    memory = "ggml_vulkan: Device memory allocation of size 369827840 failed.\n"
    draft = "srv  load_model: the target and draft vocabs are not compatible\n"
    for text, slug in ((memory + draft, "draft-model"), (draft + memory, "out-of-gpu-memory")):
        found = diagnose(1, text)
        assert found is not None
        assert found.slug == slug


# Frames as backtrace(3), gdb and lldb print them; the names in them look like causes.
FRAMES = (
    "/opt/bin/libggml-base.so(ggml_abort_out_of_memory_error+0x136)[0x7f8311f859e6]",
    "#7  0x00007f8c0e0160d8 in CUDA_error::failed(common_params&, bool) () from /opt/libx.so",
    "58\t../sysdeps/nptl/libc_start_call_main.h: No such file or directory.",
    "[New LWP 482]",
    "    frame #4: 0x000000018f0c5c60 libsystem_c.dylib`abort + 180",
    "3   libggml-base.dylib    0x0000000104ab4f34 ggml_abort + 156",
)


@pytest.mark.parametrize("row", one_of_each(TEXTS), ids=lambda row: row.slug)
def test_a_long_backtrace_hides_no_cause(row: Row) -> None:
    """150 KB of frames, and 90 KB of lines of no known kind, in pieces as a pipe gives them."""
    frames = "".join(f"{frame}\n" for frame in FRAMES * 400)
    noise = "".join(f"  {number:08x}: 7f 45 4c 46 02 01 01 00\n" for number in range(2_500))
    said = f"start\n{row.tail}{frames}{noise}".encode()
    words = LastWords()
    for at in range(0, len(said), 50_000):
        words.feed(said[at : at + 50_000])
    assert len(said) > 230_000
    assert len(words.text()) < 140_000
    assert diagnose(row.code, words.text()) == diagnose(row.code, row.tail)


def test_the_argument_that_named_the_file_is_told() -> None:
    missing = (
        "gguf_init_from_file: failed to open GGUF file '/no.gguf' (No such file or directory)\n"
    )
    for after, option in (
        ("", "given with -m"),
        ("srv load_model: failed to load draft model, '/no.gguf'\n", "given with --model-draft"),
        ("srv load_model: failed to load multimodal model, '/no.gguf'\n", "given with --mmproj"),
        ("common_init_: failed to load lora adapter '/no.gguf'\n", "given with --lora"),
    ):
        found = diagnose(1, missing + after)
        assert found is not None
        assert option in found.fix


def test_a_signal_from_outside_has_nothing_to_do_with_what_was_said() -> None:
    said = "gguf_init_from_file: failed to open GGUF file 'x' (No such file or directory)\n"
    for name, slug in (("SIGKILL", "killed"), ("SIGTERM", "ended-from-outside")):
        found = diagnose(-signal.Signals[name], said)
        assert found is not None
        assert found.slug == slug
    crashed = diagnose(-signal.SIGSEGV, "loading the shaders\n")
    assert crashed is not None
    assert crashed.facts == ("loading the shaders", "it was ended by SIGSEGV")
    aborted = diagnose(-signal.SIGABRT, said)
    assert aborted is not None
    assert aborted.slug == "model-missing"


@pytest.mark.parametrize("tail", ["a new kind of trouble\n", MLOCK, ""])
def test_an_unknown_failure_has_no_cause(tail: str) -> None:
    assert diagnose(1, tail) is None


def test_an_unknown_failure_is_said_to_be_so_with_the_last_lines() -> None:
    frames = "".join(f"{frame}\n" for frame in FRAMES)
    found = unknown(f"starting\n{KEYS}\x1b[31mthe flux is open\x1b[0m\n\n{frames}")
    assert found.facts == ("starting", "the flux is open")
    assert "does not know why" in found.cause
    assert found.fault == "unknown"
    assert "-lv 4" in found.fix


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (-6, "was ended by SIGABRT"),
        (-64, "was ended by SIG"),
        (0xC0000005, "ended with 0XC0000005"),
    ],
)
def test_an_end_is_named(code: int, words: str) -> None:
    assert ending(code).startswith(words)


def test_a_missing_library_comes_with_the_package_that_has_it() -> None:
    tail = "x: error while loading shared libraries: {}: cannot open shared object file\n"
    for library, package in (
        ("libvulkan.so.1", "libvulkan1"),
        ("libgomp.so.1", "libgomp1"),
        ("libcudart.so.13", "companion"),
        ("libcuda.so.1", "NVIDIA's driver"),
        ("libodd.so.7", "libodd.so.7"),
    ):
        diagnosis = diagnose(127, tail.format(library), distribution="debian")
        assert diagnosis is not None
        assert package in diagnosis.fix


def test_a_refusal_that_is_not_about_the_server_names_what_it_is_about(tmp_path: Path) -> None:
    """The system's error is the same if the null device is missing: seen in a bare container."""
    server = tmp_path / "llama-server"
    server.write_bytes(b"\x7fELF")
    words = (errno.ENOENT, "No such file or directory")
    device = why_not_started(FileNotFoundError(*words, "/dev/null"), server)
    assert (device.slug, device.fault) == ("refused", "system")
    assert "/dev/null cannot be used" in device.cause
    assert why_not_started(FileNotFoundError(*words, str(server)), server).slug == "musl"


def test_nt_statuses_may_be_signed() -> None:
    assert diagnose(0xC0000135 - (1 << 32), "") == diagnose(0xC0000135, "")


def test_the_cpu_is_offered_to_a_gpu_build_only() -> None:
    diagnosis = diagnose(1, "vk::Queue::submit: ErrorDeviceLost\n")
    assert diagnosis is not None
    again = "tsuku-llm install --force --backend vulkan"
    assert diagnosis.hint("vulkan", again).endswith("tsuku-llm config set llm.backend cpu")
    assert "config set" not in diagnosis.hint("cpu", again)


@pytest.mark.parametrize("row", one_of_each(ROWS), ids=lambda row: row.slug)
def test_a_fix_that_installs_again_names_the_build_that_failed(row: Row) -> None:
    """A bare ``install --force`` would install what is chosen now, which may be another one."""
    for distribution in ("", "debian"):
        diagnosis = diagnose(row.code, row.tail, distribution=distribution)
        assert diagnosis is not None
        exact = "tsuku-llm install --force --release b100 --backend cpu"
        hint = diagnosis.hint("cpu", exact)
        assert hint.count("install --force") == hint.count(exact)
        assert ("install --force" in diagnosis.fix) == (exact in hint)


@pytest.mark.parametrize("row", one_of_each(ROWS), ids=lambda row: row.slug)
def test_no_fix_updates_a_build_of_ones_own(row: Row) -> None:
    """``tsuku-llm update`` leaves such a build alone."""
    diagnosis = diagnose(row.code, row.tail, distribution="debian")
    assert diagnosis is not None
    for again in (
        "tsuku-llm install --force --from /builds/own",
        "tsuku-llm install --force --from-source llama.cpp --backend cpu",
    ):
        hint = diagnosis.hint("cpu", again)
        assert "tsuku-llm update" not in hint
        assert ("tsuku-llm update" in diagnosis.fix) == (f"a newer one, then {again}" in hint)


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
        ("ID=alpine\n", "alpine"),
        ('PRETTY_NAME="Ubuntu 24.04.1 LTS"\n', "debian"),
        ("ID=fedora\nOSTREE_VERSION='42.1'\n", "ostree"),
        ("ID=nixos\n", ""),
        ("ID=steamos\nID_LIKE=arch\n", ""),
        ("", ""),
        ("junk", ""),
    ],
)
def test_the_family_of_a_distribution(release_file: str, family: str) -> None:
    assert family_of("linux", release_file) == family


@pytest.mark.parametrize(
    ("family", "advice"),
    [
        ("debian", f"run: {SUDO}apt install libvulkan1"),
        ("fedora", f"run: {SUDO}dnf install vulkan-loader"),
        ("arch", f"run: {SUDO}pacman -S vulkan-icd-loader"),
        ("suse", f"run: {SUDO}zypper install libvulkan1"),
    ],
)
def test_a_missing_library_comes_with_the_systems_install_command(family: str, advice: str) -> None:
    assert package_of("libvulkan.so.1", family) == advice
    assert "install it again" in package_of("libllama.so.0", family)
    assert "libodd.so.7" in package_of("/x/libodd.so.7", family)


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="a signal of POSIX")
def test_a_reader_that_leaves_is_no_failed_start(tmp_path: Path) -> None:
    """With llama-server b10068, 'tsuku-llm serve -- --help | head -3' ended with an error."""
    plan = LaunchPlan(("/llama-server", "--help"), tmp_path, {}, "cpu")
    explain(plan, -signal.SIGPIPE, "", oom_killed=False)
