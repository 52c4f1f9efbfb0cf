#!/bin/sh
# From a clone to an installed llama-server: the README's first command.
#
#   ./install.sh [ARGUMENT OF tsuku-llm install...]
#
# The environment is made in .venv/, a link to its tsuku-llm in ~/.local/bin, or in $XDG_BIN_HOME,
# and one to its man page in share/man/man1 next to that folder, where man looks. What upstream's
# builds and Python need from the system is installed on Debian and Ubuntu where it is missing, with
# sudo unless run by root.
#
# Where there is no Python 3.10 or newer, PROGRAM may be the program that brings its own: a file
# tsuku-llm-VERSION-linux-x86_64.tar.gz, or its https address. It is unpacked into .program/ instead,
# if it has the digest that this clone's signed metadata name, or PROGRAM_SHA256 if that is set.
#
# A later run updates the program. It leaves a build that is active as it is, unless it is given
# arguments: to update the build is another command.
set -eu

# No program of the folder from which this is called, which other users may be able to write: the
# relative entries of the PATH go, before any program is looked for.
absolute=
rest=${PATH-}:
while [ -n "$rest" ]; do
    case ${rest%%:*} in /*) absolute=$absolute${absolute:+:}${rest%%:*} ;; esac
    rest=${rest#*:}
done
PATH=${absolute:-/usr/sbin:/usr/bin:/sbin:/bin}
case ${PROGRAM-} in '' | /* | https://*) ;; *) PROGRAM=$PWD/$PROGRAM ;; esac
# CDPATH would choose another folder of that name.
case $0 in */*) CDPATH='' cd -- "${0%/*}" ;; esac
python=${PYTHON:-python3}

# What is no wish for a build is answered before anything is made.
for word in "$@"; do
    case $word in
        -h | --help)
            sed -n '2,/^set /{/^#/s/^#\( \|$\)//p;}' install.sh
            exit
            ;;
        --uninstall | --remove)
            echo "install.sh removes nothing: docs/tasks/remove.md has the commands" >&2
            exit 2
            ;;
    esac
done

# A shell that reads this from a pipe may be anywhere: build/ and .venv/ are not ours there.
[ -f installer/tsuku_llm/locked.txt ] || {
    echo "$PWD is no clone of tsuku-llm: run ./install.sh in the clone" >&2
    exit 2
}

# A line for each step that may take longer than a moment.
step() {
    echo "install.sh: $*" >&2
}

# The same for a command that says nothing itself: in a terminal, a dot every second follows the
# line. What writes them looks whether this shell is there, as Ctrl-C does not reach it.
quiet_step() {
    dots=
    if [ -t 2 ]; then
        printf 'install.sh: %s ' "$1" >&2
        { while sleep 1 && kill -0 $$; do printf .; done; } >&2 2>/dev/null &
        dots=$!
    else
        step "$1"
    fi
    shift
    failed=0
    "$@" || failed=$?
    if [ -n "$dots" ]; then
        kill "$dots"
        wait "$dots" 2>/dev/null || :
        echo >&2
    fi
    return $failed
}

# -I: no variable and no file of this folder chooses Python's modules.
found_python() {
    "$python" -I -c 'import sys; sys.exit(42 * (sys.version_info < (3, 10)))' 2>/dev/null
}

place=.venv
[ -z "${PROGRAM-}" ] || found_python || place=.program

missing=
[ $place = .program ] || "$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
    missing="$missing python3-venv"
# The OpenMP runtime, to which every CPU backend links.
if [ "$(uname -s)" = Linux ] && ! /sbin/ldconfig -p 2>/dev/null | grep -q 'libgomp\.so\.1 '; then
    missing="$missing libgomp1"
