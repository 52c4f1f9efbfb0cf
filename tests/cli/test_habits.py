"""What people type by habit, and what it is answered with: one row for each word or form.

The rows are from the documentation of the tools that the headings name, of November 2026. Read for
them were lmstudio.ai/docs/cli, docs.docker.com/reference/cli/docker/model, fig.io/manual/brew and
learn.microsoft.com/windows/package-manager/winget; the other tools are from memory. ``=`` does what
the command on the right does; ``->`` is an error whose hint is the command on the right.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from support.convergence import H200
from support.program import Result

from tsuku_llm.cli.habits import SERVER_OPTIONS
from tsuku_llm.cli.program import program as group
from tsuku_llm.steps.session import FAKE_HARDWARE

Run = Callable[..., Result]

ROWS = """
# ollama
run qwen3:4b -> chat -m qwen3:4b
run hf.co/unsloth/Qwen3-4B-GGUF -> chat -- -hf unsloth/Qwen3-4B-GGUF
run hf.co/unsloth/Qwen3-4B-GGUF:Q8_0 -> chat -- -hf unsloth/Qwen3-4B-GGUF:Q8_0
run m.gguf -> chat -m m.gguf
pull qwen3:4b -> serve -m qwen3:4b
pull hf.co/unsloth/Qwen3-4B-GGUF -> serve -- -hf unsloth/Qwen3-4B-GGUF
push me/model -> models
show qwen3 -> explain -m qwen3
create x -> models
create x -f Modelfile -> models
cp a b -> models
rm qwen3:4b -> models
rm m.gguf -> models
rm b10092 -> uninstall b10092
rm qwen3 -> uninstall qwen3
ps = status
ls = list
list models -> models
start -> serve --detach -m MODEL.gguf
start m.gguf -> serve --detach -m m.gguf
serve qwen = serve -m qwen
serve m.gguf = serve -m m.gguf
serve m.gguf --detach = serve -m m.gguf --detach
serve m.gguf --port 18401 -> serve -m m.gguf -- --port 18401
serve qwen2.5:7b -- -c 8192 = serve -m qwen2.5:7b -- -c 8192

# lms
get qwen3 -> serve -m qwen3
get unsloth/Qwen3-4B-GGUF -> serve -- -hf unsloth/Qwen3-4B-GGUF
load m.gguf -> serve --detach -m m.gguf
load qwen3 -> serve --detach -m qwen3
unload -> stop
unload qwen3 -> stop qwen3
unload --all -> stop --all
import m.gguf -> serve -m m.gguf
daemon up -> serve --detach -m MODEL.gguf
daemon down -> stop
daemon status = status
daemon update -> update
server start -> serve --detach -m MODEL.gguf
server start -m m.gguf -> serve --detach -m m.gguf
server stop -> stop
server restart -> restart
service restart -> restart
server status = status
log stream = logs --follow
runtime ls = backends
runtime select cuda -> config set llm.backend cuda
runtime get cuda -> install --backend cuda
runtime update -> update
runtime survey = probe
search qwen -> models
ls qwen -> list
chat qwen3 = chat -m qwen3
chat --ngl 99 -m m.gguf -> chat -m m.gguf -- -ngl 99

