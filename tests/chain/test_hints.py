"""Every hint, on every recorded machine: it leads somewhere, or says that nothing will.

Following a hint is played on the machine's facts. A command of ours must find a variant that fits.
A repair of the drivers, or of the system, must remove the fact that decided. Package names must be
those of the system's own package manager.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import machines
from support.program import SUDO

from tsuku_llm.catalog.manifest import parse_release
from tsuku_llm.choose.chain.judging import NOTHING, diagnose, remedy
from tsuku_llm.choose.chain.links import Chain, subject_of
from tsuku_llm.choose.fitting import system_obstacle
from tsuku_llm.choose.selection import Request, Selection, not_requested, select
from tsuku_llm.ground.errors import NotInstalled
from tsuku_llm.machine.backends import NAMES, facts_of
from tsuku_llm.machine.hardware import Api, ApiState, Gpu, GpuKind, Hardware, Libc
from tsuku_llm.machine.packages import command_for, family_of
from tsuku_llm.machine.snapshot import ReplayHost
from tsuku_llm.probe import probe
from tsuku_llm.trust import VerifiedBytes

ROOT = Path(__file__).parents[2]
SNAPSHOTS = sorted((ROOT / "tests" / "snapshots").glob("*.json"))
(PUBLISHED,) = (ROOT / "manifests" / "targets" / "releases").glob("*.b11429.json")
RELEASE = parse_release(VerifiedBytes(PUBLISHED.read_bytes()))
MANAGERS = {
    "apt": ("Ubuntu", "Debian"),
    "dnf": ("Fedora", "Red Hat"),
    "pacman": ("Arch",),
    "zypper": ("openSUSE",),
    "apk": ("Alpine",),
    "rpm-ostree": (),
    "brew": (),
    "winget": ("10.0",),
}
"""The package managers, and beginnings of the names of the systems that have them."""


def seen(path: Path) -> tuple[Hardware, Selection]:
    hardware = probe(ReplayHost.load(path))
    return hardware, select(RELEASE, hardware, Request())


def requests(everything: Selection) -> tuple[str, ...]:
    """Everything that a user may ask for on the machine's platform."""
    return ("auto", "gpu", *NAMES, *(each.name for each in everything.variants))


def repaired_drivers(hardware: Hardware) -> Hardware:
    """The machine with a working driver of each API, and its own cards where they are known."""
    perfect = {
        "cuda": machines.cuda(),
        "rocm": machines.rocm("gfx1100"),
        "vulkan": machines.vulkan(),
        "opencl": _api("opencl", "Qualcomm Adreno GPU"),
    }
    apis = []
    for api in hardware.apis:
        good = perfect.get(api.name, _api(api.name, "a GPU"))
        gpus = tuple(replace(gpu, hidden_by=None) for gpu in api.hardware_gpus) or good.gpus
        apis.append(replace(good, gpus=gpus, version="99.0"))
    return replace(hardware, apis=tuple(apis), problems=())


def _api(name: str, gpu: str) -> Api:
    card = Gpu(name, 0, gpu, GpuKind.DISCRETE, 8 << 30)
    return Api(name, ApiState.OK, "a library", "99.0", gpus=(card,))


def repaired_system(hardware: Hardware) -> Hardware:
    """The machine with the newest system that there is, and its own processor."""
    system = {"libc": Libc("glibc", "2.99"), "libstdcxx": "3.4.99"} if hardware.libc else {}
    return replace(hardware, os_version="99.0", vcruntime="99.0", **system)  # type: ignore[arg-type]


def fitting(hardware: Hardware, request: str) -> list[str]:
    found = select(RELEASE, hardware, Request(request)).compatible
    return [each.variant.name for each in found]


def changes_something(hardware: Hardware, request: str, hint: str, chain: Chain) -> bool:
    """Play the first way of a hint, and tell whether the request gets further."""
    if NOTHING in hint or "nothing on this machine changes that" in hint:
        # Repaired as a whole, the machine still has no variant: the card or the build decides.
        whole = repaired_system(repaired_drivers(hardware))
        cards = {name for api in hardware.apis if api.hardware_gpus for name in [api.name]}
        other = facts_of(chain.subject.backend).api not in cards
        return not fitting(whole, request) or other
    link = chain.broken
    assert link
    if link.of_system:
        variant = chain.subject.variant
        assert variant
        return system_obstacle(variant, repaired_system(hardware)) is None
    return bool(fitting(repaired_drivers(hardware), request))


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_where_nothing_fits_the_hint_leads_somewhere(path: Path) -> None:
    hardware, everything = seen(path)
    for request in requests(everything):
        if fitting(hardware, request):
            continue
        hint = remedy(request, everything, hardware, "")
        subject = subject_of(request, everything, hardware, None)
        assert subject.variant is None or not_requested(subject.variant, request) is None
        chain = diagnose(subject, hardware, everything, NotInstalled(""), None)
        told = f"{path.stem}, {request}: {hint}"
        # A driver that was too slow may get more time than it had.
        hint = hint.replace("tsuku-llm config set llm.probe_timeout 60s", "more time")
        assert "config set" not in hint, told
        assert "--available" not in hint, told
        offered = re.findall(r"tsuku-llm install --backend (\S+?)(?:;|$)", hint)
        assert hint.count("tsuku-llm") == len(offered), told
        for name in offered:
            assert name != request, told
            assert fitting(hardware, name), told
        own = hint.split("; or: tsuku-llm", maxsplit=1)[0]
        if not own.startswith("tsuku-llm"):
            assert changes_something(hardware, request, own, chain), told
        # Where something else fits, the user learns it.
        assert offered or not everything.compatible, told


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_packages_are_those_of_the_system(path: Path) -> None:
    hardware, everything = seen(path)
    texts = [problem.fix for problem in hardware.all_problems]
    for request in requests(everything):
        subject = subject_of(request, everything, hardware, None)
        chain = diagnose(subject, hardware, everything, NotInstalled(""), None)
        texts += [link.fault.fix for link in chain.links if link.fault]
    for text in texts:
        for manager, systems in MANAGERS.items():
            if re.search(rf"\b{manager} (?:install|add|-S)", text):
                assert (hardware.os_version or "").startswith(systems), f"{path.stem}: {text}"
        assert "mesa-vulkan-drivers" not in text or re.search(r"\b(?:apt|dnf) install", text)


