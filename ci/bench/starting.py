"""Rows about starts: the cost of a command before it does any work."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from support.builds import NO_DEVICE_STEPS, stand_in
from support.tiny_model import write_tiny_model

from ci.bench.lab import INTERPRETER, PROGRAM, Lab, Missing, forget, install, publish
from ci.bench.pairs import Run, Samples
from ci.bench.payload import pack
from ci.bench.row import Row

_ROUNDS = 21
_BARE = Run(INTERPRETER)


def beyond_the_interpreter(samples: Samples) -> float:
    """Return the ratio without the interpreter's own start, which the yardstick does not have."""
    ours = samples.median("ours") - samples.median("interpreter")
    return ours / samples.median("yardstick")


def _version(lab: Lab) -> Mapping[str, Run]:
    return {"ours": Run((PROGRAM, "--version"), lab.home), "yardstick": _BARE}


def _help(lab: Lab) -> Mapping[str, Run]:
    return {"ours": Run((PROGRAM, "--help"), lab.home), "yardstick": _BARE}


def _serve(lab: Lab) -> Mapping[str, Run]:
    """Start a stand-in for the server that exits at once, so only the time before it counts."""
    lab.require("gcc", "nginx")
    build = stand_in(lab.fresh("quick"), devices=NO_DEVICE_STEPS, serve=("exit 0",))
    shop = lab.near
    publish(shop, "b7", pack(build.tree, lab.folder / "quick.tar.gz"))
    user = lab.user(shop, "starter")
    forget(user)
    install(user, "b7")
    # Without a model it would look for every model of this machine, and serve them all.
    words = ("-m", str(write_tiny_model(lab.folder / "quick.gguf")))
    return {
        "ours": Run((PROGRAM, "serve", "--exec", "--", *words), user.env),
        "server": Run((str(build.executable), *words), user.env),
        "yardstick": _BARE,
    }


def _probe(lab: Lab) -> Mapping[str, Run]:
    lab.require("vulkaninfo")
    return {
        "ours": Run((PROGRAM, "probe"), lab.home),
        "yardstick": Run(("vulkaninfo", "--summary")),
        "interpreter": _BARE,
    }


def _without_python(*words: str) -> Callable[[Lab], Mapping[str, Run]]:
    """Compare the program that brings its Python with the wheel of this environment."""

    def prepare(lab: Lab) -> Mapping[str, Run]:
        folder = os.environ.get("TSUKU_LLM_PROGRAM")
        if not folder:
            raise Missing("TSUKU_LLM_PROGRAM names no program of ci.program")
        return {
            "ours": Run((folder, *words), lab.home),
            "yardstick": Run((PROGRAM, *words), lab.home),
        }

    return prepare


def beyond_the_server(samples: Samples) -> float:
    """Return the ratio without the server's own time."""
    return (samples.median("ours") - samples.median("server")) / samples.median("yardstick")


_COMPARING = """\
import os
from tsuku_llm.launch.plan.fingerprint import choice_digest, driver_fingerprint
for _ in range({}):
    choice_digest(driver_fingerprint(os.environ))
"""


def _comparison(_: Lab) -> Mapping[str, Run]:
    """Read a thousand times what a choice rests on, as each start does once."""
    ours, none = (Run((INTERPRETER[0], "-I", "-c", _COMPARING.format(n))) for n in (1000, 0))
    return {"ours": ours, "yardstick": none}


def a_thousandth(samples: Samples) -> float:
    """Return the milliseconds of one of the thousand."""
    return samples.median("ours") - samples.median("yardstick")


ROWS = (
    Row("G1", "`--version`", "python -I -c pass", 2.0, _version, rounds=_ROUNDS),
    Row("G2", "`--help`", "python -I -c pass", 5.0, _help, rounds=_ROUNDS),
    Row(
        "G3",
        "`serve --exec`: resolve, check the tree, exec",
        "python -I -c pass",
        5.0,
        _serve,
        beyond_the_server,
        rounds=_ROUNDS,
    ),
    Row(
        "G15",
        "`probe`: every API, in children",
        "vulkaninfo --summary",
        2.0,
        _probe,
        beyond_the_interpreter,
        rounds=_ROUNDS,
    ),
    Row(
        "G17",
        "compare what a choice rests on with the machine of now",
        "none: milliseconds",
        2.0,
        _comparison,
        a_thousandth,
        " ms",
        rounds=5,
    ),
    *(
        Row(
            f"P{number}",
            f"`{command}` of the program without Python",
            "the wheel's",
            1.5,
            _without_python(command),
            rounds=_ROUNDS,
        )
        for number, command in enumerate(("--version", "--help", "list"), 1)
    ),
)
