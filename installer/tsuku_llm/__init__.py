"""Installer, updater and launcher for the GPU builds of llama.cpp's server."""

from tsuku_llm._version import __version__

__all__ = ["__version__", "api"]

# As in ``local_host``: no import, as every start pays for it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tsuku_llm import api as api


def __getattr__(name: str) -> object:
    """Import the library when it is first used: most starts of the program do without."""
    if name == "api":
        from importlib import import_module  # noqa: PLC0415 - only for the API

        return import_module("tsuku_llm.api")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
