"""What people type who come from other tools, and what it means here. Data only.

``suggestions`` reads the tables; ``tests/cli/test_habits.py`` has calls for each row.
"""

from __future__ import annotations

HABITS = """
FILE -> serve -m FILE
run REPO -> chat -- -hf REPO
run FILE -> chat -m FILE
run TAGGED -> chat -m TAGGED
pull REPO -> serve -- -hf REPO
pull BACKEND -> install --backend BACKEND
pull MODEL -> serve -m MODEL
get REPO -> serve -- -hf REPO
get SETTING -> config get llm.SETTING
get MODEL -> serve -m MODEL
download REPO -> serve -- -hf REPO
download BACKEND -> install --backend BACKEND
download MODEL -> serve -m MODEL
import FILE -> serve -m FILE
install REPO -> serve -- -hf REPO
install FILE -> serve -m FILE
install TAGGED -> serve -m TAGGED
install BACKEND -... -> install --backend BACKEND -...
install RELEASE -... -> install --release RELEASE -...
install BACKEND OTHER -> install --backend BACKEND # one at a time
install -v RELEASE -> install --release RELEASE
install PINNED -> install --release PINNED
install OURSELVES -> self-update
install llama.cpp -> install
install llama-server -> install
install llama-cpp -> install
install --list -> list
install --latest -> install
install latest -> install
install llama.cpp@latest -> install
install stable -> install --channel stable
install nightly -> install --channel nightly
i BACKEND -> install --backend BACKEND
add BACKEND -> install --backend BACKEND
ci -> install
reinstall -> install --force
repair -> install --force
push ... -> models # models are not uploaded from here
create ... -> models # a model is a GGUF file, and llama-server's arguments are its settings
cp ... -> models # models are files: copy them as such
show BACKEND -> explain --backend BACKEND
show RELEASE -> list
inspect RELEASE -> list
inspect default -> status
info BACKEND -> explain --backend BACKEND
info RELEASE -> list
show MODEL -> explain -m MODEL
inspect MODEL -> explain -m MODEL
info = probe
info MODEL -> explain -m MODEL
search ... -> models # no catalogue of models is searched; those of this machine
images = models
list models -> models
models list -> models
models ls -> models
model ls = models
model list = models
model run REPO -> chat -- -hf REPO
model run MODEL -> chat -m MODEL
models install REPO -> serve -- -hf REPO
models install MODEL -> serve -m MODEL
models MODEL -> serve -m MODEL
rm FILE -> models # a model is removed where it is
rm TAGGED -> models # a model is removed with the program that downloaded it
rm VERSION -> uninstall VERSION
delete FILE -> models # a model is removed where it is
delete TAGGED -> models # a model is removed with the program that downloaded it
delete VERSION -> uninstall VERSION
remove VERSION -> uninstall VERSION
rmi VERSION -> uninstall VERSION
purge -> uninstall
purge VERSION -> uninstall VERSION
ls = list
versions = list
history = list
freeze = list
df = list
env list = list
system df = list
list --installed -> list
list --upgradable -> update --check
list --outdated -> update --check
list -o -> update --check
list --all -> list --available
list -a -> list --available
list --available --channel CHANNEL -> list --available
list BACKEND -> list
index versions ... -> list --available
changelog -> list --available
news -> list --available
madison = list --available
view ... -> list --available
start -> serve --detach -m MODEL.gguf
start MODEL -> serve --detach -m MODEL
start -... -> serve --detach -...
load MODEL -> serve --detach -m MODEL
unload -> stop
unload --all -> stop --all
unload NAME -> stop NAME
kill NAME -> stop NAME
stop all -> stop --all
container stop NAME -> stop NAME
container restart NAME -> restart NAME
container logs NAME -> logs NAME
compose stop -> stop
compose restart -> restart
listen -> serve -m MODEL.gguf
stop --force -> stop
stop -f -> stop
daemon up -> serve --detach -m MODEL.gguf
daemon down -> stop
daemon start -> serve --detach -m MODEL.gguf
daemon stop -> stop
daemon restart -> restart
daemon status = status
daemon update -> update
server start -> serve --detach -m MODEL.gguf
server start ... -> serve --detach ...
server stop -> stop
server restart -> restart
service restart -> restart
service start -> serve --detach -m MODEL.gguf
service stop -> stop
service status -> status
service macos -> service launchd
serve --stop -> stop
service enable -> service systemd
service install -> service systemd
server status = status
server -m ... = serve -m ...
llama-server ... = serve ...
cli ... -> run llama-cli -- ...
llama-cli ... -> run llama-cli -- ...
llama-bench ... -> run llama-bench -- ...
exec TOOL ... -> run TOOL -- ...
x TOOL ... -> run TOOL -- ...
perplexity ... -> run llama-perplexity -- ...
convert ... -> run llama-quantize
quantize ... -> run llama-quantize
ps = status
top -> status --watch
stats -> status --watch
events -> status --watch
metrics -> status --prometheus
containers = status
container ls = status
is-active = status
status --all -> status
status -a -> status
reload NAME -> restart NAME
start-runner -> serve --detach -m MODEL.gguf
stop-runner -> stop
install-runner -> install
reinstall-runner -> install --force
uninstall-runner -> uninstall --all
requests -> logs
logs --tail ... -> logs
logs --lines ... -> logs
logs -n ... -> logs
attach -> logs --follow
tag ... -> models # a model is a file with the name that it has
package ... -> models # a model is a GGUF file, and is not packed
list-units = status
log stream = logs --follow
log ... = logs ...
journal ... = logs ...
journalctl ... = logs ...
launch claude-code -> launch claude
launch code -> launch vscode
launch openwebui -> launch open-webui
launch ANOTHER ... -> launch openai # for every tool that takes an address of OpenAI's API
web -> open
ui -> open
dashboard -> open
home -> open
api -> status # it shows the address
url -> status # it shows the address
endpoint -> status # it shows the address
prompt ... -> chat
generate ... -> chat
complete ... -> chat
tray -> open
benchmark ... = bench ...
runtime ls = backends
runtime list = backends
runtime survey = probe
runtime get BACKEND -> install --backend BACKEND
runtime select BACKEND -> config set llm.backend BACKEND
runtime update -> update
backends list -> backends
backends --all -> backends
backends --installed -> list
backends install BACKEND -> install --backend BACKEND
backends uninstall VERSION -> uninstall VERSION
features -> config list # there are no experimental features; these are the settings
recipes = backends
detect = probe
devices list = probe
devices = probe
gpu = probe
gpus = probe
nvidia-smi = probe
rocm-smi = probe
rocminfo = probe
vulkaninfo = probe
clinfo = probe
system info = probe
policy = explain
test -> doctor
doctor --fix -> doctor # nothing is changed without you; it names the fix
audit = verify
full-upgrade -> update
dist-upgrade -> update
outdated = update --check
update check -> update --check
update --all -> update
update --dry-run -> update --check
refresh --list -> update --check
update latest -> update
update CHANNEL -> update --channel CHANNEL
update OURSELVES -> self-update
upgrade OURSELVES -> self-update
update BACKEND -> install --backend BACKEND
update RELEASE -> install --release RELEASE
upgrade RELEASE -> install --release RELEASE
downgrade RELEASE -> install --release RELEASE
rollback --to VERSION -> use VERSION
alias default VERSION -> use VERSION
rollback VERSION -> use VERSION
backends BACKEND -> explain --backend BACKEND
explain BACKEND -> explain --backend BACKEND
doctor BACKEND -> doctor --backend BACKEND
list available -> list --available
check-update = update --check
check-upgrade = update --check
self update -> self-update
self-update --check -> self-update # without --yes it only shows what it would do
self upgrade -> self-update
self uninstall -> uninstall --all # pip, or what installed this program, removes it; the builds
self version = version
deactivate -> rollback
activate VERSION -> use VERSION
use previous -> rollback
use last -> rollback
use - -> rollback
use latest -> update
use newest -> update
use CHANNEL -> update --channel CHANNEL
restart all -> status # one at a time
pin -> config set llm.release installed
pin list = config get llm.release
pin add ... -> config set llm.release installed
pin remove ... -> config unset llm.release
pin VERSION -> config set llm.release VERSION
hold -> config set llm.release installed
mark hold ... -> config set llm.release installed
versionlock -> config set llm.release installed
versionlock add ... -> config set llm.release installed
refresh --hold -> config set llm.release installed
unpin -> config unset llm.release
unhold -> config unset llm.release
mark unhold ... -> config unset llm.release
versionlock delete ... -> config unset llm.release
refresh --unhold -> config unset llm.release
versionlock list = config get llm.release
cache -> prune
cache dir -> doctor
cache list -> doctor
cache size -> doctor
cache ... -> prune
system prune -> prune
image prune -> prune
config -> config list
config --list -> config list
config ASSIGNED -> config set ASSIGNED
config set ASSIGNED -> config set ASSIGNED
backend set BACKEND -> config set llm.backend BACKEND
telemetry ... -> config list # nothing is reported; these are the settings
config SETTING VALUE -> config set llm.SETTING VALUE
config SETTING -> config get llm.SETTING
env = config list
settings = config list
edit -> config path # edit the file that this prints
config edit -> config path # edit the file that this prints
tap = repository list
tap ... -> repository add
untap NAME -> repository remove NAME
source list = repository list
source add ... -> repository add
source update ... -> repository refresh
source remove NAME -> repository remove NAME
repolist = repository list
makecache -> repository refresh
services list = status
services start ... -> serve --detach -m MODEL.gguf
services stop ... -> stop
services restart ... -> restart
enable -> service systemd
disable -> service systemd
compose up ... -> serve --detach -m MODEL.gguf
compose down -> stop
compose logs -> logs
compose ps = status
compose pull -> update
image ls = models
port -> status # it shows the address
health -> status
ping -> status
save ... -> bundle create
bundle install BUNDLE -> install --bundle BUNDLE
export ... -> bundle create
ls-remote -> list --available
list-all -> list --available
list all -> list --available
latest -> list --available
current = which
global VERSION -> use VERSION
local VERSION -> use VERSION
implode -> uninstall --all
toolchain list = list
toolchain install nightly -> install --channel nightly
toolchain install stable -> install --channel stable
component add BACKEND -> install --backend BACKEND
target add BACKEND -> install --backend BACKEND
channel nightly -> install --channel nightly
channel stable -> install --channel stable
nightly -> install --channel nightly
tool install BACKEND -> install --backend BACKEND
tool list = list
tool upgrade -> update
deps BACKEND -> explain --backend BACKEND
login ... -> version # this program needs no account
signin -> version # this program needs no account
logout -> version # this program needs no account
whoami -> version # this program needs no account
preload MODEL -> serve --detach -m MODEL
warm MODEL -> serve --detach -m MODEL
daemon -> serve --detach -m MODEL.gguf
eject -> stop
eject NAME -> stop NAME
webui -> open
gui -> open
app -> open
ask ... -> chat
query ... -> chat
vram MODEL -> explain -m MODEL
estimate MODEL -> explain -m MODEL
fit MODEL -> explain -m MODEL
memory = probe
watch -> status --watch
follow -> logs --follow
reset -> config list # 'config unset' takes one of them back
report -> probe --record machine.json # a file for a report
bug -> probe --record machine.json # a file for a report
feedback -> probe --record machine.json # a file for a report
models rm ... -> models # a model is removed where it is
model rm ... -> models # a model is removed where it is
image rm ... -> models # a model is removed where it is
models pull REPO -> serve -- -hf REPO
model pull REPO -> serve -- -hf REPO
generate-shell-completion SHELL = completion SHELL
init -> install
init SHELL -> completion SHELL
setup -> install
completions SHELL = completion SHELL
docs = help
tutorial = help
quickstart = help
man ... = help ...
--help COMMAND = help COMMAND
-h COMMAND = help COMMAND
-V = --version
--list-devices = serve -- --list-devices
-hf REPO = serve -- -hf REPO
-m ... = serve -m ...
--model ... = serve --model ...
-Q = list
-Syu -> update
-S BACKEND -> install --backend BACKEND
-R VERSION -> uninstall VERSION
"""
"""What is typed, and the command that it means; the first row that matches counts.

``=`` is done, ``->`` is only named: what installs, removes or changes something is never guessed.
Words in upper case stand for one word (``suggestions`` says which), ``...`` for all that follow,
and ``-...`` for these if the first is an option. After ``#`` is what the hint says before the
command.
"""

