"""The arguments of a build from its own help: real helps, upstream's layout, and any text."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builds import REAL_SERVER, real_build
from support.server_helps import recorded_help

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.launch.failed.diagnosis import known_causes
from tsuku_llm.launch.plan.build_arguments import (
    _PREDECESSORS,
    _SUCCESSORS,
    KnownArgument,
    arguments_in,
    help_lines,
    in_words_of,
    problems,
    require_known,
    understood,
)
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.launch.plan.wishes import ANSWERS
from tsuku_llm.launch.run.gate import gate
from tsuku_publish.upstream.source.facts import load_sources

HELP = recorded_help("b10434")
LINES = help_lines(HELP)
FACTS = Path(__file__).parents[2] / "ci" / "release" / "facts"

# b10875 removed what b10434 calls deprecated (home-operations/containers#3804).
LATER = help_lines(re.sub(r"^(--mmap|--mlock|-dio).*\n(?: .*\n)*", "", HELP, flags=re.MULTILINE))


def by_name(lines: tuple[str, ...]) -> dict[str, KnownArgument]:
    return {name: each for each in arguments_in(lines) for name in each.names}


def test_a_real_help_is_read() -> None:
    known = by_name(LINES)
    assert known["-c"] == KnownArgument(("-c", "--ctx-size"), 1, "LLAMA_ARG_CTX_SIZE", None, "N")
    # Four names are too long for the column of the text, which follows on the next line.
    assert known["-ndio"].names == ("-dio", "--direct-io", "-ndio", "--no-direct-io")
    assert known["--control-vector-layer-range"].values == 2
    # A space within brackets separates no values.
    assert known["-ot"].values == 1
    assert known["--draft-max"].removed == "use --spec-draft-n-max or --spec-ngram-mod-n-max"
    assert known["-h"].values == 0
    assert not [name for name in known if not name.lstrip("-")]
    assert len(LINES) == len(re.findall(r"^-+\w", HELP, re.MULTILINE))


def test_a_help_says_the_same_as_upstreams_source() -> None:
    """What the publisher reads in ``common/arg.cpp`` of b11117, seven hundred builds later."""
    source = next(each for each in load_sources(FACTS) if "b11117" in each.tags)
    compared = 0
    for argument in source.arguments:
        for name in (*argument.names, *argument.negative):
            found = by_name(LINES).get(name)
            if found is None:
                continue
            compared += 1
            assert found.values == argument.values, name
            # Some got a variable since.
            assert found.variable in (argument.variable, None), name
    assert compared > 350


def test_the_receipts_lines_are_read_as_the_help_is() -> None:
    assert help_lines("\n".join(LINES)) == LINES
    # A receipt has a line for each of thousands of files, too.
    assert sum(map(len, LINES)) < 15_000


def test_what_upstream_called_deprecated_has_its_successor() -> None:
    told = re.findall(r"^(-\S.*?)\s{3,}DEPRECATED in favor of `(\S+)`", HELP, re.MULTILINE)
    told += re.findall(r"^(-\S.*)\n\s+DEPRECATED in favor of `(\S+)`", HELP, re.MULTILINE)
    expected = {name: new for names, new in told for name in names.split(", ")}
    assert {name: new.partition(" ")[0] for name, new in _SUCCESSORS.items()} == {
        name.strip(): new for name, new in expected.items()
    }
    values = set(
        re.findall(r"^ +- ([a-z+]+):", HELP[HELP.index("--load-mode MODE") :], re.MULTILINE)
    )
    assert {new.partition(" ")[2] for new in _SUCCESSORS.values()} <= values
    assert all(_SUCCESSORS[old] == new for new, old in _PREDECESSORS.items())


REFUSED = {
    "removed-and-forgotten": (
        ("-m", "x", "--no-mmap"),
        "it has no --no-mmap any more: use --load-mode none",
    ),
    "removed-with-an-underscore": (
        ("--no_mmap",),
        "it has no --no_mmap any more: use --load-mode none",
    ),
    "short": (("-dio",), "it has no -dio any more: use --load-mode dio"),
    "removed-and-named": (
        ("--draft-max", "4"),
        "it has no --draft-max any more: use --spec-draft-n-max or --spec-ngram-mod-n-max",
    ),
    "two dashes for one": (("--ngl", "99"), "it has no --ngl: write -ngl"),  # llama.cpp#23739
    "no dashes": (("n-gpu-layers=0",), "it has no n-gpu-layers: write --n-gpu-layers VALUE"),
    "one dash for two": (("-port", "9"), "it has no -port: write --port"),
    "misspelled": (("--ctx-sise", "4096"), "it has no --ctx-sise: did you mean --ctx-size?"),
    "with-an-equals-sign": (("--port=80",), "it has no --port=VALUE: write --port VALUE"),
    "a-key-is-not-shown": (("--api-kee=hush",), "it has no --api-kee: did you mean --api-key?"),
    "never-there": (("--frobnicate",), "it has no --frobnicate"),
    "a-word-too-many": (("-m", "x", "y"), "it has no y"),
    "without-its-value": (("-m", "x", "-c"), "-c has no value"),
}


@pytest.mark.parametrize(("argv", "told"), REFUSED.values(), ids=REFUSED)
def test_what_a_build_refuses_is_told_before_the_start(argv: tuple[str, ...], told: str) -> None:
    assert problems(argv, LATER) == (told,)
    with pytest.raises(UsageError, match=re.escape(told)) as caught:
        require_known(argv, LATER, "b11434-cpu-0123456789ab")
    assert caught.value.hint


TAKEN = (
    # A value may look like an option.
    ("-n", "-1", "--temp", "-0.5", "-a", "--no-mmap", "-a", ""),
    ("--control-vector-layer-range", "1", "2", "--ctx_size", "4096"),
    # Deprecated is not removed.
    ("--mlock", "--no-mmap"),
)


@pytest.mark.parametrize("argv", TAKEN)
def test_what_a_build_takes_is_not_refused(argv: tuple[str, ...]) -> None:
    assert problems(argv, LINES) == ()
    require_known(argv, LINES, "b10434")


def test_nothing_is_said_of_a_build_whose_arguments_are_not_known() -> None:
    assert help_lines("") == ()
    assert help_lines("usage: whisper-server\n\n-m FNAME, --model FNAME   the model\n") == ()
    assert problems(("--frobnicate",), ()) == ()
    assert tuple(understood(("-c", "1"), ())) == ()


def test_our_hints_name_only_arguments_of_the_build() -> None:
    older = help_lines(re.sub(r"^-lm,.*\n(?: .*\n)*", "", HELP, flags=re.MULTILINE))
    assert in_words_of("add --load-mode none", older) == "add --no-mmap"
    assert in_words_of("add --load-mode none", LINES) == "add --load-mode none"
    assert in_words_of("add --load-mode none", ()) == "add --load-mode none"
    rows, ends = known_causes()
    hints = [each.told.fix for each in (*rows, *ends.values())]
    assert sum("--load-mode none" in hint for hint in hints) == 2
    for lines in (older, LINES, LATER):
        for hint in hints:
            words = re.findall(r"(?:add|with|without|out|:) (--[a-z-]+)", in_words_of(hint, lines))
            assert {*words} & {"--no-mmap", "--load-mode"} <= by_name(lines).keys(), hint


# --- upstream's layout, and any text -------------------------------------------------------

_word = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,24}", fullmatch=True)
_hint = st.sampled_from(
    ["N", "FNAME", "<0|1>", "{a,b c}", "<tensor name>=<buffer type>,...", "[on|off]", "lo-hi"]
)
_argument = st.builds(
    KnownArgument,
    st.lists(_word.map(lambda word: f"--{word}"), min_size=1, max_size=4, unique=True).map(tuple),
    st.integers(0, 2),
    st.one_of(st.none(), st.from_regex(r"LLAMA_ARG_[A-Z_]{1,40}", fullmatch=True)),
    st.one_of(st.none(), st.just("use --other or --another-one")),
    st.just(""),
)


def printed(argument: KnownArgument, hints: list[str], text: str) -> str:
    """Lay an argument out as ``common_arg::to_string`` of upstream's common/arg.cpp does."""
    first, *others = argument.names
    head = f"{first + ', ':<7}{', '.join(others)}" if others else first
    head = " ".join([head, *hints[: argument.values]])
    about = [f"the argument has been removed. {argument.removed}"] if argument.removed else [text]
    about += [f"(env: {argument.variable})"] if argument.variable else []
    lines = [each for part in about for each in textwrap.wrap(part, 70, break_on_hyphens=False)]
    if len(head) > 37:
        return "\n".join([head, *(" " * 40 + line for line in lines)])
    return "\n".join(
        [f"{head:<40}{next(iter(lines), '')}", *(" " * 40 + line for line in lines[1:])]
    )


