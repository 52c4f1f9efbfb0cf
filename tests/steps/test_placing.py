"""Where a start puts its model: what is asked, what the server is given, and what is told."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gguf_files import layered_model
from support.machines import cuda, machine, release
from support.servers import Starter, install_stand_in
from support.stored import make_receipt

from tsuku_llm.launch.plan.devices import ListedDevice
from tsuku_llm.launch.plan.planning import Build, LaunchPlan, plan_server
from tsuku_llm.machine.hardware import Gpu, GpuKind
from tsuku_llm.steps.drivers.device_check import Check, wanted_maker
from tsuku_llm.steps.install.build_version import hardware_facts
from tsuku_llm.steps.serve.placing import Placed, place_start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is Linux's")

GB = 10**9
TREE = Path("/opt/llm/tree")
H200 = (
    ListedDevice("Vulkan0", "NVIDIA H200", 150 * GB, 149 * GB),
    ListedDevice("Vulkan1", "NVIDIA H200", 150 * GB, 149 * GB),
)
UNLIKE = (
    ListedDevice("CUDA0", "NVIDIA GeForce RTX 3090", 25_438_126_080, 24_900_000_000),
    ListedDevice("CUDA1", "NVIDIA GeForce RTX 4090", 25_386_352_640, 24_800_000_000),
)


def unasked() -> Check:
    raise AssertionError("the build was asked again")


def plan_of(*arguments: str, backend: str = "vulkan", **env: str) -> LaunchPlan:
    return plan_server(Build(TREE, "s", backend), arguments, cwd=Path("/"), environ=env)


def placed(
    *arguments: str,
    devices: tuple[ListedDevice, ...] = H200,
    backend: str = "vulkan",
    hardware: Mapping[str, object] | None = None,
    setting: str = "auto",
    recalled: bool = False,
    ask_again: Callable[[], Check] = unasked,
    maker: int | None = None,
    **env: str,
) -> Placed:
    """Place a start of a build that lists these devices."""
    build = Build(TREE, "s", backend)
    check = Check(build, devices, recalled=recalled, hardware=hardware or {}, maker=maker)
    plan = plan_of(*arguments, backend=backend, **env)
    return place_start(plan, check, setting, ask_again)


def given_by(made: Placed) -> str:
    """What the server gets before the user's arguments."""
    words = list(made.plan.argv[1:])
    return " ".join(words[: words.index("-m")] if "-m" in words else words)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return str(layered_model(tmp_path / "small.gguf", layers=16, size=3 * GB, attends=True))


@pytest.fixture
def large(tmp_path: Path) -> str:
    return str(layered_model(tmp_path / "large.gguf", layers=80, size=200 * GB, attends=True))


def test_a_small_model_is_given_one_of_two_equal_cards(small: str) -> None:
    made = placed("-m", small)
    assert given_by(made) == "--device Vulkan0"
    assert made.told.startswith("placed: Vulkan0: needs ")
    assert "MTMD_BACKEND_DEVICE" in made.plan.env


def test_a_model_that_needs_both_cards_is_given_both(large: str) -> None:
    made = placed("-m", large)
    assert given_by(made) == "--device Vulkan0,Vulkan1"


def test_the_faster_card_is_not_left_idle(small: str, tmp_path: Path) -> None:
    """An RTX 4090 beside an RTX 3090, which has a little more memory."""
    assert given_by(placed("-m", small, devices=UNLIKE, backend="cuda")) == "--device CUDA1"
    both = str(layered_model(tmp_path / "x.gguf", layers=40, size=35 * GB, attends=True))
    words = given_by(placed("-m", both, devices=UNLIKE, backend="cuda")).split()
    assert (words[0], words[2]) == ("--device", "--tensor-split")
    layers = dict(zip(words[1].split(","), map(int, words[3].split(",")), strict=True))
    assert layers.keys() == {"CUDA0", "CUDA1"}
    assert sum(layers.values()) == 41
    assert layers["CUDA1"] > layers["CUDA0"]


