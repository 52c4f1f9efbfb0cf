"""What a base takes from newer suites: which tools, and how they get into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tsuku_llm.ground.errors import UsageError
from tsuku_llm.ground.foreign import read_text
from tsuku_publish.archives.binaries import needs_of
from tsuku_publish.building.matrix import BaseSystem, NewerTools, numbers
from tsuku_publish.building.place import TEMPORARY, Base
from tsuku_publish.building.running import run_logged
from tsuku_publish.errors import PublishError

_LAID_OVER = "laid-over"
"""The list of the files that were unpacked over the base, in the suite's folder."""

_ADD = r"""set -eu
suite=$1 components=$2 programs=$3 packages=$4
own=/opt/$suite
mkdir -p "$own/var/lib/dpkg" /usr/local/bin /tmp/apt/lists/partial /tmp/apt/parts
# debootstrap wrote the first line: deb MIRROR SUITE COMPONENTS.
read -r _ mirror _ </etc/apt/sources.list
echo "deb $mirror $suite $components" >/tmp/apt/sources.list
# With an empty status, apt names all that the programs need, also what the base has in an older
# version. The base's own lists and its own status stay as they are.
: >/tmp/apt/status
cat >/tmp/apt/conf <<'END'
Dir::Etc::SourceList "/tmp/apt/sources.list";
Dir::Etc::SourceParts "/tmp/apt/parts";
Dir::State "/tmp/apt";
Dir::State::Status "/tmp/apt/status";
Dir::Cache "/tmp/apt";
Dir::Cache::Archives "/var/cache/apt/archives";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "3";
END
export APT_CONFIG=/tmp/apt/conf
apt-get update
needed=
if [ -n "$programs" ]; then
    apt-get --simulate install $programs >/tmp/apt/plan
    needed=$(sed -n 's/^Inst \([^ ]*\) .*/\1/p' /tmp/apt/plan)
fi
cd /var/cache/apt/archives
apt-get download $needed $packages

unpack() {
    folder=$1
    shift
    apt-cache show --no-all-versions "$@" | awk '
        /^Package:/ { name = $2 } /^Architecture:/ { machine = $2 }
        /^Version:/ { version = $2; gsub(":", "%3a", version) }
        /^$/ { print name "_" version "_" machine ".deb" }' >/tmp/apt/files
    while read -r file; do
        echo "unpacking $file in $folder"
        dpkg-deb --fsys-tarfile "$file" |
            tar -xv --keep-directory-symlink --no-same-owner -C "$folder" >>/tmp/apt/unpacked
        { dpkg-deb --field "$file" | sed '/^Package:/a Status: install ok installed'; echo; } \
            >>"$own/var/lib/dpkg/status"
    done </tmp/apt/files
}

if [ -n "$packages" ]; then
    unpack / $packages
    cat /tmp/apt/unpacked >>"$own/laid-over"
fi
if [ -n "$programs" ]; then
    unpack "$own" $needed
    for loader in "$own"/usr/lib/*/ld*.so.?; do break; done
fi
for program in $programs; do
    # Its own loader finds its own libraries, so the base's are as old as before. The script has
    # the program's name and place: CMake looks for itself there, and starts itself again.
    place=$own/usr/bin/$program
    mv "$place" "$place.bin"
    printf '#!/bin/sh\nexec %s --argv0 %s --library-path %s %s "$@"\n' \
        "$loader" "$place" "${loader%/*}" "$place.bin" >"$place"
    chmod 755 "$place"
    ln -sf "$place" "/usr/local/bin/$program"
done
"""


def newer_tools(variant: str, base: str, system: BaseSystem) -> tuple[NewerTools, ...]:
    """Return what a base takes from newer suites for a variant as it is typed: ``cuda-12.4``.

    A backend without a version takes its newest toolkit. Raises ``UsageError`` for what cannot be
    built in the base.
    """
    chosen = []
    for part in variant.lower().split("+"):
        backend, _, version = part.partition("-")
        rows = [
            row
            for row in system.newer
            if row.backend == backend and (not version or row.toolkit in ("", version))
        ]
        if rows:
            chosen.append(max(rows, key=lambda row: numbers(row.toolkit or "0")))
        elif backend not in system.backends:
            raise UsageError(
                f"{part} cannot be built in the base {base}",
                facts=(f"it can build: {', '.join(system.builds())}",),
                hint="build it without --base, or in a folder of your own that has its tools",
            )
    return tuple(chosen)


def add_newer(
    tools: NewerTools, root: Path, kept: Path, log: Path, environ: Mapping[str, str]
) -> None:
    """Add tools of a newer suite to a root that debootstrap made, from the same mirror.

    The base's own apt checks the suite's signature; it keeps what it downloads. Raises
    ``BuildFailed`` with apt's last lines, ``NoSpace``, ``PublishError``, and the errors of the
    disk.
    """
    run_logged(
        [
            *("bwrap", "--die-with-parent", "--unshare-all", "--share-net", "--bind", str(root)),
            *("/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", TEMPORARY),
            *("--bind", str(kept), "/var/cache/apt/archives"),
            *("--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin", "/bin/sh", "-c", _ADD, "add"),
            *(tools.suite, tools.components, " ".join(tools.programs), " ".join(tools.packages)),
        ],
        doing=f"adding tools of {tools.suite} to the base",
        log=log,
        folder=kept,
        environ=environ,
    )
    _require_old_enough(tools.suite, root)


def _require_old_enough(suite: str, root: Path) -> None:
    """Refuse a library that needs a newer glibc: a build that uses it would need it, too."""
    list_of_files = root / "opt" / suite / _LAID_OVER
    glibc = Base(root).glibc()
    if glibc is None or not list_of_files.is_file():
        return
    for name in read_text(list_of_files).splitlines():
        path = root / name
        if ".so" not in path.name or path.is_symlink() or not path.is_file():
            continue
        needs = needs_of(path)
        lowest = needs.floors.get("glibc") if needs else None
        if lowest and lowest > numbers(glibc):
            wanted = ".".join(map(str, lowest))
            raise PublishError(
                f"{path.name} of {suite} needs glibc {wanted}, and the base has {glibc}",
                facts=(f"file: {path}",),
                hint="this suite has had an update that is too new: report it",
            )
