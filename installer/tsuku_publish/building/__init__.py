"""Builds of llama.cpp from its source: planned, compiled, measured and written down.

``matrix`` holds what can be built as data. ``toolchain`` looks for the tools, ``recipe`` decides
the flags, ``source`` fetches, ``compiling`` runs CMake, and ``result`` writes what came of it.
"""