TWO_MAKERS = (
    ListedDevice("CUDA0", "NVIDIA GeForce RTX 3090", 25_438_126_080, 24_900_000_000),
    ListedDevice("Vulkan0", "AMD Radeon RX 6700 XT (RADV NAVI22)", 12 * GB, 12 * GB),
    ListedDevice("Vulkan1", "NVIDIA GeForce RTX 3090", 25_769_803_776, 25_000_000_000),
)


@pytest.mark.parametrize(
    ("setting", "variables"),
    [("auto", {}), ("all", {}), ("off", {}), ("auto", {"GGML_VK_VISIBLE_DEVICES": "0,1"})],
)
def test_a_combined_build_gets_each_card_once(
    tmp_path: Path, setting: str, variables: dict[str, str]
) -> None:
    model = str(layered_model(tmp_path / "x.gguf", layers=40, size=30 * GB, attends=True))
    made = placed(
        "-m", model, devices=TWO_MAKERS, backend="cuda+vulkan", setting=setting, **variables
    )
    words = given_by(made).split()
    assert words[0] == "--device"
    assert set(words[1].split(",")) == {"CUDA0", "Vulkan0"}


@pytest.mark.parametrize("words", ["-ts 1,1", "-sm row", "-mg 1", "-sm none", "-ngl 0"])
def test_a_user_who_divides_a_model_gets_each_card_of_a_combined_build_once(
    small: str, words: str
) -> None:
    made = placed(
        "-m", small, *words.split(), devices=TWO_MAKERS, backend="cuda+vulkan", setting="off"
    )
    assert given_by(made) == "--device CUDA0,Vulkan0"


@pytest.mark.parametrize("words", ["--device none", "--rpc 10.0.0.2:50052"])
def test_a_combined_build_without_cards_or_with_other_machines_gets_no_list(words: str) -> None:
    made = placed(*words.split(), devices=TWO_MAKERS, backend="cuda+vulkan", setting="off")
    assert given_by(made) == words


def test_a_combined_build_gets_no_integrated_device_beside_a_card(small: str) -> None:
    integrated = ListedDevice("Vulkan2", "Intel(R) Iris(R) Xe Graphics", 24 * GB, 24 * GB)
    given = {"backend": "cuda+vulkan", "setting": "off"}
    made = placed("-m", small, devices=(*TWO_MAKERS, integrated), **given)
    assert given_by(made) == "--device CUDA0,Vulkan0"
    assert given_by(placed("-m", small, devices=(integrated,), **given)) == "--device Vulkan2"


def test_a_card_that_a_variable_hides_is_not_used_through_the_other_interface(small: str) -> None:
    given = {"backend": "cuda+vulkan", "CUDA_VISIBLE_DEVICES": ""}
    made = placed("-m", small, devices=TWO_MAKERS[1:], **given)
    assert given_by(made) == "--device Vulkan0"
    # Part of them: the interface of the maker lists the rest.
    given["CUDA_VISIBLE_DEVICES"] = "0"
    made = placed("-m", small, devices=TWO_MAKERS, **given)
    assert given_by(made) == "--device CUDA0,Vulkan0"
    # Without any other card, the list of the build counts as it is.
    assert given_by(placed("-m", small, devices=TWO_MAKERS[2:], **given)) == "--device Vulkan1"


def test_a_user_who_names_a_device_of_a_combined_build_gets_that(small: str) -> None:
    made = placed("--device", "Vulkan1", "-m", small, devices=TWO_MAKERS, backend="cuda+vulkan")
    assert "CUDA0" not in " ".join(made.plan.argv)


def test_a_model_that_is_not_here_is_given_all_cards_but_no_integrated_one() -> None:
    devices = (*H200, ListedDevice("Vulkan2", "Intel(R) UHD Graphics 770", 60 * GB, 60 * GB))
    for words in (("-hf", "org/model"), ("-m", "/nowhere.gguf"), ()):
        made = placed(*words, devices=devices)
        assert "--device Vulkan0,Vulkan1" in " ".join(made.plan.argv)
        assert "not known how much memory" in made.told


