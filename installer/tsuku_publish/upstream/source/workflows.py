"""Workflows and composite actions: the jobs of each cell of a matrix, and their steps."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tsuku_publish.upstream.source.expressions import (
    UNKNOWN,
    Condition,
    Known,
    as_text,
    filled,
    holds,
    value_of,
)
from tsuku_publish.upstream.source.marked import (
    Node,
    Row,
    Table,
    Text,
    UnreadableSource,
    read_yaml,
)
from tsuku_publish.upstream.source.scripts import Line, Words, written
from tsuku_publish.upstream.source.tree import SourceTree

_A_RELEASE: Mapping[tuple[str, ...], Known] = {
    ("github", "event_name"): "push",
    ("github", "ref"): "refs/heads/master",
    ("github", "ref_name"): "master",
    ("github", "head_ref"): "",
    ("github", "event", "workflow_run", "conclusion"): "success",
}
"""What the build service says in the run of which a release comes: a push to master."""
_OUTSIDE = {"github", "secrets", "runner", "vars", "job", "strategy"}
_OF_MATRIX = re.compile(r"\s*\$\{\{\s*matrix\.(.*?)\s*\}\}\s*")


@dataclass(frozen=True)
class Workflow:
    """One workflow file."""

    source: SourceTree
    path: str
    table: Table

    def runs(self) -> Iterator[WorkflowJob]:
        """Return each job with steps, once for each cell of its matrix."""
        jobs = self.table.table("jobs")
        for name in jobs:
            table = jobs.table(name)
            if "uses" not in table:  # else it calls another workflow
                for cell in cells(table.table("strategy").table("matrix")):
                    yield WorkflowJob(self, name, table, cell)

    def steps(self) -> Iterator[Step]:
        """Return the steps that run, of all jobs."""
        for run in self.runs():
            yield from run.steps


def open_workflow(source: SourceTree, path: str) -> Workflow:
    """Read a workflow file. Raises ``UnreadableSource``."""
    return Workflow(source, path, read_yaml(path, source.read(path)))


def cells(matrix: Table) -> list[dict[str, Node]]:
    """Return the cells of a matrix, as the build service's documentation says."""
    names = [name for name in matrix if name not in ("include", "exclude")]
    rows = []
    for name in names:
        if not isinstance(matrix[name], Row):
            raise UnreadableSource(matrix[name].at, f"the matrix has no list of {name}")
        rows.append(matrix.row(name))
    found: list[dict[str, Node]] = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*rows)
    ]
    dropped = matrix.row("exclude").tables()
    found = [
        each
        for each in found
        if not any(all(each.get(key) == value for key, value in drop.items()) for drop in dropped)
    ]
    originals = [dict(each) for each in found] if names else []
    found = found if names else []
    extra: list[dict[str, Node]] = []
    for more in matrix.row("include").tables():
        fits = False
        for original, each in zip(originals, found, strict=True):
            # An original value is never overwritten; one that another include added may be.
            if all(original[key] == value for key, value in more.items() if key in original):
                each.update(more)
                fits = True
        if not fits:
            extra.append(dict(more))
    return [*found, *extra] or [{}]


