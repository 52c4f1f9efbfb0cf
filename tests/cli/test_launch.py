"""``launch``: what each coding tool needs, read by what reads it: a shell, JSON, TOML, YAML.

What must come out is of each tool's own page, which ``coding_tools`` names.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from support.program import environment, run_program
from support.servers import install_stand_in

from tsuku_llm.cli.services.coding_tools import TOOLS
from tsuku_llm.ground.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

ALIAS = 'a "model" of $(mine)\'s'
MODEL = "a--model--of---mine--s"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A home with two servers: one without a key, and one with one."""
    folder = tmp_path_factory.mktemp("launch") / "home"
    folder.mkdir(mode=0o755)
    install_stand_in(folder / "llm", serve=("listen",))
    found = environment(folder)
    for name, more in (("default", ()), ("locked", ("--api-key", "CANARY"))):
        started = run_program(
            *("serve", "--detach", "--name", name, "--", "--port", "0", "--alias", ALIAS, *more),
            env=found,
        )
        assert started.code == 0, started.stderr
    yield found
    run_program("stop", "--all", env=found)


def told(env: dict[str, str], tool: str, *words: str) -> Any:
    result = run_program("launch", tool, *words, "--json", env=env)
    assert result.code == 0, result.stderr
    return result.document["data"]


def base(env: dict[str, str]) -> str:
    servers = run_program("status", "--json", env=env).document["data"]["servers"]
    (found,) = (each for each in servers if each["name"] == "default")
    return f"http://127.0.0.1:{found['port']}/v1"


def exported(settings: str) -> dict[str, str]:
    """What a shell has after the lines that export."""
    lines = [line for line in settings.splitlines() if line.startswith("export ")]
    script = "\n".join((*lines, "env -0"))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)


def test_the_tools_of_the_shell_find_the_server(env: dict[str, str]) -> None:
    url = base(env)
    claude = exported(told(env, "claude")["settings"])
    # It adds /v1/messages itself.
    assert claude["ANTHROPIC_BASE_URL"] == url.removesuffix("/v1")
    assert (claude["ANTHROPIC_AUTH_TOKEN"], claude["ANTHROPIC_MODEL"]) == ("none", MODEL)
    aider = told(env, "aider")["settings"]
    assert exported(aider)["OPENAI_API_BASE"] == url
    assert f"aider --model openai/{MODEL}" in aider.splitlines()
    assert exported(told(env, "open-webui")["settings"])["OPENAI_API_BASE_URL"] == url


def test_the_tools_with_a_file_find_the_server(env: dict[str, str]) -> None:
    url = base(env)
    codex = tomli.loads(told(env, "codex")["settings"])
    provider = codex["model_providers"][codex["model_provider"]]
    # The only API that it speaks since February 2026.
    assert (provider["base_url"], provider["wire_api"]) == (url, "responses")
    assert f"export {provider['env_key']}=none" in told(env, "codex")["place"]
    opencode = json.loads(told(env, "opencode")["settings"])
    name, _, model = opencode["model"].partition("/")
    assert opencode["provider"][name]["options"] == {"baseURL": url, "apiKey": "none"}
    assert list(opencode["provider"][name]["models"]) == [model] == [MODEL]
    (of_continue,) = yaml.safe_load(told(env, "continue")["settings"])["models"]
    assert (of_continue["provider"], of_continue["apiBase"]) == ("openai", url)
    zed = json.loads(told(env, "zed")["settings"])["language_models"]["openai_compatible"]
    assert {each["api_url"] for each in zed.values()} == {url}
    # Its variable has the provider's name.
    assert f"{next(iter(zed)).upper().replace('-', '_')}_API_KEY=none" in told(env, "zed")["place"]
    ((vscode,),) = ([*each["models"]] for each in json.loads(told(env, "vscode")["settings"]))
    assert (vscode["id"], vscode["url"]) == (MODEL, f"{url}/chat/completions")


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_has_its_source_and_no_key_is_shown(env: dict[str, str], tool: str) -> None:
    shown = run_program("launch", tool, "--name", "locked", env=env)
    assert shown.code == 0, shown.stderr
    first, *_, last = shown.stdout.splitlines()
    assert first.startswith("# in ")
    assert last.startswith("# see: https://")
    assert "THE-KEY-OF-YOUR-SERVER" in shown.stdout
    assert "CANARY" not in shown.stdout
    assert "$" not in shown.stdout.replace('"$schema"', "")


