"""Workflows and composite actions: the jobs of each cell of a matrix, and their steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tsuku_publish.upstream.source.expressions import (
    UNKNOWN,
    Known,
    Unknown,
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
from tsuku_publish.upstream.source.scripts import Line, Written, written
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


@dataclass(frozen=True)
class Workflow:
    """One workflow file; ``jobs`` are its jobs, by their names."""

    source: SourceTree
    path: str
    table: Table
    jobs: Table

    def job(self, name: str, at: str) -> Table:
        """Return a job. Raises ``UnreadableSource``."""
        found = self.jobs.get(name)
        if not isinstance(found, Table):
            raise UnreadableSource(at, f"there is no job {name}")
        return found

    def runs(self, name: str, at: str) -> Iterator[WorkflowJob]:
        """Return a job once for each cell of its matrix."""
        table = self.job(name, at)
        for cell in cells(table.table("strategy").table("matrix")):
            yield WorkflowJob(self, name, table, cell)


def open_workflow(source: SourceTree, path: str) -> Workflow:
    """Read a workflow file. Raises ``UnreadableSource``."""
    table = read_yaml(path, source.read(path))
    return Workflow(source, path, table, table.table("jobs"))


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
class Scope:
    """The place where an expression of a step is evaluated; ``caller`` is a composite action's."""

    workflow: Workflow
    steps: Row
    position: int
    matrix: Mapping[str, Node] = field(default_factory=dict)
    job: Table | None = None
    inputs: Mapping[str, Known] | None = None
    caller: Scope | None = None

    def lookup(self, path: tuple[str, ...]) -> Known:  # noqa: PLR0911 - one for each context
        """Return the value of a path in an expression. Raises ``UnreadableSource``."""
        kind, *names = path
        name, *more = names or [""]
        if path in _A_RELEASE:
            return _A_RELEASE[path]
        if kind in _OUTSIDE:
            return UNKNOWN
        if kind == "matrix" and not more:
            return self._value(self.matrix.get(name))
        if kind == "env" and not more:
            return self.environment(name)
        if kind == "inputs" and not more:
            # A workflow's own inputs are of another run than a push.
            return UNKNOWN if self.inputs is None else self.inputs.get(name)
        if kind == "steps" and more:
            # A conclusion, or an output.
            return self._step(name).output(more[1]) if more[0] == "outputs" else UNKNOWN
        if kind == "needs" and more[:1] == ["outputs"]:
            return self._needed(name, more[1])
        raise UnreadableSource(self._at, f"{'.'.join(path)} cannot be read")

    @property
    def _at(self) -> str:
        return self.steps[self.position].at if self.steps else self.workflow.table.at

    def _value(self, node: Node | None) -> Known:
        if node is None:
            return None
        if not isinstance(node, Text):
            raise UnreadableSource(node.at, "only a single value can be read here")
        return value_of(node, self.lookup)

    def environment(self, name: str) -> Known:
        """Return a variable: of the steps before, this step, the job, or the workflow."""
        for position in range(self.position - 1, -1, -1):
            step = Step(self, self.steps.tables()[position], position)
            if holds(step.table.text("if"), self.at(position).lookup) is False:
                continue
            if name in (found := step.writes().environment):
                return found[name]
        levels = [self.steps.tables()[self.position]] if self.position < len(self.steps) else []
        if self.job is not None:
            levels.append(self.job)
        for level in [*levels, *([] if self.caller else [self.workflow.table])]:
            if (node := level.table("env").get(name)) is not None:
                return self._value(node)
        return self.caller.environment(name) if self.caller else UNKNOWN

    def at(self, position: int) -> Scope:
        """Return the scope of another step of the same job."""
        return Scope(
            self.workflow, self.steps, position, self.matrix, self.job, self.inputs, self.caller
        )

    def _step(self, name: str) -> Step:
        for position, table in enumerate(self.steps.tables()):
            if table.text("id") == name:
                return Step(self.at(position), table, position)
        raise UnreadableSource(self._at, f"no step has the id {name}")

    def _needed(self, job: str, name: str) -> Known:
        table = self.workflow.job(job, self._at)
        if "uses" in table:
            return UNKNOWN  # outputs of a called workflow name no build
        output = table.table("outputs").text(name)
        if output is None:
            raise UnreadableSource(table.at, f"the job {job} has no output {name}")
        run = next(self.workflow.runs(job, self._at))
        return value_of(output, run.scope(len(run.steps)).lookup)


