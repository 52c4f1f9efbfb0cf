"""The pages for a company: their length, and the one that needs upstream, run as it is printed.

``ci/company`` types the others on bare machines. Each line of ``feed.md`` is typed here, those of
the host and that of the user. ``feed`` and ``sign`` get three options that the page does not have:
the address, the time and Sigstore's root of the host that plays upstream. A real upstream, with
attestations of the real Sigstore, has not met this page.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import the_day
from support.own_publisher import ROLE
from support.upstream_builds import day
from support.upstream_host import Upstream

from tsuku_publish.repository import checking, copies

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "company").glob("*.md"))
IN_CHILDREN = ROOT / "tests" / "support" / "in_children"
STAMP = "2026-08-24T00:00:00Z"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_P4_a_company_needs_one_short_page_for_each_task(page: Path) -> None:
    assert len(page.read_text("utf-8").split()) <= 800
    run_here = "test_company_pages" if page.stem == "feed" else f'page("{page.stem}")'
    assert run_here in (ROOT / "ci" / "company").read_text("utf-8")


def test_P4_every_way_to_lose_a_key_is_on_the_page_of_recovery() -> None:
    text = (ROOT / "docs" / "company" / "recover.md").read_text("utf-8")
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    for word in ("expired", "stolen", "lost the key", "quorum"):
        assert any(word in heading for heading in headings), word


class Host:
    """The company's host, after the page about founding."""

    def __init__(self, home: Path, upstream: Upstream) -> None:
        self.home = home
        self.upstream = upstream
        programs = home / "bin"
        programs.mkdir()
        for name in ("tsuku-llm", "tsuku-publish"):
            module = name.replace("-", "_")
            text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n'
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        (home / "tsuku-llm").symlink_to(ROOT)
        who = {f"GIT_{each}_NAME": "host" for each in ("AUTHOR", "COMMITTER")}
        who |= {f"GIT_{each}_EMAIL": "host@host.example" for each in ("AUTHOR", "COMMITTER")}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.env = {**upstream.environ, "HOME": str(home), "PATH": path, **who}

    def type(self, line: str) -> str:
        """Type a line of a page, with what makes the host that plays upstream the real one."""
        root = f"--trusted-root {self.upstream.trusted_root}"
        asked = f"feed --api {self.upstream.api} --now {self.upstream.now:%Y-%m-%dT%H:%M} {root}"
        text = line.replace("tsuku-publish feed", f"tsuku-publish {asked}")
        text = text.replace("tsuku-publish sign", f"tsuku-publish sign --issued {STAMP} {root}")
        text = text.replace("/srv/www", str(self.home / "www"))
        done = subprocess.run(
            ["sh", "-ec", text],
            cwd=self.home,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="a page for a host with a shell")
def test_P5_a_company_feeds_its_own_repository_as_its_page_says(tmp_path: Path) -> None:
    """A repository of ``init`` has no data of this project but what the page copies."""
    with Upstream(day(8, 24), tmp_path / "upstream", every=6, limit=5000) as upstream:
        host = Host(tmp_path, upstream)
        host.type("git init -q --bare -b main company.git; git clone -q company.git company")
        host.type(
            "tsuku-publish init company --publisher 'Example Ltd' --root anna,ben --unencrypted "
            "--issued 2026-08-20"
        )
        line = host.type(
            "tsuku-publish new-signer machine company-signers/machine.json --unencrypted"
        )
        plan = tmp_path / "company" / "repository.toml"
        table = ROLE.format(name="nightly", days=30, signers=["machine"], threshold=1)
        text = (
            plan.read_text()
            .replace("[keys]\n", f"[keys]\n{line}")
            .replace("[channels]\n", "[channels]\nnightly = []\n")
        )
        plan.write_text(text + table)
        host.type(
            "TSUKU_LLM_SIGNERS=company-signers tsuku-publish sign --yes --offline --data company"
        )
        host.type("cd company; git add .; git commit -q -m Found; git push -q")
        page = (ROOT / "docs" / "company" / "feed.md").read_text("utf-8")
        for block in re.findall(r"^```sh host\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            for each in block.splitlines():
                host.type(each)
        newest = upstream.tags()[0]
        # The user: the channel is served from a folder, and the rest is as on the page.
        host.env |= the_day.on(upstream.now) | {"PYTHONPATH": str(IN_CHILDREN)}
        host.type(
            "tsuku-llm repository add company file:///srv/www/llm/repository/ "
            "--root company/signed/metadata/1.root.json"
        )
        (block,) = re.findall(r"^```sh user\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        assert f"build {newest}." in host.type(block)
    served = copies.RepositoryFolder(tmp_path / "www" / "llm" / "repository")
    trusted = checking.verify(served, checking.first_root(served))
    target = trusted.targets[f"releases/{newest}.json"]
    assert (target.role, target.custom["channels"]) == ("nightly", ["nightly"])
