"""Upstream's build attestations, verified offline with sigstore-python.

Since August 2026 upstream's build service signs which workflow of which repository built which
files (SLSA provenance in Sigstore bundles). The bundles of a release are stored in
``facts/attestations/<tag>.jsonl`` and verified whenever its release file is made.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tsuku_llm.fetch import Network
from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.foreign import parse_json
from tsuku_publish.errors import PublishError, content_of, reading
from tsuku_publish.upstream.classify import Rules, classify
from tsuku_publish.upstream.facts import Facts, UpstreamRelease, release_of
from tsuku_publish.upstream.hosting import HostingService
from tsuku_publish.upstream.source.facts import sources_for

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, UnrecognizedExtension
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

_PREDICATE = "https://slsa.dev/provenance/v1"
_STATEMENT = "https://in-toto.io/Statement/v1"
_ENVELOPE = "application/vnd.in-toto+json"
_RUNNER = "github-hosted"
_ENOUGH = 2
"""Files without an attestation, after which no more are asked for."""


def identities(tag: str, rules: Rules) -> tuple[tuple[str, str], ...]:
    """Return the workflows, each with a ref, that may attest a release.

    They and their branches come from upstream's sources. For a ``workflow_run`` the certificate has
    the commit of the publishing run, which may be newer than the tag's: commits are only compared
    with one another.

    A run on a tag does not count. Up to b11349 a person can start ``release.yml`` on a tag "bN",
    and its release is "bN", too, if the tag has N commits (``.github/actions/get-tag-name``). But
    that run executes the workflow of the tagged commit, which can be on any branch. Since b11393
    the workflow starts on a branch alone. No release of a tag's run is known; it waits for people.

    Raises ``PublishError`` if no source was read.
    """
    found = []
    for source in sources_for(tag, rules.sources):
        told = source.publishing.get("branches")
        branches = told.value if told and isinstance(told.value, tuple) else ()
        path = str(source.publishing["workflow"].value)
        found += [(path, f"refs/heads/{branch}") for branch in branches]
    if not found:
        raise PublishError(
            "no source of upstream says which workflow attests its releases",
            hint="read one: upstream SOURCE --record",
        )
    return tuple(dict.fromkeys(found))


def prove(
    data: Path,
    rules: Rules,
    environ: Mapping[str, str],
    tag: str,
    files: Sequence[bytes],
    trusted_root: Path | None,
) -> int:
    """Verify and record the proofs of a release; return how many archives they prove.

    ``files`` hold bundles; without any, the hosting service is asked, archive by archive. Nothing
    is written unless every archive is proven. Raises ``PublishError``.
    """
    facts = Facts(data / "facts")
    release = release_of(facts.releases(), tag)
    with reading(data / "rules.toml"):
        digests = _digests(release, rules)
    bundles = [bundle for content in files for bundle in bundles_in(content)]
    if not files:
        with Network(environ) as network:
            service = HostingService(rules.api, environ, network)
            bundles = published_bundles(service, tag, digests)
    used = verified(tag, digests, bundles, rules, load_root(trusted_root))
    # Only now: everything is verified.
    store(data, tag, used)
    facts.excuse(tag, "unattested", None)
    facts.save()
    return len(digests)


def excuse(data: Path, tag: str, reason: str) -> None:
    """Record why a release's origin is not proven; its release file will say so."""
    facts = Facts(data / "facts")
    release_of(facts.releases(), tag)
    store(data, tag, [])
    facts.excuse(tag, "unattested", reason)
    facts.save()


def check_origin(
    release: UpstreamRelease, rules: Rules, data: Path, trusted_root: Path | None
) -> None:
    """Verify the recorded proofs of a release, unless it is excused. Raises ``PublishError``."""
    if release.unattested:
        return
    bundles = stored(data, release.tag)
    if not bundles:
        raise PublishError(f"{release.tag}: no attestation is recorded; run: attest {release.tag}")
    root = load_root(trusted_root)
    verified(release.tag, _digests(release, rules), bundles, rules, root)