@dataclass(frozen=True)
class Step:
    """One step, with the scope of its expressions."""

    outer: Scope
    table: Table
    position: int

    @property
    def scope(self) -> Scope:
        """The scope of this step."""
        return self.outer.at(self.position)

    @property
    def uses(self) -> Text | None:
        """The action that it uses."""
        return self.table.text("uses")

    def lines(self) -> list[Line]:
        """Return the lines of its script, with the values of their expressions."""
        script = self.table.text("run")
        lookup = self.scope.lookup
        return [(at, filled(line, lookup, at)) for at, line in script.lines()] if script else []

    def given(self, name: str) -> Text | None:
        """Return an input of the action that it uses."""
        return self.table.table("with").text(name)

    def writes(self) -> Written:
        """Return what its script sets."""
        return written(self.lines())

    def output(self, name: str) -> Known:
        """Return one of its outputs. Raises ``UnreadableSource``."""
        if self.table.text("run") is not None:
            found = self.writes().outputs
            if name not in found:
                raise UnreadableSource(self.table.at, f"no line of this step sets {name}")
            return found[name]
        inner = self.action()
        if inner is None:
            return UNKNOWN
        action, scope = inner
        output = action.table("outputs").table(name).require("value")
        return value_of(output, scope.lookup)

    def action(self) -> tuple[Table, Scope] | None:
        """Return the composite action of upstream that it uses, and the scope after its steps."""
        if self.uses is None or not self.uses.startswith("./"):
            return None
        source = self.outer.workflow.source
        path = f"{self.uses[2:]}/action.yml"
        action = read_yaml(path, source.read(path))
        steps = action.table("runs").row("steps")
        inputs: dict[str, Known] = {}
        for name, about in action.table("inputs").items():
            given = self.given(name)
            default = about.text("default") if isinstance(about, Table) else None
            told = given if given is not None else default
            # Inputs of an action are texts.
            value = None if told is None else value_of(told, self.scope.lookup)
            inputs[name] = UNKNOWN if value is UNKNOWN else as_text(value)
        scope = Scope(self.outer.workflow, steps, len(steps), {}, None, inputs, self.scope)
        return action, scope


@dataclass(frozen=True)
class WorkflowJob:
    """One run of a job: one cell of its matrix."""

    workflow: Workflow
    name: str
    table: Table
    matrix: Mapping[str, Node]

    @property
    def steps(self) -> Row:
        """Its steps as the file has them."""
        return self.table.row("steps")

    def scope(self, position: int) -> Scope:
        """Return the scope of a step; of what follows the last one."""
        return Scope(self.workflow, self.steps, position, self.matrix, self.table)

    def walk(self) -> Iterator[Step]:
        """Return the steps that run, with those of upstream's composite actions.

        A step whose condition only the run knows is among them.
        """
        yield from _walk(self.scope(0))

    def happens(self) -> bool | Unknown:
        """Return whether its condition holds in a release."""
        return holds(self.table.text("if"), self.scope(0).lookup)

    def told(self, key: str) -> tuple[str, str] | None:
        """Return a text such as ``runs-on`` and its place. Raises ``UnreadableSource``."""
        node = self.table.get(key)
        if isinstance(node, Table) and key == "container":
            node = node.require("image")
        if node is None:
            return None
        if not isinstance(node, Text):
            raise UnreadableSource(node.at, f"{key} is not a text")
        return known(value_of(node, self.scope(0).lookup), node.at, key), self._origin(node)

    def _origin(self, node: Text) -> str:
        """Return the line of the matrix that gives a text's whole value, else the text's."""
        inner = node.strip()
        if inner.startswith("${{") and inner.endswith("}}"):
            path = inner[3:-2].strip()
            value = self.matrix.get(path.removeprefix("matrix."))
            if path.startswith("matrix.") and value is not None:
                return value.at
        return node.at


def _walk(scope: Scope) -> Iterator[Step]:
    for position, table in enumerate(scope.steps.tables()):
        step = Step(scope, table, position)
        if holds(table.text("if"), step.scope.lookup) is False:
            continue
        yield step
        if inner := step.action():
            yield from _walk(inner[1].at(0))


def known(value: Known, at: str, what: str) -> str:
    """Return a value as text. Raises ``UnreadableSource`` if only a run knows it."""
    if value is UNKNOWN:
        raise UnreadableSource(at, f"{what} is known only in a run")
    return as_text(value)
