"""What a signature would change: a plan and its release files against the published repository.

Holders read it before they sign, so it has everything that they vouch for: releases with their
variants, what these require and who built them, revocations, signers, versions and dates.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tsuku_llm import trust
from tsuku_llm.catalog.revocations import Revocation, parse
from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.holders.keys import fingerprint
from tsuku_publish.release_files.plan import ONLINE, TARGETS, Plan, RolePlan
from tsuku_publish.release_files.revoked import revoked_twins
from tsuku_publish.repository.checking import FIRST_ROOT, verify
from tsuku_publish.signing.signing import (
    NextState,
    SigningRole,
    content,
    public_key,
    published_keys,
)


@dataclass(frozen=True, slots=True)
class ReviewedRelease:
    """A release as users get it: the role that signs it, its entry, digest and release file."""

    role: str
    sha256: str
    entry: Mapping[str, Any]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReleaseChange:
    """What changes for one release.

    ``alarming`` are lines for what a published release never changes by itself: its archives, their
    addresses, arguments, words to users; and for builds that are revoked under another name.
    ``change`` is new, promoted, moved, changed or gone. ``before`` and ``after`` are its channels.
    A new release is compared with ``compared_with``, the newest that its channel had.
    ``unattested`` says why its builder is not proven, ``unmeasured`` why its archives were not
    read, ``because`` why a promotion did not wait.
    """

    release: str
    change: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    publisher: str
    unattested: str | None
    unmeasured: str | None
    bytes: int
    compared_with: str | None = None
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    because: str | None = None
    hosts: tuple[str, ...] = ()
    alarming: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoleChange:
    """The next version of a role, the day on which it expires, and the changes of its signers.

    ``before`` and ``after`` are the same for a channel of which only the signers change. ``joined``
    and ``left`` name each signer with the full fingerprint of the key. ``alarming`` are lines for a
    change that gives somebody more power: other keys, fewer signatures, more paths, a longer life.
    """

    role: str
    before: int
    after: int
    expires: str
    threshold: tuple[int, int]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    alarming: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """Everything that would change; ``kept`` are the channels that stay as they are published.

    ``program`` says what self-update would install; None if that stays.
    ``digests`` are the SHA-256 of the very bytes that the signers of each role would sign, and of
    each release file. They cover all that is shown, and all that is not.
    """

    roles: tuple[RoleChange, ...]
    releases: tuple[ReleaseChange, ...]
    revoked: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    program: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def alarms(self) -> int:
        """How many lines are shown in red."""
        changes: tuple[RoleChange | ReleaseChange, ...] = (*self.roles, *self.releases)
        return sum(len(each.alarming) for each in changes)

    def agrees(self, later: "Review") -> bool:
        """Tell whether a later review is the same, but for the versions of the weekly job."""
        mine, other = (
            replace(each, roles=tuple(role for role in each.roles if role.role not in ONLINE))
            for each in (self, later)
        )
        return mine == other


def review(state: NextState, published: trust.Copy) -> Review:
    """Compare what would be signed with what is published.

    Raises ``PublishError`` for a published repository that clients would refuse.
    """
    root = published.read(FIRST_ROOT)
    known = verify(published, root) if root is not None else None
    plan, roles, files = state.plan, state.roles, state.files
    before = dict(_offers(known, published)) if known else {}
    after: dict[str, ReviewedRelease] = {}
    # The first role that lists a release signs it: targets, and then the channels in their order.
    for file in files:
        document = parse_json(file.data)
        after.setdefault(
            document["release"], ReviewedRelease(file.role, file.sha256, file.custom, document)
        )
    for release, offer in before.items():
        if offer.role not in roles and (offer.role in plan.delegated or TARGETS not in roles):
            after.setdefault(release, offer)
    revoked = {each.release: each for each in plan.revoked}
    if TARGETS not in roles:
        revoked = {each.release: each for each in parse("", known.revoked)} if known else {}
    was = {each.release: each for each in parse("", known.revoked)} if known else {}
    in_force = [each for each in revoked.values() if not each.withdrawn]
    return Review(
        roles=tuple(_role_changes(plan, roles, known, published)),
        releases=tuple(_release_changes(before, after, in_force)),
        revoked=tuple(
            f"{each.release}: {each.reason}{_twins(each, after)}"
            for each in in_force
            if each != was.get(each.release)
        ),
        withdrawn=tuple(
            tag for tag, each in revoked.items() if each.withdrawn and not was[tag].withdrawn
        )
        if was
        else (),
        forgotten=tuple(tag for tag in was if tag not in revoked),
        kept=tuple(name for name in plan.delegated if name not in roles),
        program=_program_change(plan, known) if TARGETS in roles else None,
        digests={
            **{role: _sha256(content(state, role)) for role in roles},
            **{each.path: each.sha256 for each in files},
        },
    )


def _program_change(plan: Plan, known: trust.TrustedRepository | None) -> str | None:
    before = (known.program if known else None) or {}
    if before == plan.program:
        return None

    def told(program: Mapping[str, Any]) -> str:
        if not program:
            return "nothing"
        digests = {program["version"]: program["sha256"]}
        digests |= dict(sorted(program.get("archives", {}).items()))
        return " ".join(f"{name} sha256:{digest}" for name, digest in digests.items())

    return f"{told(plan.program)} instead of {told(before)}"


def _twins(revoked: Revocation, after: Mapping[str, ReviewedRelease]) -> str:
    """Name the other releases whose builds an entry revokes: it lists digests, of any archive."""
    others = [tag for tag, each in after.items() if [*revoked_twins(each.document, [revoked])]]
    return f"; clients then refuse the builds of {', '.join(others)}, too" if others else ""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _offers(
    repository: trust.TrustedRepository, copy: trust.Copy
) -> Iterator[tuple[str, ReviewedRelease]]:
    """Yield each release of a verified repository, by its name."""
    for target in repository.targets.values():
        document = parse_json(copy.read(target.name) or b"{}")
        yield (
            target.custom["release"],
            ReviewedRelease(target.role, target.sha256, target.custom, document),
        )


def _release_changes(
    before: Mapping[str, ReviewedRelease],
    after: Mapping[str, ReviewedRelease],
    revoked: Collection[Revocation],
) -> Iterator[ReleaseChange]:
    for release in sorted(before.keys() | after.keys(), key=lambda tag: (len(tag), tag)):
        old, new = before.get(release), after.get(release)
        here = new or old
        if here is None or (old and new and _same(old, new)):
            continue
        had, has = (tuple(each.entry["channels"]) if each else () for each in (old, new))
        channels = {*here.entry["channels"]}
        others = [each for each in before.values() if channels & {*each.entry["channels"]}]
        newest = max(others, key=lambda each: int(each.entry["sequence"]), default=None)
        like = old or newest
        promoted = new.entry.get("promoted") if new else None
        if not new:
            change = "gone"
        elif promoted and not (old and old.entry.get("promoted")):
            change = "promoted"
        elif not old:
            change = "new"
        else:
            change = "moved" if had != has else "changed"
        then, now = (_variants(each.document if each else {}) for each in (like, new))
        yield ReleaseChange(
            release,
            change,
            had,
            has,
            publisher=here.document["publisher"],
            unattested=here.document.get("unattested"),
            unmeasured=here.document.get("unmeasured"),
            bytes=_bytes(here.document),
            compared_with=like.entry["release"] if like and not old else None,
            gained=tuple(name for name in now if name not in then) if new and like else (),
            lost=tuple(name for name in then if name not in now) if new else (),
            requires=tuple(_required(then, now)) if new else (),
            because=promoted.get("because") if promoted else None,
            hosts=_hosts(here.document),
            alarming=(
                *(_edits(old, new) if old and new else ()),
                *(_new_hosts(like, new) if new and like else ()),
                *(_revoked_builds(new.document, revoked) if new else ()),
            ),
        )


def _same(old: ReviewedRelease, new: ReviewedRelease) -> bool:
    # A channel's signer states the time of each signature again.
    entries = [{**each.entry, "since": None} for each in (old, new)]
    return old.sha256 == new.sha256 and entries[0] == entries[1]


_OF_ARCHIVES = frozenset({"url", "sha256", "size", "format", "root"})
_LONGEST = 300
"""Characters of a value that is shown as it is, such as an address."""


def _edits(old: ReviewedRelease, new: ReviewedRelease) -> Iterator[str]:
    """Yield a line for each field of a published release that gets another value.

    What variants require is shown with them, and what moves between channels with the release.
    """
    then, now = (
        _leaves(each.document)
        | _leaves({name: each.entry[name] for name in each.entry.keys() - _SHOWN}, "entry")
        for each in (old, new)
    )
    for place in dict.fromkeys((*then, *now)):
        before, after = then.get(place), now.get(place)
        if before == after or " requires" in place or place == "revoked":
            continue
        archive = " artifacts " in place and place.rpartition(" ")[2] in _OF_ARCHIVES
        word = "ARCHIVE CHANGED" if archive else "CHANGED"
        yield f"{word}: {place}: {_shown(before)} -> {_shown(after)}"


_SHOWN = frozenset({"channels", "since", "promoted"})
"""Fields of an entry that a review shows in its own words."""


def _shown(value: object) -> str:
    """Return a value as text; letters of other scripts, which may look like others, as escapes."""
    plain = value is None or (isinstance(value, str) and value.isascii())
    return _text(value) if plain else json.dumps(value)


def _leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Return every single value of a document by its place, and a digest for a long one."""
    if isinstance(value, Mapping):
        inner = [_leaves(each, f"{place} {name}".strip()) for name, each in value.items()]
    elif isinstance(value, list) and place.endswith(" artifacts"):
        inner = [_leaves(each, f"{place} {number}") for number, each in enumerate(value, 1)]
    else:
        text = json.dumps(value)
        return {place: value if len(text) <= _LONGEST else f"sha256 {_sha256(text.encode())}"}
    return {name: leaf for leaves in inner for name, leaf in leaves.items()}