@dataclass(frozen=True)
class Step:
    """A place in a list of steps, where expressions are evaluated: one of them, or after the last.

    ``job`` is None in a composite action, which has ``inputs``; ``caller`` is the step that uses
    it.
    """

    workflow: Workflow
    steps: list[Table]
    position: int
    matrix: Mapping[str, Node] = field(default_factory=dict)
    job: Table | None = None
    inputs: Mapping[str, Known] | None = None
    caller: Step | None = None

    @property
    def table(self) -> Table:
        """Its mapping; after the last step, that of the workflow."""
        here = self.steps[self.position : self.position + 1]
        return here[0] if here else self.workflow.table

    def lookup(self, path: tuple[str, ...]) -> Known:
        """Return the value of a path in an expression. Raises ``UnreadableSource``."""
        found: Known = UNKNOWN
        match path:
            case _ if path in _A_RELEASE:
                found = _A_RELEASE[path]
            case [kind, *_] if kind in _OUTSIDE:
                pass
            case ["matrix", name]:
                found = self._value(self.matrix.get(name))
            case ["env", name]:
                found = self.environment(name)
            case ["inputs", name]:
                # A workflow's own inputs are of another run than a push.
                found = UNKNOWN if self.inputs is None else self.inputs.get(name)
            case ["steps", name, "outputs", output]:
                found = self._step(name).output(output)
            case ["steps", _, "conclusion" | "outcome"]:
                pass
            case ["needs", name, "outputs", output]:
                found = self._needed(name, output)
            case _:
                raise UnreadableSource(self.table.at, f"{'.'.join(path)} cannot be read")
        return found

    def _value(self, node: Node | None) -> Known:
        if node is None:
            return None
        if not isinstance(node, Text):
            raise UnreadableSource(node.at, "only a single value can be read here")
        return value_of(node, self.lookup)

    def environment(self, name: str) -> Known:
        """Return a variable: of the steps before, this step, the job, or the workflow."""
        for position in range(self.position - 1, -1, -1):
            step = replace(self, position=position)
            if step.happens() is False:
                continue
            if name in (found := step.writes()["GITHUB_ENV"]):
                return found[name]
        levels = self.steps[self.position : self.position + 1]
        if self.job is not None:
            levels.append(self.job)
        for level in [*levels, *([] if self.caller else [self.workflow.table])]:
            if (node := level.table("env").get(name)) is not None:
                return self._value(node)
        return self.caller.environment(name) if self.caller else UNKNOWN

    def _step(self, name: str) -> Step:
        for position, table in enumerate(self.steps):
            if table.text("id") == name:
                return replace(self, position=position)
        raise UnreadableSource(self.table.at, f"no step has the id {name}")

    def _needed(self, job: str, name: str) -> Known:
        table = self.workflow.table.table("jobs").table(job)
        if "uses" in table:
            return UNKNOWN  # outputs of a called workflow name no build
        output = table.table("outputs").text(name)
        run = next((each for each in self.workflow.runs() if each.name == job), None)
        if output is None or run is None:
            raise UnreadableSource(self.table.at, f"there is no job {job} with an output {name}")
        return value_of(output, run.after.lookup)

    def happens(self) -> Condition:
        """Return whether its condition holds in a release."""
        return holds(self.table.text("if"), self.lookup)

    def uses(self, *actions: str) -> bool:
        """Tell whether it uses one of these actions, by how its text begins."""
        return (self.table.text("uses") or "").startswith(actions)

    def lines(self) -> list[Line]:
        """Return the lines of its script, with the values of their expressions."""
        script = self.table.text("run")
        lines = script.lines() if script else ()
        return [(at, filled(line, self.lookup, at)) for at, line in lines]

    def given(self, name: str) -> Text | None:
        """Return an input of the action that it uses."""
        return self.table.table("with").text(name)

    def writes(self) -> dict[str, dict[str, Words]]:
        """Return what its script sets."""
        return written(self.lines())

    def output(self, name: str) -> Known:
        """Return one of its outputs. Raises ``UnreadableSource``."""
        if self.table.text("run") is not None:
            found = self.writes()["GITHUB_OUTPUT"]
            if name not in found:
                raise UnreadableSource(self.table.at, f"no line of this step sets {name}")
            return found[name]
        if (inner := self.action()) is None:
            return UNKNOWN
        action, end = inner
        return value_of(action.table("outputs").table(name).require("value"), end.lookup)

    def action(self) -> tuple[Table, Step] | None:
        """Return the composite action of upstream that it uses, and the end of its steps."""
        if not self.uses("./"):
            return None
        path = f"{self.table.require('uses')[2:]}/action.yml"
        action = read_yaml(path, self.workflow.source.read(path))
        steps = action.table("runs").row("steps").tables()
        inputs: dict[str, Known] = {}
        for name, about in action.table("inputs").items():
            given = self.given(name)
            default = about.text("default") if isinstance(about, Table) else None
            told = given if given is not None else default
            # Inputs of an action are texts.
            value = None if told is None else value_of(told, self.lookup)
            inputs[name] = UNKNOWN if value is UNKNOWN else as_text(value)
        return action, Step(self.workflow, steps, len(steps), inputs=inputs, caller=self)

    def walk(self) -> Iterator[Step]:
        """Return the steps that run up to here, with those of upstream's composite actions.

        A step whose condition only the run knows is among them.
        """
        for position in range(self.position):
            step = replace(self, position=position)
            if step.happens() is False:
                continue
            yield step
            if inner := step.action():
                yield from inner[1].walk()

    def known(self, node: Text, what: str) -> str:
        """Return a text's value. Raises ``UnreadableSource`` if only a run knows it."""
        value = value_of(node, self.lookup)
        if value is UNKNOWN:
            raise UnreadableSource(node.at, f"{what} is known only in a run")
        return as_text(value)


@dataclass(frozen=True)
class WorkflowJob:
    """One run of a job: one cell of its matrix."""

    workflow: Workflow
    name: str
    table: Table
    matrix: Mapping[str, Node]

    @functools.cached_property
    def after(self) -> Step:
        """The end of its steps."""
        steps = self.table.row("steps").tables()
        return Step(self.workflow, steps, len(steps), self.matrix, self.table)

    @functools.cached_property
    def steps(self) -> list[Step]:
        """The steps that run."""
        return [*self.after.walk()]

    def happens(self) -> Condition:
        """Return whether its condition holds in a release."""
        return holds(self.table.text("if"), replace(self.after, position=0).lookup)

    def told(self, key: str) -> tuple[str, str] | None:
        """Return a text such as ``runs-on`` and its place. Raises ``UnreadableSource``.

        The place is the line of the matrix that gives the text's whole value, else the text's.
        """
        node = self.table.get(key)
        if isinstance(node, Table) and key == "container":
            node = node.require("image")
        if node is None:
            return None
        if not isinstance(node, Text):
            raise UnreadableSource(node.at, f"{key} is not a text")
        at = node.at
        if match := _OF_MATRIX.fullmatch(node):
            at = self.matrix.get(match[1], node).at
        return replace(self.after, position=0).known(node, key), at
