"""What is trusted is visible: signed lists of files, publishers, unattested builds."""

import json
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.builds import Packed
from support.folder_shop import FolderShop
from support.release_server import NAME, User
from support.repository import release_document

REASON = "no attestation could be had"
LOOKALIKE = "ggml-оrg"  # noqa: RUF001 - the second "o" is Cyrillic: that is the attack


@pytest.fixture
def shop(tmp_path: Path) -> FolderShop:
    return FolderShop(tmp_path / "shop")


def publish(shop: FolderShop, tag: str, *, listed: bool = True, **fields: Any) -> None:
    """Publish a CPU build, with the list of its files unless told otherwise."""
    packed = shop.stand_in(f"{tag}-cpu")
    variant = shop.variant(packed)
    if listed:
        variant["artifacts"][0] |= {"files": files_of(packed)}
    platform = {"default": "cpu", "preference": {"portable": ["cpu"]}, "variants": {"cpu": variant}}
    shop.simulator.publish(release_document(tag, platforms={"linux-amd64": platform}, **fields))
    shop.write()


def files_of(packed: Packed) -> list[dict[str, Any]]:
    """The list of an archive's files, as a release file has it."""
    found = []
    with tarfile.open(packed.path) as tar:
        for member in tar:
            if content := tar.extractfile(member):
                data = content.read()
                path, executable = member.name.partition("/")[2], bool(member.mode & 0o100)
                facts = {"path": path, "size": len(data), "sha256": sha256(data).hexdigest()}
                found.append({**facts, **({"executable": True} if executable else {})})
    return found


@pytest.fixture
def owner(shop: FolderShop, tmp_path: Path) -> User:
    """A user of b1, whose files the publisher listed and signed."""
    publish(shop, "b1")
    user = shop.user(tmp_path / "home")
    done = user.run("install")
    assert done.code == 0, done.stderr
    return user


def rewrite(user: User, change: Callable[[Any, Path], None]) -> None:
    """Change what is installed, and the receipt with it, so that both agree again."""
    (version,) = user.versions()
    folder = user.data / "versions" / version
    receipt = json.loads((folder / "receipt.json").read_text())
    change(receipt, folder / "tree")
    for file in receipt["files"]:
        content = (folder / "tree" / file["path"]).read_bytes()
        file |= {"size": len(content), "sha256": sha256(content).hexdigest()}
    (folder / "receipt.json").write_text(json.dumps(receipt))
    (folder / "fingerprint.json").unlink()


def verdict(user: User) -> tuple[int, Any]:
    done = user.run("verify", "--json")
    (version,) = done.document["data"]["versions"]
    return done.code, version


def other_server(_: Any, tree: Path) -> None:
    server = tree / "llama-server"
    content = server.read_bytes()
    server.unlink()
    server.write_bytes(content + b"\n")
    server.chmod(0o755)


def further_plugin(receipt: Any, tree: Path) -> None:
    (tree / "libggml-evil.so").write_bytes(b"x")
    receipt["files"].append({"path": "libggml-evil.so", "executable": False})


def left_out(receipt: Any, tree: Path) -> None:
    (tree / "padding").unlink()
    receipt["files"] = [each for each in receipt["files"] if each["path"] != "padding"]


def further_link(receipt: Any, tree: Path) -> None:
    (tree / "libggml.so").symlink_to("padding")
    receipt["links"].append({"path": "libggml.so", "target": "padding"})


def set_to(**values: Any) -> Callable[[Any, Path], None]:
    def change(receipt: Any, _: Path) -> None:
        receipt |= values

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_server, "not as it was signed: llama-server"),
        (further_plugin, "not as it was signed: libggml-evil.so"),
        (left_out, "not as it was signed: padding"),
        (further_link, "not the link that was signed: libggml.so"),
        (set_to(server="padding"), "the receipt's server is 'padding', and 'llama-server' was"),
        (
            set_to(arguments=["--log-file", "x"]),
            "the receipt's arguments is ('--log-file', 'x')",
        ),
        (set_to(publisher="else"), "the receipt's publisher is 'else', and 'simulator' was signed"),
        (set_to(sequence=1 << 50), "the receipt's sequence is"),
    ],
)
def test_T34_files_rewritten_together_with_their_receipt_are_found(
    owner: User, change: Callable[[Any, Path], None], said: str
) -> None:
    assert verdict(owner)[1]["not_signed"] is None
    rewrite(owner, change)
    code, found = verdict(owner)
    assert (code, found["intact"]) == (5, False)
    assert any(each.startswith(said) for each in found["differences"]), found["differences"]
    assert found["repair"].startswith("tsuku-llm install --force --release b1 --backend ")
    assert found["repair"].endswith(f" --repository {NAME}")


def test_T34_an_intact_version_says_who_signed_it(owner: User) -> None:
    done = owner.run("verify")
    assert done.stdout.endswith(f": intact, as repository {NAME} signed it\n")