# --- the commands ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release_file", "command"),
    [
        ("ID=debian\n", f"{SUDO}apt install libvulkan1 mesa-vulkan-drivers"),
        ('ID="almalinux"\nID_LIKE="rhel centos fedora"\n', f"{SUDO}dnf install vulkan-loader "),
        ("ID=cachyos\nID_LIKE=arch\n", f"{SUDO}pacman -S vulkan-icd-loader vulkan-radeon"),
        ('ID="opensuse-tumbleweed"\n', f"{SUDO}zypper install libvulkan1 libvulkan_radeon"),
        ("ID=alpine\n", f"{SUDO}apk add vulkan-loader mesa-vulkan-ati"),
        (
            "ID=fedora\nVARIANT_ID=silverblue\nOSTREE_VERSION='42.1'\n",
            f"{SUDO}rpm-ostree install vulkan-loader mesa-vulkan-drivers, then restart the machine",
        ),
    ],
)
def test_each_package_manager_has_its_own_names(release_file: str, command: str) -> None:
    wanted = ("libvulkan.so.1", "vulkan-driver-amd")
    told = command_for(wanted, family_of("linux", release_file))
    assert told is not None
    assert told.startswith(command)


@pytest.mark.parametrize(
    "release_file",
    [
        "ID=nixos\n",
        "ID=steamos\nID_LIKE=arch\n",
        "ID=gentoo\n",
        "ID=slackware\n",
        "",
        "\0==",
        'ID="opensuse-microos"\nID_LIKE="suse opensuse"\n',
        "ID=ubuntu-core\nID_LIKE=debian\n",
    ],
)
def test_a_system_without_a_known_manager_gets_no_package(release_file: str) -> None:
    assert command_for(("libvulkan.so.1",), family_of("linux", release_file)) is None


def test_a_part_of_what_is_needed_is_not_a_command() -> None:
    assert command_for(("libvulkan.so.1", "libunheard.so.3"), "debian") is None


@pytest.mark.parametrize("library", ["libssl.so.1.1", "libcrypto.so.1.1", "libcurl-gnutls.so.4"])
def test_a_package_that_has_another_library_is_not_named(library: str) -> None:
    assert command_for((library,), "debian") is None


def test_in_a_container_there_is_no_sudo() -> None:
    assert command_for(("libvulkan.so.1",), "alpine", container=True) == "apk add vulkan-loader"


@pytest.mark.parametrize(
    ("system", "library", "command"),
    [
        ("darwin", "libomp.dylib", "brew install libomp"),
        ("darwin", "libssl.3.dylib", "brew install openssl@3"),
        ("windows", "vcruntime-arm64", "winget install Microsoft.VCRedist.2015+.arm64"),
    ],
)
def test_other_systems_have_their_own_managers(system: str, library: str, command: str) -> None:
    assert command_for((library,), family_of(system)) == command


# --- single machines -------------------------------------------------------------------------


def hint_for(snapshot: str, request: str) -> str:
    (path,) = [each for each in SNAPSHOTS if each.stem == snapshot]
    hardware, everything = seen(path)
    return remedy(request, everything, hardware, "")


@pytest.mark.parametrize(
    ("snapshot", "request_", "words"),
    [
        # No driver helps where no build can start.
        ("alpine-musl", "vulkan", "run it on a glibc distribution"),
        ("rhel-9-libstdcxx-too-old", "auto", "use a newer release of the distribution"),
        ("windows-without-vcruntime", "gpu", "winget install Microsoft.VCRedist.2015+.x64"),
        # Another variant of the backend needs only a newer driver.
        ("gtx-1080-ti-driver-535", "cuda", "update NVIDIA's driver"),
        ("vulkan-driver-without-loader", "gpu", f"{SUDO}apt install libvulkan1"),
        ("intel-arc-b580", "cuda", "it has no GPU for this backend"),
        ("macos-26-m4", "rocm", "tsuku-llm install --backend metal"),
        ("macos-15-m1", "cuda", "tsuku-llm install --backend metal"),
        ("macos-14-intel", "gpu", "tsuku-llm install --backend cpu"),
        ("user-not-in-render-group", "gpu", "then log in again"),
    ],
)
def test_the_one_thing_that_helps(snapshot: str, request_: str, words: str) -> None:
    assert words in hint_for(snapshot, request_)


def test_another_release_or_channel_is_offered_before_another_backend() -> None:
    (path,) = [each for each in SNAPSHOTS if each.stem == "gtx-1060-driver-580"]
    hardware, everything = seen(path)
    other = "tsuku-llm install --release b1 --channel index --backend rocm"
    assert remedy("rocm", everything, hardware, other).endswith(f"; or: {other}")
