"""The build of one version: reuse, download, unpack, try the server, commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import chain
from typing import Any

from tsuku_llm import __version__, fetch
from tsuku_llm.archive.composing import join, join_listed, needed_artifacts
from tsuku_llm.archive.formats.member import Budget
from tsuku_llm.archive.placing import Aside, as_it_is, place
from tsuku_llm.archive.unpack import in_order, unpack
from tsuku_llm.archive.writing import THREADS
from tsuku_llm.catalog.manifest import Artifact, Variant
from tsuku_llm.choose.fitting import has_machine_code, usable_gpus
from tsuku_llm.choose.selection import Candidate
from tsuku_llm.fetch.http.urls import file_name
from tsuku_llm.ground import clock
from tsuku_llm.ground.disk import require_space
from tsuku_llm.ground.errors import DigestMismatch, TrustError
from tsuku_llm.ground.files import drop_tree
from tsuku_llm.ground.foreign import parse_object
from tsuku_llm.ground.ownership import check_path
from tsuku_llm.ground.tree_entry import TreeEntry, split_entries
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
from tsuku_llm.launch.plan.planning import Build
from tsuku_llm.machine.backends import facts_of
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.steps.choosing.choice import Choice, version_of
from tsuku_llm.steps.choosing.passing_over import PassedOver, texts
from tsuku_llm.steps.choosing.temporary import hiding
from tsuku_llm.steps.install.downloads import require_consent, reuse_files, space_of, verify_reused
from tsuku_llm.steps.install.trial import try_build
from tsuku_llm.steps.session import Session, network_for
from tsuku_llm.store.records.installed import Installed
from tsuku_llm.store.records.receipt import ArtifactRecord, PartRecord, Receipt, reinstall_command
from tsuku_llm.store.staging import Staging
from tsuku_llm.store.store import Store


class VersionBuilder:
    """The build of one candidate; it is used once, under the lock of the version's ``id``.

    ``reasons`` says of each other variant why it was not taken; the receipt keeps that. With
    ``repair``, receipts tell no content of archives: only what is signed counts.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        choice: Choice,
        candidate: Candidate,
        reasons: tuple[PassedOver, ...],
        *,
        repair: bool = False,
    ) -> None:
        self.session = session
        self.store = store
        self.choice = choice
        self.candidate = candidate
        self.reasons = reasons
        self.repair = repair
        self.id = version_of(choice.release.release, candidate.variant)
        # What the steps find out, for the receipt: the contents of the tree by path, the sizes of
        # the downloads and the contents of unlisted archives by digest, and the server's path in
        # the tree.
        self._contents: dict[str, TreeEntry] = {}
        self._sizes: dict[str, int] = {}
        self._unlisted: dict[str, tuple[TreeEntry, ...]] = {}
        self._server = candidate.variant.server

    def build(self) -> Installed:
        """Fill a staged tree, try its server, and commit it.

        Raises ``GateFailed`` if the server does not run or compute here, ``UnsafeLocation`` if
        another user could have replaced it, and the errors of ``fetch``, ``archive`` and ``store``.
        """
        store, variant, gpu = self.store, self.candidate.variant, self.candidate.gpu
        # Two variants may share an archive, and the first process to unpack it removes it. So each
        # archive's lock is held until the commit. Sorted, so that two processes never wait for each
        # other.
        digests = sorted({artifact.sha256 for artifact in variant.artifacts})
        try:
            with ExitStack() as locks:
                # A process that installs another variant waits here if it needs the same archive.
                for digest in digests:
                    locks.enter_context(store.lock(digest))
                store.sweep()  # a killed process may have left a staging folder
                with store.staging() as staging:
                    self._fill(staging)
                    self._say("checking", variant.artifacts)
                    # Again, as unpacking takes time: never run another user's file.
                    check_path(staging.tree)
                    release, repository = self.choice.release.release, self.choice.repository
                    again = reinstall_command(release, variant.name, repository)
                    trial = try_build(
                        self.session,
                        Build(
                            staging.tree, self._server, variant.backend, variant.arguments, again
                        ),
                        staging.unpacked,
                        lambda report: report.device,
                        expected=gpu.name if gpu else None,
                        on_slow=lambda: self._say("computing with", variant.artifacts[:1]),
                    )
                    # The rename in here is the commit: before it no other process sees the version.
                    return store.commit(staging, trial.noted(self._receipt(trial.device)))
        except TrustError as error:
            if not isinstance(error, DigestMismatch):  # a DigestMismatch keeps the correct pieces
                store.drop_downloads(digests)  # signed like this: another download is refused, too
            raise
        finally:
            self.session.user.progress.finish()

    def _say(self, what: str, artifacts: Sequence[Artifact]) -> None:
        for artifact in artifacts:
            self.session.user.progress.stage(file_name(artifact.url), what)

    def _fill(self, staging: Staging) -> None:
        """Link what other versions have into the staged tree; download and unpack the rest."""
        store, variant = self.store, self.candidate.variant
        # With what the tree will have of each archive: of a second build it is only a part.
        pairs = needed_artifacts(variant)
        needed = waiting = tuple(whole for whole, _ in pairs)
        kept = {whole.sha256: part for whole, part in pairs}
        # The archives of a second build are unpacked beside the tree, and join it at the end.
        of_first = {each.sha256 for each in variant.parts[0].artifacts} if variant.parts else kept
        # Reuse. ``linked`` are archives whose files other versions have; they need no download.
        linked = reuse_files(store, staging, pairs, receipts=not self.repair)
        aside: list[Aside] = []
        while waiting:
            # First round: download what is not linked. Second round: download what was linked but
            # has changed since it was installed.
            found = {each.artifact.sha256 for each in linked}
            missing = [artifact for artifact in waiting if artifact.sha256 not in found]
            with self._download(missing) as arrivals:
                # This hashes the linked files while other threads download.
                right = verify_reused(staging, linked)
                self._say("unpacking", missing)
                # One archive after the other: they fill the same folder.
                brought = [
                    _unpack(
                        arrival, artifact, staging, arrivals, joins=artifact.sha256 not in of_first
                    )
                    for artifact, arrival in zip(missing, arrivals, strict=True)
                ]
            # Here every archive is verified as a whole.
            brought += right
            aside += [each for each in brought if each.folder != staging.tree]
            listed = (each.items for each in brought if each.folder == staging.tree)
            self._contents |= {item.path: item for item in chain(*listed)}
            self._sizes |= {a.sha256: b.size() for a, b in zip(missing, arrivals, strict=True)}
            # Archives whose linked files were wrong; without any, the loop ends.
            wrong = found - {each.artifact.sha256 for each in right}
            waiting = tuple(each for each in needed if each.sha256 in wrong)
            linked = ()
        self._unlisted = {
            each.artifact.sha256: each.items for each in aside if each.artifact.files is None
        }
        # Archives without a signed list of files were unpacked aside. Now that all of them are
        # there, move their files into the tree.
        if loose := [each for each in aside if each.artifact.sha256 in of_first]:
            self._server, placed = place(loose, staging.tree, self._server, self._contents)
            self._contents |= {item.path: item for item in placed}
        if joining := [each for each in aside if each.artifact.sha256 not in of_first]:
            parts = [kept[each.artifact.sha256] for each in joining]
            if all(part.files is not None for part in parts):
                joined = join_listed(joining, parts, staging.tree)
            else:
                joined = join(variant, joining, staging.tree, self._server, self._contents)
            self._contents |= {item.path: item for item in joined}
        if aside:
            # What is left are empty folders, duplicates, and what a second build does not add.
            drop_tree(staging.unpacked)

    @contextmanager
    def _download(self, artifacts: Sequence[Artifact]) -> Iterator[list[fetch.VerifiedStream]]:
        """Download archives in parallel for the block; each can be unpacked while it arrives.

        Only verified bytes can be read. At the end of the block every archive is verified as a
        whole.
        """
        if not artifacts:
            yield []
            return
        session, partials = self.session, self.store.partials
        space = space_of(artifacts, [fetch.present(artifact, partials) for artifact in artifacts])
        # Here it is known what is really downloaded: without what other versions have, or an
        # earlier run left.
        require_consent(session, self.choice, self.candidate, space.left)
        # Check now: otherwise a full disk would show only at the end of a long download.
        require_space(session.paths.data, space.needed, space.facts)
        with (
            network_for(session) as network,
            fetch.delivered(artifacts, partials, network, session.user.progress) as arrivals,
        ):
            yield arrivals

    def _receipt(self, device: str | None) -> Receipt:
        choice, release, variant = self.choice, self.choice.release, self.candidate.variant
        contents = self._contents.values()
        artifacts: list[ArtifactRecord] = []
        for each in variant.artifacts:
            # An archive that was not downloaded has the size in the manifest, if any.
            size = self._sizes.get(each.sha256) or each.size or 0
            inside = split_entries(self._unlisted.get(each.sha256, ()))
            artifacts.append(ArtifactRecord(each.url, each.sha256, size, *inside))
        files, links = split_entries(contents)
        return Receipt(
            id=self.id,
            release=release.release,
            sequence=choice.sequence,
            version=release.version,
            channel=choice.channel,
            repository=choice.repository,
            publisher=release.publisher,
            variant=variant.name,
            backend=variant.backend,
            server=self._server,
            arguments=variant.arguments,
            device=device,
            requested=choice.selection.requested,
            detected=choice.selection.detected,
            line=choice.line(self.candidate),
            reasons=texts(self.reasons),
            hardware=hardware_facts(choice.hardware, variant),
            artifacts=tuple(artifacts),
            files=files,
            links=links,
            installed_at=clock.stamp(self.session.machine.now),
            tsuku_llm=__version__,
            unattested=release.unattested,
            hidden_by=hiding(self.session.machine.environ),
            drivers=choice_digest(driver_fingerprint(self.session.machine.environ)),
            parts=tuple(
                PartRecord(part.name, part.backend, tuple(each.sha256 for each in part.artifacts))
                for part in variant.parts
            ),
        )