def test_a_file_without_a_header_is_placed_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    with path.open("wb") as file:
        file.truncate(10 * GB)
    assert given_by(placed("-m", str(path))) == "--device Vulkan0"
    with path.open("wb") as file:
        file.truncate(130 * GB)
    assert given_by(placed("-m", str(path))) == "--device Vulkan0,Vulkan1"


def test_what_the_probe_found_tells_an_integrated_device(small: str) -> None:
    devices = (ListedDevice("Vulkan0", "Odd GPU", 90 * GB, 90 * GB),)
    devices += (UNLIKE[1]._replace(name="Vulkan1"),)
    apis = [{"name": "vulkan", "gpus": [{"name": "Odd GPU", "kind": "integrated"}]}]
    made = placed("-m", small, devices=devices, hardware={"apis": apis})
    assert made.placement
    assert made.placement.devices == ("Vulkan1",)
    for junk in ({"apis": None}, {"apis": [3, {"name": "vulkan", "gpus": [{}, 1]}]}):
        assert placed("-m", small, devices=devices, hardware=junk).placement


def test_a_maker_that_the_user_named_keeps_the_devices_of_others_out(small: str) -> None:
    """A Vulkan build lists the cards of both makers."""
    devices = (
        ListedDevice("Vulkan0", "AMD Radeon RX 7900 XTX", 25_700_000_000, 25_600_000_000),
        ListedDevice("Vulkan1", "NVIDIA GeForce RTX 3060", 12_600_000_000, 12_500_000_000),
        ListedDevice("Vulkan2", "A card that came later", 90 * GB, 90 * GB),
    )
    gpus = [
        {"name": devices[0].description, "kind": "discrete", "vendor_id": 0x1002},
        {"name": devices[1].description, "kind": "discrete", "vendor_id": 0x10DE},
    ]
    hardware = {"apis": [{"name": "vulkan", "gpus": gpus}]}
    both = devices[:2]
    assert given_by(placed("-m", small, devices=both, hardware=hardware)) == "--device Vulkan0"
    made = placed("-m", small, devices=both, hardware=hardware, maker=0x10DE)
    assert given_by(made) == "--device Vulkan1"
    made = placed("-m", small, devices=devices, hardware=hardware, maker=0x10DE, setting="all")
    assert given_by(made) == "--device Vulkan1,Vulkan2", "nobody knows who made it"


def test_a_card_that_the_build_has_no_code_for_gets_no_model(tmp_path: Path) -> None:
    """The server lists it all the same, and ends as soon as it computes there."""
    devices = (
        ListedDevice("CUDA0", "NVIDIA GeForce RTX 3090", 25_438_126_080, 24_900_000_000),
        ListedDevice("CUDA1", "NVIDIA GeForce GTX 1080 Ti", 11_700_000_000, 11_600_000_000),
    )
    gpus = tuple(
        Gpu("cuda", at, each.description, GpuKind.DISCRETE, each.memory, compute_capability=code)
        for at, (each, code) in enumerate(zip(devices, ("8.6", "6.1"), strict=True))
    )
    model = str(layered_model(tmp_path / "x.gguf", layers=40, size=30 * GB, attends=True))
    variants = {each.name: each for each in release().platforms["linux-amd64"].variants}
    for driver, names in (("12.4", {"CUDA0"}), ("12.8", {"CUDA0", "CUDA1"})):
        hardware = hardware_facts(machine(cuda(version=driver, gpus=gpus)), variants["cuda-12.8"])
        made = placed("-m", model, devices=devices, backend="cuda", hardware=hardware)
        assert {*given_by(made).split()[1].split(",")} == names, driver
        # Its driver compiles nothing for the first card, and PTX for the other one.
        assert [gpu.get("machine_code") for gpu in hardware["apis"][0]["gpus"]] == [True, None]


def test_the_word_of_now_counts_before_that_of_the_install() -> None:
    nvidia, amd = 0x10DE, 0x1002
    named = make_receipt(requested="nvidia", backend="vulkan", variant="vulkan")
    plain = make_receipt(requested="auto", backend="vulkan", variant="vulkan")
    assert wanted_maker(named, "auto") == nvidia
    assert wanted_maker(named, "AMD") == amd
    assert wanted_maker(named, "vulkan") is None
    assert [wanted_maker(plain, word) for word in ("auto", "gpu", "nvidia")] == [None, None, nvidia]
    assert wanted_maker(make_receipt(requested="nvidia", variant="nvidia"), "auto") is None


