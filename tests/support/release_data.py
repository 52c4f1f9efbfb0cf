"""The release tool's data in a folder of a test's own, and answers of the hosting service."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import tomlkit
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.builds import Packed
from support.repository import signer
from support.schemas import check_output

from ci.schemas import PUBLISHER
from tsuku_publish.cli.main import run
from tsuku_publish.holders.signers import VARIABLE
from tsuku_publish.release_files.plan import load_plan
from tsuku_publish.upstream.facts import UpstreamRelease

ROOT = Path(__file__).parents[2]
DATA = ROOT / "ci" / "release"
"""The project's own data: the folder of the commands, unless a test names another."""
GIVEN_SIGNERS = os.environ.pop(VARIABLE, None)
"""The maintainers' own signers, where somebody runs the tests with them: to look for, only."""
DOWNLOADS = "https://github.com/ggml-org/llama.cpp/releases/download"


def copied_data(folder: Path, *names: str, delegated: bool = False) -> Path:
    """A copy of rules, facts and plan; its signers, and those of more names, are throwaway.

    Unless ``delegated``, no channel has signers of its own: tests that need one say whose.
    """
    shutil.copytree(DATA, folder)
    path = folder / "repository.toml"
    document: Any = tomlkit.parse(path.read_text())
    for channel in () if delegated else load_plan(DATA).delegated:
        del document["roles"][channel], document["warn"][channel]
    for name, key in keys_of(*load_plan(DATA).keys, *names).items():
        document["keys"][name] = key
    path.write_text(tomlkit.dumps(document))
    return folder


def keys_of(*names: str) -> dict[str, str]:
    """The public keys of throwaway signers."""
    return {name: public_of(seed_of(name)) for name in names}


def seed_of(name: str) -> str:
    """The seed of a throwaway signer, in hexadecimal digits."""
    return str(signer(name)._private_key.private_bytes_raw().hex())


def signers_file(path: Path, *names: str, **changes: str) -> dict[str, str]:
    """The environment that names a file of throwaway signers; those of the plan for none."""
    wanted = names or {name for role in load_plan(DATA).roles.values() for name in role.signers}
    made = {
        name: {"scheme": "ed25519", "seed": seed_of(name), "public": keys_of(name)[name]} | changes
        for name in wanted
    }
    path.touch(0o600)
    path.write_text(json.dumps(made))
    return {VARIABLE: str(path)}


def public_of(seed: str) -> str:
    """The public key of an Ed25519 seed, both in hexadecimal digits."""
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)).public_key()
    return key.public_bytes_raw().hex()


def is_one_error(said: str, slug: str = "publish") -> bool:
    """Tell whether a text is one error: one line, and perhaps facts and one hint."""
    return bool(re.fullmatch(rf"error\[{slug}\]: .+\n(?:  .+\n)*(?:hint: .+\n)?", said))


def forget_releases(data: Path) -> None:
    """Facts as they are before the first ``refresh``."""
    path = data / "facts" / "upstream-releases.json"
    path.write_text('{"stable": {}, "releases": {}}')


def answer(tag: str, assets: Iterable[Mapping[str, Any]], **changes: Any) -> bytes:
    """What the hosting service says of a release; ``assets`` as ``asset`` makes them."""
    document = {
        "url": f"https://api.github.com/repos/ggml-org/llama.cpp/releases/{len(tag)}",
        "tag_name": tag,
        "name": tag,
        "draft": False,
        "prerelease": False,
        "created_at": "2026-10-05T08:00:00Z",
        "published_at": "2026-10-05T09:12:44Z",
        "assets": list(assets),
        "body": "server: say what is loaded (#1)",
    }
    return json.dumps(document | changes).encode()


def asset(tag: str, name: str, sha256: str, size: int | None) -> dict[str, Any]:
    """One asset in such an answer."""
    return {
        "url": "https://api.github.com/repos/ggml-org/llama.cpp/releases/assets/1",
        "id": 1,
        "name": name,
        "label": "",
        "uploader": {"login": "github-actions[bot]"},
        "content_type": "application/octet-stream",
        "state": "uploaded",
        "size": size,
        "digest": f"sha256:{sha256}",
        "download_count": 7,
        "browser_download_url": f"{DOWNLOADS}/{tag}/{name}",
    }


def answer_of(release: UpstreamRelease) -> bytes:
    """The answer that gives a recorded release."""
    assets = [asset(release.tag, each.name, each.sha256, each.size) for each in release.assets]
    return answer(release.tag, assets, published_at=f"{release.published}T09:12:44Z")


def answer_for(tag: str, archives: Iterable[Packed]) -> bytes:
    """The answer for archives that lie on the disk."""
    return answer(tag, [asset(tag, each.path.name, each.sha256, each.size) for each in archives])


SIGNING = ("sign", "rotate")
"""Commands of people, who answer a question before they sign."""


def release_tool(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What ``tsuku-publish`` does and says, in this process: a second less.

    Whoever signs has read the change before, and says so.
    """
    words = [*map(str, arguments), *(["--yes"] if arguments[0] in SIGNING else [])]
    environ = {"TSUKU_PUBLISH_DATA": str(DATA), **environ}
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        descriptor_kept() as document,
        mock.patch.dict(os.environ, environ),
    ):
        code = run(words)
        document.seek(0)
        told = out.getvalue() + document.read()
    check_output(words, told, PUBLISHER)
    return subprocess.CompletedProcess(words, code, told, err.getvalue())


@contextlib.contextmanager
def descriptor_kept() -> Iterator[TextIO]:
    """Lead this process's own stdout into a file: a JSON document is written there."""
    own = os.dup(1)
    try:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            try:
                yield file
            finally:
                os.dup2(own, 1)
    finally:
        os.close(own)


def release_process(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``tsuku-publish`` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tsuku_publish", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"TSUKU_PUBLISH_DATA": str(DATA)} | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    check_output([*map(str, arguments)], done.stdout, PUBLISHER)
    return done
