"""The targets roles of one snapshot: who signs which target (TUF 1.0, section 5.6.7).

Targets may delegate paths to other roles, and these to further ones. A walk of the roles in
pre-order finds who signs a path: the first role that lists the path, if every delegation on the
way to it covers the path. A terminating delegation ends the walk after its own branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from tsuku_llm.errors import MetadataError
from tsuku_llm.trust.metadata import Copy, referred, refusal, signed_state, state_of

if TYPE_CHECKING:
    from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
        DelegatedRole,
        Delegations,
        Snapshot,
        TargetFile,
        Targets,
    )

MOST_ROLES = 32
"""The most delegated roles in one walk; python-tuf's client has the same limit."""

MOST_PATTERNS = 256
"""The most path patterns and hash prefixes of all roles: each is compared with every target."""

TOP = "targets"

_OWN_FOLDER = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
"""The names of roles whose own folder is read: those that a channel can have."""


class Found(NamedTuple):
    """A target, the role that signs it, and the branch that the role belongs to.

    ``branch`` is the name of the first role on the way that is delegated by paths. It is None
    for the targets of "targets" itself and of hash bins, which only split their delegator's
    paths.
    """

    file: TargetFile
    role: str
    branch: str | None


class TargetsRoles:
    """The targets roles of a snapshot; each is read and verified when a walk reaches it."""

    def __init__(self, copy: Copy, snapshot: Snapshot, top: Targets) -> None:
        self._copy = copy
        self._snapshot = snapshot
        self._verified: set[tuple[str, str]] = set()
        self.roles: dict[str, Targets] = {TOP: top}
        self.refused: dict[str, str] = {}

    def find(self, path: str) -> Found | None:
        """Walk the roles for one path, as python-tuf's client does.

        Raises ``MetadataError`` for a role on the way that does not verify.
        """
        # A stack of (role, its delegator, branch): the next role to visit is at the end.
        waiting: list[tuple[str, str | None, str | None]] = [(TOP, None, None)]
        visited: set[str] = set()
        while waiting and len(visited) <= MOST_ROLES:
            name, delegator, branch = waiting.pop()
            if name in visited:  # a circle, or a second way to the same role
                continue
            targets = self._role(name, delegator)
            if name in self.refused:
                # It may have listed the path, or delegated it: no later role answers for it.
                return None
            if (file := targets.targets.get(path)) is not None:
                return Found(file, name, branch)
            visited.add(name)
            if targets.delegations is None:
                continue
            children: list[tuple[str, str | None, str | None]] = []
            for child, terminating in targets.delegations.get_roles_for_target(path):
                by_path = _is_by_path(targets.delegations, child)
                children.append((child, name, branch or (child if by_path else None)))
                if terminating:
                    # Siblings after this one, and all roles that wait further up, must not answer.
                    waiting.clear()
                    break
            # Reversed, so that the first child is taken first from the end: pre-order.
            waiting += reversed(children)
        return None

    def paths(self, sought: str) -> tuple[str, ...]:
        """Read every role that may sign a target of the pattern; list the paths they name.

        The files of a branch's own folder are sought too: "nightly/b1.json" of the role "nightly".
        The order is pre-order, and each path comes once. A role may name paths that it is not
        delegated: only ``find`` says who signs a path. Raises ``MetadataError`` for a role that
        does not verify, and for too many roles or patterns.
        """
        # As in ``find``: (role, its delegator, branch), with the next role at the end.
        waiting: list[tuple[str, str | None, str | None]] = [(TOP, None, None)]
        visited: set[str] = set()
        patterns = 0
        found: dict[str, None] = {}
        while waiting:
            name, delegator, branch = waiting.pop()
            if name in visited:
                continue
            if len(visited) > MOST_ROLES:
                raise refusal(TOP, f"more than {MOST_ROLES} roles are delegated {sought}")
            targets = self._role(name, delegator)
            visited.add(name)
            found |= {
                path: None
                for path in targets.targets
                if matches(path, sought) or is_own_file(path, branch)
            }
            if targets.delegations is None:
                continue
            patterns += sum(map(_count, (targets.delegations.roles or {}).values()))
            if patterns > MOST_PATTERNS:
                raise refusal(name, f"it delegates by more than {MOST_PATTERNS} path patterns")
            children = [*_roles_for(targets.delegations, sought, branch)]
            waiting += [(child, name, its_branch) for child, its_branch in reversed(children)]
        return tuple(found)

    def _role(self, name: str, delegator: str | None) -> Targets:
        """Read a role and verify it with the keys of this delegator.

        A role that its keys signed and this program does not accept signs nothing: ``refused`` has
        the reason.

        Another delegator may give the role other keys, so each pair is verified. Raises
        ``MetadataError``.
        """
        from tuf.api.metadata import Targets  # type: ignore[attr-defined]  # noqa: PLC0415

        if delegator is None or (delegator, name) in self._verified:
            return self.roles[name]
        about = self._snapshot.meta.get(f"{name}.json")
        if about is None:
            raise refusal(name, "it is delegated, and the snapshot does not name it")
        targets: Targets
        try:
            targets = referred(self._copy, self.roles[delegator], name, about)
            state_of(targets)  # it raises for a date that cannot be understood
        except MetadataError as error:
            # What a role's own keys signed, and this program does not accept, harms only this role:
            # it signs nothing, as if it listed no path. Anything else may be the host's forgery.
            state = signed_state(self._copy, self.roles[delegator], name, about)
            if state is None:
                raise
            targets = Targets(state.version, expires=state.expires)
            self.refused[name] = ": ".join((error.message, *error.facts))
        self._verified.add((delegator, name))
        self.roles[name] = targets
        return targets