# --- the user's word ---------------------------------------------------------------------------

CHOICES = st.sampled_from(
    (
        *("--device Vulkan1", "-dev none", "-sm layer", "--split_mode row", "-ts 3,1"),
        *("--tensor-split 1,1", "-mg 1", "--main-gpu 0", "--rpc host:50052"),
    )
)
VARIABLES = st.sampled_from(
    (
        *("LLAMA_ARG_DEVICE=Vulkan1", "LLAMA_ARG_MAIN_GPU=0", "LLAMA_ARG_SPLIT_MODE=none"),
        *("LLAMA_ARG_TENSOR_SPLIT=1,2", "LLAMA_ARG_RPC=h:1", "GGML_VK_VISIBLE_DEVICES=0,1"),
    )
)
OTHERS = st.sampled_from(["-c 4096", "-ngl 99", "--port 0", "-fa on", "--alias x", "-md /d.gguf"])


@given(
    st.lists(OTHERS, max_size=3),
    CHOICES | VARIABLES,
    st.lists(OTHERS, max_size=3),
    st.sampled_from(["auto", "all", "off"]),
)
def test_the_users_word_is_never_overridden(
    before: list[str], choice: str, after: list[str], setting: str
) -> None:
    name, equals, value = choice.partition("=")
    env = {name: value} if equals else {}
    middle = [] if equals else [choice]
    words = " ".join([*before, *middle, *after]).split()
    made = placed(*words, setting=setting, **env)
    assert made.plan == plan_of(*words, **env)
    assert made.placement
    assert made.placement.reason.startswith("chosen by ")
    assert name.split(maxsplit=1)[0].replace("_mode", "-mode") in made.told


def test_the_setting_off_gives_the_server_nothing(small: str) -> None:
    made = placed("-m", small, setting="off")
    assert made.plan == plan_of("-m", small)
    assert "llm.placement is off" in made.told


def test_the_setting_all_gives_the_server_every_card(small: str) -> None:
    assert given_by(placed("-m", small, setting="all")) == "--device Vulkan0,Vulkan1"


def test_a_device_of_the_users_for_a_projector_or_a_draft_model_stays(small: str) -> None:
    made = placed("-m", small, "-md", small, MTMD_BACKEND_DEVICE="Vulkan1")
    assert given_by(made) == "--device Vulkan0 -devd Vulkan0"
    assert made.plan.env["MTMD_BACKEND_DEVICE"] == "Vulkan1"
    assert given_by(placed("-m", small, "-md", small, "-devd", "Vulkan1")) == "--device Vulkan0"


def test_several_margins_are_of_the_devices_as_the_server_counts_them(small: str) -> None:
    made = placed("-m", small, "-fitt", "1024,2048")
    assert given_by(made) == ""
    assert "chosen by -fitt 1024,2048" in made.told
    assert given_by(placed("-m", small, "-fitt", "2048")) == "--device Vulkan0"
    # The first card has no room above this margin, and the second one has.
    half = (H200[0].memory or 0) // 2
    filled = (H200[0]._replace(free=half), H200[1])
    words = ("-m", small, "-fitt", str(half >> 20))
    assert given_by(placed(*words, devices=filled)) == "--device Vulkan1"


# --- the free memory of now -----------------------------------------------------------------


def test_a_recalled_list_is_asked_for_again_where_memory_decides(small: str) -> None:
    filled = (H200[0]._replace(free=GB), H200[1])
    now = Check(Build(TREE, "s", "vulkan"), filled)
    made = placed("-m", small, recalled=True, ask_again=lambda: now)
    assert given_by(made) == "--device Vulkan1"
    assert made.check is now
    assert "passed over: Vulkan0 (NVIDIA H200) has 1.0 GB of 150.0 GB free" in made.told
    # A build that does not answer any more: the start will show what is wrong.
    silent = Check(Build(TREE, "s", "vulkan"), complaint="it hangs")
    made = placed("-m", small, recalled=True, ask_again=lambda: silent)
    assert given_by(made) == "--device Vulkan0"