def published_bundles(
    service: HostingService, tag: str, digests: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the bundles that the hosting service has of these files (name → SHA-256), each once.

    One bundle names all files of a job, so only files are asked for that no bundle names so far.
    Two files without any are enough to know that a release is not attested, or not yet. Files
    without the tag in their name come last: older releases have them, too, and their bundles.
    Raises ``PublishError``.
    """
    found: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    without = 0
    for name in sorted(digests, key=lambda name: tag not in name):
        if digests[name] in named:
            continue
        answer = service.attestations(digests[name])
        bundles = bundles_in(answer) if answer else []
        without += not bundles
        if without == _ENOUGH:
            break
        for bundle in bundles:
            found.setdefault(json.dumps(bundle, sort_keys=True), bundle)
            named |= _claimed(bundle)
    return [*found.values()]


def _claimed(bundle: Mapping[str, Any]) -> set[str]:
    """Return the digests that a bundle says to name; ``verified`` finds out whether it is true."""
    try:
        statement = parse_json(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        return {str(each["digest"]["sha256"]) for each in statement["subject"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return set()


def _digests(release: UpstreamRelease, rules: Rules) -> dict[str, str]:
    """Return the archives that its release file will name: file name → SHA-256."""
    builds = classify(release, rules)
    return {asset.name: asset.sha256 for build in builds for asset in build.artifacts}


def load_root(path: Path | None) -> "TrustedRoot":
    """Return Sigstore's trusted root from a file, or the one of sigstore-python, without network.

    Raises ``PublishError``.
    """
    from sigstore.models import ClientTrustConfig, TrustedRoot

    if path is None:
        return ClientTrustConfig.production(offline=True).trusted_root
    try:
        return TrustedRoot.from_file(str(path))
    except Exception as error:  # on a file of another kind its parser may raise any exception
        raise PublishError(f"{path} is no trusted root of Sigstore: {error}") from error


def bundles_in(data: bytes) -> list[dict[str, Any]]:
    """Return the bundles of a file: one, one in each line, or the hosting service's answer.

    Raises ``PublishError``.
    """
    try:
        try:
            documents = [parse_json(data)]
        except ValueError:
            documents = [parse_json(line) for line in data.splitlines() if line.strip()]
        found: list[Any] = []
        for each in documents:
            if "attestations" in each:
                found += [one["bundle"] for one in each["attestations"]]
            else:
                found.append(each)
        return [dict(each) for each in found]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PublishError(f"this is no file of attestation bundles: {error}") from error


def verified(
    tag: str,
    digests: Mapping[str, str],
    bundles: Iterable[Mapping[str, Any]],
    rules: Rules,
    root: "TrustedRoot",
) -> list[Mapping[str, Any]]:
    """Return the bundles that prove the origin of a release's files (name → SHA-256).

    Raises ``PublishError`` for a file that no valid bundle names with this digest, with the faults
    of the bundles, and for files from more than one commit.
    """
    from sigstore.verify import Verifier

    verifier = Verifier(trusted_root=root)
    missing, used, commits, objections = set(digests.items()), [], set(), []
    valid: list[tuple[set[tuple[str, str]], str, Mapping[str, Any]]] = []
    for bundle in bundles:
        # A new policy for each bundle: it stores the commit of the certificate that it accepted.
        policy = _Policy(rules, tag)
        try:
            subjects = _subjects(bundle, verifier, policy)
        except PublishError as error:
            objections.append(str(error))
            continue
        valid.append((subjects & missing, policy.commit, bundle))
    # The bundle that proves the most comes first: a companion without a tag in its name may be in
    # the bundles of other releases, too.
    for subjects, commit, bundle in sorted(valid, key=lambda each: -len(each[0])):
        if subjects & missing:
            missing -= subjects
            commits.add(commit)
            used.append(bundle)
    if missing:
        first, *others = sorted(name for name, _ in missing)
        names = f"{first} and of {len(others)} other archives" if others else first
        why = "; ".join(dict.fromkeys(objections)) or "no attestation names it with its digest"
        raise PublishError(f"{tag}: the origin of {names} is not proven: {why}")
    if len(commits) > 1:
        raise PublishError(
            f"{tag} was built from {len(commits)} commits: {', '.join(sorted(commits))}"
        )
    return used


def stored(data: Path, tag: str) -> list[dict[str, Any]]:
    """Return the recorded bundles of a release."""
    path = _path(data, tag)
    content = content_of(path)
    return bundles_in(content) if content is not None else []


def store(data: Path, tag: str, bundles: Iterable[Mapping[str, Any]]) -> None:
    """Record the bundles of a release, one in each line; without any, remove the record."""
    path = _path(data, tag)
    lines = [json.dumps(bundle, separators=(",", ":")) + "\n" for bundle in bundles]
    if not lines:
        path.unlink(missing_ok=True)
        return
    make_folder(path.parent)
    replace_file(path, "".join(lines).encode())


def _path(data: Path, tag: str) -> Path:
    return data / "facts" / "attestations" / f"{tag}.jsonl"


class _Policy:
    """The requirements on a bundle's certificate, in the form of sigstore-python's policies.

    ``commit`` is the source's commit in an accepted certificate.
    """

    def __init__(self, rules: Rules, tag: str) -> None:
        with reading("[attestation] of rules.toml"):
            self._issuer, self._repository = (
                rules.attestation[name] for name in ("issuer", "repository")
            )
        self._identities = identities(tag, rules)
        self.commit = ""

    def verify(self, certificate: "Certificate") -> None:
        """Raise sigstore's ``VerificationError`` with everything that differs."""
        from sigstore.errors import VerificationError
        from sigstore.verify.policy import OIDCSourceRepositoryDigest

        failures = [self._failures(certificate, *each) for each in self._identities]
        if all(failures):
            # Report the identity that comes closest: the one with the fewest differences.
            closest = min(failures, key=len)
            raise VerificationError("; ".join(closest))
        oid = OIDCSourceRepositoryDigest.oid
        extension = certificate.extensions.get_extension_for_oid(oid).value
        value = cast("UnrecognizedExtension", extension).value
        self.commit = value[2:].decode()  # after two bytes of DER, for type and length

    def _failures(self, certificate: "Certificate", path: str, ref: str) -> list[str]:
        """Return what differs from one identity: nothing if all policies hold.

        A fork, another workflow or a self-hosted runner fails at least one.
        """
        from sigstore.errors import VerificationError
        from sigstore.verify import policy

        repository = f"https://github.com/{self._repository}"
        workflow = f"{repository}/{path}@{ref}"
        failures = []
        for each in (
            policy.OIDCIssuerV2(self._issuer),
            policy.OIDCSourceRepositoryURI(repository),
            policy.OIDCSourceRepositoryRef(ref),
            policy.OIDCBuildSignerURI(workflow),
            policy.OIDCBuildConfigURI(workflow),
            policy.Identity(identity=workflow),
            policy.OIDCRunnerEnvironment(_RUNNER),
        ):
            try:
                each.verify(certificate)
            except VerificationError as error:
                failures.append(str(error))
        return failures


def _subjects(
    bundle: Mapping[str, Any], verifier: "Verifier", policy: _Policy
) -> set[tuple[str, str]]:
    """Return the files (name, SHA-256) that the provenance statement of a valid bundle names."""
    from sigstore.models import Bundle

    try:
        kind, data = verifier.verify_dsse(Bundle.from_json(json.dumps(bundle)), policy)
    except Exception as error:  # also from pydantic and cryptography, for a damaged bundle
        raise PublishError(f"a bundle is not valid: {error}") from error
    try:
        statement = parse_json(data)
        what, predicate = statement["_type"], statement["predicateType"]
        subjects = {
            (each["name"], each["digest"].get("sha256", "")) for each in statement["subject"]
        }
    except (ValueError, TypeError, KeyError) as error:
        raise PublishError(f"a statement is malformed: {error}") from error
    if (kind, what) != (_ENVELOPE, _STATEMENT):
        raise PublishError(f"it is no in-toto statement, but {kind}, {what}")
    if predicate != _PREDICATE:
        raise PublishError(f"its predicate is {predicate}, not {_PREDICATE}")
    return subjects
