"""Installer, updater and launcher for the GPU builds of llama.cpp's server."""

from tsuku_llm._version import __version__

__all__ = ["__version__"]
