"""A package whose modules are imported when one of their names is first used.

A process that only starts a server does not need the modules that monitor one. A process that
only reads the store does not need those that write it. Each part is a module; the package offers
all their names without importing any of them.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def loader(package: str, homes: "Mapping[str, tuple[str, ...]]") -> "Callable[[str], Any]":
    """Make a package's ``__getattr__`` (PEP 562); ``homes`` maps modules to public names."""
    modules = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> "Any":
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load
