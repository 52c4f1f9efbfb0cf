"""How a copy of the program was installed, by facts, and what then updates it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tsuku_llm import __version__
from tsuku_llm.machine.own_copy import (
    FOLDER,
    CopyFacts,
    extra_command,
    publisher_command,
    updater_of,
)

PREFIX = Path("/home/me/env")
PYTHON = "/home/me/env/bin/python"
ALL = frozenset({"uv", "pipx", "git"})
FACTS = CopyFacts(
    PREFIX, PYTHON, PREFIX / "lib/tsuku_llm", installer="pip", environment=True, tools=ALL
)
SYSTEM = replace(FACTS, prefix=Path("/usr"), python="/usr/bin/python3", environment=False)
CLONE = replace(FACTS, clone=Path("/src"), is_repository=True)
PULL = ("git", "-C", "/src", "pull", "--ff-only")

RUN = {
    "uv-tool": (replace(FACTS, uv_tool=True, installer="uv"), "uv"),
    "pipx": (replace(FACTS, pipx=True, prefix=Path("/p/venvs/tsuku-llm-next")), "pip"),
    "environment": (FACTS, "pip"),
}


@pytest.mark.parametrize("way", RUN)
def test_the_tool_that_installed_it_updates_it(way: str) -> None:
    facts, tool = RUN[way]
    updater = updater_of(facts)
    assert (updater.way, updater.tool, updater.commands) == (way, tool, ())
    assert not updater.reason


def test_each_way_can_be_told_without_a_place() -> None:
    cases = (*RUN.values(), *NOT_RUN.values(), (CLONE,), (replace(CLONE, editable=True),))
    found = {updater_of(case[0]) for case in cases}
    assert len({each.way for each in found}) == 10
    for each in found:
        assert each.summary
        assert str(PREFIX) not in each.summary


def test_a_clone_is_pulled_and_installed_again() -> None:
    updater = updater_of(CLONE)
    assert (updater.way, updater.clone, updater.tool) == ("clone", Path("/src"), "pip")
    # Not install.sh, which installs a build, too.
    assert updater.commands == (PULL,)


def test_the_publisher_is_installed_beside_this_copy_in_its_version() -> None:
    name = f"tsuku-publish=={__version__}"
    assert publisher_command(FACTS) == f"{PYTHON} -m pip install {name}"
    assert publisher_command(FACTS, "9.9").endswith("tsuku-publish==9.9")
    assert publisher_command(CLONE) == f"{PYTHON} -m pip install /src/installer/publish"
    of_uv = publisher_command(replace(FACTS, uv_tool=True))
    assert of_uv == f"uv tool install --force tsuku-llm --with {name}"
    of_file = publisher_command(replace(FACTS, uv_tool=True, origin="file:///d/t.whl"))
    wheel = f"tsuku_publish-{__version__}-py3-none-any.whl"
    assert of_file == f"uv tool install --force file:///d/t.whl --with {wheel}"
    # The environment of pipx may have a suffix.
    of_pipx = replace(FACTS, pipx=True, prefix=Path("/p/venvs/tsuku-llm-next"))
    assert publisher_command(of_pipx) == f"pipx inject tsuku-llm-next {name}"


@pytest.mark.parametrize("installer", [FOLDER, "dpkg", "rpm"])
def test_no_package_is_added_to_a_copy_whose_python_takes_none(installer: str) -> None:
    """Its Python has EXTERNALLY-MANAGED: pip refuses to install anything there."""
    facts = replace(FACTS, installer=installer, environment=False)
    assert publisher_command(facts) == f"pipx install tsuku-publish=={__version__}"
    assert extra_command(facts, "fleet") == "pipx install --force 'tsuku-llm[fleet]'"


def test_an_extra_is_added_to_this_copy_and_no_other() -> None:
    with_spaces = replace(CLONE, python="/a b/python")
    assert extra_command(with_spaces, "fleet").startswith("'/a b/python' -m pip install ")
    assert extra_command(CLONE, "fleet").endswith(f"{CLONE.clone}[fleet]'")
    plain = replace(CLONE, clone=None)
    assert extra_command(plain, "socks").endswith(" -m pip install 'tsuku-llm[socks]'")
    of_file = replace(plain, origin="file:///d/t.whl")
    assert extra_command(of_file, "socks").endswith(" install 'tsuku-llm[socks] @ file:///d/t.whl'")
    for tool, command in (("uv_tool", "uv tool install"), ("pipx", "pipx install")):
        told = extra_command(replace(plain, **{tool: True}), "fleet")
        assert told == f"{command} --force 'tsuku-llm[fleet]'"


def test_an_editable_install_follows_its_folder() -> None:
    updater = updater_of(replace(CLONE, editable=True))
    assert (updater.way, updater.commands, updater.tool) == ("editable", (PULL,), "pip")
    assert updater.editable


def test_an_environment_of_uv_is_updated_with_uv_if_it_is_there() -> None:
    own = replace(FACTS, installer="uv")
    assert updater_of(own).tool == "uv"
    assert updater_of(replace(own, tools=frozenset())).tool == "pip"


def test_the_index_that_the_installer_noted_is_the_one_that_is_asked() -> None:
    own = replace(FACTS, pipx=True, index=(("PIP_INDEX_URL", "https://index.example.org/"),))
    assert updater_of(own).index == own.index


NOT_RUN = {
    "the system's Python": (SYSTEM, "system", "uv tool install tsuku-llm"),
    "the system's Python, managed": (replace(SYSTEM, managed=True), "system", "pipx install"),
    "the system's Python, from a wheel": (
        replace(SYSTEM, origin="file:///d/t.whl"),
        "system",
        "uv tool install file:///d/t.whl, or: pipx install file:///d/t.whl",
    ),
    "the user's packages": (
        replace(SYSTEM, user_site=True),
        "user",
        "uv tool install tsuku-llm",
    ),
    "the user's packages, managed": (
        replace(SYSTEM, managed=True, user_site=True),
        "system",
        "uv tool install tsuku-llm",
    ),
    "a distribution's package": (
        replace(SYSTEM, installer="debian"),
        "package-manager",
        "tsuku-llm with debian",
    ),
    "a package without a name": (replace(SYSTEM, installer=""), "package-manager", "that package"),
    "the program without Python": (replace(SYSTEM, installer=FOLDER), "folder", "newer archive"),
    "a package of conda": (replace(FACTS, installer="conda"), "package-manager", "with conda"),
    "no metadata": (replace(FACTS, installer=None), "source", "update that folder"),
    "a wheel": (
        replace(FACTS, origin="file:///t.whl"),
        "environment",
        f"{PYTHON} -m pip install --upgrade",
    ),
    "a wheel with uv": (
        replace(FACTS, uv_tool=True, origin="file:///t.whl"),
        "uv-tool",
        "uv tool install --force",
    ),
    "a wheel with pipx": (
        replace(FACTS, pipx=True, origin="file:///t.whl"),
        "pipx",
        "pipx install --force",
    ),
    "a source archive": (replace(CLONE, is_repository=False), "clone", "newer source archive"),
    "no git": (replace(CLONE, tools=frozenset()), "clone", "install git"),
    "no uv": (
        replace(FACTS, uv_tool=True, tools=frozenset()),
        "uv-tool",
        "uv tool upgrade tsuku-llm",
    ),
}


@pytest.mark.parametrize("case", NOT_RUN)
def test_what_cannot_be_updated_says_why_and_what_to_do(case: str) -> None:
    facts, way, hint = NOT_RUN[case]
    updater = updater_of(facts)
    assert (updater.way, updater.commands) == (way, ())
    assert updater.reason
    assert hint in updater.hint


def test_a_python_of_the_system_is_never_touched() -> None:
    for managed in (False, True):
        for origin in ("", "file:///t.whl"):
            facts = replace(SYSTEM, managed=managed, origin=origin)
            assert updater_of(facts).commands == ()
    updater = updater_of(replace(CLONE, editable=True, environment=False))
    assert (updater.commands, updater.tool) == ((PULL,), "")
