"""Argument list, working folder and environment of a start, without starting anything."""

from pathlib import Path

import pytest

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.launch.plan import planning
from tsuku_llm.launch.plan.planning import (
    SOCKET_PATH_BYTES,
    Build,
    environment,
    plan_question,
    plan_server,
)
from tsuku_llm.launch.plan.report import Placement

TREE = Path("/opt/llm/versions/b11429-vulkan")
BUILD = Build(TREE, "bin/llama-server", "vulkan")
CWD = Path("/home/me/models")


def arguments_for(*arguments: str, build: Build = BUILD, **environ: str) -> tuple[str, ...]:
    return plan_server(build, arguments, cwd=CWD, environ=environ).argv[1:]


def test_N01_the_server_runs_in_the_given_folder_and_never_in_its_build() -> None:
    made = plan_server(BUILD, ("-m", "a.gguf"), cwd=CWD, environ={})
    assert made.cwd == CWD
    own = plan_server(BUILD, ("-m", "a.gguf"), cwd=CWD, environ={}, runs_in=Path("/state/work"))
    assert own.cwd == Path("/state/work")
    assert made.argv == own.argv == (str(TREE / "bin/llama-server"), "-m", f"{CWD}/a.gguf")


def test_N01_a_question_to_a_build_runs_outside_of_it() -> None:
    made = plan_question(BUILD, ("--version",), {"LLAMA_ARG_LOG_FILE": "x.log", "HOME": "/h"})
    assert (made.cwd, dict(made.env)) == (Path("/"), {"HOME": "/h"})


def test_X16_arguments_are_passed_unchanged() -> None:
    words = ("--alias", "a b; $(reboot) 'x' \"y\"", "", "--", "*")
    assert arguments_for(*words) == words


ONE_PATH = """
-m --model -mm --mmproj -md --model-draft --spec-draft-model --grammar-file -jf
--json-schema-file --chat-template-file --log-file --log-prompts-dir -lcs -lcd --path
--lookup-cache-static --lookup-cache-dynamic --media-path --models-dir --models-preset
--slot-save-path --mcp-servers-config --ui-config-file --webui-config-file --api-key-file
--ssl-key-file --ssl-cert-file --lora --lora-scaled --control-vector --control-vector-scaled
""".split()  # noqa: SIM905