# llama-server, llama-cli
-m m.gguf = serve -m m.gguf
--model m.gguf = serve --model m.gguf
-hf ggml-org/gemma-3-1b-it-GGUF = serve -- -hf ggml-org/gemma-3-1b-it-GGUF
-m m.gguf --port 80 -> serve -m m.gguf -- --port 80
-m m.gguf -ngl 99 -> serve -m m.gguf -- -ngl 99
--list-devices = serve -- --list-devices
-V = --version
--help serve = help serve
-h serve = help serve
serve -m m.gguf --port 18401 -> serve -m m.gguf -- --port 18401
serve -hf ggml-org/gemma-3-1b-it-GGUF -> serve -- -hf ggml-org/gemma-3-1b-it-GGUF
serve -m m.gguf -ngl 99 -c 4096 -> serve -m m.gguf -- -ngl 99 -c 4096
serve -m m.gguf --host 0.0.0.0 --detach -> serve -m m.gguf --detach -- --host 0.0.0.0
serve --api-key-file k -m m.gguf -> serve -m m.gguf -- --api-key-file k
serve -m m.gguf -t -1 -> serve -m m.gguf -- -t -1
serve --jinja -m m.gguf -> serve -m m.gguf -- --jinja
serve -m m.gguf --port 80 -- -c 10 -> serve -m m.gguf -- --port 80 -c 10
serve --gpu -> serve --backend gpu
serve --cpu -m m.gguf -> serve --backend cpu -m m.gguf
serve --vulkan -m m.gguf -> serve --backend vulkan -m m.gguf
serve --gpu cuda -m m.gguf -> serve --backend cuda -m m.gguf
serve --background -m m.gguf -> serve --detach -m m.gguf
serve -d -m m.gguf -> serve --detach -m m.gguf
serve --daemon m.gguf -> serve --detach -m m.gguf
cli -m m.gguf -> run llama-cli -- -m m.gguf
llama-cli -m m.gguf -> run llama-cli -- -m m.gguf
llama-bench -m m.gguf -> run llama-bench -- -m m.gguf
llama-server -m m.gguf = serve -m m.gguf
benchmark -m m.gguf = bench -m m.gguf
server -m m.gguf = serve -m m.gguf

# uv, pip, brew
upgrade -> update
outdated = update --check
self update -> self-update
self upgrade -> self-update
self version = version
remove -> uninstall
remove b10092 -> uninstall b10092
install vulkan -> install --backend vulkan
install cuda -> install --backend cuda
install b10092 -> install --release b10092
install llama.cpp -> install
install llama-server -> install
install qwen3:4b -> serve -m qwen3:4b
add cuda -> install --backend cuda
download m.gguf -> serve -m m.gguf
download cuda -> install --backend cuda
reinstall -> install --force
env = config list
settings = config list
config -> config list
config backend cuda -> config set llm.backend cuda
config set backend cuda = config set llm.backend cuda
config get backend = config get llm.backend
config unset backend = config unset llm.backend
cache clean -> prune
cache prune -> prune
cache dir -> doctor
cache -> prune
clean -> prune
cleanup -> prune
generate-shell-completion bash = completion bash
completions zsh = completion zsh
freeze = list
pin b10092 -> config set llm.release b10092
pin -> config set llm.release installed
unpin -> config unset llm.release
tap = repository list
tap https://example.org/llm -> repository add
untap mine -> repository remove mine
services -> service
services list = status
services start llama.cpp -> serve --detach -m MODEL.gguf
services stop llama.cpp -> stop
services restart llama.cpp -> restart
home -> open
man = help
man serve = help serve
test -> doctor
doctor --fix -> doctor

# docker
log = logs
log -f = logs -f
log big = logs big
kill -> stop
kill big -> stop big
halt -> stop
images = models
inspect m.gguf -> explain -m m.gguf
system info = probe
system df = list
df = list
system prune -> prune
container ls = status
stats -> status --watch
top -> status --watch
restart-runner -> restart
start-runner -> serve --detach -m MODEL.gguf
stop-runner -> stop
install-runner -> install
reinstall-runner -> install --force
uninstall-runner -> uninstall --all
requests -> logs
tag a b -> models
package --gguf m.gguf a -> models
info = probe
info qwen3 -> explain -m qwen3
devices = probe
gpu = probe
gpus = probe
web -> open
ui -> open
dashboard -> open
rmi b10092 -> uninstall b10092
model run ai/smollm2 -> chat -- -hf ai/smollm2
model ls = models

# winget, apt, dnf, pacman
source list = repository list
source add -> repository add
source update -> repository refresh
source remove mine -> repository remove mine
features -> config list
pin list = config get llm.release
pin add llama.cpp -> config set llm.release installed
pin remove llama.cpp -> config unset llm.release
repair -> install --force
full-upgrade -> update
dist-upgrade -> update
autoremove -> prune
purge -> uninstall
purge b10092 -> uninstall b10092
hold -> config set llm.release installed
unhold -> config unset llm.release
policy = explain
madison = list --available
check-update = update --check
check-upgrade = update --check
downgrade -> rollback
history = list
undo -> rollback
repolist = repository list
makecache -> repository refresh
list --upgradable -> update --check
list --installed -> list
-Syu -> update
-S cuda -> install --backend cuda
-R b10092 -> uninstall b10092
-Q = list

