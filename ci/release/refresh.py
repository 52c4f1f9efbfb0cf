"""The way from a tag to recorded facts: what was published, and what its archives hold."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ci.release import downloads, hosting
from ci.release.build import release_document
from ci.release.classify import Rules, classify, load_rules
from ci.release.contents import Contents, save
from ci.release.facts import Facts, release_of
from ci.release.packages import load_packages
from ci.release.reading import reading


class Refresh:
    """The facts of a data folder, and ways to add to them; ``say`` reports each step's result."""

    def __init__(self, data: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._facts = data / "facts"
        self._environ = environ
        self._say = say
        self._rules: Rules = load_rules(data)
        self._packages = load_packages(data, self._rules.libraries, {})

    def record(self, tag: str, answer: bytes | None, unlisted: str | None) -> None:
        """Record a release; ``answer`` is the hosting service's, which is asked if it is None.

        A stable version ("v0.6.0") has no assets: its text names the tag that has them. Releases of
        a package index are recorded by hand. Nothing is written if a rule is missing. Raises
        ``ReleaseError``.
        """
        if tag in self._packages:
            return
        data = hosting.download_release(tag, self._environ) if answer is None else answer
        facts = Facts(self._facts)
        if tag.startswith("v"):
            named = hosting.named_tag(data, tag)
            facts.name(tag, named)
            self._say(f"{tag} is {named}")
        else:
            release = hosting.parse_release(data, tag)
            with reading(self._facts.parent / "rules.toml"):
                # Before anything is recorded: an asset that no rule knows stops here.
                classify(release, self._rules)
            facts.record(release)
            if unlisted is not None:
                facts.excuse(tag, "unlisted", unlisted)
            self._say(f"{tag}: {len(release.assets)} assets, published {release.published}")
        facts.save()

    def read_archives(self, tag: str, folder: Path | None) -> None:
        """Record what every archive of a release holds. Raises ``ReleaseError``."""
        for sha256, artifact in downloads.artifacts_of(self._document(tag)).items():
            contents = downloads.read(artifact, folder, self._environ)
            save(self._facts / "archives", sha256, contents)
            self._say(f"{downloads.file_name(artifact)}: {_summary(contents)}")
        if tag not in self._packages:
            facts = Facts(self._facts)
            facts.excuse(tag, "unlisted", None)
            facts.save()

    def _document(self, tag: str) -> Mapping[str, Any]:
        """Return the release file as it would be without any record."""
        if tag in self._packages:
            return self._packages[tag]
        release = release_of(Facts(self._facts).releases(), tag)
        with reading(f"what {self._facts.parent} has of {tag}"):
            return release_document(release, self._rules, {})


def _summary(contents: Contents) -> str:
    parts = [f"{len(contents.listing['files'])} files"]
    parts += [f"{name} {floor}" for name, floor in contents.floors.items()]
    parts += [
        f"{path}: sass {' '.join(code['sass'])}; ptx {' '.join(code['ptx'])}"
        for path, code in contents.device_code.items()
    ]
    return ", ".join(parts)