@given(
    st.lists(st.tuples(_argument, st.lists(_hint, min_size=2, max_size=2)), max_size=12),
    st.text("abc ,.-()`", max_size=200),
)
def test_every_help_in_upstreams_layout_is_read(
    drawn: list[tuple[KnownArgument, list[str]]], text: str
) -> None:
    needed = "--help\n--model FNAME\n--host HOST\n--port PORT"
    # "the argument has been removed" is no part of a text that is drawn here.
    told = "\n\n----- params -----\n\n".join(printed(each, hints, text) for each, hints in drawn)
    found = tuple(arguments_in(help_lines(f"----- common params -----\n\n{told}\n{needed}")))
    assert found[: len(drawn)] == tuple(
        each._replace(hint=" ".join(hints[: each.values])) for each, hints in drawn
    )
    assert len(found) == len(drawn) + 4


@given(st.lists(st.one_of(st.text(max_size=80), st.sampled_from(HELP.splitlines()))))
def test_any_text_is_read_without_an_error(parts: list[str]) -> None:
    lines = help_lines("\n".join(parts))
    assert help_lines("\n".join(lines)) == lines
    assert problems(parts, lines) == problems(parts, lines)


@given(st.data())
def test_any_line_made_of_a_builds_own_arguments_is_taken(data: st.DataObject) -> None:
    usable = [each for each in arguments_in(LINES) if each.removed is None]
    drawn = data.draw(st.lists(st.sampled_from(usable), max_size=8))
    argv: list[str] = []
    for each in drawn:
        name = data.draw(st.sampled_from(each.names))
        argv += [name.replace("-", "_").replace("__", "--", 1) if "--" in name else name]
        argv += data.draw(st.lists(st.text(), min_size=each.values, max_size=each.values))
    assert problems(argv, LINES) == ()
    assert [each.word for each in understood(argv, LINES)] == [argv[at] for at in _starts(drawn)]