# conda, npm, cargo
env list = list
activate cuda -> use cuda
deactivate -> rollback
i cuda -> install --backend cuda
ci -> install
audit = verify
view b10092 -> list --available
versions = list
install --list -> list

# systemctl
enable -> service systemd
disable -> service systemd
is-active = status
reload -> restart
reload big -> restart big
list-units = status
journal = logs
journalctl -f = logs -f
edit -> config path

# jan, lemonade, localai, ramalama, gpustack
recipes = backends
delete qwen3:4b -> models
delete b10092 -> uninstall b10092
tray -> open
models list -> models
models install qwen3:4b -> serve -m qwen3:4b
backends list -> backends
backends install cuda -> install --backend cuda
backends uninstall cuda -> uninstall cuda
containers = status
convert m.gguf -> run llama-quantize
quantize m.gguf -> run llama-quantize
perplexity -m m.gguf -> run llama-perplexity -- -m m.gguf
download-tools -> install

# docker compose, systemctl, service
daemon start -> serve --detach -m MODEL.gguf
daemon stop -> stop
daemon restart -> restart
service start -> serve --detach -m MODEL.gguf
service stop -> stop
service status -> status
service enable -> service systemd
service install -> service systemd
attach -> logs --follow

# words of the user's own are kept
set llm.backend cpu -> config set llm.backend cpu
switch b10092 -> use b10092
down work -> stop work
halt work -> stop work

# what installers of CUDA, PyTorch and llama.cpp have
install --gpu -> install --backend gpu
install --cpu -> install --backend cpu
install --cuda -> install --backend cuda
install --vulkan -> install --backend vulkan
install cuda12 -> install --backend cuda
install rocm7.2 -> install --backend rocm
install latest -> install
install nightly -> install --channel nightly
install stable -> install --channel stable
update --all -> update
upgrade tsuku-llm -> self-update
update tsuku-llm -> self-update
update self -> self-update
config edit -> config path
backends --installed -> list
backends --all -> backends
nvidia-smi = probe
rocm-smi = probe
rocminfo = probe
vulkaninfo = probe
clinfo = probe
prompt hello -> chat
generate hello -> chat
complete hello -> chat
api -> status
url -> status
endpoint -> status
self-update --check -> self-update
logs --tail 50 -> logs
logs -n 50 -> logs
stop --force -> stop
status --all -> status
status -a -> status
update --dry-run -> update --check
backends mlx -> explain --backend mlx
explain webgpu -> explain --backend webgpu
install tensorrt -> install --backend tensorrt

# docker compose
compose up -> serve --detach -m MODEL.gguf
compose up -d -> serve --detach -m MODEL.gguf
compose down -> stop
compose logs -> logs
compose ps = status
compose pull -> update
image ls = models
port -> status
save x -> bundle create
export x -> bundle create

# mise, asdf, pyenv, rustup, uv tool
ls-remote -> list --available
list-all -> list --available
list all -> list --available
latest -> list --available
current = which
global b10092 -> use b10092
local b10092 -> use b10092
implode -> uninstall --all
toolchain list = list
toolchain install nightly -> install --channel nightly
toolchain install stable -> install --channel stable
component add cuda -> install --backend cuda
target add vulkan -> install --backend vulkan
channel nightly -> install --channel nightly
channel stable -> install --channel stable
nightly -> install --channel nightly
tool install cuda -> install --backend cuda
tool list = list
tool upgrade -> update
deps cuda -> explain --backend cuda

# what no tool in particular has taught
install --latest -> install
service macos -> service launchd
serve --stop -> stop
config --list -> config list
./m.gguf -> serve -m ./m.gguf
login -> version
login me -> version
signin -> version
logout -> version
whoami -> version
preload m.gguf -> serve --detach -m m.gguf
warm qwen3 -> serve --detach -m qwen3
daemon -> serve --detach -m MODEL.gguf
eject -> stop
eject qwen3 -> stop qwen3
webui -> open
gui -> open
app -> open
ask hello -> chat
query hello -> chat
vram m.gguf -> explain -m m.gguf
estimate m.gguf -> explain -m m.gguf
fit m.gguf -> explain -m m.gguf
memory = probe
watch -> status --watch
follow -> logs --follow
health -> status
ping -> status
reset -> config list
report -> probe --record machine.json
bug -> probe --record machine.json
feedback -> probe --record machine.json
models rm m.gguf -> models
model rm m.gguf -> models
models pull unsloth/Qwen3-4B-GGUF -> serve -- -hf unsloth/Qwen3-4B-GGUF
model pull unsloth/Qwen3-4B-GGUF -> serve -- -hf unsloth/Qwen3-4B-GGUF

