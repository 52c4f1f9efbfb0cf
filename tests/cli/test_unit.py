"""``service systemd``: a unit that systemd itself accepts and reads as it was meant."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import SUDO, Result, environment, run_program
from support.user_systemd import verify_all

from tsuku_llm.cli.render.services.units import OnDemand, Service, unit_texts
from tsuku_llm.launch.plan.secret_arguments import masked
from tsuku_llm.steps.servers.service import Handover

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")

SERVER = ("-m", "my model.gguf", "--alias", '$5 "%h')
WORDS = ("service", "systemd", "--name", "big", "--", *SERVER)
ODD = ["a b", "%h", "$HOME", 'q"q', "\\", "new\nline", "é", "'", ";", ""]


def printed(tmp_path: Path, *words: str, **extra: str) -> Result:
    return run_program(*words, env=environment(tmp_path, **extra), cwd=tmp_path)


def option(unit: str, name: str) -> str:
    return next(re.finditer(rf"^{name}=(.*)$", unit, re.MULTILINE))[1]


def verify(unit: str, folder: Path) -> str:
    """What systemd has to say against this unit of a user; nothing is right."""
    return verify_all({"tsuku-llm-test.service": unit}, folder)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = printed(tmp_path, *WORDS)
    assert (done.code, done.stderr) == (0, "")
    assert verify(done.stdout, tmp_path) == ""


def test_systemd_refuses_a_unit_that_is_wrong(tmp_path: Path) -> None:
    unit = printed(tmp_path, *WORDS).stdout
    refused = verify(unit.replace("Restart=on-failure", "Restart=sometimes"), tmp_path)
    assert "restart" in refused.lower()  # systemd 252 says "restart specifier", 257 "Restart="
    assert verify(re.sub("(?m)^ExecStart=", "ExecStart=/nothing", unit), tmp_path)


def test_the_unit_has_the_users_folder_and_settings(tmp_path: Path) -> None:
    unit = printed(tmp_path, *WORDS, TSUKU_LLM_BACKEND="vulkan", LLAMA_API_KEY="secret").stdout
    assert option(unit, "WorkingDirectory") == str(tmp_path)
    assert option(unit, "Type") == "notify"
    assert f"\nEnvironment=TSUKU_HOME={tmp_path}\nEnvironment=TSUKU_LLM_BACKEND=vulkan\n" in unit
    assert "secret" not in unit
    assert "tsuku-llm-big.service" in unit
    assert option(unit, "ExecStart").startswith(f"{sys.executable} -m tsuku_llm serve --name big")
    assert '--notify -- -m "my model.gguf" --alias "$$5 \\"%%h"' in option(unit, "ExecStart")


@pytest.mark.parametrize("way", [(), ("--exec",)], ids=["supervised", "exec"])
def test_the_line_of_the_unit_starts_the_server(way: tuple[str, ...], tmp_path: Path) -> None:
    """With nothing installed it gets as far as saying so."""
    unit = printed(tmp_path, "service", "systemd", *way, "--", "-m", "x.gguf").stdout
    line = shlex.split(option(unit, "ExecStart"))
    done = subprocess.run(
        line, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0][:21]) == (7, "error[not-installed]:")


@pytest.mark.parametrize("word", ODD)
def test_unusual_arguments_survive_the_quoting(word: str, tmp_path: Path) -> None:
    """``cat-config`` of a unit cannot be asked here, so the quoting is undone by its rules."""
    given = Handover((word,), {"TSUKU_HOME": word}, {})
    listen = OnDemand("127.0.0.1:8080", "/bin/true", 300)
    service = Service("x", "tsuku-llm-x", ["/bin/echo"], given, tmp_path, on_demand=listen)
    units = unit_texts(service)
    assert verify_all(units, tmp_path) == ""
    unit = units["tsuku-llm-x.service"]
    quoted = option(unit, "ExecStart").removeprefix("/bin/echo ")
    quoted = quoted.removesuffix(" --host %t/tsuku-llm-x/server.sock")
    assert undone(quoted).replace("$$", "$") == word
    assert undone(option(unit, "Environment")) == f"TSUKU_HOME={word}"


def undone(quoted: str) -> str:
    """Quotes and escapes as systemd.syntax(7) has them, then specifiers."""
    if quoted.startswith('"'):
        quoted = re.sub(r'\\x(..)|\\(["\\])', unescaped, quoted[1:-1])
    return quoted.replace("%%", "%")


def unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[2]


SECRETS = {
    "option": (("--api-key", "K3Y"), {}, {"LLAMA_API_KEY": "K3Y"}),
    "underscore": (("--api_key", "K3Y"), {}, {"LLAMA_API_KEY": "K3Y"}),
    "equals": (("--api-key=K3Y",), {}, {"LLAMA_API_KEY": "K3Y"}),
    "several": (("--api-key", "K3Y", "--api-key", "K3Y2"), {}, {"LLAMA_API_KEY": "K3Y,K3Y2"}),
    "variable": ((), {"LLAMA_API_KEY": "K3Y"}, {"LLAMA_API_KEY": "K3Y"}),
    "both": (("--api-key", "K3Y"), {"LLAMA_API_KEY": "K3Yold"}, {"LLAMA_API_KEY": "K3Y"}),
    "token": (("--hf-token", "K3Y"), {}, {"HF_TOKEN": "K3Y"}),
    "short_token": (("-hft", "K3Y"), {}, {"HF_TOKEN": "K3Y"}),
    "token_variable": ((), {"HF_TOKEN": "K3Y"}, {"HF_TOKEN": "K3Y"}),
    "unknown_token": (("--new-token", "K3Y"), {}, {"TSUKU_UNIT_WORD_3": "K3Y"}),
    "unknown_password": (("--proxy_password", "K3Y"), {}, {"TSUKU_UNIT_WORD_3": "K3Y"}),
    "url": (("-mu", "https://u:K3Y@h/m"), {}, {"LLAMA_ARG_MODEL_URL": "https://u:K3Y@h/m"}),
    "query": (("-mu", "https://h/m?t=K3Y"), {}, {"LLAMA_ARG_MODEL_URL": "https://h/m?t=K3Y"}),
    "projector": (("-mmu", "https://h/m?K3Y"), {}, {"LLAMA_ARG_MMPROJ_URL": "https://h/m?K3Y"}),
    "mcp": (
        ("--mcp-servers-json", '{"a": {"headers": {"X": "K3Y"}}}'),
        {},
        {"LLAMA_ARG_MCP_SERVERS_JSON": '{"a": {"headers": {"X": "K3Y"}}}'},
    ),
    "mirror": (
        (),
        {"TSUKU_LLM_MIRROR": "https://u:K3Y@h/"},
        {"TSUKU_LLM_MIRROR": "https://u:K3Y@h/"},
    ),
    "mirror_token": (
        (),
        {"TSUKU_LLM_MIRROR": "https://h/x?token=K3Y"},
        {"TSUKU_LLM_MIRROR": "https://h/x?token=K3Y"},
    ),
    "odd": (("--api-key", "K3Y \"$HOME`%h\\'#;é"), {}, {"LLAMA_API_KEY": "K3Y \"$HOME`%h\\'#;é"}),
}


@pytest.mark.parametrize("way", SECRETS)
@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_T16_a_secret_is_in_a_file_of_its_owner_and_not_in_the_unit(
    way: str, mask: int, tmp_path: Path
) -> None:
    words, extra, expected = SECRETS[way]
    state = tmp_path / "llm" / "state"
    before = os.umask(mask)
    try:
        done = printed(tmp_path, "service", "systemd", "--", "-m", "x.gguf", *words, **extra)
    finally:
        os.umask(before)
    assert done.code == 0, done.stderr
    assert "K3Y" not in done.stdout + done.stderr
    file = state / "credentials" / "default.env"
    assert option(done.stdout, "EnvironmentFile") == str(file)
    assert f"it loads {file}, which only you can read" in done.stderr
    assert (oct(file.stat().st_mode), oct(file.parent.stat().st_mode)) == ("0o100600", "0o40700")
    assert verify(done.stdout, tmp_path) == ""
    assert read_by_a_shell(file, expected) == expected
    for variable in expected:
        if variable.startswith("TSUKU_UNIT_WORD_"):
            assert option(done.stdout, "ExecStart").endswith(f" ${{{variable}}}")
    assert [path.name for path in file.parent.iterdir()] == ["default.env"]


def read_by_a_shell(file: Path, variables: dict[str, str]) -> dict[str, str]:
    """What a file of variables says: a shell undoes its quotes as systemd does."""
    shown = " ".join(f'"${name}"' for name in variables)
    done = subprocess.run(
        ["/bin/sh", "-c", f". '{file}'; printf '%s\\0' {shown}"],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(variables, done.stdout.split("\0"), strict=False))


def test_T16_key_files_and_arguments_without_secrets_stay_in_the_unit(tmp_path: Path) -> None:
    words = ("--api-key-file", "keys.txt", "--ssl-key-file", "k.pem", "--ssl-cert-file", "c.pem")
    words += ("-mu", "https://h/m@v", "x@y")
    done = printed(tmp_path, "service", "systemd", "--", *words)
    assert (done.code, done.stderr) == (0, "")
    assert option(done.stdout, "ExecStart").endswith(f" -- {' '.join(words)}")
    assert not (tmp_path / "llm").exists()


def test_T16_a_key_that_systemd_would_drop_is_refused(tmp_path: Path) -> None:
    done = printed(tmp_path, "service", "systemd", "--", "--api-key", "K3Y\nX=1")
    assert (done.code, done.stdout) == (2, "")
    assert "LLAMA_API_KEY has a character that systemd does not pass on" in done.stderr
    assert "K3Y" not in done.stderr


def test_T16_another_key_replaces_the_file_and_the_json_says_where(tmp_path: Path) -> None:
    file = tmp_path / "llm" / "state" / "credentials" / "big.env"
    for key in ("K3Y", "0THER"):
        words = ("service", "systemd", "--name", "big", "--json", "--", "--api-key", key)
        done = printed(tmp_path, *words)
        assert done.document["data"]["credentials"] == str(file)
        assert file.read_text("utf-8") == f'LLAMA_API_KEY="{key}"\n'
        assert key not in done.stdout + done.stderr


def test_T16_a_dry_run_masks_keys_and_shows_other_arguments() -> None:
    words = ("-m", "x", "", "--api_key", "K3Y", "https://u:K3Y@h/", "--hf-token=K3Y", "--api-key")
    shown = ("-m", "x", "", "--api-key", "***", "https://***@h/", "--hf-token", "***", "--api-key")
    assert masked(words) == shown


def test_a_unit_that_becomes_the_server_is_a_choice(tmp_path: Path) -> None:
    done = printed(tmp_path, "service", "systemd", "--exec", "--", "-m", "x.gguf")
    assert option(done.stdout, "Type") == "exec"
    assert option(done.stdout, "ExecStart").endswith("serve --exec -- -m x.gguf")
    assert "WatchdogSec" not in done.stdout
    assert verify(done.stdout, tmp_path) == ""


def test_a_supervised_unit_is_watched_and_gets_one_signal(tmp_path: Path) -> None:
    """Two SIGTERM make llama-server exit at once: so systemd signals only its supervisor."""
    unit = printed(tmp_path, *WORDS).stdout
    assert option(unit, "KillMode") == "mixed"
    assert option(unit, "NotifyAccess") == "main"
    assert int(option(unit, "WatchdogSec")) > 0
    # A model may load for an hour: our own limit is about progress.
    assert option(unit, "TimeoutStartSec") == "infinity"


SHARED = ("--scope", "system")


def test_a_unit_of_the_system_has_a_user_with_folders_of_its_own(tmp_path: Path) -> None:
    done = printed(tmp_path, "service", "systemd", *SHARED, "--", "-m", "x.gguf")
    assert done.code == 0, done.stderr
    unit = done.stdout
    assert option(unit, "DynamicUser") == "yes"
    assert option(unit, "StateDirectory") == option(unit, "CacheDirectory") == "tsuku-llm"
    assert option(unit, "WantedBy") == "multi-user.target"
    # Its state and caches are where systemd made folders for it, which no other user may read.
    assert "\nEnvironment=XDG_STATE_HOME=%S\n" in unit
    assert "\nEnvironment=XDG_CACHE_HOME=%C/tsuku-llm\n" in unit
    assert option(unit, "CacheDirectoryMode") == "0700"
    # The launcher names the drivers' folders; a variable of the unit would win over it.
    assert "CACHE_PATH" not in unit
    assert option(unit, "ExecStart").endswith("serve --notify -- -m x.gguf")
    assert "--user" not in unit
    assert verify_all({"tsuku-llm.service": unit}, tmp_path, "--system") == ""


def test_the_groups_of_the_gpu_are_in_the_unit_of_the_system(tmp_path: Path) -> None:
    given = Handover((), {}, {})
    service = Service(
        "x",
        "tsuku-llm-x",
        ["/bin/echo"],
        given,
        tmp_path,
        system=True,
        groups=("render", "video"),
    )
    unit = unit_texts(service)["tsuku-llm-x.service"]
    assert option(unit, "SupplementaryGroups") == "render video"
    assert verify_all({"tsuku-llm-x.service": unit}, tmp_path, "--system") == ""


def test_a_service_of_the_system_cannot_use_a_users_own_builds(tmp_path: Path) -> None:
    env = environment(tmp_path, HOME=str(tmp_path))
    del env["TSUKU_HOME"]
    done = run_program("service", "systemd", *SHARED, env=env, cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert f"{SUDO}TSUKU_HOME=/opt/tsuku " in done.stderr


def test_what_the_services_own_user_cannot_read_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    tmp_path.chmod(0o700)
    done = printed(tmp_path, "service", "systemd", *SHARED, "--", "-m", "m.gguf")
    assert done.code == 0
    assert "is closed to other users" in done.stderr


DEMANDED = ("service", "systemd", "--on-demand", "--name", "big", "--json")


@pytest.mark.parametrize("scope", ["user", "system"])
def test_systemd_accepts_the_three_units_of_a_start_on_demand(scope: str, tmp_path: Path) -> None:
    done = printed(tmp_path, *DEMANDED, "--scope", scope, "--", *SERVER, "--port", "9")
    assert done.code == 0, done.stderr
    units = done.document["data"]["units"]
    assert [*units] == [
        "tsuku-llm-big.service",
        "tsuku-llm-big.proxy.service",
        "tsuku-llm-big.socket",
    ]
    assert verify_all(units, tmp_path, f"--{scope}") == ""
    broken = {name: text.replace("ListenStream=", "ListenStrem=") for name, text in units.items()}
    assert "ListenStrem" in verify_all(broken, tmp_path, f"--{scope}")


def test_the_socket_has_the_address_and_the_server_one_of_its_own(tmp_path: Path) -> None:
    words = ("--host", "::1", "--port", "9")
    done = printed(tmp_path, *DEMANDED, "--idle-timeout", "90s", "--", "-m", "x", *words)
    server, proxy, listening = done.document["data"]["units"].values()
    assert option(listening, "ListenStream") == "[::1]:9"
    assert option(listening, "Service") == "tsuku-llm-big.proxy.service"
    own = "%t/tsuku-llm-big/server.sock"
    assert option(proxy, "ExecStart").endswith(f"systemd-socket-proxyd --exit-idle-time=90s {own}")
    assert option(proxy, "BindsTo") == "tsuku-llm-big.service"
    assert option(proxy, "After") == "tsuku-llm-big.service tsuku-llm-big.socket"
    assert option(server, "ExecStart").endswith(
        f"--notify --idle-timeout 0 -- -m x {' '.join(words)} --host {own}"
    )
    # The server ends with the proxy, which is the only one that needs it. Without these the GPU's
    # memory would stay taken.
    assert option(server, "StopWhenUnneeded") == "yes"
    assert "[Install]" not in server + proxy
    # An old socket file would be in the way: the folder is made for each start.
    assert option(server, "RuntimeDirectory") == "tsuku-llm-big"


@pytest.mark.parametrize("idle", [1, 60, 300])
def test_a_server_that_is_woken_as_often_as_can_be_stays_within_the_limit(
    idle: int, tmp_path: Path
) -> None:
    """It ends ``idle`` seconds after a request, and the next one comes at once, for ever."""
    done = printed(tmp_path, *DEMANDED, "--idle-timeout", str(idle), "--", "-m", "x")
    server = done.document["data"]["units"]["tsuku-llm-big.service"]
    starts = range(0, 10_000, idle)
    interval = int(option(server, "StartLimitIntervalSec"))
    busiest = max(sum(each - interval < start <= each for start in starts) for each in starts[:50])
    assert busiest <= int(option(server, "StartLimitBurst"))


def test_the_proxy_has_the_user_of_the_server(tmp_path: Path) -> None:
    """The server's umask closes its socket to every other one."""
    done = printed(tmp_path, *DEMANDED, *SHARED, "--", "-m", "x")
    server, proxy, _ = done.document["data"]["units"].values()
    for name in ("DynamicUser", "User"):
        assert option(server, name) == option(proxy, name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--exec",), "--on-demand and --exec"),
        (("--", "--port", "0"), "a port that clients know"),
        (("--", "--host", "gpu.example"), "gpu.example"),
    ],
)
def test_a_start_on_demand_that_cannot_work_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = printed(tmp_path, "service", "systemd", "--on-demand", *words)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr


def test_several_units_are_printed_below_their_names(tmp_path: Path) -> None:
    words = [word for word in DEMANDED if word != "--json"]
    lines = printed(tmp_path, *words, "--", "-m", "x").stdout.splitlines()
    assert lines[0] == "# tsuku-llm-big.service"
    assert {"# tsuku-llm-big.proxy.service", "# tsuku-llm-big.socket"} < set(lines)


def test_units_are_written_into_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "user"
    words = [word for word in DEMANDED if word != "--json"]
    done = printed(tmp_path, *words, "--output", str(folder), "--", "-m", "x")
    assert done.code == 0, done.stderr
    assert "move these first to where systemd looks" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "start it with: systemctl --user daemon-reload && "
        "systemctl --user enable --now tsuku-llm-big.socket"
    )
    texts = {file.name: file.read_text("utf-8") for file in folder.iterdir()}
    assert len(texts) == 3
    assert verify_all(texts, tmp_path) == ""
    assert "--output" not in texts["tsuku-llm-big.service"]
    found = printed(tmp_path, "--output", str(tmp_path / "systemd" / "user"), "--", "-m", "x")
    assert "move these first" not in found.stdout


@pytest.mark.parametrize("words", [("--on-demand",), SHARED, ("--output", "x")])
def test_serve_names_the_command_that_has_an_option_of_units(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = printed(tmp_path, "serve", *words)
    assert done.code == 2
    assert "tsuku-llm service systemd has it" in done.stderr


@pytest.mark.parametrize("other", ["--detach", "--notify", "--open", "--dry-run"])
def test_a_unit_has_no_option_of_a_start_by_hand(other: str, tmp_path: Path) -> None:
    done = printed(tmp_path, "service", "systemd", other)
    assert done.code == 2
    assert f"tsuku-llm service systemd has no option {other}" in done.stderr


def test_a_unit_has_a_name_that_a_server_can_have(tmp_path: Path) -> None:
    assert printed(tmp_path, "service", "systemd", "--name", "A/B").code == 2


def test_the_json_has_the_text_of_the_unit(tmp_path: Path) -> None:
    done = printed(tmp_path, "service", "systemd", "--json", "--", "-m", "x.gguf")
    assert done.document["data"]["unit"].startswith("# Made by: tsuku-llm service systemd\n")
    assert "--json" not in option(done.document["data"]["unit"], "ExecStart")
