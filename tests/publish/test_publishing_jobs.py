"""The commands of ``ci/publishing``, which the hosted job runs, on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.feed_publisher import MACHINE, FeedPublisher, delegate, feed_publisher
from support.release_data import ROOT, signers_file
from support.upstream_builds import day
from support.upstream_host import Upstream

from tsuku_publish.repository import checking, copies


def job(at: FeedPublisher, command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the script; only those that sign have the machine's own signers."""
    home = at.data.parent
    programs = str(Path(sys.executable).parent)
    environ = {
        **os.environ,
        **at.upstream.environ,
        **(signers_file(home / "machine.json", *MACHINE) if command != "feed" else {}),
        "PATH": f"{home}/bin{os.pathsep}{programs}{os.pathsep}{os.environ['PATH']}",
        "TSUKU_PUBLISH_DATA": str(at.data),
        "ANSWER": str(home / "feed.json"),
        "METRICS": str(home / "feed.prom"),
        "TODO": str(home / "todo.txt"),
        "SITE": str(home / "site"),
        "XDG_STATE_HOME": str(home / "state"),
        **more,
    }
    return subprocess.run(
        [str(ROOT / "ci" / "publishing"), command],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="a bash script for the publisher's host")
def test_the_jobs_from_a_new_build_to_an_issue(tmp_path: Path) -> None:
    with Upstream(day(9, 2, 12), tmp_path / "upstream", every=4, limit=5000) as upstream:
        at = feed_publisher(tmp_path, upstream)
        delegate(at)
        at.edit("rules.toml", lambda document: document["hosting"].update(api=upstream.api))
        # Sigstore's own root does not know the tests' builder: these builds have no attestation.
        at.edit("rules.toml", lambda document: document["feed"].update(unattested=True))
        upstream.attested = dict.fromkeys(upstream.tags(), "no")
        at.sign()
        done = job(at, "feed")
        assert done.returncode == 0, done.stderr
        assert "no rule knows it" in done.stdout
        assert "if you do nothing: " in done.stdout
        assert 'tsuku_publish_matter{key="new-names"}' in (tmp_path / "feed.prom").read_text()
        assert "[[rule]]" in done.stdout
        signed = job(at, "sign")
        assert signed.returncode == 0, signed.stderr
        site = copies.RepositoryFolder(tmp_path / "site")
        served = checking.verify(site, checking.first_root(site))
        newest = at.nightly[0]
        assert f"releases/{newest}.json" in {*served.targets}
        again = job(at, "resign")
        assert again.returncode == 0, again.stderr
        later = checking.verify(site, checking.first_root(site))
        assert later.versions["timestamp"] > served.versions["timestamp"]
        checked = job(at, "check", PUBLISHED=str(tmp_path / "site"))
        assert "published" in checked.stdout, checked.stderr
        # gh's part is a stand-in: it keeps what it was called with.
        (tmp_path / "bin").mkdir()
        gh = tmp_path / "bin" / "gh"
        gh.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/gh.log\n'
                      f'case "$2" in create) cp "$6" {tmp_path}/body;; esac\n')  # fmt: skip
        gh.chmod(0o755)
        assert job(at, "report", FAILED="true", RUN="https://host/run/1").returncode == 0
        assert "issue create --title" in (tmp_path / "gh.log").read_text()
        body = (tmp_path / "body").read_text()
        assert "new-names: " in body
        assert "[[rule]]" in body
        assert "- The job failed: https://host/run/1" in body
        assert json.loads((tmp_path / "feed.json").read_text())["data"]["changed"]