# ramalama, whose model transports are in docs/ramalama-serve.1.md of containers/ramalama
run hf://unsloth/Qwen3-4B-GGUF -> chat -- -hf unsloth/Qwen3-4B-GGUF
run huggingface://unsloth/Qwen3-4B-GGUF -> chat -- -hf unsloth/Qwen3-4B-GGUF
run ollama://qwen3:4b -> chat -m qwen3:4b
pull hf://unsloth/Qwen3-4B-GGUF -> serve -- -hf unsloth/Qwen3-4B-GGUF
pull ollama://qwen3 -> serve -m qwen3
pull hf://unsloth/Q3-GGUF/Q3-Q8.gguf -> serve -- -hf unsloth/Q3-GGUF -hff Q3-Q8.gguf
pull https://huggingface.co/unsloth/Q3-GGUF -> serve -- -hf unsloth/Q3-GGUF
pull https://huggingface.co/u/q/blob/main/a/q.gguf -> serve -- -hf u/q -hff a/q.gguf
inspect default -> status

# servers, and what they call an argument: ggml-org/llama.cpp#23739 (--ngl), docs.vllm.ai
# (--max-model-len), LostRuins/koboldcpp (--gpulayers, --contextsize), docker (-p)
serve --ngl 99 -m m.gguf -> serve -m m.gguf -- -ngl 99
serve m.gguf --ngl=99 -> serve -m m.gguf -- -ngl 99
serve -m m.gguf --gpulayers 33 -> serve -m m.gguf -- -ngl 33
serve m.gguf --max-model-len 4096 -> serve -m m.gguf -- -c 4096
serve m.gguf --contextsize 4096 -> serve -m m.gguf -- -c 4096
serve m.gguf --num-ctx 4096 -> serve -m m.gguf -- -c 4096
serve m.gguf -p 8081 -> serve -m m.gguf -- --port 8081
serve m.gguf --bind 0.0.0.0 -> serve -m m.gguf -- --host 0.0.0.0
serve --n-gpu-layers 33 m.gguf -> serve -m m.gguf -- --n-gpu-layers 33
serve --port 8081 m.gguf -> serve -m m.gguf -- --port 8081
run llama-cli -p hello -> run llama-cli -- -p hello
run models/m.gguf -> chat -m models/m.gguf
pull models/m.gguf -> serve -m models/m.gguf
serve --mmproj p.gguf -m m.gguf -> serve -m m.gguf -- --mmproj p.gguf
chat m.gguf --num-ctx 4096 -> chat -m m.gguf -- -c 4096

# package managers: apt-mark(8), dnf versionlock, snap(8), pip, npm, mise, nvm
mark hold llama.cpp -> config set llm.release installed
mark unhold llama.cpp -> config unset llm.release
versionlock -> config set llm.release installed
versionlock add llama.cpp -> config set llm.release installed
versionlock list = config get llm.release
versionlock delete llama.cpp -> config unset llm.release
refresh --list -> update --check
refresh --hold -> config set llm.release installed
refresh --unhold -> config unset llm.release
list --outdated -> update --check
list -o -> update --check
list --all -> list --available
list -a -> list --available
list --available --channel nightly -> list --available
list cuda -> list
index versions llama.cpp -> list --available
update b11434 -> install --release b11434
upgrade b11434 -> install --release b11434
update v0.6.0 -> install --release v0.6.0
update latest -> update
update stable -> update --channel stable
downgrade b11434 -> install --release b11434
rollback --to b11434 -> use b11434
install b11434 --force -> install --release b11434 --force
install vulkan --dry-run -> install --backend vulkan --dry-run
install -v b11434 -> install --release b11434
install llama.cpp@b11434 -> install --release b11434
install llama.cpp==b11434 -> install --release b11434
install llama.cpp@latest -> install
install tsuku-llm -> self-update
install vulkan cuda -> install --backend vulkan
install --with-cuda -> install --backend cuda
install --use-vulkan -> install --backend vulkan
info cuda -> explain --backend cuda
show cuda -> explain --backend cuda
show b11434 -> list
info b11434 -> list
inspect b11434 -> list
alias default b11434 -> use b11434
x llama-bench -m m.gguf -> run llama-bench -- -m m.gguf
exec llama-quantize a.gguf b.gguf Q8_0 -> run llama-quantize -- a.gguf b.gguf Q8_0
self uninstall -> uninstall --all
cache list -> doctor
cache size -> doctor
changelog -> list --available
news -> list --available