def test_without_a_server_or_with_another_tool_the_way_out_is_named(env: dict[str, str]) -> None:
    missing = run_program("launch", "claude", "--name", "none", env=env)
    assert (missing.code, missing.stdout) == (7, "")
    assert missing.stderr.startswith("error[not-running]: there is no server called none\n")
    unknown = run_program("launch", "emacs", env=env)
    assert unknown.code == 2
    assert all(f"'{tool}'" in unknown.stderr for tool in TOOLS)
    shown = run_program("launch", "--help", env=env).stdout
    assert all(tool in shown for tool in TOOLS)


def test_a_server_at_a_unix_socket_has_no_url_for_a_tool(
    env: dict[str, str], tmp_path: Path
) -> None:
    words = ("--name", "socket", "--", "--host", str(tmp_path / "s.sock"))
    assert run_program("serve", "--detach", *words, env=env).code == 0
    shown = run_program("launch", "codex", "--name", "socket", env=env)
    assert (shown.code, shown.stdout) == (7, "")
    assert "the server socket listens at a Unix socket" in shown.stderr
    run_program("stop", "socket", env=env)


def test_a_user_without_a_home_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.delenv("HOME", raising=False)
    file = TOOLS["codex"].file
    assert file
    with pytest.raises(ConfigError, match="no home folder") as refused:
        file.path({})
    assert refused.value.hint == "set HOME or CODEX_HOME"
    assert file.path({"CODEX_HOME": "/of/mine"}) == Path("/of/mine/config.toml")


def test_the_settings_are_printed_whole(env: dict[str, str], tmp_path: Path) -> None:
    shown = run_program("launch", "opencode", env=env, cwd=tmp_path).stdout
    assert json.loads("\n".join(shown.splitlines()[1:-1]))["provider"]
    assert list(tmp_path.iterdir()) == []


FILES = {
    "claude": (".claude/settings.json", "CLAUDE_CONFIG_DIR", "settings.json"),
    "codex": (".codex/config.toml", "CODEX_HOME", "config.toml"),
    "opencode": (".config/opencode/opencode.json", "XDG_CONFIG_HOME", "opencode/opencode.json"),
}
"""Where each tool reads the settings of a user, and the variable for another folder.

https://code.claude.com/docs/en/settings, https://developers.openai.com/codex/config-advanced,
https://opencode.ai/docs/config/
"""


