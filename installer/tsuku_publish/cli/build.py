"""The command ``build``: llama.cpp's source becomes builds of one's own."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path

import click

from tsuku_llm.cli.command import Command
from tsuku_llm.cli.terminal.answer import CommandResult
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.cli.terminal.text import size, table
from tsuku_publish.building.compiling import RECEIPT, SBOM, TREE, processors
from tsuku_publish.building.orders import Orders, orders
from tsuku_publish.building.orders import build as build_orders
from tsuku_publish.building.recipe import BASELINES, BuildWishes
from tsuku_publish.building.source import DISTRIBUTION, Source
from tsuku_publish.cli.options import FOLDER, tell
from tsuku_publish.cli.own import c_library


@click.command("build", cls=Command)
@click.argument("words", nargs=-1, metavar="[show] VARIANT...")
@click.option(
    "--source",
    metavar="SOURCE",
    help=f"llama.cpp's tree, archive, or {DISTRIBUTION}==VERSION.",
)
@click.option("--release", metavar="TAG", help="Which build of llama.cpp it is; as SOURCE says.")
@click.option(
    "--into", type=FOLDER, default="builds", metavar="FOLDER", help="Where builds go; builds."
)
@click.option(
    "--work",
    type=FOLDER,
    default="builds/.work",
    metavar="FOLDER",
    help="Where it compiles; kept for the next run. builds/.work.",
)
@click.option(
    "--cuda-architectures", metavar="LIST", help="The NVIDIA cards: 8.6,9.0. As the toolkit has."
)
@click.option("--gfx", metavar="LIST", help="The AMD cards: gfx1030,gfx1100. As ROCm has.")
@click.option(
    "--baseline",
    metavar="LEVEL",
    default=BASELINES[0],
    help="The oldest x86 processor: x86-64-v1 to -v4; v1.",
)
@click.option(
    "--base",
    metavar="BASE",
    help="Compile for an older system: debian-11, glibc-2.17, musl, or a folder with its files.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 4096), metavar="N", help="Files at a time; all cores."
)
@click.pass_obj
def build(
    console: Console,
    *,
    words: tuple[str, ...],
    source: str | None,
    release: str | None,
    into: Path,
    work: Path,
    cuda_architectures: str | None,
    gfx: str | None,
    baseline: str,
    base: str | None,
    jobs: int | None,
) -> CommandResult:
    """Build llama.cpp's server and tools from its source.

    VARIANT is cpu, cuda, vulkan, rocm, sycl, opencl, openvino or metal, or several in one build:
    cuda+vulkan. Without one, GGML_CUDA=1 and its siblings in the environment say it. `build show`
    prints what would be built with what, and which tools are missing. Each build is complete in
    FOLDER/VARIANT, or not there; docs/building.md has a guide for each backend.
    """
    only_show = words[:1] == ("show",)
    variants = words[1:] if only_show else words
    named = source if only_show else source or DISTRIBUTION
    cards = (_listed(cuda_architectures), _listed(gfx))
    wishes = BuildWishes(variants, named, release, *cards, baseline, base)
    environ, told = dict(os.environ), partial(tell, console)
    with orders(wishes, work, into, environ, told, only_show=only_show) as planned:
        if only_show or planned.source is None:
            return CommandResult(planned, _shown(planned))
        finished = build_orders(
            planned,
            planned.source,
            work=work,
            into=into,
            jobs=jobs or processors(),
            environ=environ,
            tell=told,
        )
        return CommandResult(finished, _done(finished, planned.source))


def _listed(text: str | None) -> tuple[str, ...]:
    """Return the words of a list with commas, or with CMake's semicolons."""
    return tuple(word.strip() for word in (text or "").replace(";", ",").split(",") if word.strip())


def _shown(planned: Orders) -> tuple[str, ...]:
    lines: list[str] = []
    if planned.source:
        source = planned.source
        named = f"{source.name}, {source.release or 'of an unknown release'}"
        lines.append(f"source    {named}, sha256 {source.sha256[:12]}")
    else:
        lines.append("source    not named: other GGML_ and LLAMA_ variables are not shown")
    for order in planned.builds:
        made, tools = order.recipe, order.toolchain
        lines += ["", f"{made.variant} for {made.platform}, with {made.generator}"]
        if base := tools.base:
            libc = f", glibc {base.glibc}" if base.glibc else ""
            lines.append(f"  in {base.system}{libc}, {base.root}")
        rows = [(tool.title, tool.version or "-", str(tool.path)) for tool in tools.tools]
        rows += [
            (tool.title, "unusable", f"{tool.reason}; {tool.advice}")
            if tool.unusable
            else (tool.title, "not there", tool.optional or tool.reason or tool.advice)
            for tool in tools.missing
        ]
        lines += table(rows, indent=2)
        if made.cuda_architectures:
            sass, ptx = ", ".join(made.sass) or "none", ", ".join(made.ptx) or "none"
            lines.append(f"  CUDA SASS {sass}; PTX {ptx}")
        lines += [f"  {note}" for note in made.notes]
        lines.append(f"  cmake {shlex.join(order.cmake)}")
        lines.append(f"  compiler flags: {' '.join((*made.flags, *made.link_flags)) or 'none'}")
        if tools.lacking:
            lines.append(f"  missing: {', '.join(tool.title for tool in tools.lacking)}")
        if tools.install:
            lines.append(f"  install it with: {tools.install}")
    for each in planned.unmade:
        lines += ["", f"the base {each.name} is not made yet; `build` makes it in {each.root}"]
        lines.append(f"  with {' '.join(each.packages)}")
    return tuple(lines)


def _done(finished: Orders, source: Source) -> tuple[str, ...]:
    built = [(each.recipe.variant, each.result) for each in finished.builds if each.result]
    rows = [
        (
            variant,
            str(each.tree),
            size(each.measured.size),
            c_library(each.measured),
            f"libstdc++ {each.measured.floors.get('libstdcxx', '-')}",
        )
        for variant, each in built
    ]
    named = " ".join(
        f"--variant {shlex.quote(f'{variant}={each.tree}')}" for variant, each in built
    )
    tag = source.release or "bNUMBER"
    return (
        *table(rows, indent=0),
        f"{RECEIPT} and {SBOM} are beside each {TREE}; to offer them:",
        f"  tsuku-publish add {tag} {named} --into FOLDER --url URL",
    )