_JOINING = "joining"
"""The folder aside for a second build's archives with signed lists: no digest has this name."""


def _unpack(
    arrival: fetch.VerifiedStream,
    artifact: Artifact,
    staging: Staging,
    arrivals: Sequence[fetch.VerifiedStream],
    *,
    joins: bool,
) -> Aside:
    """Unpack one of the ``arrivals``: into the tree if its list of files is signed, else aside.

    An archive that ``joins`` the tree of another build is always unpacked aside.
    """
    folder, wanted = staging.unpacked / _JOINING if joins else staging.tree, artifact
    if artifact.files is None:
        # The layout is not known: never let such an archive write into the tree.
        folder = staging.unpacked / artifact.sha256
        wanted = as_it_is(artifact)
    threads = 1
    if not in_order(artifact):
        # A zip and a wheel have their list of members at the end: wait for it.
        arrival.wait()
        # While another archive still arrives, its connections need the processor, too.
        threads = THREADS if all(each.there for each in arrivals) else 1
    budget = Budget.of(artifact, arrival.size())
    with arrival.file() as file:
        items = unpack(file, wanted, folder, budget, threads)
    return Aside(artifact, folder, items)


def hardware_facts(hardware: Hardware, variant: Variant | None = None) -> dict[str, Any]:
    """Return the machine as the receipt keeps it: conclusions without the evidence.

    ``unusable`` marks each device of the variant's own interfaces that it has no code for: its
    server lists that one, too, and ends when it computes there. ``machine_code`` marks each one
    for which no part of the variant is compiled by the driver.
    """
    facts = asdict(hardware)
    parts = variant.signed if variant else ()
    apis = {facts_of(part.backend).api for part in parts}
    usable = {gpu for part in parts for gpu in usable_gpus(part, hardware)}
    for api, found in zip(facts["apis"], hardware.apis, strict=True):
        del api["evidence"]
        if found.name in apis:
            for gpu, each in zip(api["gpus"], found.gpus, strict=True):
                if each not in usable:
                    gpu["unusable"] = True
                elif all(has_machine_code(part, each) for part in parts):
                    gpu["machine_code"] = True
    plain: dict[str, Any] = parse_object(json.dumps(facts), ours=True)
    return plain