fi
if [ -n "$missing" ] && command -v apt-get >/dev/null; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    # Without these packages the download would be in vain.
    if [ -n "$sudo" ] && ! command -v sudo >/dev/null; then
        echo "this system lacks$missing, and there is no sudo: as root, run" >&2
        echo "  apt-get install$missing" >&2
        echo "then run ./install.sh again" >&2
        exit 3
    fi
    step "installing what the system lacks${sudo:+, with sudo}:$missing"
    apt() {
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" >&2 || {
            echo "${sudo:+$sudo }apt-get $1 ended with exit code $?; run ./install.sh again when it works" >&2
            exit 3
        }
    }
    apt update
    # shellcheck disable=SC2086  # a list of package names
    apt install -y --no-install-recommends $missing
elif [ -n "$missing" ]; then
    echo "this system may lack (Debian's names):$missing" >&2
fi

# The digest of the archive PROGRAM in the signed metadata of this clone; nothing if it is not there.
signed_digest() {
    name=${PROGRAM##*/}
    case $name in *[!A-Za-z0-9._+-]*) return ;; tsuku-llm-*.tar.gz) ;; *) return ;; esac
    grep -Fhs "\"$name\": \"" manifests/metadata/[0-9]*.targets.json |
        sed -n 's/^.*": "\([0-9a-f]\{64\}\)",\{0,1\}$/\1/p'
}

# The program with its own Python: fetched if it is an address, compared with its digest, unpacked
# beside its place, and tried there.
take_program() {
    [ "$(uname -sm)" = "Linux x86_64" ] || {
        echo "the program without Python is made for Linux x86_64 only, and this is $(uname -sm)" >&2
        exit 3
    }
    rm -rf .program.new
    mkdir .program.new
    archive=$PROGRAM
    says=PROGRAM_SHA256
    digest=${PROGRAM_SHA256-}
    if [ -z "$digest" ]; then
        says="this clone's signed metadata name"
        digest=$(signed_digest)
    fi
    case $PROGRAM in https://*)
        [ -n "$digest" ] || {
            echo "PROGRAM is an address: set PROGRAM_SHA256 to the digest of what is there;" >&2
            echo "the signed metadata of this clone name none for ${PROGRAM##*/}" >&2
            exit 2
        }
        archive=.program.new/archive
        if command -v curl >/dev/null; then
            quiet_step "downloading $PROGRAM" \
                curl -fsSL --proto =https --proto-redir =https -o "$archive" "$PROGRAM"
        elif command -v wget >/dev/null; then
            quiet_step "downloading $PROGRAM" wget -q --https-only -O "$archive" "$PROGRAM"
        else
            echo "there is no curl and no wget: download $PROGRAM," >&2
            echo "and set PROGRAM to that file" >&2
            false
        fi || exit 4
        ;;
    esac
    if [ -n "$digest" ] && ! echo "$digest  $archive" | sha256sum --check --status; then
        echo "$PROGRAM has another digest than $says: it is damaged, or another version" >&2
        exit 5
    fi
    quiet_step "unpacking the program into .program/" \
        tar -xzf "$archive" --no-same-owner --strip-components=1 -C .program.new || exit 6
    rm -f .program.new/archive
    .program.new/tsuku-llm --version >/dev/null || {
        echo "the program of $PROGRAM does not start here" >&2
        exit 7
    }
    rm -rf .program
    mv .program.new .program
}

if [ $place = .program ]; then
    take_program
    program=$PWD/.program/tsuku-llm
    page=$PWD/.program/share/man/man1/tsuku-llm.1
