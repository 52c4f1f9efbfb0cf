"""The way from a tag to recorded facts: what was published, and what its archives hold."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tsuku_llm.catalog.manifest import Artifact, parse_artifact
from tsuku_llm.fetch import Network, fetch
from tsuku_llm.ground.errors import ManifestError, TsukuError
from tsuku_publish.archives.contents import Contents, read_archive, save
from tsuku_publish.errors import PublishError, in_one_line, reading
from tsuku_publish.release_files.documents import release_document
from tsuku_publish.release_files.packages import load_packages
from tsuku_publish.upstream import hosting
from tsuku_publish.upstream.classify import Rules, classify, load_rules
from tsuku_publish.upstream.facts import Facts, release_of


class Refresh:
    """The facts of a data folder, and ways to add to them; ``say`` reports each step's result."""

    def __init__(self, data: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._facts = data / "facts"
        self._environ = environ
        self._say = say
        self._rules: Rules = load_rules(data)
        if self._rules.wrong:
            # A person is here, who can mend it.
            raise PublishError(str(self._rules.wrong[0]))
        self._packages = load_packages(data, self._rules.libraries, {})

    def record(self, tag: str, answer: bytes | None, unmeasured: str | None) -> None:
        """Record a release; ``answer`` is the hosting service's, which is asked if it is None.

        A stable version ("v0.6.0") has no assets: its text names the tag that has them. Releases of
        a package index are recorded by hand. Nothing is written if a rule is missing. Raises
        ``PublishError``.
        """
        if tag in self._packages:
            return
        data = answer
        if data is None:
            with Network(self._environ) as network:
                service = hosting.HostingService(self._rules.api, self._environ, network)
                data = service.release(tag)
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
            if unmeasured is not None:
                facts.excuse(tag, "unmeasured", unmeasured)
            self._say(f"{tag}: {len(release.assets)} assets, published {release.published}")
        facts.save()

    def read_archives(self, tag: str, folder: Path | None) -> None:
        """Record what every archive of a release holds. Raises ``PublishError``."""
        taken = {
            package.sha256: package.take
            for sets in self._rules.makers.values()
            for each in sets
            for package in each.packages
        }
        # The release file as it would be without any record.
        document = self._packages.get(tag)
        if document is None:
            release = release_of(Facts(self._facts).releases(), tag)
            with reading(f"what {self._facts.parent} has of {tag}"):
                document = release_document(release, self._rules, {})
        with Network(self._environ) as network:
            for sha256, artifact in _artifacts_of(document).items():
                with opened_archive(artifact, folder, network) as path:
                    contents = read_archive(path, artifact, taken.get(sha256, ()))
                save(self._facts / "archives", sha256, contents)
                self._say(f"{_file_name(artifact)}: {summary(contents)}")
        if tag not in self._packages:
            facts = Facts(self._facts)
            facts.excuse(tag, "unmeasured", None)
            facts.save()


def summary(contents: Contents) -> str:
    """Return one line with what an archive holds and needs."""
    parts = [f"{len(contents.listing['files'])} files"]
    parts += [f"{name} {floor}" for name, floor in contents.floors.items()]
    parts += [
        f"{path}: sass {' '.join(code['sass'])}; ptx {' '.join(code['ptx'])}"
        for path, code in contents.device_code.items()
    ]
    parts += [f"{path}: {' '.join(targets)}" for path, targets in contents.gfx.items()]
    if contents.processors:
        parts.append(f"processors: {' '.join(contents.processors)}")
    return ", ".join(parts)


# --- the archives that a release file names -----------------------------------------------------


def _artifacts_of(document: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return every archive of a release file by its SHA-256. Raises ``PublishError``."""
    try:
        return {
            raw["sha256"]: parse_artifact(raw)
            for platform in document["platforms"].values()
            for variant in platform["variants"].values()
            for raw in variant["artifacts"]
        }
    except ManifestError as error:
        # The client's hint (update the program) would be wrong here: the data have the fault.
        raise PublishError(f"{document['release']}: {in_one_line(error)}") from error


def _file_name(artifact: Artifact) -> str:
    """Return the name of an archive's file; a package URL has it in its query."""
    url = urlsplit(artifact.url)
    named = parse_qs(url.query).get("file_name")
    return named[0] if named else url.path.rpartition("/")[2]


@contextmanager
def opened_archive(artifact: Artifact, folder: Path | None, network: Network) -> Iterator[Path]:
    """Yield an archive in ``folder``; without a folder, download it and keep it for the block.

    Raises ``PublishError``.
    """
    if folder is not None:
        path = folder / _file_name(artifact)
        if not path.is_file():
            raise PublishError(f"{folder} has no {path.name}")
        yield path
        return
    # Downloaded and verified by the program's own code, as a user would get it.
    with tempfile.TemporaryDirectory(prefix="release-") as partials:
        try:
            path = fetch(artifact, Path(partials), network)
        except TsukuError as error:
            raise PublishError(in_one_line(error)) from error
        yield path