def matches(path: str, sought: str) -> bool:
    """Tell whether a path matches a pattern whose parts are names or ``*``."""
    parts, wanted = path.split("/"), sought.split("/")
    return len(parts) == len(wanted) and all(
        want in ("*", part) for part, want in zip(parts, wanted, strict=True)
    )


def is_own_file(path: str, branch: str | None) -> bool:
    """Tell whether a path is a release file of a branch's own folder, such as "nightly/b1.json"."""
    folder, _, file = path.rpartition("/")
    return folder == branch and file.endswith(".json") and bool(_OWN_FOLDER.fullmatch(folder))


def _roles_for(
    delegations: Delegations, sought: str, branch: str | None
) -> Iterator[tuple[str, str | None]]:
    """List the roles that may be delegated a sought path, each with its branch, in order.

    ``branch`` is that of the delegator. Raises ``MetadataError`` for more hash bins than a walk may
    visit.
    """
    bins = delegations.succinct_roles
    if bins is not None:
        if bins.number_of_bins > MOST_ROLES:
            raise refusal(TOP, f"{bins.number_of_bins} hash bins, and {MOST_ROLES} are the most")
        yield from ((name, branch) for name in bins.get_roles())
    for name, role in (delegations.roles or {}).items():
        # A role without paths is delegated hash prefixes: any path may have such a hash.
        if role.paths is None:
            yield name, branch
            continue
        its_branch = branch or name
        wanted = [sought]
        if _OWN_FOLDER.fullmatch(its_branch):
            wanted.append(f"{its_branch}/*")
        if any(_may_meet(pattern, each) for pattern in role.paths for each in wanted):
            yield name, its_branch


def _may_meet(pattern: str, sought: str) -> bool:
    """Tell whether a path can match both patterns; True also if that is hard to decide."""
    parts, wanted = pattern.split("/"), sought.split("/")
    return len(parts) == len(wanted) and all(
        want == "*" or fnmatchcase(want, part) for part, want in zip(parts, wanted, strict=True)
    )


def _count(role: DelegatedRole) -> int:
    return len(role.paths or role.path_hash_prefixes or ())


def _is_by_path(delegations: Delegations, role: str) -> bool:
    return delegations.roles is not None and delegations.roles[role].paths is not None