else
    # 42: it is older. 127: there is none. Anything else shows itself below.
    code=0
    found_python || code=$?
    if [ $code = 42 ] || [ $code = 127 ]; then
        echo "Python 3.10 or newer is needed, and there is no such $python: set PYTHON to one," >&2
        echo "or PROGRAM to the file of the program that brings its own" >&2
        exit 3
    fi
    rm -rf build # setuptools would put modules that were since removed into the wheel
    # A clone that was moved, or another Python, leaves an environment that does not start.
    if ! .venv/bin/python -I -m pip --version >/dev/null 2>&1; then
        quiet_step "making a Python environment in .venv/" "$python" -I -m venv --clear .venv
    fi
    # Every dependency, and what builds the package, is locked with its digests (ci/lock).
    # A user's variables for pip, and "user" in pip.conf, may name another place to install to.
    pip() {
        env -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT PIP_USER=0 \
            .venv/bin/python -I -m pip install --quiet --disable-pip-version-check "$@"
    }
    quiet_step "installing the Python packages that the program needs into .venv/" \
        pip --no-deps --require-hashes -r installer/tsuku_llm/locked.txt
    quiet_step "installing the program into .venv/" \
        pip --no-deps --no-build-isolation .
    program=$PWD/.venv/bin/tsuku-llm
    page=$PWD/.venv/share/man/man1/tsuku-llm.1
fi

# A link to the program in the user's folder for programs. What another program put there stays.
bin=${XDG_BIN_HOME:-${HOME:+$HOME/.local/bin}}
link=$bin/tsuku-llm

# Whether a link $2 to $1 may be made: nothing is there, or a link to this clone or to one that is
# gone.
free() {
    [ -L "$2" ] || { [ ! -e "$2" ] && return; }
    case $(readlink "$2") in
        "$1" | "$PWD"/.venv/* | "$PWD"/.program/*) ;;
        */.venv/*"${1##*/}" | */.program/*"${1##*/}") [ ! -e "$2" ] ;;
        *) return 1 ;;
    esac
}

linked=
case $bin in
    /*)
        if ! free "$program" "$link"; then
            echo "$link is not from here, so it stays as it is" >&2
        elif mkdir -p "$bin" && ln -sf "$program" "$link"; then
            linked=yes
        fi
        ;;
    *) echo "there is no folder for a link to tsuku-llm: HOME is not set" >&2 ;;
esac

# man looks next to each folder of the PATH. Without the page the program works all the same.
pages=${bin%/*}/share/man/man1
if [ -n "$linked" ] && [ -e "$page" ] && free "$page" "$pages/${page##*/}"; then
    { mkdir -p "$pages" && ln -sf "$page" "$pages"; } ||
        echo "the man page is not linked; to read it: man \"$page\"" >&2
fi

# The hints of the program name it as it is called here, unless its name is enough.
if [ -z "$linked" ]; then
    echo "tsuku-llm is $program" >&2
    link=$program
fi

# Without arguments, only a first run installs a build: a later one may meet a build that somebody
# chose, or compiled.
found=$(command -v tsuku-llm || :)
listed=
[ $# -gt 0 ] || listed=$("$link" list --json)
case $listed in
    *'"active": true'*)
        name=$link
        [ "$found" != "$link" ] || name=tsuku-llm
        echo "the program is installed, and the active build is the one that it was"
        echo "to update that as well: $name update"
        ;;
    *) "$link" install --yes "$@" ;;
esac
[ -n "$linked" ] || exit 0

# The command that puts the folder onto the PATH of new shells, in words of the user's own shell.
path_command() {
    folder=$bin
    # shellcheck disable=SC2016  # the shell that reads the file expands it
    [ "$bin" != "${HOME-}/.local/bin" ] || folder='$HOME/.local/bin'
    line="export PATH=\"$folder:\$PATH\""
    case ${SHELL-} in
        */fish) echo "fish_add_path \"$folder\"" ;;
        */zsh) echo "echo '$line' >>\"\${ZDOTDIR:-\$HOME}/.zshrc\"" ;;
        */bash) [ "$(uname -s)" = Darwin ] && rc=.bash_profile || rc=.bashrc
            echo "echo '$line' >>~/$rc" ;;
        *) echo "echo '$line' >>~/.profile" ;;
    esac
}

case $found:$PATH: in
    "$link":*) ;;
    *:"$bin":*) echo "another program comes before this one on your PATH: $found" ;;
    *)
        echo "to call it by its name, tsuku-llm, run this and open a new terminal:"
        echo "  $(path_command)"
        ;;
esac
