"""What the program is installed from: the locks, the wheel of a commit and its SBOM."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import requires
from pathlib import Path

import pytest
import tomli
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))
DEPENDENCIES = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILD = PROJECT["build-system"]["requires"]
PUBLISHER = requires("tsuku-publish") or ()


LOCKS = {"tool": "installer/tsuku_llm/locked.txt", "test": "ci/locks/test.txt"}


def locked_lines(name: str) -> list[str]:
    # Bundles are made with the packaged one: a link would be a damaged file on some systems.
    assert not (ROOT / LOCKS[name]).is_symlink()
    text = (ROOT / LOCKS[name]).read_text("utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def locked_versions(name: str) -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for line in locked_lines(name):
        package, _, rest = line.partition("==")
        versions.setdefault(package, []).append(rest.split()[0])
    return versions


@pytest.mark.parametrize("name", ["tool", "test"])
def test_every_locked_version_has_the_digests_of_its_files(name: str) -> None:
    lines = locked_lines(name)
    assert len(lines) > 20
    for line in lines:
        requirement, *digests = line.split(" --hash=sha256:")
        assert len(list(Requirement(requirement).specifier)) == 1
        assert "==" in requirement
        assert digests
        assert all(len(digest.strip()) == 64 for digest in digests)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tool", [*DEPENDENCIES, *BUILD]),
        ("test", [*DEPENDENCIES, *BUILD, *EXTRAS["test"], *PUBLISHER, "socksio"]),
    ],
)
def test_the_lock_has_every_dependency_of_pyproject(name: str, wanted: list[str]) -> None:
    versions = locked_versions(name)
    for each in map(Requirement, wanted):
        if each.name != "tsuku-llm":
            assert versions.get(each.name), f"{each.name} is not locked: run ci/lock"
            for version in versions[each.name]:
                assert each.specifier.contains(version), f"{each} is not {version}: run ci/lock"


def test_packages_in_both_locks_have_the_same_version() -> None:
    tool, test = locked_versions("tool"), locked_versions("test")
    assert {name: test[name] for name in tool} == tool


@pytest.mark.parametrize("script", ["install.sh", "ci/environment.sh"])
def test_only_locked_files_are_installed(script: str) -> None:
    installs = [
        line.strip()
        for line in (ROOT / script).read_text("utf-8").splitlines()
        if line.strip().startswith(("pip --", '"${pip[@]}"'))
    ]
    assert len(installs) == 2
    # The lock is complete: pip must not look for versions, among which a newer one appears one day.
    wanted = [f"--no-deps --require-hashes -r {lock}" for lock in LOCKS.values()]
    assert any(words in installs[0] for words in wanted)
    assert "--no-deps --no-build-isolation ." in installs[1]


def test_one_commit_gives_one_wheel_and_one_sbom(tmp_path: Path) -> None:
    made = []
    for name, umask, zone in (("first", 0o022, "UTC"), ("second", 0o077, "Asia/Tokyo")):
        done = subprocess.run(
            [sys.executable, ROOT / "ci/package", tmp_path / name],
            env=os.environ | {"TZ": zone},
            umask=umask,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert made[0] == made[1]

    client, publisher = sorted(name for name in made[0] if name.endswith(".whl"))
    require_sbom(made[0], client, DEPENDENCIES)
    publishers = require_sbom(made[0], publisher, PUBLISHER)
    (of_client,) = (each for each in publishers["components"] if each["name"] == "tsuku-llm")
    assert of_client["hashes"][0]["content"] == sha256(made[0][client]).hexdigest()
    assert not {"pytest", "mypy"} & {each["name"] for each in publishers["components"]}


def require_sbom(made: dict, wheel: str, dependencies: Iterable[str]) -> dict:
    sbom = json.loads(made[f"{wheel}.cdx.json"])
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    root = sbom["metadata"]["component"]
    assert root["hashes"] == [{"alg": "SHA-256", "content": sha256(made[wheel]).hexdigest()}]
    named = {each["name"] for each in sbom["components"]}
    assert named >= {Requirement(each).name for each in dependencies}
    assert "setuptools" not in named  # it builds the wheel and is not part of it
    others = [each for each in sbom["components"] if each["name"] != "tsuku-llm"]
    files = [each["externalReferences"][0]["hashes"] for each in others]
    assert all(files)
    needs = {each["ref"]: each.get("dependsOn", []) for each in sbom["dependencies"]}
    assert any(ref.startswith("pkg:pypi/cffi@") for ref in needs[_ref(sbom, "cryptography")])
    assert _ref(sbom, "cffi") not in needs[root["bom-ref"]]
    return sbom


def _ref(sbom: dict, name: str) -> str:
    return next(each["bom-ref"] for each in sbom["components"] if each["name"] == name)