@pytest.fixture
def home(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The servers of ``env`` for a person with an empty home."""
    variables = {name: "" for _, name, _ in FILES.values()}
    return {**env, **variables, "HOME": str(tmp_path)}


def written(env: dict[str, str], tool: str) -> Any:
    return told(env, tool, "--write", "--yes")


@pytest.mark.parametrize("tool", FILES)
def test_a_yes_writes_where_the_tool_reads(home: dict[str, str], tmp_path: Path, tool: str) -> None:
    place, variable, name = FILES[tool]
    assert written(home, tool)["written"] == str(tmp_path / place)
    text = (tmp_path / place).read_text("utf-8")
    if tool == "claude":
        url = base(home).removesuffix("/v1")
        expected = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none"}
        assert json.loads(text) == {"env": {**expected, "ANTHROPIC_MODEL": MODEL}}
    else:
        read = tomli.loads if tool == "codex" else json.loads
        assert read(text) == read(told(home, tool)["settings"])
    elsewhere = {**home, variable: str(tmp_path / "elsewhere")}
    assert written(elsewhere, tool)["written"] == str(tmp_path / "elsewhere" / name)


def test_what_is_there_stays_and_a_copy_is_kept(home: dict[str, str], tmp_path: Path) -> None:
    codex = tmp_path / ".codex/config.toml"
    codex.parent.mkdir()
    before = (
        '# mine\nmodel = "gpt-5" # fast\nnotify = ["say", "done"]\n\n[model_providers.other]\n'
        'name = "other"\n\n[[hooks]]\nrun = "x"\n'
    )
    codex.write_text(before, "utf-8")
    codex.chmod(0o600)
    answer = written(home, "codex")
    now, old = tomli.loads(codex.read_text("utf-8")), tomli.loads(before)
    assert now["model_providers"].keys() == {"other", "tsuku-llm"}
    assert (now["notify"], now["hooks"]) == (old["notify"], old["hooks"])
    assert (now["model"], now["model_provider"]) == (MODEL, "tsuku-llm")
    assert "# mine" in codex.read_text("utf-8")
    kept = Path(answer["kept"])
    # The second time the copy stays the one from before the first.
    written(home, "codex")
    assert (kept.read_text("utf-8"), kept.parent) == (before, codex.parent)
    assert {path.stat().st_mode & 0o777 for path in (codex, kept)} == {0o600}


def test_a_file_of_json_keeps_its_other_keys_and_a_link_stays_one(
    home: dict[str, str], tmp_path: Path
) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / ".claude/settings.json"
    link.parent.mkdir()
    real.write_text('{"model": "opus", "env": {"DISABLE_TELEMETRY": "1"}, "größe": 1.5}', "utf-8")
    link.symlink_to(real)
    written(home, "claude")
    now = json.loads(real.read_text("utf-8"))
    assert link.is_symlink()
    assert (now["model"], now["größe"], now["env"]["DISABLE_TELEMETRY"]) == ("opus", 1.5, "1")
    assert now["env"]["ANTHROPIC_MODEL"] == MODEL


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("claude", '{"env": {} // none\n}'),
        ("claude", '{"env": {}, "env": {"A": "b"}}'),
        ("claude", '{"env": ["A=b"]}'),
        ("claude", "[]"),
        ("codex", "model = \n"),
        ("codex", 'model_providers = "none"\n'),
        ("opencode", '{"provider": {"tsuku-llm": {"options": "none"}}}'),
    ],
)
def test_a_file_that_cannot_be_changed_safely_stays_as_it_is(
    home: dict[str, str], tmp_path: Path, tool: str, text: str
) -> None:
    path = tmp_path / FILES[tool][0]
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    refused = run_program("launch", tool, "--write", "--yes", env=home)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error[bad-config]: the settings cannot be added to ")
    assert "by hand" in refused.stderr
    assert [path.read_text("utf-8"), *path.parent.iterdir()] == [text, path]


def test_without_a_yes_with_a_key_or_without_a_safe_file_nothing_is_written(
    home: dict[str, str], tmp_path: Path
) -> None:
    asked = run_program("launch", "codex", "--write", env=home)
    assert (asked.code, asked.stdout) == (0, "nothing was written: without a terminal, add --yes\n")
    for tool, *words in (("claude", "--name", "locked"), ("zed",), ("aider",)):
        refused = run_program("launch", tool, *words, "--write", "--yes", env=home)
        assert refused.code == 2
        assert f"by hand: tsuku-llm launch {tool} --name " in refused.stderr
    assert run_program("launch", "codex", "--yes", env=home).code == 2
    # The key of this server is in the shell alone.
    locked = run_program("launch", "codex", "--name", "locked", "--write", "--yes", env=home)
    assert "export TSUKU_LLM_KEY=THE-KEY-OF-YOUR-SERVER" in locked.stdout
    assert "KEY-OF" not in (tmp_path / ".codex/config.toml").read_text("utf-8")
