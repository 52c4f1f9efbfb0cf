"""Builds made on this machine from llama.cpp's source, in a signed repository of their own.

The commands are those of docs/building.md and docs/releases.md. Nothing leaves the machine: the
repository and its archives are folders.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.gpulab.machine import Machine
from ci.gpulab.routing import show_all_models
from ci.gpulab.starting import show_starts
from ci.gpulab.steps import compare, serve
from ci.gpulab.visible import show_visible

_NAME = "own"
_TAG = "b11434"
_OTHER_CARD = "7.5-real"
"""Machine code of Turing, without PTX: newer cards cannot run it."""


def show_built(
    machine: Machine, words: Sequence[str], work: Path, model: Path
) -> Mapping[str, Mapping[str, object]]:
    """Build, publish, install, serve and measure; one entry for each step.

    ``words`` are those of ``tsuku-publish build``: variants, among them one with CUDA, and options.
    ``work`` keeps the builds, so that a run that was cut off goes on in the next one.
    """
    began = time.monotonic()
    built = _publish(
        machine,
        *("build", *words, "--release", _TAG, "--json"),
        *("--work", str(work / "work"), "--into", str(work / "builds")),
    )
    builds = built["builds"]
    document: dict[str, Mapping[str, object]] = {
        "build": {"shown": True, "seconds": round(time.monotonic() - began), "builds": builds}
    }
    own = _offered(machine, builds, work)
    cards: dict[str, list[str]] = {}
    backends = [backend for each in builds for backend in each["backends"] if backend != "cpu"]
    both = "+".join(backends)
    for backend in dict.fromkeys(("cpu", *backends, both)):
        installed = own.program("install", "--backend", backend, "--json")
        document[f"install {backend}"] = {
            "shown": installed.code == 0,
            **installed.told,
            "version": installed.data,
        }
        if backend != "cpu":
            document[f"serve {backend}"] = started = serve(own, model)
            start: Any = started["start"]
            cards[backend] = [str(each) for each in start.get("gpu_names") or ()]
        if backend in backends:
            document[f"starts {backend}"] = show_starts(own)
            document[f"all models {backend}"] = show_all_models(own)
            document[f"visible cards {backend}"] = show_visible(own, model)
    listed = own.program("list", "--json")
    document["list"] = {"shown": listed.code == 0, "versions": listed.data.get("versions")}
    # The driver's card is NVIDIA's: the combined tree uses it through CUDA alone.
    once = len(cards[both]) == len(cards["cuda"]) and not any(
        "Vulkan" in each for each in cards[both]
    )
    document["each card once"] = {"shown": once, "cards": cards}
    document["compared"] = compare(own, model, ["cpu", *(each["variant"] for each in builds)])
    if "cuda" in backends:
        document["code for another card"] = _foreign(own, words, work)
    return document


def _foreign(machine: Machine, words: Sequence[str], work: Path) -> Mapping[str, object]:
    """Show that a build lists a card for which it has no code, and that the install refuses it.

    ``--from`` reads no list of cards, so the trial alone can refuse it.
    """
    at = words.index("--cuda-architectures") + 1
    others = ["cuda", *words[words.index("--source") : at], _OTHER_CARD, *words[at + 1 :]]
    built = _publish(
        machine,
        *("build", *others, "--release", _TAG, "--json"),
        *("--work", str(work / "work"), "--into", str(work / "others")),
    )
    tree = Path(built["builds"][0]["result"]["tree"])
    listed = subprocess.run(
        [tree / "llama-server", "--list-devices"],
        env=dict(machine.env),
        capture_output=True,
        text=True,
        check=False,
    )
    before = machine.program("which", "--json").data
    installed = machine.program(
        "install", "--from", str(tree), "--backend", "cuda", "--yes", "--json"
    )
    after = machine.program("which", "--json").data
    error = installed.document.get("error") or {}
    refused = isinstance(error, dict) and error.get("code") == "gate-failed" and before == after
    return {
        "shown": refused and "CUDA0" in listed.stdout,
        "devices": listed.stdout,
        **installed.told,
    }


def _offered(machine: Machine, builds: list[Mapping[str, Any]], work: Path) -> Machine:
    """Sign a release of the builds; return a machine that trusts its repository."""
    company, signers, archives, shop = (
        machine.folder / name for name in ("company", "company-signers", "archives", "repository")
    )
    _publish(
        machine, "init", str(company), "--publisher", "GPU lab", "--root", "anna", "--unencrypted"
    )
    cuda = next(each for each in builds if "cuda" in each["backends"])
    # The CUDA build has the plugins of the processor, too.
    trees = {each["variant"]: str(each["result"]["tree"]) for each in builds}
    named = [f"{variant}={tree}" for variant, tree in trees.items()]
    named.append(f"cpu={_processor_alone(Path(cuda['result']['tree']), work / 'cpu')}")
    words = [word for each in named for word in ("--variant", each)]
    data, url = ("--data", str(company)), "https://archives.invalid/"
    _publish(
        machine,
        "add",
        _TAG,
        *data,
        *words,
        "--into",
        str(archives),
        "--url",
        url,
        "--system-library",
        "libibverbs.so.1",
    )
    _publish(machine, "sign", *data, "--yes", TSUKU_LLM_SIGNERS=str(signers))
    _publish(machine, "publish", *data, str(shop))
    root = company / "signed/metadata/1.root.json"
    added = machine.program(
        "repository", "add", _NAME, f"{shop.as_uri()}/", "--root", str(root), "--json"
    )
    if added.code:
        raise RuntimeError(json.dumps(added.told))
    chosen = {"REPOSITORY": _NAME, "CHANNEL": "stable", "MIRROR": f"{archives.as_uri()}/"}
    settings = {f"TSUKU_LLM_{name}": value for name, value in chosen.items()}
    return replace(machine, env={**machine.env, **settings})


def _processor_alone(tree: Path, folder: Path) -> Path:
    """Copy a build without its GPU's plugin and that one's libraries."""
    if not folder.is_dir():
        folder.mkdir()
        for path in tree.iterdir():
            if "cuda" not in path.name and "cublas" not in path.name:
                subprocess.run(["cp", "-a", path, folder], check=True)
    return folder


def _publish(machine: Machine, *words: str, **env: str) -> Any:
    """Run ``tsuku-publish`` to its end; return the data of its JSON document, if it has one."""
    done = subprocess.run(
        [machine.command.with_name("tsuku-publish"), *words],
        env={**machine.bare, **env},
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"tsuku-publish {words[0]}: {done.stdout.decode()[-2000:]}")
    return json.loads(done.stdout)["data"] if "--json" in words else None
