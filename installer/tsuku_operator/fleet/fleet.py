"""Many hosts: Ansible runs a playbook of the collection tsuku.llm, and says what each host did.

The collection does the work; this module starts it and reads the events of ansible-runner.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import tsuku_llm
from tsuku_llm.ground.errors import FleetFailed, UsageError
from tsuku_llm.ground.ownership import check_below, check_path
from tsuku_llm.ground.processes import inherited
from tsuku_llm.ground.safe_text import shell_word, shortened
from tsuku_llm.machine.own_copy import extra_command
from tsuku_llm.steps.program.copy_facts import copy_facts
from tsuku_llm.steps.session import Session

COLLECTION = Path(tsuku_llm.__file__).parents[1]
"""The folder with ``ansible_collections``: next to this package, in a clone and in a wheel."""

_PLAYBOOKS = COLLECTION / "ansible_collections/tsuku/llm/playbooks"
_BESIDE = ("group_vars", "host_vars")
"""The folders beside an inventory of which Ansible evaluates the templates."""

_LAST_LINES = 5
_LONGEST = 200
"""The most characters of a text that a host gave; a reason may have five times as many."""

_WELL = ("active", "empty", "unchanged", "would change", "changed")


@dataclass(frozen=True, slots=True)
class FleetHost:
    """What is known of one host; ``reason`` and the error's ``code`` are None if nothing failed.

    ``state`` is active, empty, unchanged, would change or changed; after a failure it is failed,
    went back, unreachable or not reached.
    """

    host: str
    state: str = "not reached"
    device: str | None = None
    variant: str | None = None
    release: str | None = None
    reason: str | None = None
    code: str | None = None

    @property
    def is_well(self) -> bool:
        """True if nothing failed there."""
        return self.state in _WELL


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """What is asked of the hosts; ``update`` moves to newer releases, in batches."""

    inventory: str
    limit: str | None = None
    update: bool = False
    backend: str | None = None
    channel: str | None = None
    release: str | None = None


def run_fleet(
    session: Session, action: str, request: FleetRequest, on_failure: Callable[[str], None]
) -> tuple[FleetHost, ...]:
    """Run ``status``, ``plan`` or ``apply`` on all hosts of an inventory; return each host.

    One ``apply`` of this user at a time works on an inventory; others wait. ``on_failure`` gets a
    line as soon as a host has failed. Raises ``UsageError`` without the extra ``fleet``, without an
    inventory, and for one without hosts. Raises ``FleetFailed`` if Ansible itself does not run,
    and ``LockTimeout``.
    """
    runner = _runner()
    inventory = _inventory(request.inventory)
    name = "status" if action == "status" else "update" if request.update else "apply"
    events: list[Mapping[str, Any]] = []

    def take(event: Mapping[str, Any]) -> bool:
        about = event.get("event_data") or {}
        events.append({"event": event.get("event"), **about})
        if event.get("event") in ("runner_on_failed", "runner_on_unreachable"):
            on_failure(f"{about.get('host')}: {_reason(about.get('res'))}")
        return True  # ansible-runner keeps the event as well

    asked = {"backend": request.backend, "channel": request.channel, "release": request.release}
    # Of two updates in batches, one would take back what the other has just judged as good.
    key = hashlib.sha256("\0".join(inventory).encode("utf-8", "surrogateescape")).hexdigest()
    alone = session.store.lock(key) if action == "apply" else nullcontext()
    with alone, tempfile.TemporaryDirectory(prefix="tsuku-llm-fleet-") as folder:
        done = runner.run(
            private_data_dir=folder,
            playbook=str(_PLAYBOOKS / f"{name}.yml"),
            inventory=inventory,
            limit=request.limit,
            extravars={f"fleet_{key}": value for key, value in asked.items() if value},
            cmdline="--check" if action == "plan" else None,
            envvars=_variables(),
            event_handler=take,
            quiet=True,
            # Variables may hold passwords, and the files of a run stay if we are killed.
            suppress_env_files=True,
        )
        # The words of a failed run; a line of Ansible's may end with an escaped newline.
        lines = list(done.stdout) if done.rc else []
    said = [text for line in lines if (text := line.strip().removesuffix("\\n").strip())]
    hosts = judged(action, events)
    if not hosts:
        said = said or [f"inventory: {request.inventory}"]
        raise _nothing(request, tuple(said[-_LAST_LINES:]), started=done.rc in (0, 1))
    return hosts


def judged(action: str, events: Iterable[Mapping[str, Any]]) -> tuple[FleetHost, ...]:
    """Return each host that the events are about, sorted by name. This is pure.

    What a host answers is not trusted: an answer that cannot be understood is a failure of that
    host alone.
    """
    hosts: dict[str, FleetHost] = {}
    for event in events:
        kind, name, found = event.get("event"), event.get("host"), event.get("res")
        if not isinstance(name, str) or not name or not str(kind).startswith("runner_on_"):
            continue
        known = hosts.get(name) or FleetHost(name)
        if kind == "runner_on_unreachable":
            hosts[name] = replace(known, state="unreachable", reason=_reason(found))
        elif kind == "runner_on_failed":
            hosts[name] = _failed(known, found)
        elif kind == "runner_on_ok":
            module = str(event.get("task_action"))
            try:
                hosts[name] = _done(action, known, module, found)
            except _OddAnswer as odd:
                reason = f"the answer of {module} cannot be understood: {odd}"
                hosts[name] = _failed(known, {"msg": reason})
        else:
            hosts.setdefault(name, known)
    return tuple(hosts[name] for name in sorted(hosts))


class _OddAnswer(Exception):
    """The answer of a host has another shape than the modules of the collection give."""


def _part(found: object, key: str) -> object:
    """Return a part of an answer. Raises ``_OddAnswer``."""
    if not isinstance(found, Mapping) or key not in found:
        raise _OddAnswer(f"it has no {key}")
    return found[key]


def _text(found: object, key: str) -> str | None:
    """Return a text of an answer, None if it is another thing, or not there."""
    value = found.get(key) if isinstance(found, Mapping) else None
    return shortened(value, _LONGEST) if isinstance(value, str) else None


def _failed(known: FleetHost, found: object) -> FleetHost:
    """Return a host after a task that failed; the first failure is the one that counts."""
    if known.state in ("failed", "went back"):
        return known
    answer = found if isinstance(found, Mapping) else {}
    code = _text(answer.get("error"), "code")
    # A host whose own update was good goes back, too, if another one of its batch has failed.
    state = "went back" if code == "update-rolled-back" or known.state == "changed" else "failed"
    build = answer.get("build")
    named = {key: text for key in ("variant", "release") if (text := _text(build, key))}
    return replace(known, state=state, reason=_reason(found), code=code, **named)


def _done(action: str, known: FleetHost, module: str, found: object) -> FleetHost:
    """Return a host after a task that was done. Raises ``_OddAnswer``."""
    if module == "tsuku.llm.hardware_facts":
        gpus = _part(_part(found, "ansible_facts"), "tsuku_llm_gpus")
        if not isinstance(gpus, list) or not all(isinstance(each, str) for each in gpus):
            raise _OddAnswer("tsuku_llm_gpus is no list of texts")
        return replace(known, device=shortened(gpus[0], _LONGEST) if gpus else None)
    if module not in ("tsuku.llm.variant_info", "tsuku.llm.variant"):
        return known
    is_info = module == "tsuku.llm.variant_info"
    build = _part(found, "active" if is_info else "build")
    variant, release = _text(build, "variant"), _text(build, "release")
    if build and not (variant and release):
        raise _OddAnswer("its build has no variant or no release")
    known = replace(known, variant=variant, release=release)
    # What a host did after a failure is the way back.
    if known.state in ("failed", "went back"):
        return known
    if is_info:
        # Before an update it is only a look: the batch of this host may never come.
        states = ("active" if build else "empty") if action == "status" else "not reached"
        return replace(known, state=states)
    is_changed = _part(found, "changed")
    if not isinstance(is_changed, bool):
        raise _OddAnswer("changed is neither true nor false")
    changed = "would change" if action == "plan" else "changed"
    # The second change of one run is the way back; the task after it says why.
    return replace(known, state=changed if is_changed else "unchanged")


def _reason(found: object) -> str:
    """Return why a task failed, in one line."""
    answer = found if isinstance(found, Mapping) else {"msg": found}
    text = str(answer.get("msg") or answer.get("module_stderr") or "no reason was given")
    return shortened(" ".join(text.split()), 5 * _LONGEST)


def _runner() -> ModuleType:
    """Import ansible-runner. Raises ``UsageError`` without the extra ``fleet``."""
    try:
        import ansible_runner  # noqa: PLC0415 - of an extra, and only for this command
    except ImportError as error:
        raise UsageError(
            "fleet needs Ansible, which is not installed with this copy",
            facts=(str(error),),
            hint=f"install the extra: {extra_command(copy_facts(), 'fleet')}",
        ) from error
    module: ModuleType = ansible_runner
    return module


def _inventory(given: str) -> list[str]:
    """Return what Ansible takes as its inventory from any folder. Raises ``UsageError``."""
    # Ansible's own rule: a comma makes a list of hosts. As a list it comes to Ansible as it is; as
    # a text, ansible-runner would write it into a file, as one host with that name.
    if "," in given:
        for host in filter(None, map(str.strip, given.split(","))):
            # ssh would take a dash for an option; a file of Ansible's has room for other names.
            if not _HOST.fullmatch(host):
                raise UsageError(
                    f"{host!r} is not the name of a host",
                    hint="separate the names by commas: -i host1,host2; what else there is to say "
                    "of a host belongs into a file",
                )
        return [given]
    path = Path(given).absolute()
    if not path.exists():
        raise UsageError(
            f"there is no inventory {given}",
            hint="name a file or folder of Ansible's, or hosts with a comma: -i host1,host2",
        )
    # Ansible runs an inventory that is a program, plugins next to one, and the templates in
    # group_vars and host_vars beside it: all with the rights of this user.
    if path.is_dir():
        check_path(path, sticky=False)
        check_below(path)
        return [str(path)]
    check_path(path)
    check_path(path.parent, sticky=False)
    for name in _BESIDE:
        if (path.parent / name).is_dir():
            check_below(path.parent / name)
    return [str(path)]


_HOST = re.compile(r"[\w\[][\w.:\[\]-]*")
"""A name, an address or one with a port."""


def _variables() -> dict[str, str]:
    """Return the variables of Ansible: where it finds the collection, and this copy's programs.

    Raises ``UnsafeLocation`` for settings of Ansible's that another user could have written.
    """
    found = inherited.environment()
    before = found.get("ANSIBLE_COLLECTIONS_PATH", "")
    found["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, (str(COLLECTION), before)))
    found["PATH"] = os.pathsep.join(
        (sysconfig.get_path("scripts"), found.get("PATH", os.defpath)),
    )
    found["ANSIBLE_NOCOLOR"] = "1"
    # An inventory that cannot be read is an error, and no empty list of hosts.
    found["ANSIBLE_INVENTORY_UNPARSED_FAILED"] = "1"
    # ansible-playbook starts in a folder of its own, where it would not find the user's settings.
    config = Path(os.environ.get("ANSIBLE_CONFIG") or "ansible.cfg").absolute()
    if config.is_dir():
        config /= "ansible.cfg"
    if config.is_file():
        # They name plugins, which run as this user. Ansible, too, obeys none of a folder in which
        # any user can write.
        check_path(config)
        check_path(config.parent, sticky=False)
        found["ANSIBLE_CONFIG"] = str(config)
    # ansible-runner adds these to our own variables, and removes none: an empty one leads nowhere.
    changed = {name: value for name, value in found.items() if os.environ.get(name) != value}
    return dict.fromkeys(os.environ.keys() - found.keys(), "") | changed


def _nothing(request: FleetRequest, said: tuple[str, ...], *, started: bool) -> Exception:
    """Return the error of a run that was about no host."""
    if started:
        within = f" that match {request.limit}" if request.limit else ""
        return UsageError(
            f"the inventory {request.inventory} has no hosts{within}",
            facts=said,
            hint=f"look at it: ansible-inventory -i {shell_word(request.inventory)} --graph",
        )
    return FleetFailed(
        "Ansible ended with an error before it came to a host",
        facts=said,
        hint=f"look at the inventory: ansible-inventory -i {shell_word(request.inventory)} --graph",
    )
