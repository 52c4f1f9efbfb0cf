"""Why a server did not start, or ended, as the system's error or its last words tell.

An end before it served is an error of ours. After that it is explained, and its exit code stays.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tsuku_llm.ground import system_limits
from tsuku_llm.ground.errors import BackendFailed, LaunchError
from tsuku_llm.ground.foreign import kernel_text, open_foreign
from tsuku_llm.ground.processes.process import listener_at
from tsuku_llm.launch.ask.health import connect
from tsuku_llm.launch.ask.last_words import complaints, last_lines
from tsuku_llm.launch.failed.diagnosis import Diagnosis, after_config, diagnose, ending, unknown
from tsuku_llm.launch.memory.gguf import read_header
from tsuku_llm.launch.memory.memory_options import memory_options
from tsuku_llm.launch.memory.model_header import CutOff, parts_of
from tsuku_llm.launch.plan.addresses import ServerAddress, address_of
from tsuku_llm.launch.plan.planning import LaunchPlan
from tsuku_llm.launch.plan.wishes import answers_and_ends, downloads_in, last_value, wishes_in
from tsuku_llm.machine.packages import FOR_THIS_MACHINE, REINSTALL, family_of


def explain(plan: LaunchPlan, code: int, said: str, *, oom_killed: bool) -> None:
    """Raise BackendFailed or LaunchError with the cause of an end before the server served.

    ``said`` is the end of its output. Returns only for an answer that was asked for, such as
    that of ``--help``.
    """
    # Also if its reader has gone, as in "-- --help | head".
    if code in _ANSWERED and answers_and_ends(plan.argv[1:]):
        return
    diagnosis = diagnose(code, said, distribution=distribution(), oom_killed=oom_killed)
    # Upstream's server loses the end of its log now and then. Beside a complaint, an address that
    # is refused is a coincidence; a model that is missing never is.
    if diagnosis is None and not complaints(said):
        diagnosis = _refused_address(plan)
    # A file that is no model at all explains a crash, too, and more than a wrong magic does.
    if diagnosis is None or diagnosis.slug in _VAGUE:
        seen = _missing_model(plan) or wrong_file(plan)
        before = diagnosis.facts if diagnosis else last_lines(said, 1)
        diagnosis = replace(seen, facts=seen.facts or before) if seen else diagnosis
    if diagnosis is None:
        diagnosis = after_config(said) or unknown(said)
    # The server has the same words for each reason, and for a certificate that it cannot use.
    if diagnosis.slug == "port-in-use":
        if exact := _refused_address(plan):
            facts = dict.fromkeys((*diagnosis.facts, *exact.facts))
            diagnosis = replace(exact, facts=tuple(facts))
        elif address_of(plan.argv, plan.env).tls:
            diagnosis = replace(_CERTIFICATE, facts=diagnosis.facts)
    # Only then may ``serve`` try another variant: no other fault goes away with it.
    by_backend = diagnosis.fault == "backend" and plan.backend != "cpu"
    failure = BackendFailed if by_backend else LaunchError
    raise failure(
        f"the server did not start: {diagnosis.cause}",
        facts=_with_end(diagnosis, code),
        hint=diagnosis.hint(plan.backend, plan.reinstall, plan.takes),
    )


_ANSWERED = (0, -getattr(signal, "SIGPIPE", 0))

_VAGUE = ("not-a-model", "model-incomplete", "model-unusable", "crashed", "unknown")
"""Diagnoses that a look at the model's file may replace by a more exact one."""


def why_ended(code: int, said: str, *, oom_killed: bool) -> Diagnosis:
    """Explain the failure of a server that had served, and that we did not tell to end.

    ``said`` is the end of its output.
    """
    found = diagnose(code, said, distribution=distribution(), oom_killed=oom_killed)
    found = found or unknown(said, served=True)
    return replace(found, facts=_with_end(found, code))


def _with_end(diagnosis: Diagnosis, code: int) -> tuple[str, ...]:
    """Return its facts with the server's own code: ours is always the same."""
    return tuple(dict.fromkeys((*diagnosis.facts, f"it {ending(code)}")))


def _refused_address(plan: LaunchPlan) -> Diagnosis | None:
    """Explain an end by the first of the server's addresses that the system refuses now."""
    told = address_of(plan.argv, plan.env)
    for host in (told.host, *told.others):
        address = told._replace(host=host)
        if refusal := _refusal_of(address):
            return _refused(address, refusal)
    return None


def _refusal_of(address: ServerAddress) -> OSError | None:
    """Return the system's refusal to let a program listen at this address now; None if it may.

    Only the system knows which of the reasons is true: in use, not allowed, not this machine's.
    """
    if address.is_unix:
        # To bind it would make the file: a program that answers there is the reason known.
        with suppress(OSError, UnicodeError), closing(connect(address)):
            return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return None
    refusal: OSError | None = None
    try:
        places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # some names are refused before they are asked for
        return error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, "")
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as trial:
                # As upstream's server binds: one address of a name is enough, "::" is both
                # families, and connections of a server that has ended do not count.
                if sys.platform != "win32":
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                trial.bind(place)
                return None
        except OSError as error:
            refusal = error
    return refusal