@pytest.mark.parametrize("option", ONE_PATH)
def test_X06_a_relative_path_means_the_users_folder(option: str) -> None:
    assert arguments_for(option, "a/b.bin", "-c", "4") == (option, f"{CWD}/a/b.bin", "-c", "4")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-m", "/abs/x.gguf"), ("-m", "/abs/x.gguf")),
        (("-m", "../x.gguf"), ("-m", f"{CWD}/../x.gguf")),
        (("-m", ""), ("-m", "")),
        (("-m",), ("-m",)),
        (("-m", "--model"), ("-m", f"{CWD}/--model")),
        (("--ssl_key_file", "k.pem"), ("--ssl_key_file", f"{CWD}/k.pem")),
        # llama.cpp refuses this form; what it says of it is its own business.
        (("--model=x.gguf",), ("--model=x.gguf",)),
        (("-hff", "x.gguf"), ("-hff", "x.gguf")),
        (("--host", "s.sock"), ("--host", f"{CWD}/s.sock")),
        (("--host", "a.sock,b.sock"), ("--host", f"{CWD}/a.sock,{CWD}/b.sock")),
        (("--host", "127.0.0.1, s.sock"), ("--host", f"127.0.0.1,{CWD}/s.sock")),
        (("--host", '"a,b.sock",/c.sock'), ("--host", f'"{CWD}/a,b.sock",/c.sock')),
        (("--host", "127.0.0.1,::1"), ("--host", "127.0.0.1,::1")),
        (("--host", "0.0.0.0"), ("--host", "0.0.0.0")),  # noqa: S104
        (("--lora", "a,/b,c"), ("--lora", f"{CWD}/a,/b,{CWD}/c")),
        (("--lora-scaled", "a:0.5,b:2"), ("--lora-scaled", f"{CWD}/a:0.5,{CWD}/b:2")),
        (("--lora", '"a,b",c'), ("--lora", f'"{CWD}/a,b",{CWD}/c')),
        (("--lora", 'say ""x""'), ("--lora", f'"{CWD}/say """"x"""""')),
    ],
)
def test_paths_in_special_forms(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert arguments_for(*words) == expected


def test_a_sockets_path_is_as_long_as_the_system_takes_it() -> None:
    longest = f"/{'é' * 10}{'x' * (SOCKET_PATH_BYTES - 26)}.sock"
    assert len(longest.encode()) == SOCKET_PATH_BYTES
    assert arguments_for("--host", longest) == ("--host", longest)
    for environ in {}, {"LLAMA_ARG_HOST": f"/x{longest}"}:
        words = () if environ else ("--host", f"/x{longest}")
        with pytest.raises(UsageError, match="too long"):
            plan_server(BUILD, words, cwd=CWD, environ=environ)


def test_a_folder_with_a_comma_is_quoted_in_a_list() -> None:
    made = plan_server(BUILD, ("--lora", "a"), cwd=Path("/x,y"), environ={})
    assert made.argv[1:] == ("--lora", '"/x,y/a"')


def test_paths_in_the_servers_own_variables_are_made_absolute() -> None:
    environ = {"LLAMA_ARG_MODEL": "x.gguf", "LLAMA_ARG_HOST": "s.sock", "LLAMA_ARG_ALIAS": "x"}
    env = plan_server(BUILD, (), cwd=CWD, environ=environ).env
    assert env["LLAMA_ARG_MODEL"] == f"{CWD}/x.gguf"
    assert env["LLAMA_ARG_HOST"] == f"{CWD}/s.sock"
    assert env["LLAMA_ARG_ALIAS"] == "x"


FIXED = Build(TREE, "llama-server", "cpu", arguments=("--device", "none"))


def test_fixed_arguments_and_the_placement_come_before_the_users() -> None:
    made = plan_server(FIXED, ("-c", "4"), cwd=CWD, environ={})
    assert made.argv[1:] == ("--device", "none", "-c", "4")
    two = Placement(("CUDA1", "CUDA0"), "CUDA1", "", (20, 13))
    placed = made.placed(two, len(FIXED.arguments), draft=False)
    words = "--device none --device CUDA1,CUDA0 --tensor-split 20,13 -c 4"
    assert placed.argv[1:] == tuple(words.split())
    assert placed.argv[0] == made.argv[0]
    assert made.placed(Placement(reason="off"), 2, draft=True) == made


@pytest.mark.parametrize(
    ("environ", "device"), [({}, "CUDA1"), ({"MTMD_BACKEND_DEVICE": "x"}, "x")]
)
def test_a_projector_goes_where_the_model_is(environ: dict[str, str], device: str) -> None:
    """Upstream takes the first GPU for it, which another process may fill."""
    made = plan_server(BUILD, (), cwd=CWD, environ=environ)
    placed = made.placed(Placement(("CUDA1",), "CUDA1"), 0, draft=False)
    assert placed.env == {"MTMD_BACKEND_DEVICE": device}


HOSTILE = ["LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_LIBRARY_PATH_64", "DYLD_INSERT_LIBRARIES"]


@pytest.mark.parametrize("name", [*HOSTILE, "DYLD_LIBRARY_PATH", "GCONV_PATH", "GGML_BACKEND_PATH"])
def test_X07_X08_variables_that_load_foreign_code_are_removed(name: str) -> None:
    kept = {"HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "0", "LDFLAGS": "x", "OLD_LD_X": "y"}
    assert environment({**kept, name: "/evil.so"}, BUILD) == kept


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib64"),
        ("/a:/b", "/a:/b"),
        ("/a;/b", "/a:/b"),
        (":/a::.:lib:$ORIGIN/x:", "/a"),
    ],
)
def test_X09_the_build_comes_before_the_users_libraries(value: str, expected: str) -> None:
    env = environment({"LD_LIBRARY_PATH": value}, BUILD)
    assert env == {"LD_LIBRARY_PATH": f"{TREE}/bin:{expected}"}


@pytest.mark.parametrize(("value", "more"), [("", ""), ("/usr/lib/cuda", ":/usr/lib/cuda")])
def test_X09_on_wsl_the_drivers_of_windows_come_first(
    value: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "osrelease").write_text("5.15.167.4-microsoft-standard-WSL2\n")
    monkeypatch.setattr(planning, "_KERNEL_RELEASE", str(tmp_path / "osrelease"))
    env = environment({"LD_LIBRARY_PATH": value}, BUILD)
    assert env == {"LD_LIBRARY_PATH": f"{TREE}/bin:/usr/lib/wsl/lib{more}"}


@pytest.mark.parametrize("value", ["", ":", ".", "lib:../lib"])
def test_X09_an_empty_library_path_is_left_out(value: str) -> None:
    assert environment({"LD_LIBRARY_PATH": value}, BUILD) == {}


def test_X09_a_build_folder_with_a_colon_removes_the_users_libraries() -> None:
    odd = Build(Path("/opt/a:b"), "llama-server", "cuda")
    assert environment({"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}, odd) == {}


@pytest.mark.parametrize(
    "name", ["LLAMA_SERVER_ROUTER_PORT", "LLAMA_SERVER_CHILD_MODE", "LLAMA_APP_CMD"]
)
def test_a_start_by_a_tool_of_a_routers_server_is_no_server_of_that_router(name: str) -> None:
    """``server_child::is_child`` of b11434 asks only whether the first one is set.

    A real b11434 that a start of ours had given it ended with 1 at once: its stdin was empty.
    """
    assert name not in environment({name: "8080", "LLAMA_ARG_PORT": "1"}, BUILD)
    assert "LLAMA_ARG_PORT" in environment({name: "8080", "LLAMA_ARG_PORT": "1"}, BUILD)


def test_the_given_environment_is_not_changed() -> None:
    environ = {"LD_PRELOAD": "/x", "LLAMA_ARG_MODEL": "x"}
    plan_server(BUILD, (), cwd=CWD, environ=environ)
    assert environ == {"LD_PRELOAD": "/x", "LLAMA_ARG_MODEL": "x"}
