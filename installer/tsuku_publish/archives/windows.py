"""What Windows files need: DLLs, and the oldest Visual C++ runtime that they run with.

Microsoft promises only that a runtime as new as the newest toolset of a program runs it ("C++
binary compatibility between Visual Studio versions"). Nearly all programs run with older ones, and
many machines have one: what counts here are the changes that really end a program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Version = tuple[int, ...]

_FIRST_RUNTIMES: Mapping[str, Version] = {
    "vcruntime140.dll": (14, 0),
    "msvcp140.dll": (14, 0),
    "concrt140.dll": (14, 0),
    "vcomp140.dll": (14, 0),
    # Microsoft's C++ blog, "Making C++ Exception Handling Smaller On x64": Visual Studio 2019.
    "vcruntime140_1.dll": (14, 20),
}
"""The runtime that first had a DLL. For any other one the toolset's own version counts."""
_RUNTIME = re.compile(r"(?:vcruntime|msvcp|concrt|vcomp)140(?:_[a-z0-9_]+)?\.dll")

_STANDARD_LIBRARY = "msvcp140.dll"
_CONSTEXPR_MUTEX: Version = (14, 40)
"""Before it, the constructor of ``std::mutex`` called the runtime; since then it fills in zeros.

An older runtime reads a pointer there when the mutex is locked: the program ends with 0xC0000005.
Source: microsoft/STL's changelog of VS 2022 17.10 ("Fixed mutex's constructor to be constexpr",
#3824), and llama.cpp#19083, #13767, #11479, #10703, all of builds since b4191.
"""
_LOCKS = frozenset({"_Mtx_lock", "_Mtx_trylock"})
_INITIALISES = "_Mtx_init_in_situ"
_LLD: Version = (14, 0)
"""What LLVM's linker writes, with which upstream links: it says nothing about the toolset."""


def imports_of(binary: Any) -> dict[str, frozenset[str]]:
    """Return the functions that a file needs, by DLL in lower case.

    A DLL that is loaded at its first call is not here: a program starts without it.
    """
    found: dict[str, frozenset[str]] = {}
    for library in binary.imports:
        names = frozenset(each.name for each in library.entries if not each.is_ordinal)
        name = library.name.lower()
        found[name] = found.get(name, frozenset()) | names
    return found


def oldest_runtimes(imports: Mapping[str, frozenset[str]], linker: Version) -> dict[str, Version]:
    """Return the oldest Visual C++ runtime that a file runs with, by the runtime's DLL.

    ``linker`` is the version of the linker, which is that of the toolset unless it is LLVM's.
    """
    found = {
        name: _FIRST_RUNTIMES.get(name, linker) for name in imports if _RUNTIME.fullmatch(name)
    }
    functions = imports.get(_STANDARD_LIBRARY, frozenset())
    if functions & _LOCKS and (
        linker >= _CONSTEXPR_MUTEX or (linker == _LLD and _INITIALISES not in functions)
    ):
        found[_STANDARD_LIBRARY] = _CONSTEXPR_MUTEX
    return found
