"""A package whose names are loaded when they are asked for.

Who becomes a server needs little of what watches one, and who reads the store little of what
writes it: each part is a module, and the package offers them all without importing any.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def loader(package: str, homes: "Mapping[str, tuple[str, ...]]") -> "Callable[[str], Any]":
    """A package's ``__getattr__`` (PEP 562); ``homes`` has for each module its public names."""
    modules = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> "Any":
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load