# ollama launch, of cmd/launch in ollama/ollama
launch claude-code -> launch claude
launch code -> launch vscode
launch openwebui -> launch open-webui
launch droid -> launch openai
launch goose --write -> launch openai
exec llama-cli -> run llama-cli --

# docker, systemctl
image prune -> prune
image rm q.gguf -> models
container stop big -> stop big
container restart big -> restart big
container logs big -> logs big
compose stop -> stop
compose restart -> restart
start -m m.gguf --name big -> serve --detach -m m.gguf --name big
events -> status --watch
metrics -> status --prometheus
listen -> serve -m MODEL.gguf

# settings: git, npm, and this file as others write it
get backend -> config get llm.backend
config backend=vulkan -> config set llm.backend vulkan
config set llm.backend=vulkan -> config set llm.backend vulkan
config set backend=vulkan -> config set llm.backend vulkan
backend set vulkan -> config set llm.backend vulkan
telemetry off -> config list
init -> install
setup -> install
init bash -> completion bash
detect = probe
devices list = probe
bundle install b.tar -> install --bundle b.tar
docs = help
tutorial = help
quickstart = help
"""

CASES = [line for line in ROWS.splitlines() if line and not line.startswith("#")]
assert len({*CASES}) == len(CASES)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that answers twice alike: a real driver may be too slow once."""
    monkeypatch.setenv(FAKE_HARDWARE, str(H200))


@pytest.mark.parametrize("row", [row for row in CASES if " = " in row])
@pytest.mark.usefixtures("recorded")
def test_a_habit_whose_meaning_is_certain_is_done(row: str, program: Run) -> None:
    typed, meant = (shlex.split(part) for part in row.split(" = "))
    assert program(*typed) == program(*meant)
    assert program("--json", *typed).document["command"] == (named(meant) or None)


@pytest.mark.parametrize("row", [row for row in CASES if " -> " in row])
def test_a_habit_is_answered_with_the_command_that_it_means(row: str, program: Run) -> None:
    typed, meant = row.split(" -> ")
    result = program(*shlex.split(typed))
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].partition(": ")[2].endswith(f": tsuku-llm {meant}")
    named(shlex.split(meant))


def named(words: list[str]) -> str:
    """The command that a call names, after every word of it was found to be one of its own."""
    command: click.Command = group
    path = []
    while isinstance(command, click.Group) and words and words[0][0] != "-":
        below = command.get_command(click.Context(command), words[0])
        assert below, f"{words[0]} is no command"
        command = below
        path.append(words.pop(0))
    own = words[: words.index("--")] if "--" in words else words
    options = {name for each in command.params for name in each.opts}
    assert {word for word in own if word.startswith("-")} <= options | {"--help", "-h"}
    return " ".join(path)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("use previous", "rollback"),
        ("use -", "rollback"),
        ("use latest", "update"),
        ("use nightly", "update --channel nightly"),
        ("stop all", "stop --all"),
        ("restart all", "status"),
    ],
)
def test_a_name_that_nothing_has_is_answered_like_a_habit(
    typed: str, meant: str, program: Run
) -> None:
    result = program(*typed.split())
    assert result.code == 7
    assert result.stderr.splitlines()[-1].endswith(f": tsuku-llm {meant}")


def test_the_server_has_the_arguments_that_hints_name_and_not_the_others() -> None:
    help_text = Path(__file__).parents[1].joinpath("server_helps", "b10434.txt").read_text("utf-8")
    known = set(re.findall(r"(?:^|, +)(--?[\w-]+)", help_text, re.MULTILINE))
    for line in SERVER_OPTIONS:
        own, *others = line.split()
        assert own in known
        assert known.isdisjoint(others)


def test_there_are_as_many_as_were_counted() -> None:
    assert len(CASES) >= 430