def _refused(address: ServerAddress, refusal: OSError) -> Diagnosis:
    where, option = f"{address.host} port {address.port}", "--port"
    if address.is_unix:
        where, option = address.host, "--host"
    # A name that does not resolve has codes of its own, which may equal those of the system.
    code = None if isinstance(refusal, socket.gaierror) else refusal.errno
    fix = "choose an address of this machine with --host, such as 127.0.0.1"
    facts: tuple[str, ...] = ()
    if code == errno.EADDRINUSE:
        why, facts = "it is in use", (listener_at(0 if address.is_unix else address.port),)
        fix = f"stop what uses it, or choose another with {option}"
    elif code in (errno.EACCES, errno.EPERM):
        why = "the system does not allow it to this user"
        fix = "choose another with --port; one below 1024 may be root's alone"
    elif code == errno.EADDRNOTAVAIL:
        why = "the address is not this machine's"
    elif code is None:
        why = "the name does not resolve here"
    else:
        why = refusal.strerror or str(refusal)
    cause = f"nothing can listen on {where}: {why}"
    return Diagnosis("port-in-use", cause, fix, facts=facts, fault="arguments")


def _missing_model(plan: LaunchPlan) -> Diagnosis | None:
    """Explain an end by a model that is not there; one to be downloaded does not count."""
    named = wishes_in(plan.argv, plan.env).model
    if named is None or downloads_in(plan.argv, plan.env):
        return None
    path = os.path.join(plan.cwd, named)
    if os.path.lexists(path):
        return None
    return Diagnosis(
        "model-missing",
        f"the model {path} does not exist",
        "check the path given with -m",
        fault="arguments",
    )


_CERTIFICATE = Diagnosis(
    "certificate",
    "it cannot use its certificate or key, or may not listen at its address",
    "check --ssl-cert-file and --ssl-key-file: PEM, readable, and a pair; then --host and --port",
    fault="arguments",
)


# --- what the files of a failed start are, by their first bytes ----------------------------------

# Upstream's server loses the end of its log now and then, and says of every other file only that
# its magic is wrong. What people give to ``-m`` by mistake is told by its beginning.

_FIRST = 1024
"""Bytes from a file's beginning that tell what it is."""

_AGAIN = "download it again: this one is not complete"
_CONVERT = "llama.cpp needs a GGUF file: download one, or convert it with convert_hf_to_gguf.py"
_LINK = (
    "download the file itself: use the link of its download and not that of its page; a repository "
    "that asks for a login needs a token"
)
_BY_BEGINNING = (
    (rb"version https://git-lfs", "a pointer of Git LFS", "run in its folder: git lfs pull"),
    (rb"\s*(?i:<!doctype html|<html|<head|<\?xml)", "a web page", _LINK),
    # What web servers answer in place of a file: {"error": …}, "Entry not found".
    (rb'\s*\{\s*"|[A-Z][a-z]+ [ -~]{3,60}\s*\Z', "an answer of a web server in words", _LINK),
    (rb".{8}\{", "a safetensors file", _CONVERT),
    (rb"PK\x03\x04", "a zip archive, as are models of PyTorch", f"unpack it, or else: {_CONVERT}"),
    (rb"\x1f\x8b|7z\xbc\xaf|\xfd7zXZ|\(\xb5/\xfd", "a compressed file", "unpack it first"),
    # The formats before GGUF: ggml, ggmf, ggjt, and ggla for adapters.
    (rb"lmgg|fmgg|tjgg|algg", "in a format of llama.cpp from before August 2023", _CONVERT),
    (rb"\0{64}", "filled with zeros", _AGAIN),
)
_OTHER_THAN_A_MODEL = {
    "adapter": ("a LoRA adapter", "give the model with -m, and this file with --lora"),
    "mmproj": (
        "a projector for pictures or sound (mmproj)",
        "give the model with -m, and this file with --mmproj",
    ),
    "imatrix": ("an importance matrix for llama-quantize", "give the model with -m"),
}


def wrong_file(plan: LaunchPlan) -> Diagnosis | None:
    """Explain a failed start by a file of its arguments that is something else, or incomplete."""
    if downloads_in(plan.argv, plan.env):
        return None
    options = memory_options(plan.argv, plan.env)
    lora = last_value(plan.argv, plan.env, ("--lora",))
    files = {
        "-m": options.model,
        "--mmproj": options.projector,
        "--model-draft": options.draft,
        "--lora": lora[1] if lora and "," not in lora[1] else None,
    }
    for option, name in files.items():
        if not name or "://" in name:
            continue
        path, found = os.path.join(plan.cwd, name), None
        # A missing file, and one that may not be read, have their own diagnoses.
        with suppress(OSError):
            found = other_than_needed(path, option)
        if found:
            cause = f"the file given with {option} is {found[0]}: {path}"
            return Diagnosis("not-a-model", cause, found[1], fault="model")
    return None