SAME_COMMANDS = (
    "install add download pull fetch",
    "uninstall remove rm delete del erase",
    "unset remove rm delete del reset",
    "remove rm delete del uninstall",
    "list ls show dir versions installed",
    "update upgrade up outdated",
    "refresh update sync fetch pull",
    "serve start server run-server llama-server",
    "chat talk ask repl conversation",
    "status ps top servers",
    "logs log tail journal",
    "stop kill down halt end",
    "restart reload reboot restart-runner",
    "use switch activate select default",
    "rollback undo revert downgrade",
    "prune clean cleanup gc autoremove",
    "verify check audit validate",
    "doctor diagnose troubleshoot check",
    "explain why",
    "probe info hardware gpu gpus devices system",
    "backends variants",
    "which where path",
    "bench benchmark",
    "models model gguf list-models",
    "config settings configure options",
    "repository repositories repo remote tap mirror",
    "help man usage",
    "version about",
    "self-update selfupdate self-upgrade upgrade-self",
)
"""A command, then what it is called elsewhere, for words that no row above has.

A group takes the lines of its own commands.
"""

SAME_OPTIONS = (
    "--detach --background --daemon --bg -d",
    "--yes --assume-yes --no-confirm -y",
    "--dry-run --dry --simulate --whatif -n",
    "--release --version --tag",
    "--backend --variant --gpu --device --accelerator",
    "--version -V",
    "--follow --tail",
    "--force --reinstall -f",
    "--offline --no-network",
    "--all -a",
    "--available --remote",
    "--name -n",
    "--model -m",
    "--exec --foreground",
    "--check --outdated",
    "--color --colour",
    "--quiet --silent -s",
    "--verbose --debug --details",
)
"""An option, then what it is called elsewhere. A command takes the lines of its own options."""

SERVER_OPTIONS = (
    "-ngl --ngl --gpulayers --num-gpu-layers --num-gpu --ngpu",
    "-c --ctx --num-ctx --n-ctx --contextsize --context-length --max-model-len",
    "--port -p",
    "--host --bind --listen",
    "-np --max-num-seqs --num-parallel",
)
"""An argument of llama-server, then what other servers call it."""