def test_a_recalled_list_is_enough_where_nothing_is_to_be_chosen(small: str) -> None:
    for words in (("-m", small, "-dev", "Vulkan1"), ("-m", small, "-mg", "0")):
        assert placed(*words, recalled=True).placement
    assert placed("-m", small, devices=H200[:1], recalled=True).told == ""
    assert placed("-m", small, setting="all", recalled=True).placement


def test_a_build_without_devices_is_not_placed() -> None:
    for devices in ((), (ListedDevice("BLAS", "Accelerate"),)):
        made = placed("-m", "x", devices=devices)
        assert (made.placement, made.plan) == (None, plan_of("-m", "x"))
    assert placed("-m", "x", backend="cpu").placement is None


# --- whole starts -------------------------------------------------------------------------------

TWO = (
    "err ggml_vulkan: 0 = NVIDIA H200 (NVIDIA) | uma: 0 | fp16: 1",
    "out Available devices:",
    "out   Vulkan0: NVIDIA H200 (143771 MiB, 1200 MiB free)",
    "out   Vulkan1: NVIDIA H200 (143771 MiB, 143000 MiB free)",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "llm"
    folder.mkdir(mode=0o755)
    return folder


def test_a_start_says_where_the_model_is_and_why(
    data: Path, small: str, capfd: pytest.CaptureFixture[str]
) -> None:
    installed = install_stand_in(data, devices=TWO, serve=("dump", "listen"))
    starter = Starter(data, {"PATH": os.environ["PATH"]})
    for _ in range(2):  # with a new list, and with a remembered one
        starter.notes.clear()
        assert starter.start("-m", small) == 0
        out = capfd.readouterr().out
        assert "arg --device\narg Vulkan1\narg --port" in out
        (told,) = (note for note in starter.notes if note.startswith("placed: "))
        assert told.startswith("placed: Vulkan1: needs ")
        assert "Vulkan0 (NVIDIA H200) has 1.3 GB of 150.8 GB free" in told
        assert starter.report.placement
        assert starter.report.placement.devices == ("Vulkan1",)
        assert starter.report.device == "Vulkan1: NVIDIA H200"
        assert starter.report.memory_total == 143771 << 20
    assert installed.receipt.line in starter.notes


def test_a_device_with_room_is_named_if_the_chosen_one_has_none(
    data: Path, small: str, capfd: pytest.CaptureFixture[str]
) -> None:
    install_stand_in(data, devices=TWO, serve=("dump", "listen"))
    starter = Starter(data, {"PATH": os.environ["PATH"]})
    assert starter.start("-m", small, "-c", "512", "--device", "Vulkan0") == 0
    assert "arg --device\narg Vulkan0\n" in capfd.readouterr().out
    assert any(note.startswith("placed: chosen by --device Vulkan0") for note in starter.notes)
    (remedy,) = (note for note in starter.notes if note.startswith("to fit: "))
    assert "use --device Vulkan1: Vulkan1 has 149.9 GB of 150.8 GB free" in remedy
    starter.notes.clear()
    assert starter.start("-m", small, "-c", "512", "--device", "Vulkan1") == 0
    assert not [note for note in starter.notes if note.startswith("to fit: ")]


def test_an_integrated_gpu_with_the_name_of_a_card_is_told_from_it() -> None:
    name = "AMD Radeon Graphics"
    devices = tuple(ListedDevice(f"ROCm{at}", name, 16 * GB, 15 * GB) for at in range(2))
    gpus = [{"name": name, "kind": kind} for kind in ("discrete", "integrated")]
    for order in (gpus, gpus[::-1]):
        hardware = {"apis": [{"name": "rocm", "gpus": order}]}
        made = placed("-m", "x", devices=devices, backend="rocm", hardware=hardware)
        assert made.placement
        assert made.placement.devices == (f"ROCm{order.index(gpus[0])}",)
