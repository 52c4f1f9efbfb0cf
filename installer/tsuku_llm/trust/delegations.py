"""The targets roles of one snapshot: who signs which target (TUF 1.0, section 5.6.7).

Targets may delegate paths to other roles, and these to further ones. A walk of the roles in
pre-order finds who signs a path: the first role that lists the path, if every delegation on the
way to it covers the path. A terminating delegation ends the walk after its own branch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tsuku_llm.ground.errors import BodyError, HttpStatusError, MetadataError, TsukuError
from tsuku_llm.trust.metadata import (
    NEVER,
    Copy,
    RoleState,
    named_state,
    referred,
    refusal,
    state_of,
)

if TYPE_CHECKING:
    from tuf.api.metadata import (  # type: ignore[attr-defined]  # its own re-exports
        Delegations,
        Snapshot,
        Targets,
    )

MOST_ROLES = 32
"""The most roles that targets delegates to, and in one branch; python-tuf has it for a walk."""

MOST_PATTERNS = 256
"""The most path patterns and hash prefixes of targets, and in one branch.

Each is compared with every target.
"""

MOST_TARGETS = 256
"""The most files that one branch lists: each is another file to fetch and to read."""

LARGEST_ROLE = 2_500_000
"""Bytes of a delegated role's file, as far as the snapshot says them."""

TOP = "targets"

_OWN_FOLDER = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
"""The names of roles whose own folder is read: those that a channel can have."""


@dataclass(frozen=True, slots=True)
class Target:
    """One signed target: ``length`` in bytes, ``custom`` as the publisher signed it.

    ``role`` is the role that signs it. ``branch`` is the first role on the way to it that is
    delegated by paths. It is None if targets itself signs it, or one of its hash bins, which only
    split their delegator's paths.
    """

    path: str
    length: int
    sha256: str
    custom: Any
    role: str = "targets"
    branch: str | None = None

    @property
    def name(self) -> str:
        """The target's file in a copy of the repository (TUF's hash-prefixed name)."""
        folder, slash, file = self.path.rpartition("/")
        return f"targets/{folder}{slash}{self.sha256}.{file}"