def _hosts(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where the archives of a release are: hosts, or "pkg:pypi" for the package index."""
    found = {
        (artifact["url"].partition("://")[2] or artifact["url"]).partition("/")[0]
        for variant in _variants(document).values()
        for artifact in variant["artifacts"]
    }
    return tuple(sorted(found))


def _new_hosts(like: ReviewedRelease, new: ReviewedRelease) -> Iterator[str]:
    known = _hosts(like.document)
    for host in _hosts(new.document):
        if host not in known:
            yield f"NEW HOST: archives on {_shown(host)}; before: {', '.join(map(_shown, known))}"


def _revoked_builds(document: Mapping[str, Any], revoked: Collection[Revocation]) -> Iterator[str]:
    """Yield a line for each other revoked release that has a build of this one."""
    for each in revoked_twins(document, revoked):
        yield (
            f"REVOKED BUILDS: it has builds of {each.release}, which is revoked "
            f"({each.reason}): clients refuse them under every name"
        )


def _variants(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {
        f"{platform} {name}": variant
        for platform, entry in document.get("platforms", {}).items()
        for name, variant in entry["variants"].items()
    }


def _required(
    then: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield each requirement that differs in a variant that both have."""
    for name, variant in now.items():
        if name not in then:
            continue
        old, new = then[name]["requires"], variant["requires"]
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                yield f"{name}: {key} {_text(old.get(key))} -> {_text(new.get(key))}"


def _text(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _bytes(document: Mapping[str, Any]) -> int:
    """Return the bytes of all archives of a release; each counts once."""
    sizes = {
        artifact["sha256"]: artifact.get("size") or 0
        for variant in _variants(document).values()
        for artifact in variant["artifacts"]
    }
    return sum(sizes.values())


# --- who signs -----------------------------------------------------------------------------


def _role_changes(
    plan: Plan,
    roles: Collection[str],
    known: trust.TrustedRepository | None,
    published: trust.Copy,
) -> Iterator[RoleChange]:
    had = published_keys(published) if known else {}
    names = {key.keyid: name for name, key in plan.keys.items()}
    # Targets say who signs a channel, also of one whose own metadata stay as they are.
    delegated = plan.delegated if TARGETS in roles else ()
    for role in dict.fromkeys((*roles, *ONLINE, *delegated)):
        planned, signs = plan.roles[role], role in roles or role in ONLINE
        old = had.get(role, SigningRole({}, 0))
        # A role that is still to be published, and the root of a plan, may name other signers.
        keys = {key.keyid: key for key in (public_key(name, plan) for name in planned.signers)}
        version = known.versions.get(role, 0) if known else 0
        if known and role in known.roles:
            version = known.roles[role].version
        joined = [
            f"{names[keyid]} ({fingerprint(key)})"
            for keyid, key in keys.items()
            if keyid not in old.keys
        ]
        left = [
            f"{names.get(keyid, keyid)} ({fingerprint(key)})"
            for keyid, key in old.keys.items()
            if keyid not in keys
        ]
        change = RoleChange(
            role,
            version,
            planned.version if signs else version,
            f"{planned.expires:%Y-%m-%d}",
            (old.threshold, planned.threshold),
            joined=tuple(joined),
            left=tuple(left),
            alarming=tuple(_gains(role, old, planned, changed=bool(joined or left))),
        )
        if change.before != change.after or change.joined or change.left or change.alarming:
            yield change
    for role in sorted(had.keys() - plan.roles.keys()) if TARGETS in roles else ():
        version = known.versions.get(role, 0) if known else 0
        gone = f"GONE: {role} has no signers of its own any more"
        yield RoleChange(role, version, version, "", (had[role].threshold, 0), alarming=(gone,))


def _gains(role: str, old: SigningRole, planned: RolePlan, *, changed: bool) -> Iterator[str]:
    """Yield a line for each change of a role that gives somebody more power."""
    if old.keys and changed:
        yield f"KEY CHANGED: other keys would sign {role}; ask each new holder by another way"
    if planned.threshold < old.threshold:
        yield f"FEWER SIGNATURES: {planned.threshold} instead of {old.threshold} for {role}"
    if old.keys and planned.paths != old.paths:
        was, now = json.dumps([*old.paths]), json.dumps([*planned.paths])
        yield f"PATHS CHANGED: {role} may sign {now} instead of {was}"
    days = planned.days
    if old.days is not None and days > old.days:
        yield f"LONGER LIFE: a signature of {role} holds for {days} days instead of {old.days}"
