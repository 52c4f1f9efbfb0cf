"""The proofs of origin that the archives of a release need, and the record of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ci.release import hosting, provenance
from ci.release.classify import Rules, classify, load_rules
from ci.release.errors import ReleaseError
from ci.release.facts import Facts, UpstreamRelease, release_of
from ci.release.reading import reading


class Attest:
    """A data folder's proofs of origin, and ways to add to them."""

    def __init__(self, data: Path, environ: Mapping[str, str]) -> None:
        self._data = data
        self._environ = environ
        self._facts = Facts(data / "facts")
        self.origin = provenance.load_origin(data)

    def prove(self, tag: str, files: Iterable[bytes], trusted_root: Path | None) -> int:
        """Verify and record the proofs of a release; return how many archives they prove.

        ``files`` hold bundles; without any, the hosting service is asked, archive by archive.
        Nothing is written unless every archive is proven. Raises ``ReleaseError``.
        """
        release = release_of(self._facts.releases(), tag)
        with reading(self._data / "rules.toml"):
            digests = _digests(release, load_rules(self._data))
        files = [*files] or [
            hosting.download_attestations(digest, self._environ) for digest in digests.values()
        ]
        bundles = [bundle for data in files for bundle in provenance.bundles_in(data)]
        root = provenance.load_root(trusted_root)
        used = provenance.verified(tag, digests, bundles, self.origin, root)
        # Only now: everything is verified.
        provenance.store(self._data, tag, used)
        self._facts.excuse(tag, "unattested", None)
        self._facts.save()
        return len(digests)

    def excuse(self, tag: str, reason: str) -> None:
        """Record why a release's origin is not proven; its release file will say so."""
        release_of(self._facts.releases(), tag)
        provenance.store(self._data, tag, [])
        self._facts.excuse(tag, "unattested", reason)
        self._facts.save()


def check_origin(
    release: UpstreamRelease, rules: Rules, data: Path, trusted_root: Path | None
) -> None:
    """Verify the recorded proofs of a release, unless it is excused. Raises ``ReleaseError``."""
    if release.unattested:
        return
    bundles = provenance.stored(data, release.tag)
    if not bundles:
        raise ReleaseError(f"{release.tag}: no attestation is recorded; run: attest {release.tag}")
    root = provenance.load_root(trusted_root)
    origin = provenance.load_origin(data)
    provenance.verified(release.tag, _digests(release, rules), bundles, origin, root)


def _digests(release: UpstreamRelease, rules: Rules) -> dict[str, str]:
    """Return the archives that its release file will name: file name → SHA-256."""
    builds = classify(release, rules)
    return {asset.name: asset.sha256 for build in builds for asset in build.artifacts}
