"""How upstream makes a release of what its jobs uploaded: names, injected files, who attests it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tsuku_publish.upstream.source.expressions import UNKNOWN
from tsuku_publish.upstream.source.marked import Fact, Row, Table, Text, UnreadableSource
from tsuku_publish.upstream.source.scripts import Line, commands
from tsuku_publish.upstream.source.tree import SourceTree
from tsuku_publish.upstream.source.workflows import Step, Workflow, open_workflow

FOLDER = ".github/workflows/"
_ATTESTS = ("actions/attest@", "actions/attest-build-provenance@")
_CREATES = ("ggml-org/action-create-release@", "softprops/action-gh-release@")

_MERGING = re.compile(
    r"for arch in (?P<arches>[\w ]+); do"
    r'|cpu_zip="artifact/(?P<origin>[^"]+)"'
    r"|for target_zip in artifact/(?P<targets>\S+); do"
    r"|for zip_file in artifact/(?P<renamed>\S+); do"
    r'|zip_name="(?P<before>[^"$]*)\$\{base_name#(?P<cut>[^}]*)\}(?P<after>[^"$]*)"'
    r"|mv -v artifact/(?P<moved>\S+) release"
    r"|rm -f artifact/(?P<removed>\S+)"
    # What says nothing more: the loops' bodies, as upstream writes them.
    r"|#.*|echo .*|mkdir -p release|temp_dir=\$\(mktemp -d\)|unzip \"\$cpu_zip\" -d \"\$temp_dir\""
    r"|if \[\[ \"\$target_zip\" == \"\$cpu_zip\" \]\]; then|continue|fi|done"
    r"|realpath_target_zip=\$\(realpath \"\$target_zip\"\)"
    r"|\(cd \"\$temp_dir\" && zip -r \"\$realpath_target_zip\" \.\)|rm -rf \"\$temp_dir\""
    r"|base_name=\$\(basename \"\$zip_file\" \.zip\)|mv \"\$zip_file\" \"release/\$zip_name\"|"
)
"""The lines of the script that moves what was uploaded into the release, in upstream's forms."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """How uploaded files become assets of a release; ``builder`` is the workflow that uploads them.

    ``facts`` say who attests the release, and what starts that workflow.
    """

    builder: Workflow
    facts: Mapping[str, Fact]
    packed: list[tuple[str, str]] = field(default_factory=list)
    """Archives that the publishing job makes itself, each with its place."""
    injected: list[tuple[str, str, str]] = field(default_factory=list)
    """A pattern of files, the file whose content they get, and the place."""
    renamed: list[tuple[str, str, str, str]] = field(default_factory=list)
    """A pattern, what is cut from the front of its names, and what is put before and after."""
    moved: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def final(self, name: str, at: str) -> str:
        """Return the name in the release of a file that is uploaded at a place.

        Raises ``UnreadableSource`` if it is not in the release.
        """
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.removed):
            for pattern, cut, before, after in self.renamed:
                if fnmatch.fnmatchcase(name, pattern):
                    return f"{before}{name.removesuffix('.zip').removeprefix(cut)}{after}"
            if any(fnmatch.fnmatchcase(name, each) for each in self.moved):
                return name
        raise UnreadableSource(at, f"no line publishes {name}")

    def server_of(self, name: str) -> tuple[str, str] | None:
        """Return the uploaded file whose content another one gets, and the place."""
        for pattern, origin, at in self.injected:
            if fnmatch.fnmatchcase(name, pattern) and name != origin:
                return origin, at
        return None


def publishing(source: SourceTree) -> Publishing:
    """Find who attests releases, and read how. Raises ``UnreadableSource``."""
    found = [
        (workflow, step)
        for path in sorted(source.files)
        if fnmatch.fnmatchcase(path, f"{FOLDER}release*.yml")  # others attest images
        for workflow in [open_workflow(source, path)]
        for step in workflow.steps()
        if step.uses(*_ATTESTS)
    ]
    if len(found) != 1:
        at = ", ".join(step.table.at for _, step in found) or FOLDER
        raise UnreadableSource(at, f"{len(found)} steps attest a release, and one should")
    workflow, attests = found[0]
    subject = attests.given("subject-path")
    if subject is None or subject.strip("'") != "release/*":
        raise UnreadableSource(attests.table.at, "what it attests is not release/*")
    steps = [*workflow.steps()]
    creates = next((step for step in steps if step.uses(*_CREATES)), None)
    if creates is None:
        raise UnreadableSource(FOLDER, "no step creates the release that is attested")
    tag = creates.given("tag_name")
    if tag is None:
        raise UnreadableSource(creates.table.at, "the release gets no tag_name")
    facts = {
        "workflow": Fact(workflow.path, attests.table.at),
        "tag": Fact(creates.known(tag, "the tag"), tag.at),
        **_trigger(workflow),
    }
    builder = _builder(source, workflow, facts)
    facts["builder"] = Fact(builder.path, facts["trigger"].at)
    told = Publishing(builder, facts)
    for step in steps:
        lines = step.lines()
        if any(line is not UNKNOWN and "artifact/" in line for _, line in lines):
            _merge(lines, told)
        for command in commands(lines):
            names = [word for word in command.words if word.startswith("release/")]
            if command.words[0] in ("tar", "zip", "7z") and names:
                told.packed.append((names[0].removeprefix("release/"), command.at))
    return told


def _trigger(workflow: Workflow) -> dict[str, Fact]:
    """Return what starts a workflow: the event, its branches, and the workflow that it waits for.

    "by hand" is there if a person may start it, too, on any branch or tag.
    """
    on = workflow.table.get("on")
    events = dict(on) if isinstance(on, Table) else {}
    if isinstance(on, Text):
        events = {str(on): on}
    if isinstance(on, Row):
        events = {str(each): each for each in on.texts()}
    by_hand = events.get("workflow_dispatch")
    names = [name for name in events if name != "workflow_dispatch"]
    if len(names) != 1:
        raise UnreadableSource(
            workflow.table.at, f"it is started by {', '.join(names) or 'nobody'}"
        )
    (name,) = names
    about = events[name]
    found = {"trigger": Fact(name, about.at)}
    if by_hand is not None:
        found["by hand"] = Fact("yes", by_hand.at)
    if isinstance(about, Table):
        for key in ("branches", "tags", "workflows", "types"):
            if key in about:
                row = about.row(key)
                found[key] = Fact(tuple(str(each) for each in row.texts()), row.at)
    return found


def _builder(source: SourceTree, workflow: Workflow, facts: dict[str, Fact]) -> Workflow:
    if facts["trigger"].value == "push":
        return workflow
    if facts["trigger"].value != "workflow_run":
        raise UnreadableSource(facts["trigger"].at, "what builds for this event is not known")
    told = facts["workflows"].value if "workflows" in facts else ()
    wanted = told if isinstance(told, tuple) else ()
    for path in sorted(source.files):
        if path.startswith(FOLDER) and any(
            f"name: {name}" in source.files[path] for name in wanted
        ):
            each = open_workflow(source, path)
            if wanted == (str(each.table.get("name")),):
                return each
    raise UnreadableSource(facts["trigger"].at, f"no workflow has the name {wanted}")


def _merge(lines: Iterable[Line], told: Publishing) -> None:
    """Read the script that moves the uploaded files. Raises ``UnreadableSource``."""
    arches = [""]
    origin = renamed = ""
    for at, line in lines:
        if line is UNKNOWN:
            raise UnreadableSource(at, "this line is known only in a run")
        match = _MERGING.fullmatch(line.strip())
        if match is None:
            what = f"what this does to the files of a release is not known: {line.strip()}"
            raise UnreadableSource(at, what)
        arches = match["arches"].split() if match["arches"] else arches
        origin, renamed = match["origin"] or origin, match["renamed"] or renamed
        if match["targets"]:
            for arch in arches:
                pattern = match["targets"].replace("${arch}", arch)
                told.injected.append((pattern, origin.replace("${arch}", arch), at))
        if match["cut"] is not None:
            told.renamed.append((renamed, match["cut"], match["before"], match["after"]))
        if match["moved"]:
            told.moved.append(match["moved"])
        if match["removed"]:
            told.removed.append(match["removed"])


def uploads(steps: Iterable[Step]) -> Iterator[tuple[Step, Text, str]]:
    """Return the files that steps upload: the step, the path as it is written, the file's name.

    A folder that another job gets is no file of a release, unless its artifact has a file's name.
    """
    for step in steps:
        if not step.uses("actions/upload-artifact@"):
            continue
        path = step.given("path")
        if path is None:
            raise UnreadableSource(step.table.at, "it uploads no path")
        name = step.known(path, "what it uploads")
        if name.endswith((".zip", ".tar.gz")):
            yield step, path, name.rpartition("/")[2]
