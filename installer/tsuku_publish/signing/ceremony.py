"""The order in which holders sign: at one machine, one holder after another, or a machine alone.

Everything here runs under the lock of the data (``folder.locked``). Roles that are signed by
different people do not wait for each other: what is not signed now stays as it is published.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from tsuku_llm import trust
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_publish.errors import PublishError
from tsuku_publish.holders.keys import fingerprint
from tsuku_publish.release_files.plan import (
    ONLINE,
    PLAN_FILES,
    TARGETS,
    Plan,
    adopt_plan,
    caught_up,
    load_plan,
    raised,
    save_roles,
    with_keys,
    with_versions,
)
from tsuku_publish.release_files.releases import dated, release_files
from tsuku_publish.release_files.sightings import (
    SINCE,
    Sighting,
    parse_time,
    save_sightings,
    seen_now,
)
from tsuku_publish.repository.checking import FIRST_ROOT, first_root, verify
from tsuku_publish.repository.copies import RepositoryFolder
from tsuku_publish.repository.folder import write
from tsuku_publish.signing.signing import (
    NOTHING,
    NextState,
    Signers,
    absent,
    due_roles,
    entitled,
    lacking,
    offline_files,
    published_keys,
    renewed,
    sign,
)


def published_versions(into: Path) -> dict[str, int]:
    """Return the version of each role in a signed repository; none without one.

    Raises ``PublishError`` for one that clients would refuse.
    """
    copy = RepositoryFolder(into)
    if copy.read(FIRST_ROOT) is None:
        return {}
    return {name: state.version for name, state in verify(copy, first_root(copy)).roles.items()}


def sign_again(
    data: Path, signers: Signers, now: datetime, into: Path
) -> tuple[Plan, tuple[str, ...], tuple[str, ...]]:
    """Sign every role again whose signers are at hand, with the published content.

    What is in the data and not signed yet does not count. A root is one more step for every
    client, and they take 256: it is signed again once half of its time is over. The lock of the
    data must be held. Returns the new plan, which is also saved, the roles that were signed, and a
    line for each one that could not be. Raises ``PublishError``.
    """
    plan, published = load_plan(data), RepositoryFolder(into)
    require_own_keys(plan, signers, into)
    states = verify(published, first_root(published)).roles
    at_hand = {each.public_key.keyid for each in signers.values()}
    able, failed = list[str](), dict[str, str]()
    for role, its in published_keys(published).items():
        if role in ONLINE or role not in states:
            continue
        here = len(at_hand & its.keys.keys())
        if role not in plan.roles:
            failed[role] = "the plan has no such role"
        elif here < its.threshold:
            failed[role] = f"{here} of {its.threshold} signers at hand"
        elif role != "root" or states[role].expires - now < timedelta((its.days or 0) / 2):
            able.append(role)
    old = caught_up(plan, {name: state.version for name, state in states.items()})
    plan = raised(old, now.date(), (*able, *ONLINE))
    files, refused = renewed(plan, signers, published, able)
    plan = with_versions(plan, old, refused)
    write(into, files)
    save_roles(plan, data)
    lines = (
        f"{role} was not signed again, and is valid until {states[role].expires:%Y-%m-%d}: {why}"
        for role, why in {**failed, **refused}.items()
    )
    return plan, (*(role for role in able if role not in refused), *ONLINE), tuple(lines)


def require_able(
    state: NextState, signers: Signers, into: Path, gather: Path | None = None
) -> None:
    """Refuse a plan that the signers at hand cannot sign, without opening any of them.

    Alone they must reach every threshold; with ``gather`` it is enough that one of them may sign.
    Raises ``PublishError``.
    """
    plan, published = state.plan, RepositoryFolder(into)
    require_own_keys(plan, signers, into)
    require_not_older(state, into)
    begun = RepositoryFolder(gather) if gather else NOTHING
    # Without signers: what has a signature so far, and whether other content is in the way.
    made = offline_files(state, {}, published, begun)
    keyids = {each.public_key.keyid for each in signers.values()}
    entitling = (*state.roles, *ONLINE)
    wrong = (f"signers at hand: {', '.join(signers) or 'none'}",)
    hint = (
        "add the other files to TSUKU_LLM_SIGNERS, or let one holder sign after another with "
        "sign --gather FOLDER; rotate replaces a lost key"
    )
    if gather is not None:
        if not any(keyids & {*entitled(plan, role, published)} for role in entitling):
            told = ", ".join(signers)
            raise PublishError(f"{told} signs none of: {', '.join(entitling)}", facts=wrong)
        return
    if missing := lacking(plan, made, published, keyids):
        raise PublishError(
            f"the signers at hand are too few: {', '.join(missing)}", facts=wrong, hint=hint
        )
    versions = published_versions(into)
    for role in ONLINE:
        lacks = absent(plan, role, signers)
        if lacks and plan.roles[role].version > versions.get(role, 0):
            raise PublishError(
                f"the online signer is not at hand: {', '.join(lacks)}", facts=wrong, hint=hint
            )


def require_own_keys(plan: Plan, signers: Signers, into: Path) -> None:
    """Refuse a plan whose ``[keys]`` contradict what this holder has, or what is published.

    A name never gets another key, and the key of a published signer stays in ``[keys]`` until the
    next root is published. So another key under a known name is found, whoever wrote it there.
    Raises ``PublishError``.
    """
    for name, each in signers.items():
        planned = plan.keys.get(name)
        if planned is not None and planned.keyid != each.public_key.keyid:
            raise PublishError(
                f"{name}: its key is not the one in [keys]",
                facts=(
                    f"{name} of [keys]: {fingerprint(planned)}",
                    f"{name} at hand: {fingerprint(each.public_key)}",
                ),
                hint="another person has changed the data, or it is another signer's file",
            )
    keyids = {key.keyid for key in plan.keys.values()}
    for role, found in published_keys(RepositoryFolder(into)).items():
        for keyid, key in found.keys.items():
            if keyid not in keyids:
                raise PublishError(
                    f"[keys] lacks the key of a published signer of {role}",
                    facts=(f"published: {fingerprint(key)}",),
                    hint="another person has changed or removed its line: put it back; rotate "
                    "gives a role another signer, under a new name",
                )


def vouching(state: NextState, signers: Signers, into: Path) -> tuple[str, ...]:
    """Name the signers at hand whose signature says that somebody has read the change.

    Those of snapshot and timestamp say nothing about it: they sign what others have signed.
    """
    plan, published = state.plan, RepositoryFolder(into)
    keyids = {
        keyid
        for role in state.roles
        if published.read(trust.file_name(role, plan.roles[role].version)) is None
        for keyid in entitled(plan, role, published)
    }
    return tuple(name for name, each in signers.items() if each.public_key.keyid in keyids)


def require_not_older(state: NextState, into: Path) -> None:
    """Refuse to sign a version below the published one: that version had other content.

    The folder keeps only the newest version, so the contents cannot be compared. Raises
    ``PublishError``.
    """
    for role in state.roles:
        published, planned = _newest(into, role), state.plan.roles[role].version
        if planned < published:
            raise PublishError(
                f"{role} {planned} is planned, and {role} {published} is published already: "
                "use --raise"
            )


def next_of_channel(
    data: Path, channel: str, now: datetime, into: Path, trusted_root: Path | None
) -> NextState:
    """Return a delegated channel's next state.

    Raises ``PublishError`` if people have not signed yet that this channel has its own signers.
    """
    plan = load_plan(data)
    if channel not in plan.delegated:
        raise PublishError(f"{channel} has no signers of its own: there is no [roles.{channel}]")
    versions = published_versions(into)
    if channel not in versions:
        raise PublishError(f"{channel} is not delegated yet: the signers of targets run sign first")
    plan = raised(caught_up(plan, versions), now.date(), (channel, *ONLINE))
    files = release_files(plan, data, trusted_root, (channel,))
    digests = {file.custom["release"]: file.sha256 for file in files}
    since = seen_now(plan.since, channel, digests, now)
    plan = replace(plan, since={**plan.since, channel: since})
    return NextState(plan, (channel,), dated(plan, files))


def next_state(
    data: Path,
    into: Path,
    now: datetime,
    trusted_root: Path | None,
    gather: Path | None,
    channel: str | None,
    *,
    higher: bool,
) -> NextState:
    """Return what is to be signed next.

    The plan is the one that other holders passed on, if they have begun. Otherwise it is that of
    the data; ``higher`` gives it the next versions. Raises ``PublishError``.
    """
    plan, published = load_plan(data), RepositoryFolder(into)
    if gather and is_begun(gather, into):
        if higher:
            raise PublishError(f"{gather} has signatures already: leave out --raise")
        passed = load_plan(gather)
        roles = (channel,) if channel else due_roles(passed, published)
        plan = _taken_over(plan, passed, roles)
    elif channel:
        return next_of_channel(data, channel, now, into, trusted_root)
    elif gather and not higher and (late := _left_behind(gather, into)):
        raise PublishError(
            f"{gather} has signatures of {', '.join(late)}: newer versions are published",
            hint="fetch the published repository, and begin again: sign --raise --gather FOLDER",
        )
    elif higher:
        roles = due_roles(plan, published)
        plan = raised(caught_up(plan, published_versions(into)), now.date(), (*roles[1:], *ONLINE))
    roles = (channel,) if channel else due_roles(plan, published)
    # A holder's repository may be older than a release that another one promoted.
    places = (into,) if gather is None else (into, gather)
    return NextState(plan, roles, release_files(plan, data, trusted_root, roles, places))


def _taken_over(own: Plan, passed: Plan, signed: Collection[str]) -> Plan:
    """Return the plan that holders passed on, with our state of the channels they do not sign.

    Raises ``PublishError`` if it gives a known name another key, or a known key another name.
    """
    with_keys(own, passed.keys)
    ours = [name for name in passed.delegated if name not in signed and name in own.roles]
    dates = {name: own.roles[name] for name in ours}
    roles = {
        name: replace(passed.roles[name], version=our.version, issued=our.issued, days=our.days)
        for name, our in dates.items()
    }
    return replace(
        passed,
        signed=own.signed,
        channels={**passed.channels, **{name: own.channels[name] for name in ours}},
        roles={**passed.roles, **roles},
        since={**own.since, **{k: v for k, v in passed.since.items() if k in signed}},
    )


def sign_alone(state: NextState, signers: Signers, data: Path, into: Path) -> str:
    """Write the next state with the signers at hand, and save its plan; return a line about it.

    The lock of the data must be held. Raises ``PublishError``.
    """
    require_not_older(state, into)
    line = _write(state, signers, into, NOTHING)
    if state.plan != load_plan(data):
        save_roles(state.plan, data)
    _record_since(data, state)
    return line


def sign_in_turn(
    state: NextState, signers: Signers, data: Path, into: Path, gathered: Path, now: datetime
) -> tuple[Plan, list[str]]:
    """Add the signatures of the signers at hand to those gathered in a folder.

    The first holder also puts the plan there, and the others take it from there. The last one
    writes the repository: when no threshold lacks a signature and the online signer is at hand.
    The lock of the data must be held. Returns the plan, and lines that say what is done, or what
    still lacks. Raises ``PublishError``.
    """
    # First of all: no file may be written if the plan is older than what is published.
    require_not_older(state, into)
    plan, published, begun = state.plan, RepositoryFolder(into), RepositoryFolder(gathered)
    first = not is_begun(gathered, into)
    files = offline_files(state, signers, published, begun)
    # The release files go along: a holder may not have those that a channel's signer made.
    files |= {each.name: each.data for each in state.files}
    for name, content in files.items():
        make_folder((gathered / name).parent)
        replace_file(gathered / name, content)
    if first:
        for name, content in plan.sources.items():
            replace_file(gathered / name, content)
        save_roles(plan, gathered)
        save_sightings(gathered / SINCE, plan.since)
    if missing := lacking(plan, files, published):
        return plan, missing
    if not set(plan.roles["timestamp"].signers) <= signers.keys():
        return plan, ["every threshold is reached: it is the online signer's turn"]
    if any(published.read(name) != content for name, content in files.items()):
        # The weekly job may have signed since the first holder: its versions are taken.
        versions = published_versions(into)
        taken = [role for role in ONLINE if plan.roles[role].version <= versions.get(role, 0)]
        plan = raised(caught_up(plan, versions), now.date(), taken)
    state = replace(state, plan=plan)
    line = _write(state, signers, into, begun)
    adopt_plan(plan, data, state.roles)
    _record_since(data, state)
    return plan, [line]


def _write(state: NextState, signers: Signers, into: Path, begun: trust.Copy) -> str:
    files = sign(state, signers, RepositoryFolder(into), begun)
    write(into, files)
    return f"{into}: {len(files)} files, signed and checked"


def _record_since(data: Path, state: NextState) -> None:
    """Keep what delegated channels state in the release files: since when they have each."""
    stated = {
        role: {
            each.custom["release"]: Sighting(each.sha256, parse_time(each.custom["since"]))
            for each in state.files
            if each.role == role
        }
        for role in dict.fromkeys(each.role for each in state.files if each.role != TARGETS)
    }
    if stated:
        save_sightings(data / SINCE, {**state.plan.since, **stated})


def is_begun(gathered: Path, into: Path) -> bool:
    """Tell whether a folder has signatures of versions that are not published yet."""
    if not (gathered / PLAN_FILES[0]).exists():
        return False
    roles = ("root", TARGETS, *load_plan(gathered).delegated)
    return any(_newest(gathered, role) > _newest(into, role) for role in roles)


def _left_behind(gathered: Path, into: Path) -> list[str]:
    """Return the versions in a folder that were published without its signatures, or not at all.

    A holder with an old copy began there: nothing that is signed from now on uses them.
    """
    found = ((role, _newest(gathered, role)) for role in ("root", TARGETS))
    return [f"{role} {number}" for role, number in found if 0 < number < _newest(into, role)]


def _newest(folder: Path, role: str) -> int:
    """Return the newest version of a role's files in a folder; 0 without any."""
    names = (path.name.partition(".")[0] for path in folder.glob(f"metadata/*.{role}.json"))
    return max((int(name) for name in names if name.isdecimal()), default=0)
