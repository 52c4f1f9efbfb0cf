"""The requirements of a variant: measured values replace those that the rules assume."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ci.release.contents import Contents
from ci.release.errors import ReleaseError

_FLOORS = ("glibc", "libstdcxx")


def requirements(
    assumed: Mapping[str, Any], archives: Sequence[Contents], known: Collection[str]
) -> dict[str, Any]:
    """Return a variant's requirements, from the rules and the records of its archives.

    The first archive is the build itself, and only its device code counts: a companion's cuBLAS has
    code for other devices, too. Without records the rules' values stay. Raises ``ReleaseError`` for
    device code that the rules do not expect, for expected device code that is missing, and for a
    library that neither the archives nor ``known`` contain.
    """
    if not archives:
        return dict(assumed)
    unknown = _foreign(archives) - set(known)
    if unknown:
        raise ReleaseError(f"it needs libraries that no rule knows: {', '.join(sorted(unknown))}")
    return {**assumed, **_floors(archives), **_device_code(assumed, archives[0])}


def _foreign(archives: Sequence[Contents]) -> set[str]:
    asked = {library for each in archives for library in each.libraries}
    return asked - {name for each in archives for name in each.brings}


def _floors(archives: Sequence[Contents]) -> dict[str, str]:
    found = {
        name: [each.floors[name] for each in archives if name in each.floors] for name in _FLOORS
    }
    return {name: max(floors, key=_number) for name, floors in found.items() if floors}


def _device_code(assumed: Mapping[str, Any], build: Contents) -> dict[str, Any]:
    codes = [*build.device_code.values()]
    if "cuda" not in assumed:
        if codes:
            raise ReleaseError(f"{', '.join(build.device_code)}: CUDA code that no rule expects")
        return {}
    # One set of architectures holds for the whole variant, so two different ones cannot be stated.
    if not codes or any(code != codes[0] for code in codes):
        raise ReleaseError(f"{len(codes)} of its files have CUDA code; one is expected")
    return {"cuda": {**assumed["cuda"], **codes[0]}}


def _number(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