def gone(shop: FolderShop, user: User) -> None:
    del shop.simulator.targets.targets["releases/b1.json"]
    publish(shop, "b2")
    assert user.run("repository", "refresh", NAME).code == 0


def another_build(shop: FolderShop, user: User) -> None:
    packed = shop.stand_in("b1-other", padding=9)
    platform = {"default": "cpu", "preference": {}, "variants": {"cpu": shop.variant(packed)}}
    shop.simulator.publish(release_document("b1", platforms={"linux-amd64": platform}))
    shop.write()
    assert user.run("repository", "refresh", NAME).code == 0


def removed(_: FolderShop, user: User) -> None:
    assert user.run("repository", "remove", NAME).code == 0


def damaged(_: FolderShop, user: User) -> None:
    (user.data / "metadata" / NAME / "current").write_text("junk")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (gone, f"b1 of repository {NAME} is no longer in its signed metadata"),
        (another_build, f"b1 of repository {NAME} has no such build in its signed metadata"),
        (removed, f"there is no repository {NAME!r}"),
        (damaged, f"there is no valid metadata of repository {NAME!r} on this machine"),
    ],
)
def test_without_a_signed_list_the_comparison_says_so(
    shop: FolderShop, owner: User, change: Callable[[FolderShop, User], None], why: str
) -> None:
    change(shop, owner)
    code, found = verdict(owner)
    assert (code, found["intact"], found["not_signed"]) == (0, True, why)
    shown = owner.run("verify").stdout
    assert f"intact, compared with its receipt only, which is not signed: {why}\n" in shown


def test_a_release_without_a_list_of_files_says_so(shop: FolderShop, tmp_path: Path) -> None:
    publish(shop, "b1", listed=False)
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    assert verdict(user)[1]["not_signed"] == f"b1 of repository {NAME} has no signed list of files"


# --- who built it, and who says so ---------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("explain",),
        ("backends",),
        ("install", "--dry-run"),
        ("install",),
        ("list", "--available"),
        ("update", "--check"),
        ("use", "b1"),
    ],
    ids=" ".join,
)
def test_T35_the_publishers_name_is_shown_with_the_repositorys_name(
    shop: FolderShop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    publish(shop, "b1", publisher=LOOKALIKE, unattested=REASON)
    user = shop.user(tmp_path / "home")
    if words[0] in ("update", "use"):
        assert user.run("install").code == 0
    shown = user.run(*words)
    assert shown.code == 0, shown.stderr
    assert f"built by {LOOKALIKE}, from repository {NAME}" in shown.stdout
    assert "unattested" in shown.stdout
    if words[0] != "list":
        assert f"  unattested: {REASON}\n" in shown.stdout
    told = user.run(*words, "--json").document["data"]
    assert all(part in json.dumps(told) for part in (f'"repository": "{NAME}"', REASON))


@pytest.mark.parametrize(
    "words",
    [("explain",), ("backends",), ("install", "--dry-run"), ("list", "--available"), ("install",)],
    ids=" ".join,
)
def test_what_was_not_measured_says_so_where_a_build_is_chosen(
    shop: FolderShop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    publish(shop, "b1", unmeasured=REASON, listed=False)
    user = shop.user(tmp_path / "home")
    told = user.run(*words, "--json").document["data"]
    assert (told["releases"][0] if words[0] == "list" else told)["unmeasured"] == REASON
    shown = user.run(*words).stdout
    assert "unmeasured" in shown
    assert words[0] == "list" or f"  unmeasured: {REASON}\n" in shown


def test_an_installed_version_says_where_it_came_from(shop: FolderShop, tmp_path: Path) -> None:
    publish(shop, "b1", unattested=REASON)
    user = shop.user(tmp_path / "home")
    assert user.run("install").code == 0
    (row,) = user.run("list").stdout.splitlines()
    assert {NAME, "unattested"} <= {*row.split()}
    for words in (("list", "--json"), ("verify", "--json")):
        (version,) = user.run(*words).document["data"]["versions"]
        version = version.get("receipt", version)
        assert (version["repository"], version["unattested"]) == (NAME, REASON)


def test_T39_a_release_outside_all_channels_can_be_named(shop: FolderShop, tmp_path: Path) -> None:
    publish(shop, "b1")
    publish(shop, "b7")
    shop.simulator.targets.targets["releases/b7.json"].unrecognized_fields["custom"][
        "channels"
    ] = []
    shop.simulator.bump()
    shop.write()
    user = shop.user(tmp_path / "home")
    for words in (("explain",), ("install", "--dry-run"), ("install",)):
        done = user.run(*words, "--release", "b7", "--json")
        assert (done.code, done.document["data"]["release"]) == (0, "b7"), done.stderr
        assert done.document["data"]["channel"] == "stable"
    assert user.run("update", "--check").code == 0
