"""What a signature would change: a plan and its release files against the published repository.

Holders read it before they sign, so it has everything that they vouch for: releases with their
variants, what these require and who built them, revocations, signers, versions and dates.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuf.api.metadata import Metadata

from tsuku_llm import trust
from tsuku_llm.foreign import parse_json
from tsuku_llm.revocations import parse
from tsuku_publish.checking import FIRST_ROOT, verify
from tsuku_publish.documents import ReleaseFile
from tsuku_publish.plan import ONLINE, TARGETS, Plan
from tsuku_publish.signing import public_key


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


@dataclass(frozen=True, slots=True)
class RoleChange:
    """The next version of a role, its last day, and what changes of its signers."""

    role: str
    before: int
    after: int
    expires: str
    threshold: tuple[int, int]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """Everything that would change; ``kept`` are the channels that stay as they are published.

    ``program`` says what self-update would install; None if that stays.
    """

    roles: tuple[RoleChange, ...]
    releases: tuple[ReleaseChange, ...]
    revoked: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    program: str | None = None

    def agrees(self, later: "Review") -> bool:
        """Tell whether a later review is the same, but for the versions of the weekly job."""
        mine, other = (
            replace(each, roles=tuple(role for role in each.roles if role.role not in ONLINE))
            for each in (self, later)
        )
        return mine == other


def review(
    plan: Plan, roles: Collection[str], files: Iterable[ReleaseFile], published: trust.Copy
) -> Review:
    """Compare what these roles of a plan would sign with what is published.

    Raises ``PublishError`` for a published repository that clients would refuse.
    """
    root = published.read(FIRST_ROOT)
    known = verify(published, root) if root is not None else None
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
    return Review(
        roles=tuple(_role_changes(plan, roles, known, published)),
        releases=tuple(_release_changes(before, after)),
        revoked=tuple(
            f"{tag}: {each.reason}"
            for tag, each in revoked.items()
            if not each.withdrawn and (tag not in was or was[tag].withdrawn)
        ),
        withdrawn=tuple(
            tag for tag, each in revoked.items() if each.withdrawn and not was[tag].withdrawn
        )
        if was
        else (),
        forgotten=tuple(tag for tag in was if tag not in revoked),
        kept=tuple(name for name in plan.delegated if name not in roles),
        program=_program_change(plan, known) if TARGETS in roles else None,
    )


def _program_change(plan: Plan, known: trust.TrustedRepository | None) -> str | None:
    before = (known.program if known else None) or {}
    if before == plan.program:
        return None
    old, new = (
        f"{each['version']} sha256:{each['sha256']}" if each else "nothing"
        for each in (before, plan.program)
    )
    return f"{new} instead of {old}"


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
    before: Mapping[str, ReviewedRelease], after: Mapping[str, ReviewedRelease]
) -> Iterator[ReleaseChange]:
    for release in sorted(before.keys() | after.keys(), key=lambda tag: (len(tag), tag)):
        old, new = before.get(release), after.get(release)
        here = new or old
        if here is None or (old and new and _same(old, new)):
            continue
        had, has = (tuple(each.entry["channels"]) if each else () for each in (old, new))
        like = old or _newest(before, here.entry["channels"])
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
        )


def _same(old: ReviewedRelease, new: ReviewedRelease) -> bool:
    return (old.sha256, [*old.entry["channels"]]) == (new.sha256, [*new.entry["channels"]])


def _newest(
    offers: Mapping[str, ReviewedRelease], channels: Collection[str]
) -> ReviewedRelease | None:
    """Return the newest release that these channels had."""
    found = [each for each in offers.values() if {*channels} & {*each.entry["channels"]}]
    return max(found, key=lambda each: int(each.entry["sequence"]), default=None)


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


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that may sign a role, and how many must."""

    keyids: tuple[str, ...] = ()
    threshold: int = field(default=0)


def _role_changes(
    plan: Plan,
    roles: Collection[str],
    known: trust.TrustedRepository | None,
    published: trust.Copy,
) -> Iterator[RoleChange]:
    had = _published_keys(known, published) if known else {}
    names = {key.keyid: name for name, key in plan.keys.items()}
    for role in (*roles, *ONLINE):
        planned = plan.roles[role]
        old = had.get(role, _Keys())
        # A role that is still to be published, and the root of a plan, may name other signers.
        keyids = [public_key(name, plan).keyid for name in planned.signers]
        version = known.roles[role].version if known and role in known.roles else 0
        change = RoleChange(
            role,
            version,
            planned.version,
            f"{planned.expires:%Y-%m-%d}",
            (old.threshold, planned.threshold),
            joined=tuple(names[each] for each in keyids if each not in old.keyids),
            left=tuple(names.get(each, each[:12]) for each in old.keyids if each not in keyids),
        )
        if change.before != change.after or change.joined or change.left:
            yield change


def _published_keys(repository: trust.TrustedRepository, published: trust.Copy) -> dict[str, _Keys]:
    found: dict[str, _Keys] = {}
    for name in ("root", TARGETS):
        data = published.read(trust.file_name(name, repository.roles[name].version))
        signed: Any = Metadata.from_bytes(data or b"").signed
        roles = signed.roles if name == "root" else {}
        if name == TARGETS and signed.delegations is not None:
            roles = signed.delegations.roles or {}
        found |= {role: _Keys(tuple(each.keyids), each.threshold) for role, each in roles.items()}
    return found