def other_than_needed(path: str, option: str) -> tuple[str, str] | None:
    """Return what a file is, and what to do, if it is not what the option needs.

    Raises ``OSError``.
    """
    for part in parts_of(path):
        with open_foreign(part) as file:
            beginning, size = file.read(_FIRST), os.fstat(file.fileno()).st_size
        if found := by_beginning(beginning, size):
            return found
    try:
        header = read_header(path)
    except CutOff as error:
        return f"incomplete ({error})", _AGAIN
    except ValueError:
        return None
    if option not in ("-m", "--model-draft"):
        return None
    kind = "mmproj" if header.architecture == "clip" else header.values.get("general.type")
    if not header.tensors and kind not in _OTHER_THAN_A_MODEL:
        return "a model without weights", "take another file of it: this one is for the vocabulary"
    return _OTHER_THAN_A_MODEL.get(str(kind))


def by_beginning(beginning: bytes, size: int) -> tuple[str, str] | None:
    """Return what a file of ``size`` bytes is, and what to do; None for GGUF and the unknown."""
    if size == 0:
        return "empty", _AGAIN
    if beginning.startswith(b"GGUF"):
        return None
    if b"GGUF".startswith(beginning):
        return "incomplete", _AGAIN
    for pattern, what, fix in _BY_BEGINNING:
        if re.match(pattern, beginning, re.DOTALL):
            return what, fix
    return None


# --- the system's own refusal ------------------------------------------------------------------


def refuse(plan: LaunchPlan, error: OSError) -> NoReturn:
    """Raise LaunchError with the meaning of the system's error.

    Raises ``SystemLimitReached`` if a limit of the system is the reason.
    """
    system_limits.refuse(error, "starting the server")
    diagnosis = why_not_started(error, Path(plan.argv[0]))
    raise LaunchError(
        f"the server cannot be started: {diagnosis.cause}",
        facts=(str(error),),
        hint=diagnosis.hint(plan.backend, plan.reinstall, plan.takes),
    ) from error


def why_not_started(error: OSError, executable: Path) -> Diagnosis:
    """Explain why the system refused to start ``executable``."""
    # Python opens the null device and enters the folder for the server: the error names them.
    if os.path.exists(executable) and error.filename not in (None, str(executable)):
        cause = f"{error.filename} cannot be used: {error.strerror or error}"
        return Diagnosis("refused", cause, "check that it exists here", fault="system")
    # A noexec mount and a missing execute bit give the same error.
    if error.errno == errno.EACCES:
        return _NOEXEC if _on_noexec(executable) else _NOT_EXECUTABLE
    # Linux reports ENOENT also if only the loader that the executable names is missing.
    if error.errno == errno.ENOENT:
        return _NO_INTERPRETER if os.path.exists(executable) else _NO_SERVER
    if error.errno == errno.ENOEXEC or getattr(error, "winerror", None) in _BAD_IMAGE:
        return _WRONG_ARCHITECTURE
    cause = f"the system refused to start it: {error.strerror or error}"
    return Diagnosis("refused", cause, "see the system's log", fault="system")


def distribution() -> str:
    """Return the family of this system's package manager, or "" for an unknown one."""
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    for path in _RELEASE_FILES:
        with suppress(OSError):
            return family_of(system, kernel_text(path))
    return family_of(system)


def _on_noexec(executable: Path) -> bool:
    if sys.platform != "linux":
        return False
    with suppress(OSError):
        return bool(os.statvfs(executable).f_flag & os.ST_NOEXEC)
    return False


_RELEASE_FILES = ("/etc/os-release", "/usr/lib/os-release")

_BAD_IMAGE = (193, 216)
"""Windows' ERROR_BAD_EXE_FORMAT and ERROR_EXE_MACHINE_TYPE_MISMATCH."""

_NOEXEC = Diagnosis(
    "noexec",
    "it is on a file system that is mounted noexec",
    "move the store to a file system mounted without noexec (TSUKU_HOME)",
    fault="system",
)
_NOT_EXECUTABLE = Diagnosis(
    "not-executable",
    "the system does not allow this user to run it",
    "check the permissions of the file and its folders, and the system's security policy",
    fault="system",
)
_NO_SERVER = Diagnosis(
    "server-missing",
    "the file does not exist",
    REINSTALL,
    fault="system",
)
_NO_INTERPRETER = Diagnosis(
    "musl",
    "the dynamic loader that it names is not on this system (another C library, such as musl, "
    "or another architecture)",
    "run it on a glibc distribution of the build's architecture",
    fault="system",
)
_WRONG_ARCHITECTURE = Diagnosis(
    "wrong-architecture",
    "it is for another processor architecture, or damaged",
    FOR_THIS_MACHINE,
    fault="system",
)
