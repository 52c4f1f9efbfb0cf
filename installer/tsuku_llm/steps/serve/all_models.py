"""The preset with which upstream's router serves every model of this machine.

Its format is that of ``load_from_ini`` in upstream's common/preset.cpp: a section for each model,
with the names of arguments as keys. What the router itself is told counts for every model as well,
such as the devices (``load_models`` in tools/server/server-models.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tsuku_llm.ground.files import make_folder, replace_file
from tsuku_llm.ground.records import documented
from tsuku_llm.launch.plan.build_arguments import arguments_in
from tsuku_llm.launch.plan.wishes import MODELS_PRESET
from tsuku_llm.model_caches.naming import LocalModel

# A value ends before a comment, also within a word, and loses blanks at its ends. Nothing quotes.
_VALUE = re.compile(r"[^\s;#](?:[^;#\r\n]*[^\s;#])?")
_SECTION = re.compile(r"[^\s\]](?:[^\]\r\n]*[^\s\]])?")
_MOST = 4
"""Models that upstream's router loads at a time (``models_max`` in common/common.h, b11434)."""
_RESERVED = ("*", "default")
"""Sections that are no models: the values of all, and those before any section."""


class RoutedModel(NamedTuple):
    """A model of a router: ``name`` is its id there, and ``alias`` another name, None for none.

    ``device`` is the one that it is placed on, None if the router chooses for all.
    """

    name: str
    alias: str | None
    path: str
    projector: str | None
    device: str | None = None

    @property
    def told(self) -> tuple[str, str]:
        """The name that people use, and where the model is, for people."""
        return self.alias or self.name, f"{self.path}{f', on {self.device}' if self.device else ''}"


@documented("path", "models", "limit", "memory")
class RouterPreset(NamedTuple):
    """The file of a router's models; ``offline`` if the build knows how to ask no network.

    ``left_out`` are the names of models that the format cannot express. ``limit`` is how many
    models it may load at a time, None for the server's own limit or the user's; ``memory`` says
    why.
    """

    path: Path
    models: tuple[RoutedModel, ...]
    left_out: tuple[str, ...]
    offline: bool
    limit: int | None = None
    memory: str = ""

    @property
    def told(self) -> str:
        """What the server will offer, for people."""
        count = len(self.models)
        what = "the model" if count == 1 else f"{count} models"
        text = f"no model is named: serving {what} of this machine, each loads at its first request"
        if self.left_out:
            text += f"; a preset cannot name: {', '.join(self.left_out)}"
        return text

    def limited(self, count: int | None) -> RouterPreset:
        """Return this preset for a machine on which ``count`` of its models fit at a time.

        None is not known. Upstream counts models, and not their memory (``unload_lru`` in
        tools/server/server-models.cpp, b11434).
        """
        if count is None:
            return self._replace(
                memory="how many of them fit into memory at a time is not known: the server's own "
                "limit counts"
            )
        if count >= len(self.models):
            return self._replace(memory="all of them fit into memory at a time")
        if count > _MOST:
            return self._replace(limit=_MOST, memory=f"any {_MOST} of them fit into memory")
        return self._replace(
            limit=count,
            memory=f"at most {count} at a time: more may not fit into memory together; with a "
            "smaller context (-- -c TOKENS) more do; your own number counts: -- --models-max N",
        )

    def on(self, devices: Sequence[str]) -> RouterPreset:
        """Return this preset with a device for each model."""
        pairs = zip(self.models, devices, strict=True)
        return self._replace(models=tuple(each._replace(device=name) for each, name in pairs))

    @property
    def text(self) -> str:
        """The content of the file."""
        return "\n".join(self._section(model) for model in self.models)

    def write(self) -> None:
        """Put the file into its folder. Raises StoreError."""
        make_folder(self.path.parent, private=True)
        replace_file(self.path, self.text.encode())

    def _section(self, model: RoutedModel) -> str:
        lines = [f"[{model.name}]", f"model = {model.path}"]
        if model.projector:
            lines.append(f"mmproj = {model.projector}")
        if model.device:
            lines.append(f"device = {model.device}")
        if model.alias:
            lines.append(f"alias = {model.alias}")
        # The files are here. Upstream may ask Hugging Face for a model that its cache has, too.
        if self.offline:
            lines.append("offline = true")
        return "\n".join((*lines, ""))


def preset_of(
    models: Iterable[LocalModel], path: Path, takes: Sequence[str]
) -> RouterPreset | None:
    """Return the preset for a build with these arguments; None if the build has no presets."""
    known = {name for each in arguments_in(takes) for name in each.names}
    if MODELS_PRESET not in known:
        return None
    routed: list[RoutedModel] = []
    left_out: list[str] = []
    for model in models:
        name = _id_of(model.name)
        files = [model.path, *([model.projector] if model.projector else [])]
        if name in _RESERVED or not _SECTION.fullmatch(name) or not all(map(_is_value, files)):
            left_out.append(model.name)
            continue
        # Upstream reads a comma as the end of an alias.
        aliased = name != model.name and "," not in model.name and _is_value(model.name)
        alias = model.name if aliased else None
        routed.append(RoutedModel(name, alias, model.path, model.projector))
    return RouterPreset(path, tuple(routed), tuple(left_out), "--offline" in known)


def _is_value(text: str) -> bool:
    return _VALUE.fullmatch(text) is not None


def _id_of(name: str) -> str:
    """Return the id of a model: its name, with ``@`` for a colon before what upstream changes.

    Upstream takes what follows the last colon for a quantisation: it drops all before the last
    ``-`` or ``.`` there, and makes the rest capital letters (``canonical_tag``).
    """
    before, colon, tag = name.rpartition(":")
    if not colon or (tag == tag.upper() and not re.search("[-.]", tag)):
        return name
    return f"{before}@{tag}".replace(":", "@")
