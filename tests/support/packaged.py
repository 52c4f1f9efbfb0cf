"""The program as a package that embeds another signed repository than ours."""

import os
from collections.abc import Callable
from pathlib import Path

from support.program import Result, environment, run_program
from support.repository import RepositorySimulator

import tsuku_llm


def packaged_program(
    folder: Path, embedded: RepositorySimulator, host: RepositorySimulator
) -> Callable[..., Result]:
    """Return a function that runs the program with one repository embedded, refreshed from another.

    The modules of its package are links to the real ones.
    """
    package = folder / "package" / "tsuku_llm"
    package.mkdir(parents=True)
    for path in Path(tsuku_llm.__file__).parent.iterdir():
        if path.name not in ("manifests", "__pycache__"):
            (package / path.name).symlink_to(path)
    embedded.write(package / "manifests")
    (package / "manifests" / "__init__.py").touch()
    host.write(folder / "host")
    env = environment(
        folder / "home",
        # Before the folder with which the tests' clock reaches a child.
        PYTHONPATH=os.pathsep.join([str(package.parent), os.environ["PYTHONPATH"]]),
        TSUKU_LLM_REPOSITORY_URL=f"{(folder / 'host').as_uri()}/",
    )

    def run(*arguments: str) -> Result:
        return run_program(*arguments, env=env)

    return run