def _starts(drawn: list[KnownArgument]) -> list[int]:
    return [sum(1 + each.values for each in drawn[:at]) for at in range(len(drawn))]


# --- the real server -----------------------------------------------------------------------


@pytest.mark.index
@pytest.mark.skipif(sys.platform != "linux", reason="the real build is Linux's")
def test_the_real_server_takes_what_its_help_says(tmp_path: Path) -> None:
    tree = real_build(tmp_path / "real")
    lines = gate(Build(tree, REAL_SERVER, "cpu", ("--device", "none")), {}).takes
    assert {"--no-mmap", "-c", "--model"} <= by_name(lines).keys()

    def said(*argv: str) -> str:
        ended = subprocess.run(
            [tree / REAL_SERVER, *argv, "--version"], check=False, capture_output=True, cwd=tmp_path
        )
        return (ended.stdout + ended.stderr).decode()

    # It reads its arguments in order: --version comes last, unless it was taken for a value.
    plain = [each for each in arguments_in(lines) if not each.values and not each.removed]
    flags = [name for each in plain for name in each.names if not ANSWERS & {*each.names}]
    # These end the server, or read a model of their own.
    flags = [name for name in flags if not re.search("default|preset|download", name)]
    assert "version: " in said(*flags), flags
    valued = [each for each in arguments_in(lines) if each.values]
    for each in valued[::9]:
        answer = said(each.names[-1], *["1"] * each.values)
        assert "invalid argument" not in answer, each
        assert "version: " in answer or "error while handling" in answer or each.removed, each
    assert "invalid argument: --frobnicate" in said("--frobnicate")