class TargetsRoles:
    """The targets roles of a snapshot; each is read and verified when a walk reaches it.

    A branch is a role that targets delegates paths to, with all that this role delegates further.
    Its keys may be an automatic signer's, or stolen. So what they sign can only take away what the
    branch itself offers: ``refused`` has the reasons. So does a file that the host withholds or
    forges; ``withheld`` has its error by the branch, for the users of that channel. ``branches``
    has the branch of each role, None for one whose trouble is everybody's.
    """

    def __init__(self, copy: Copy, snapshot: Snapshot, top: Targets) -> None:
        self._copy = copy
        self._snapshot = snapshot
        self._verified: dict[tuple[str, str], Targets | None] = {}
        self._cut: set[str] = set()
        self.roles: dict[str, Targets] = {TOP: top}
        self.refused: dict[str, str] = {}
        self.withheld: dict[str, TsukuError] = {}
        self.unread: set[str] = set()
        self.branches: dict[str, str | None] = {}

    def find(self, path: str) -> Target | None:
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
            targets = self._role(name, delegator, branch)
            if targets is None or branch in self._cut:
                # It may have listed the path, or delegated it: no later role answers for it.
                return None
            if (file := targets.targets.get(path)) is not None:
                sha256 = file.hashes["sha256"]
                return Target(path, file.length, sha256, file.custom, name, branch)
            visited.add(name)
            if targets.delegations is None:
                continue
            children: list[tuple[str, str | None, str | None]] = []
            for child, terminating in targets.delegations.get_roles_for_target(path):
                listed = targets.delegations.roles
                by_path = listed is not None and listed[child].paths is not None
                children.append((child, name, branch or (child if by_path else None)))
                if terminating:
                    # Siblings after this one, and all roles that wait further up, must not answer.
                    waiting.clear()
                    break
            # Reversed, so that the first child is taken first from the end: pre-order.
            waiting += reversed(children)
        return None

    def paths(self, sought: str) -> tuple[str, ...]:  # noqa: C901 - one walk, each limit in it
        """Read every role that may sign a target of the pattern; list the paths they name.

        The files of a branch's own folder are sought too: "nightly/b1.json" of the role "nightly".
        The order is pre-order, and each path comes once. A role may name paths that it is not
        delegated: only ``find`` says who signs a path. Raises ``MetadataError`` for a role that
        does not verify, and for too many roles or patterns of targets itself. A branch with too
        many roles, patterns or files is cut off as a whole.
        """
        # Those of targets first: what a branch delegates further must not use up the bytes that
        # all roles share before its siblings are read.
        top = self.roles[TOP].delegations
        first = [*_roles_for(top, sought, None)] if top else []
        if len(first) > MOST_ROLES:
            raise refusal(TOP, f"more than {MOST_ROLES} roles are delegated {sought}")
        for child, branch in first:
            self._role(child, TOP, branch)
        # As in ``find``: (role, its delegator, branch), with the next role at the end. A second
        # delegator is another way to a role: the first one must not hide the role from it.
        waiting: list[tuple[str, str | None, str | None]] = [(TOP, None, None)]
        visited: set[tuple[str | None, str]] = set()
        roles, patterns, files = (Counter[str | None]() for _ in range(3))
        found: list[tuple[str, str | None]] = []
        while waiting:
            name, delegator, branch = waiting.pop()
            if (delegator, name) in visited or branch in self._cut:
                continue
            visited.add((delegator, name))
            own = branch if self._is_further(delegator) else None
            roles[own] += 1
            if roles[own] > (MOST_ROLES + 1 if own is None else MOST_ROLES - 1):
                self._too_many(own, TOP, f"more than {MOST_ROLES} roles are delegated {sought}")
                continue
            targets = self._role(name, delegator, branch)
            if targets is None:
                continue
            files[branch] += len(targets.targets)
            if branch is not None and files[branch] > MOST_TARGETS:
                self._too_many(branch, name, f"it lists more than {MOST_TARGETS} files")
                continue
            found += (
                (path, branch)
                for path in targets.targets
                if matches(path, sought) or is_own_file(path, branch)
            )
            if targets.delegations is None:
                continue
            patterns[branch] += sum(
                len(role.paths or role.path_hash_prefixes or ())
                for role in (targets.delegations.roles or {}).values()
            )
            if patterns[branch] > MOST_PATTERNS:
                fact = f"it delegates by more than {MOST_PATTERNS} path patterns"
                self._too_many(branch, name, fact)
                continue
            try:
                children = [*_roles_for(targets.delegations, sought, branch)]
            except MetadataError as error:
                self._too_many(branch, name, *error.facts)
                continue
            waiting += [(child, name, its_branch) for child, its_branch in reversed(children)]
        return tuple(dict.fromkeys(path for path, branch in found if branch not in self._cut))

    def _is_further(self, delegator: str | None) -> bool:
        """Tell whether a delegation is one of a branch, and not of targets or its hash bins."""
        return delegator is not None and self.branches.get(delegator) is not None

    def _too_many(self, branch: str | None, role: str, fact: str) -> None:
        """Cut off the branch that has too much; for targets itself raise ``MetadataError``."""
        error = refusal(role, fact)
        if branch is None:
            raise error
        self._cut.add(branch)
        self.refused[branch] = ": ".join((error.message, *error.facts))

    def _role(self, name: str, delegator: str | None, branch: str | None) -> Targets | None:
        """Read a role and verify it with the keys of this delegator; None if it signs nothing.

        Another delegator may give the role other keys, so each pair is verified. Raises
        ``MetadataError``.
        """
        if delegator is None:
            return self.roles[TOP]
        if (delegator, name) not in self._verified:
            self._verified[delegator, name] = self._read(name, delegator, branch)
            # The first way counts: a branch must not claim the role of another one.
            self.branches.setdefault(name, branch)
        return self._verified[delegator, name]

    def _read(self, name: str, delegator: str, branch: str | None) -> Targets | None:
        """Read a role and verify it with the keys of this delegator; None if it signs nothing.

        A refused role of a branch signs nothing, as if it listed no path. If neither its own signer
        nor that of the branch did it, it may be the host's forgery: the branch is ``withheld``. A
        role that signs for targets itself raises ``MetadataError``.
        """
        from tuf.api.metadata import Targets  # type: ignore[attr-defined]

        about, by = self._snapshot.meta.get(f"{name}.json"), self.roles[delegator]
        state: RoleState | None = None
        try:
            if about is None:
                raise refusal(name, "it is delegated, and the snapshot does not name it")
            if branch is not None and (about.length or 0) > LARGEST_ROLE:
                self.unread.add(name)
                state = RoleState(about.version, NEVER, None)
                raise refusal(name, f"it has more than {LARGEST_ROLE:,} bytes")
            targets: Targets = referred(self._copy, by, name, about)
            state_of(targets)  # it raises for a date that cannot be understood
        except (MetadataError, BodyError, HttpStatusError) as error:
            # A host that is busy, or down, says nothing about the role.
            if branch is None or (isinstance(error, HttpStatusError) and not error.is_absence):
                raise
            if state is None and about is not None and isinstance(error, MetadataError):
                with suppress(MetadataError):  # the file is missing
                    state = named_state(self._copy, by, name, about)
            if state is None and not self._is_further(delegator):
                self.withheld.setdefault(branch, error)
            self.refused.setdefault(name, ": ".join((error.message, *error.facts)))
            if state is not None and name not in self.roles:
                self.roles[name] = Targets(state.version, expires=state.expires)
            return None
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
