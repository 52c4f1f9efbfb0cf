"""A repository of one's own: ``init``, ``add`` and ``measure``, and every bad input to them."""

import copy
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builds import compile_library
from support.fatbins import PTX, SASS, container, entry, library, windows_library
from support.own_publisher import typed_publisher
from support.program import PUBLISHER as PUBLISHER_COMMAND
from support.program import Result, environment
from support.release_data import release_tool
from support.screens import Screen, screen

from tsuku_llm.catalog.manifest import require_release
from tsuku_publish.holders.keys import key_line, read_public_key
from tsuku_publish.holders.signers import VARIABLE, load_signers, make_signer
from tsuku_publish.release_files.plan import load_plan

Program = Callable[..., Result]
URL = "https://host.test/archives/"
FOUNDING = ("--publisher", 'A "quoted" company', "--root", "anna,ben,chris")
PEOPLE = (*FOUNDING, "--unencrypted")


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str]) -> Program:
    return typed_publisher(capfd)


def elf(path: Path, machine: int = 62) -> None:
    """The head of a program of this processor, without sections."""
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + (2).to_bytes(2, "little")
    path.write_bytes((head + machine.to_bytes(2, "little")).ljust(64, b"\0"))
    path.chmod(0o755)


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build with CUDA code and a Vulkan plugin, and its runtime."""
    folder = tmp_path_factory.mktemp("cuda")
    code = container(entry(SASS, 90), entry(PTX, 80))
    library(folder / "libggml-cuda.so", code)
    other = container(entry(SASS, 70))
    for name in ("libcublas.so.13", "libnccl.so.2"):
        library(folder / name, other)
    compile_library(folder / "libcudart.so.13.0.96", "int run(void) { return 0; }")
    elf(folder / "llama-server")
    return folder


def script(folder: Path, name: str = "llama-server") -> Path:
    """A build whose server shows nothing."""
    folder.mkdir(parents=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def company(tmp_path: Path, program: Program) -> Path:
    done = program("init", tmp_path / "company", *PEOPLE)
    assert done.code == 0, done.stderr
    return tmp_path / "company"


def added(program: Program, company: Path, *words: str) -> Result:
    place = ("--into", str(company.parent / "archives"), "--url", URL)
    return program("add", "--data", str(company), *place, *words)


def release_of(company: Path, tag: str = "b1") -> Any:
    document = json.loads((company / "releases" / f"{tag}.json").read_text())
    require_release(document)
    return document


# --- init ------------------------------------------------------------------------------------


def test_a_new_repository_can_be_signed_at_once(company: Path, program: Program) -> None:
    plan = load_plan(company)
    assert plan.publisher == 'A "quoted" company'
    assert (plan.roles["root"].signers, plan.roles["root"].threshold) == (
        ("anna", "ben", "chris"),
        2,
    )
    assert (plan.roles["timestamp"].signers, plan.roles["timestamp"].threshold) == (("host",), 1)
    signers = company.with_name("company-signers")
    assert os.name != "posix" or signers.stat().st_mode & 0o777 == 0o700
    found = load_signers({VARIABLE: str(signers)})
    assert {name: each.public_key for name, each in found.items()} == plan.keys
    done = release_tool("sign", "--data", company, **{VARIABLE: str(signers)})
    assert done.returncode == 0, done.stderr
    assert "root" in program("check", "--data", company).stdout


def test_keys_from_elsewhere_are_taken_and_not_made(tmp_path: Path, program: Program) -> None:
    anna = make_signer("anna", tmp_path / "anna.json", None)
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]  # noqa: PLC0415

    ben = SSlibKey.from_crypto(public)
    (tmp_path / "anna.txt").write_text(f"{key_line('anna', anna)}\n")
    (tmp_path / "ben.txt").write_text(key_line("ben", ben))
    words = ("--publisher", "x", "--root", "anna,ben", "--threshold", "1", "--online", "anna")
    keys = ("--keys", tmp_path / "anna.txt", "--keys", tmp_path / "ben.txt")
    done = program("init", tmp_path / "new", *words, *keys, "--json")
    assert done.document["data"] == {
        "file": str(tmp_path / "new" / "repository.toml"),
        "signers": None,
        "made": [],
        "threshold": 1,
    }
    assert load_plan(tmp_path / "new").keys == {"anna": anna, "ben": ben}
    assert not (tmp_path / "new-signers").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "--publisher is not given"),
        (("--publisher", "x"), 2, "--root is not given"),
        (("--publisher", "x", "--root", "anna,anna"), 2, "named twice"),
        (("--publisher", "x", "--root", "anna,../b"), 2, "is no name of a signer"),
        (("--publisher", "x", "--root", "anna,"), 2, "is no name of a signer"),
        ((*PEOPLE, "--threshold", "4"), 2, "4 of 3 signers of root cannot be needed"),
        ((*PEOPLE, "--threshold", "0"), 2, "0 of 3 signers"),
        ((*PEOPLE, "--targets", "dana", "--threshold", "2"), 2, "2 of 1 signers of targets"),
        ((*PEOPLE, "--online", "a/b"), 2, "is no name"),
        ((*PEOPLE, "--keys", "none.txt"), 1, "none.txt cannot be read"),
    ],
)
def test_what_makes_no_repository_leaves_nothing(
    tmp_path: Path, program: Program, words: tuple[str, ...], code: int, said: str
) -> None:
    done = program("init", tmp_path / "new", *words)
    assert (done.code, said in done.stderr) == (code, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_repository_is_not_made_twice(company: Path, program: Program) -> None:
    before = (company / "repository.toml").read_bytes()
    done = program("init", company, *PEOPLE)
    assert done.code == 2
    assert "has a repository.toml already" in done.stderr
    (company / "repository.toml").unlink()
    done = program("init", company, *PEOPLE)
    assert (done.code, "anna.json cannot be made: File exists" in done.stderr) == (1, True)
    assert len(list(company.with_name("company-signers").iterdir())) == 4, "none is lost"
    assert before


def test_signers_that_were_made_before_an_error_are_taken_back(
    tmp_path: Path, program: Program
) -> None:
    folder = tmp_path / "new-signers"
    folder.mkdir()
    (folder / "ben.json").write_text("of another repository")
    assert program("init", tmp_path / "new", *PEOPLE).code == 1
    assert [path.name for path in folder.iterdir()] == ["ben.json"]


# --- init asks on a terminal -----------------------------------------------------------------

SECRET = "correct horse battery"
ASKED = ("who builds the releases?", "who signs?")


@contextmanager
def asked(tmp_path: Path, columns: int = 80) -> Iterator[Screen]:
    """A founder at a terminal, who gave no option."""
    env = environment(tmp_path / "home")
    command = (*PUBLISHER_COMMAND, "init", str(tmp_path / "new"))
    with screen(tmp_path / "tmux", command, env, columns=columns, rows=40) as shown:
        shown.wait_for(lambda text: ASKED[0] in text)
        yield shown


def answer(shown: Screen, text: str, following: str) -> None:
    shown.keys(*([text] if text else []), "Enter")
    shown.wait_for(lambda seen: following in seen)


def left(tmp_path: Path) -> list[str]:
    """The files of the repository and of its signers."""
    found = (*tmp_path.glob("new/*"), *tmp_path.glob("new-signers/*"))
    return sorted(path.name for path in found)


@pytest.mark.parametrize("columns", [40, 80])
def test_init_asks_for_what_no_option_says(tmp_path: Path, columns: int) -> None:
    with asked(tmp_path, columns) as shown:
        answer(shown, "Example Ltd", ASKED[1])
        answer(shown, "anna,ben", "new passphrase of anna")
        for name, following in (("anna", "ben"), ("ben", "host"), ("host", "")):
            answer(shown, SECRET, f"again, the passphrase of {name}")
            shown.keys(SECRET, "Enter")
            if following:
                shown.wait_for(lambda seen, name=following: f"new passphrase of {name}" in seen)
        assert shown.exit_code() == 0, shown.text
        assert SECRET not in shown.text
        assert all(len(line) <= columns for line in shown.lines)
        assert "2 of anna, ben sign" in " ".join(shown.text.split())
    plan = load_plan(tmp_path / "new")
    assert (plan.publisher, plan.roles["root"].signers) == ("Example Ltd", ("anna", "ben"))
    signers = tmp_path / "new-signers"
    files = [".gitignore", "releases", "repository.toml"]
    assert left(tmp_path) == sorted([*files, "anna.pem", "ben.pem", "host.pem"])
    found = load_signers({VARIABLE: str(signers), "TSUKU_LLM_PASSPHRASE": SECRET})
    assert found["host"].sign(b"x")


@pytest.mark.parametrize(
    ("answers", "code", "told"),
    [
        (("",), 2, "--publisher is not given"),
        (("Example", ""), 2, "--root is not given"),
        (("Example", "anna, ../ben"), 2, "'../ben' is no name of a signer"),
        (("Example", "anna", SECRET, "another one"), 1, "two different passphrases"),
        # The first key was made: it goes away again.
        (("Example", "anna", SECRET, SECRET, "short", "short"), 1, "at least 8 characters"),
    ],
    ids=["nothing", "nobody", "no name", "different", "second"],
)
def test_a_wrong_answer_to_init_is_one_error_and_leaves_nothing(
    tmp_path: Path, answers: tuple[str, ...], code: int, told: str
) -> None:
    questions = (*ASKED, *(f"{each} of {name}" for name in ("anna", "host") for each in WORDS))
    with asked(tmp_path, columns=40) as shown:
        for question, text in zip(questions, answers, strict=False):
            shown.wait_for(lambda seen, question=question: question in " ".join(seen.split()))
            shown.keys(*([text] if text else []), "Enter")
        assert shown.exit_code() == code, shown.text
        said = " ".join(shown.text.split())
        assert told in said
        assert said.count("error[") == 1
        assert "Traceback" not in said
    assert left(tmp_path) == []


WORDS = ("new passphrase", "again, the passphrase")


@pytest.mark.parametrize(
    ("key", "code", "told"), [("C-c", 130, "error[interrupted]"), ("C-d", None, "error[")]
)
@pytest.mark.parametrize("number", [0, 3, 4], ids=["publisher", "again", "host"])
def test_init_that_is_left_at_a_question_leaves_nothing(
    tmp_path: Path, key: str, code: int | None, told: str, number: int
) -> None:
    questions = (*ASKED, *(f"{each} of {name}" for name in ("anna", "host") for each in WORDS))
    with asked(tmp_path) as shown:
        for question, text in zip(questions, ("Example", "anna", SECRET, SECRET), strict=False):
            shown.wait_for(lambda seen, question=question: question in seen)
            if question == questions[number]:
                break
            shown.keys(text, "Enter")
        shown.wait_for(lambda seen: questions[number] in seen)
        shown.keys(key)
        # The end of the input is no answer: a usage error, or no passphrase.
        assert shown.exit_code() == (code or (2 if number < len(ASKED) else 1)), shown.text
        assert any(line.startswith(told) for line in shown.lines), "on a line of its own"
        assert "Traceback" not in shown.text
    assert left(tmp_path) == []


# --- add -------------------------------------------------------------------------------------


def test_several_variants_and_platforms_are_added_at_once(
    tmp_path: Path, company: Path, program: Program, cuda: Path
) -> None:
    script(tmp_path / "mac")
    windows = script(tmp_path / "win", "llama-server.exe")
    (windows / "ggml-cuda.dll").write_bytes(
        windows_library(container(entry(SASS, 86), entry(PTX, 75)))
    )
    tar = tmp_path / "upstream.tar.gz"
    with tarfile.open(tar, "w:gz") as packed:
        packed.add(script(tmp_path / "plain"), "llama-b1")
    done = added(
        program,
        company,
        "b1",
        *("--variant", f"cuda-13.0={cuda}", "--variant", f"linux-amd64/cpu={tar}"),
        *("--variant", f"darwin-arm64/metal={tmp_path / 'mac'}"),
        *("--variant", f"windows-amd64/cuda-12.4={windows}", "--on", "2026-11-22"),
    )
    assert done.code == 0, done.stderr
    document = release_of(company)
    assert document["publisher"] == 'A "quoted" company'
    assert document["published"] == "2026-11-22"
    linux = document["platforms"]["linux-amd64"]
    assert (linux["default"], linux["preference"]["portable"]) == ("cpu", ["cuda", "cpu"])
    needs = linux["variants"]["cuda-13.0"]["requires"]
    assert needs["cuda"] == {"toolkit": "13.0", "sass": ["9.0"], "ptx": ["8.0"]}
    assert linux["variants"]["cpu"]["requires"] == {}
    assert "arguments" not in linux["variants"]["cpu"]
    mac = document["platforms"]["darwin-arm64"]
    assert mac["variants"]["metal"]["requires"] == {"metal": True}
    windows_needs = document["platforms"]["windows-amd64"]["variants"]["cuda-12.4"]
    assert windows_needs["server"] == "llama-server.exe"
    assert windows_needs["requires"] == {
        "cuda": {"toolkit": "12.4", "sass": ["8.6"], "ptx": ["7.5"]},
    }
    assert load_plan(company).channels == {"stable": ("b1",)}


def test_N04_a_build_of_a_revoked_release_is_added_with_a_warning(
    company: Path, tmp_path: Path, program: Program
) -> None:
    build = script(tmp_path / "build")
    variant = ("--variant", f"linux-amd64/cpu={build}")
    assert added(program, company, "b2", *variant).code == 0
    done = program("revoke", "b2", "--reason", "it leaks", "--data", str(company))
    assert done.code == 0, done.stderr
    done = added(program, company, "b3", *variant)
    assert done.code == 0, done.stderr
    assert "warning: b3 has builds of b2, which is revoked" in done.stderr
    # And a build under the name of a revoked release is one that no client ever takes.
    plan = (company / "repository.toml").read_bytes()
    refused = added(program, company, "b2", *variant)
    assert (refused.code, "b2 is revoked" in refused.stderr) == (2, True), refused.stderr
    assert (company / "repository.toml").read_bytes() == plan
    assert program("withdraw", "b2", "--data", str(company)).code == 0
    assert added(program, company, "b2", *variant).code == 0


def test_a_variant_is_added_again_without_touching_the_others_and_what_people_wrote(
    tmp_path: Path, company: Path, program: Program
) -> None:
    build = script(tmp_path / "one")
    for name in ("vulkan", "cpu"):
        assert added(program, company, "b1", "--variant", f"linux-amd64/{name}={build}").code == 0
    path = company / "releases" / "b1.json"
    document = json.loads(path.read_text())
    platform = document["platforms"]["linux-amd64"]
    assert (platform["default"], platform["preference"]["native"]) == ("cpu", ["vulkan", "cpu"])
    platform["variants"]["cpu"]["requires"] = {"x86_64_level": 3, "glibc": "9.9"}
    platform["preference"]["native"] = ["cpu", "vulkan"]
    path.write_text(json.dumps(document))
    (build / "llama-server").write_text("#!/bin/sh\n# newer\n")
    done = added(program, company, "b1", "--variant", f"linux-amd64/cpu={build}")
    assert done.code == 0, done.stderr
    after = release_of(company)["platforms"]["linux-amd64"]
    assert after["variants"]["vulkan"] == platform["variants"]["vulkan"]
    assert after["variants"]["cpu"]["requires"] == {"x86_64_level": 3}
    kept = "cpu for linux-amd64 also keeps from the release file: x86_64_level 3"
    assert kept in done.stdout
    assert after["variants"]["cpu"]["artifacts"] != platform["variants"]["cpu"]["artifacts"]
    assert after["preference"]["native"] == ["cpu", "vulkan"]
    assert load_plan(company).channels == {"stable": ("b1",)}
    assert added(program, company, "b2", "--variant", f"linux-amd64/cpu={build}").code == 0
    assert load_plan(company).channels == {"stable": ("b2", "b1")}
    assert "# Releases, newest first." in (company / "repository.toml").read_text()


def test_the_json_of_add_and_measure(company: Path, program: Program, cuda: Path) -> None:
    done = added(program, company, "b1", "--variant", f"cuda-13.0={cuda}", "--json")
    data = done.document["data"]
    (variant,) = data["variants"]
    assert (data["release"], data["channel"]) == ("b1", "stable")
    assert (variant["platform"], variant["backend"]) == ("linux-amd64", "cuda")
    measured = program("measure", cuda, "--json").document["data"]
    assert measured.pop("build") == str(cuda)
    assert measured["measured"] == variant["measured"]
    assert measured["measured"]["cuda"] == {"toolkit": "13.0", "sass": ["9.0"], "ptx": ["8.0"]}
    assert "CUDA PTX      8.0" in program("measure", cuda).stdout


@pytest.mark.parametrize("name", ["cuda-13.0+vulkan", "cuda+vulkan", "cuda-13.0-debian11"])
def test_a_name_begins_with_the_backend_that_counts(
    company: Path, program: Program, cuda: Path, name: str
) -> None:
    done = added(program, company, "b1", "--variant", f"{name}={cuda}")
    assert done.code == 0, done.stderr
    entered = release_of(company)["platforms"]["linux-amd64"]["variants"][name]
    assert entered["backend"] == "cuda"
    assert entered["requires"]["cuda"]["toolkit"] == "13.0"


def test_a_cpu_variant_of_a_build_with_gpu_code_opens_no_gpu(
    company: Path, program: Program, cuda: Path
) -> None:
    assert added(program, company, "b1", "--variant", f"cpu={cuda}").code == 0
    variant = release_of(company)["platforms"]["linux-amd64"]["variants"]["cpu"]
    assert variant["arguments"] == ["--device", "none"]
    assert "cuda" not in variant["requires"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--variant", "cpu={script}"), "does not show for which platform"),
        (("--variant", "linux-x64/cpu={script}"), "is not one for linux-x64"),
        (("--variant", "windows-amd64/cuda-13.0={cuda}"), "is not one for windows-amd64"),
        (("--variant", "linux-amd64/cuda-13.0={script}"), "cannot be told"),
        (("--variant", "linux-amd64/rocm={script}"), "its ROCm version or its GPUs"),
        (("--variant", "cpu"), "is no variant with its build"),
        (("--variant", "/cpu={script}"), "is no variant with its build"),
        (("--variant", "linux-amd64/=x"), "is no variant with its build"),
        (("--variant", "cpu={empty}"), "has not exactly one llama-server"),
        (("--variant", "cpu={empty}/none"), "there is no file or folder"),
        (("--variant", "linux-amd64/CPU={script}"), "a variant cannot be named 'CPU'"),
        (("--variant", "linux-amd64/cp\nu={script}"), r"a variant cannot be named 'cp\nu'"),
        (("--variant", "linux-amd64/" + "c" * 65 + "={script}"), "a variant cannot be named"),
        (("--variant", "sycl={cuda}"), "no file of the build has code for SYCL"),
        (("--variant", "linux-amd64/cpu={script}", "--channel", "x"), "there is no channel x"),
        (("--variant", "linux-amd64/cpu={script}", "--url", "http://x/"), "at an https URL"),
        (("--variant", "linux-amd64/cpu={script}", "--publisher", "x" * 200), "not understand"),
    ],
)
def test_what_cannot_be_added_changes_nothing(
    tmp_path: Path, company: Path, program: Program, cuda: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"script": script(tmp_path / "script"), "cuda": cuda, "empty": tmp_path / "empty"}
    before = (company / "repository.toml").read_bytes()
    done = added(program, company, "b1", *(word.format(**places) for word in words))
    assert (done.code, said in done.stderr) == (2, True), done.stderr
    assert re.match(r"error\[bad-usage\]: .+\n(?:  .+\n)*hint: .+\n\Z", done.stderr)
    assert not (company / "releases" / "b1.json").exists()
    assert (company / "repository.toml").read_bytes() == before


@pytest.mark.parametrize("tag", ["1", "v0.7.0", "../b1", "b1.json", "B1", ""])
def test_a_release_is_b_and_a_number(
    tmp_path: Path, company: Path, program: Program, tag: str
) -> None:
    build = script(tmp_path / "script")
    done = added(program, company, tag, "--variant", f"linux-amd64/cpu={build}")
    assert (done.code, "b and its build number" in done.stderr) == (2, True)


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, company: Path, program: Program
) -> None:
    build = tmp_path / "build"
    build.mkdir()
    elf(build / "llama-server")
    compile_library(
        tmp_path / "libown.so.1", "int own(void) { return 1; }", "-Wl,-soname,libown.so.1"
    )
    code = "int own(void); int call(void) { return own(); }"
    compile_library(build / "libllama.so", code, str(tmp_path / "libown.so.1"))
    done = added(program, company, "b1", "--variant", f"cpu={build}")
    assert done.code == 2
    assert "  libown.so.1\n" in done.stderr
    assert "missing" in program("measure", build).stdout
    allowed = ("--system-library", "libown.so.1")
    assert added(program, company, "b1", "--variant", f"cpu={build}", *allowed).code == 0
    (company / "releases" / "b1.json").unlink()
    shutil.copy(tmp_path / "libown.so.1", build)
    assert added(program, company, "b1", "--variant", f"cpu={build}").code == 0


def test_different_cuda_code_in_two_files_cannot_be_stated(
    tmp_path: Path, company: Path, program: Program, cuda: Path
) -> None:
    build = tmp_path / "build"
    shutil.copytree(cuda, build)
    library(build / "libggml-more.so", container(entry(SASS, 80)))
    done = added(program, company, "b1", "--variant", f"cuda-13.0={build}")
    assert (done.code, "different CUDA code" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"platforms": []}', '{"platforms": {"x": 5}}'], ids=range(5)
)
def test_a_damaged_release_file_is_named_and_stays(
    tmp_path: Path, company: Path, program: Program, content: str
) -> None:
    path = company / "releases" / "b1.json"
    path.write_text(content)
    build = script(tmp_path / "script")
    done = added(program, company, "b1", "--variant", f"linux-amd64/cpu={build}")
    assert (done.code, "b1.json" in done.stderr) == (2, True), done.stderr
    assert path.read_text() == content


# --- every wrong repository.toml ----------------------------------------------------------------


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10**20), st.text(max_size=8), st.just([]), st.just({})
)


def toml(value: Any) -> str:
    """A value in TOML, on one line; dates are as they were read."""
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    is_plain = isinstance(value, (str, bool, int))
    return json.dumps(value, ensure_ascii=False) if is_plain else str(value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "company"
    done = release_tool("init", folder, *PEOPLE)
    assert done.returncode == 0, done.stderr
    build = script(folder.parent / "build")
    place = ("--into", folder.parent / "archives", "--url", URL, "--data", folder)
    done = release_tool("add", "b1", "--variant", f"linux-amd64/cpu={build}", *place)
    assert done.returncode == 0, done.stderr
    return folder


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_wrong_plan_is_an_error_and_never_a_bug(whole: Path, data: st.DataObject) -> None:
    path = whole / "repository.toml"
    before = path.read_text()
    document = changed = copy.deepcopy(tomli.loads(before))
    while True:
        key = data.draw(st.sampled_from(sorted(changed)))
        if not isinstance(changed[key], dict) or not changed[key] or data.draw(st.booleans()):
            break
        changed = changed[key]
    value = data.draw(VALUES)
    if value is None:
        del changed[key]
    else:
        changed[key] = value
    shutil.rmtree(whole / "signed", ignore_errors=True)
    environ = {VARIABLE: str(whole.with_name("company-signers"))}
    build = whole.parent / "build"
    place = ("--into", whole.parent / "archives", "--url", URL)
    try:
        for words in (
            ("sign",),
            ("add", "b1", "--variant", f"linux-amd64/cpu={build}", *place),
            ("resign",),
            ("check",),
            ("rotate", "root=anna,ben,chris"),
        ):
            path.write_text("\n".join(f"{json.dumps(k)} = {toml(v)}" for k, v in document.items()))
            done = release_tool(*words, "--data", whole, **environ)
            assert done.returncode == 0 or re.match(
                r"error\[(?:publish|bad-usage)\]: ", done.stderr
            ), done.stderr
    finally:
        path.write_text(before)


def test_a_public_key_line_can_have_any_name() -> None:
    key = read_public_key("x", "0e4d2131875c6bda3c95e398b02ceb7e6d0475e24eca8df44bd87a7acc43e4e0")
    for name in ("änna", "a b", "\U0001f600"):
        assert [*tomli.loads(key_line(name, key))] == [name]
