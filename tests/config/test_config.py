"""Settings: precedence, sources, refusals; and edits that change one thing only."""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomli
from hypothesis import example, given
from hypothesis import strategies as st

from tsuku_llm.config import keys
from tsuku_llm.config.editing import checked_value, edited, set_value, unset_value
from tsuku_llm.config.file import SIZE_LIMIT, read
from tsuku_llm.config.keys import KEYS, Value, bytes_of, parse_share, share_of
from tsuku_llm.config.paths import Paths
from tsuku_llm.config.settings import Settings, load
from tsuku_llm.ground.errors import ConfigError, NotWritable, UnsafeLocation, UsageError
from tsuku_llm.machine.backends import NAMES, POLICIES
from tsuku_llm.store.store import LOCK_TIMEOUT

posix = pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
not_root = pytest.mark.skipif(
    os.name == "posix" and os.geteuid() == 0, reason="root may write everywhere"
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.from_environ({"TSUKU_HOME": str(tmp_path)})


def strict(paths: Paths, environ: Mapping[str, str]) -> Settings:
    """The settings for a command that stops for a wrong one."""
    configuration = load(paths, environ)
    configuration.require()
    return configuration.settings


def put(file: Path, name: str, text: str) -> Value:
    """Set one setting as ``config set`` does."""
    key = keys.key_named(name)
    value = checked_value(key, text)
    set_value(file, key, value)
    return value


def write(paths: Paths, text: str) -> Path:
    paths.config_file.write_text(text, "utf-8")
    return paths.config_file


# --- where things lie --------------------------------------------------------------------


def test_all_folders_are_under_tsuku_home(tmp_path: Path) -> None:
    paths = Paths.from_environ({"TSUKU_HOME": str(tmp_path)})
    assert paths.config_file == tmp_path / "config.toml"
    assert paths.data == tmp_path / "llm"
    assert paths.state == paths.data / "state"
    assert paths.cache == paths.data / "cache"
    assert paths.home == tmp_path


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives away")
def test_X13_each_user_has_its_own_state_in_the_home_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    home = tmp_path / "opt"
    assert Paths.from_environ({"TSUKU_HOME": str(home)}).state == home / "llm" / "state"
    home.mkdir()
    os.chown(home, 65534, 65534)
    paths = Paths.from_environ({"TSUKU_HOME": str(home)})
    assert paths.data == home / "llm"
    assert paths.state == tmp_path / "mine" / "tsuku-llm"
    assert paths.cache == tmp_path / "kept" / "tsuku-llm"


@pytest.mark.parametrize("home", ["", "relative", "~/tsuku", "./x"])
def test_a_relative_home_is_refused(home: str) -> None:
    with pytest.raises(ConfigError, match="not an absolute path"):
        Paths.from_environ({"TSUKU_HOME": home})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders of Linux")
def test_without_tsuku_home_the_systems_folders_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert Paths.from_environ({}) == Paths(
        tmp_path / ".config" / "tsuku-llm" / "config.toml",
        tmp_path / ".local" / "share" / "tsuku-llm",
        tmp_path / ".local" / "state" / "tsuku-llm",
        cache=tmp_path / ".cache" / "tsuku-llm",
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders of Linux")
def test_a_relative_cache_folder_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but the first prompt works without it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    cache = Paths.from_environ({}).cache
    assert cache is None or cache.is_absolute()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folders of Linux")
def test_a_user_without_a_home_folder_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a number that the list of users does not have, without HOME."""
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as refused:
        Paths.from_environ({})
    assert refused.value.hint.startswith("set TSUKU_HOME to an absolute path")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "/of/mine")
    assert Paths.from_environ({}).cache is None


# --- precedence and sources --------------------------------------------------------------


def test_nothing_set_gives_the_defaults(paths: Paths) -> None:
    configuration = load(paths, {})
    assert configuration.setting("llm.channel").value == "stable"
    assert configuration.setting("llm.repository").value == "official"
    assert not any(entry.chosen for entry in configuration.entries)
    settings = configuration.settings
    assert (settings.backend, settings.prefer, settings.repository_url, settings.mirror) == (
        "auto",
        "portable",
        (),
        (),
    )
    assert not settings.chosen


def test_every_key_has_its_place_in_the_settings(paths: Paths) -> None:
    beside = {"chosen", "flags", "places", "combine", "hold", "require_fresh", "warm_up"}
    assert {*Settings._fields} == {*(key.key for key in KEYS), *beside}
    chosen = load(paths, {}, {"llm.backend": "cpu"}).settings.chosen
    assert chosen == {"backend"}


@pytest.mark.parametrize("key", ["channel", "repository"])
def test_a_default_is_no_choice_of_the_user(paths: Paths, key: str) -> None:
    assert getattr(load(paths, {}).settings, key) is None
    default = str(keys.key_named(f"llm.{key}").default)
    assert getattr(load(paths, {}, {f"llm.{key}": default}).settings, key) == default


def test_flag_before_environment_before_file_before_default(paths: Paths) -> None:
    file = write(paths, '[llm]\nbackend = "rocm"\n')
    environ = {"TSUKU_LLM_BACKEND": "vulkan"}
    seen = [
        load(paths, environ, {"llm.backend": "cuda"}).setting("llm.backend"),
        load(paths, environ, {"llm.backend": None}).setting("llm.backend"),
        load(paths, {}).setting("llm.backend"),
    ]
    assert [(setting.value, setting.source) for setting in seen] == [
        ("cuda", "flag --backend"),
        ("vulkan", "environment TSUKU_LLM_BACKEND"),
        ("rocm", f"file {file}"),
    ]
    assert all(setting.chosen for setting in seen)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_is_read_from_its_variable(paths: Paths, key: keys.Key) -> None:
    text = {
        "llm.repository_url": "https://a.example/x",
        "llm.mirror": "file:///m",
        "llm.lock_timeout": "60",
        "llm.probe_timeout": "1m",
        "llm.refresh": "always",
        "llm.update_check": "false",
        "llm.canary": "false",
        "llm.min_age": "14",
        "llm.ask_above": "1.5 GB",
        "llm.max_download": "600MiB",
        "llm.fallback": "auto",
        "llm.on_gpu_loss": "restart",
        "llm.placement": "all",
        "llm.idle_timeout": "5m",
        "llm.model_path": "/models",
    }.get(key.name, "cpu")
    setting = load(paths, {key.variable: text}).setting(key.name)
    assert keys.text_of(setting.value) == text
    assert setting.source == f"environment {key.variable}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"native"', "native"),
        ('"vulkan, cuda"', ("vulkan", "cuda")),
        ('["cuda", "cpu"]', ("cuda", "cpu")),
        ('"cuda"', ("cuda",)),
        ('"Portable"', "portable"),
        ('"HIP, Vulkan"', ("rocm", "vulkan")),
        ('["intel", "cpu"]', ("sycl", "openvino", "cpu")),
    ],
)
def test_a_preference_is_a_policy_or_backends_in_order(
    paths: Paths, text: str, value: object
) -> None:
    write(paths, f"[llm]\nprefer = {text}\n")
    assert load(paths, {}).settings.prefer == value


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("mirror", ("https://a.example/b", "file:///srv/m")),
        ("repository_url", ("https://a.example/b", "file:///srv/m", "pkg:pypi/Our.metadata_1")),
        ("repository_url", ("pkg:pypi/x",)),
    ],
)
def test_places_are_a_string_or_an_array(paths: Paths, key: str, wanted: tuple[str, ...]) -> None:
    write(paths, f"[llm]\n{key} = {list(wanted)!r}\n")
    assert getattr(load(paths, {}).settings, key) == wanted
    write(paths, f"[llm]\n{key} = '{','.join(wanted)}'\n")
    assert getattr(load(paths, {}).settings, key) == wanted
    environ = {f"TSUKU_LLM_{key.upper()}": ", ".join(wanted)}
    assert getattr(load(paths, environ).settings, key) == wanted


@pytest.mark.parametrize("text", ["90", '" 90 "'])
def test_a_duration_is_a_number_or_a_string(paths: Paths, text: str) -> None:
    assert load(paths, {}).settings.lock_timeout == LOCK_TIMEOUT
    write(paths, f"[llm]\nlock_timeout = {text}\n")
    assert load(paths, {}).settings.lock_timeout == 90


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ('"5m"', 300),
        ('"1h30m"', 5400),
        ('"0.5h1.5s"', 1802),
        ('"1ms"', 1),
        ('"0s"', 0),
    ],
)
def test_a_duration_is_written_in_the_format_of_tsuku(
    paths: Paths, text: str, seconds: int
) -> None:
    assert load(paths, {}).settings.idle_timeout == 0
    write(paths, f"[llm]\nidle_timeout = {text}\n")
    assert load(paths, {}).settings.idle_timeout == seconds


def test_other_tables_are_ignored_and_our_unknown_keys_give_a_warning(paths: Paths) -> None:
    write(paths, 'telemetry = 1\n[llm]\nbakend = "cpu"\nchannel = "nightly"\n[other]\nx = 1\n')
    configuration = load(paths, {})
    assert configuration.settings.channel == "nightly"
    (warning,) = configuration.warnings
    assert warning.startswith(f"file {paths.config_file}, line 3: unknown setting llm.bakend is ")
    assert warning.endswith("; did you mean llm.backend?")


@pytest.mark.parametrize(("text", "release"), [('"b11429"', "b11429"), ('" V0.6.0"', "v0.6.0")])
def test_a_release_is_a_tag_or_a_version(paths: Paths, text: str, release: str) -> None:
    assert load(paths, {}).settings.release is None
    write(paths, f"[llm]\nrelease = {text}\nmin_age = 7\n")
    settings = load(paths, {}).settings
    assert (settings.release, settings.min_age, settings.hold) == (release, 7, False)
    assert load(paths, {"TSUKU_LLM_MIN_AGE": " 30 "}).settings.min_age == 30


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", '"true"', '"YES"', '"On"', "1", '" 1 "')),
        *((text, False) for text in ("false", '"FALSE"', '"no"', '"off"', "0", '"0"')),
    ],
)
def test_a_switch_is_a_toml_boolean_or_a_usual_word(
    paths: Paths, text: str, *, value: bool
) -> None:
    write(paths, f"[llm]\nupdate_check = {text}\n")
    assert strict(paths, {}).update_check is value
    given = text.strip('"')
    assert strict(paths, {"TSUKU_LLM_CANARY": given}).canary is value


@pytest.mark.parametrize(
    ("name", "text", "value", "settings"),
    [
        ("prefer", "combined", "combined", {"prefer": "portable", "combine": True}),
        ("prefer", "Combined, native", "combined,native", {"prefer": "native", "combine": True}),
        ("prefer", "combined,hip", ("combined", "rocm"), {"prefer": ("rocm",), "combine": True}),
        ("prefer", "native", "native", {"prefer": "native", "combine": False}),
        ("release", "Installed", "installed", {"release": None, "hold": True}),
        ("release", "b1", "b1", {"release": "b1", "hold": False}),
        ("refresh", "required", "required", {"require_fresh": True}),
        ("refresh", "always", "always", {"refresh": "always", "require_fresh": False}),
        ("canary", "true", "true", {"canary": True, "warm_up": True}),
        ("canary", "short", "short", {"canary": True, "warm_up": False}),
        ("canary", "off", "false", {"canary": False, "warm_up": False}),
    ],
)
def test_a_word_of_a_setting_may_say_two_things(
    paths: Paths, name: str, text: str, value: object, settings: dict[str, object]
) -> None:
    found = load(paths, {f"TSUKU_LLM_{name.upper()}": text})
    assert found.setting(f"llm.{name}").value == value
    assert {key: getattr(found.settings, key) for key in settings} == settings
    # As if the user had set nothing.
    assert found.settings.without({name})._replace(places={}) == load(paths, {}).settings


# --- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "3"),
        ("backend", '"cuda 12"'),
        ("backend", '""'),
        ("backend", '"cpu\\u001b[2J"'),
        ("prefer", '"nativ"'),
        ("prefer", '["native", "cuda"]'),
        ("prefer", '["cuda", 3]'),
        ("prefer", "[]"),
        ("prefer", '"combined,combined"'),
        ("prefer", '"cuda,combined"'),
        ("channel", "true"),
        ("repository", '"../x"'),
        ("repository_url", '"http://a.example"'),
        ("repository_url", '"https://"'),
        ("repository_url", '"https://a.example/\\u0007"'),
        ("repository_url", '"https://a.example/,"'),
        ("repository_url", '"https://a.example/ https://b.example/"'),
        ("repository_url", '["https://a.example/", "http://b.example/"]'),
        ("repository_url", '"https://u:p@ss@a.example/"'),
        ("mirror", '"https://u:p/w@a.example/"'),
        ("mirror", '"https://u:p#w@a.example/"'),
        ("mirror", '"https://a.example:port/"'),
        ("repository_url", '"pkg:pypi/"'),
        ("repository_url", '"pkg:pypi/-r"'),
        ("repository_url", '"pkg:pypi/x@1"'),
        ("repository_url", '"pkg:pypi/x==1"'),
        ("repository_url", '"pkg:pypi/x[extra]"'),
        ("repository_url", '"pkg:npm/x"'),
        ("mirror", '"pkg:pypi/x"'),
        ("mirror", '"ftp://a.example"'),
        ("mirror", '["https://a.example", "http://b.example"]'),
        ("mirror", "{}"),
        ("idle_timeout", "-1"),
        ("idle_timeout", "1.5"),
        ("idle_timeout", "true"),
        ("idle_timeout", '""'),
        ("idle_timeout", '"5 m"'),
        ("idle_timeout", '"5d"'),
        ("idle_timeout", '"m"'),
        ("lock_timeout", "-1"),
        ("lock_timeout", "true"),
        ("lock_timeout", "1.5"),
        ("lock_timeout", '"soon"'),
        ("lock_timeout", '"\u0661"'),
        ("probe_timeout", "0"),
        ("probe_timeout", '"0ms"'),
        ("probe_timeout", '"1h1s"'),
        ("probe_timeout", "true"),
        ("canary", '"maybe"'),
        ("release", '""'),
        ("release", '"b1 or b2"'),
        ("release", "true"),
        ("min_age", "-1"),
        ("ask_above", "-1"),
        ("ask_above", '"a lot"'),
        ("max_download", '"200 GiBB"'),
        ("max_download", '"5 ib"'),
        ("max_download", "true"),
        ("max_download", '""'),
        ("min_age", "true"),
        ("min_age", "1.5"),
        ("min_age", '"a week"'),
        ("min_age", "100000"),
        ("update_check", "2"),
        ("update_check", "[]"),
        ("canary", "[]"),
        ("update_check", '""'),
    ],
)
def test_a_wrong_value_is_refused_with_file_and_line(paths: Paths, name: str, value: str) -> None:
    write(paths, f"# ours\n[other]\n{name} = 1\n[llm]\n{name} = {value}\n")
    with pytest.raises(ConfigError) as caught:
        strict(paths, {})
    assert caught.value.message.startswith((f"llm.{name} must be", f"llm.{name} must not be"))
    assert f"file {paths.config_file}, line 5: " in caught.value.facts[0]


@pytest.mark.parametrize("text", ['llm.backend = "Q!"', 'llm = {backend = "Q!"}'])
def test_the_line_number_is_found_without_a_table_header(paths: Paths, text: str) -> None:
    write(paths, f"x = 1\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        strict(paths, {})
    assert "line 2" in caught.value.facts[0]


def test_a_wrong_value_of_a_variable_is_named(paths: Paths) -> None:
    with pytest.raises(ConfigError) as caught:
        strict(paths, {"TSUKU_LLM_PREFER": "quantum"})
    assert caught.value.facts == ("environment TSUKU_LLM_PREFER: 'quantum'",)


@pytest.mark.parametrize(
    "text",
    [
        '[llm]\nmirror = "me:secret@a.example"',
        '[llm]\nmirror = "https://a.example/,me:secret@b.example/"',
        '[llm]\nmirror = {url = "me:secret@a.example"}',
        'llm = "https://me:secret@a.example/"',
    ],
)
def test_T16_no_password_of_the_file_is_in_an_error(text: str, paths: Paths) -> None:
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        strict(paths, {})
    assert "secret" not in str(caught.value) + "".join(caught.value.facts)


def test_no_password_is_in_an_error(paths: Paths) -> None:
    with pytest.raises(ConfigError) as caught:
        strict(paths, {"TSUKU_LLM_MIRROR": "http://me:secret@a.example/"})
    assert "secret" not in "".join(caught.value.facts)
    assert "***@a.example" in caught.value.facts[0]


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"[llm\n", "line 1"),
        (b'a = 1\n[llm]\nbackend = "cpu\n', "line 3"),
        (b"a = " + b"[" * 5000, ""),
        (b"x = 1\ny = '\xff'\n", "line 2 is not UTF-8"),
        ("[llm]\n".encode("utf-16"), "line 1 is not UTF-8"),
        (b"#" * (SIZE_LIMIT + 1), "larger than"),
        (b"llm = 3\n", "it is int 3"),
        (b"[[llm]]\n", "it is list"),
    ],
    ids=["header", "string", "nested", "latin-1", "utf-16", "large", "number", "array"],
)
def test_an_unreadable_file_is_named(paths: Paths, data: bytes, fact: str) -> None:
    paths.config_file.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        strict(paths, {})
    assert str(paths.config_file) in caught.value.message
    assert fact in caught.value.facts[0]


@pytest.mark.skipif(os.name != "posix", reason="Windows tells no file from a missing folder")
def test_a_file_in_the_place_of_the_home_is_told_as_that() -> None:
    """Services often have /dev/null as HOME: there is no file to correct or to move away."""
    with pytest.raises(ConfigError, match="there is no folder for the config file") as caught:
        read(Path(os.devnull, ".config", "tsuku-llm", "config.toml"))
    assert caught.value.hint == "set HOME, or TSUKU_HOME, to a folder"


def test_a_folder_in_the_place_of_the_file_is_refused(paths: Paths) -> None:
    paths.config_file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        strict(paths, {})


@posix
def test_a_fifo_in_the_place_of_the_file_is_refused_at_once(paths: Paths) -> None:
    os.mkfifo(paths.config_file)
    with pytest.raises(ConfigError, match="cannot be read"):
        strict(paths, {})


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    paths = Paths.from_environ({"TSUKU_HOME": str(home)})
    if os.name == "posix":
        with pytest.raises(ConfigError, match="there is no folder"):
            strict(paths, {})
    with pytest.raises((ConfigError, NotWritable)):
        put(paths.config_file, "llm.backend", "cpu")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="needs root, as with sudo -E"
)
def test_root_leaves_no_folder_in_the_home_of_a_user(tmp_path: Path) -> None:
    """sudo's manual: -E, and env_keep, leave HOME as it is, so root works in the user's folders.

    A refused command made ~/.config for root, and the user could not write a setting any more.
    """
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 1234, 1234)
    with pytest.raises(UnsafeLocation, match="belongs to another user") as caught:
        put(home / ".config" / "tsuku-llm" / "config.toml", "llm.backend", "cpu")
    assert list(home.iterdir()) == []
    assert caught.value.hint == "run it as that user, or with root's own HOME (sudo -H)"


def test_a_byte_order_mark_is_accepted(paths: Paths) -> None:
    paths.config_file.write_bytes(b'\xef\xbb\xbf[llm]\nbackend = "cpu"\n')
    assert load(paths, {}).settings.backend == "cpu"


def test_an_unknown_key_gets_a_suggestion(paths: Paths) -> None:
    with pytest.raises(UsageError) as caught:
        put(paths.config_file, "llm.bakend", "cpu")
    assert caught.value.hint == "did you mean llm.backend?"
    with pytest.raises(UsageError) as caught:
        unset_value(paths.config_file, "telemetry")
    assert caught.value.hint.startswith("see: tsuku-llm config list; ")


# --- edits -------------------------------------------------------------------------------


def test_the_first_setting_makes_folder_and_file(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "config.toml"
    put(file, "llm.backend", "vulkan")
    assert file.read_text("utf-8") == '[llm]\nbackend = "vulkan"\n'
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_an_edit_changes_its_line_only(paths: Paths) -> None:
    text = '# top\na = 1\r\n\n[llm] # ours\n  backend = "cpu"  # why\n# end\n\n[z]\nn = nan\n'
    write(paths, text)
    put(paths.config_file, "llm.backend", "cuda-13.4")
    assert paths.config_file.read_bytes().decode() == text.replace('"cpu"', '"cuda-13.4"')


@pytest.mark.parametrize(
    "text",
    ['llm.backend = "cpu"\n', 'llm = {backend = "cpu", channel = "index"}\n', "[llm.sub]\nx = 1\n"],
)
def test_other_spellings_of_the_table_are_edited_too(paths: Paths, text: str) -> None:
    write(paths, text)
    put(paths.config_file, "llm.prefer", "cuda,cpu")
    before, after = tomli.loads(text), tomli.loads(paths.config_file.read_text("utf-8"))
    assert after == {"llm": {**before["llm"], "prefer": ["cuda", "cpu"]}}


def test_unset_removes_a_setting_or_a_mistyped_name(paths: Paths) -> None:
    assert unset_value(paths.config_file, "llm.backend") == keys.key_named("llm.backend")
    assert not paths.config_file.exists()
    write(paths, '[llm]\nbackend = "cpu"\nbakend = 1\nchannel = "index" # keep\n')
    unset_value(paths.config_file, "llm.backend")
    unset_value(paths.config_file, "llm.backend")
    assert unset_value(paths.config_file, "llm.bakend") is None
    assert paths.config_file.read_text("utf-8") == '[llm]\nchannel = "index" # keep\n'


def test_a_malformed_file_is_never_overwritten(paths: Paths) -> None:
    write(paths, "[llm\nmine = 1\n")
    with pytest.raises(ConfigError):
        put(paths.config_file, "llm.backend", "cpu")
    with pytest.raises(ConfigError):
        unset_value(paths.config_file, "llm.backend")
    assert paths.config_file.read_text("utf-8") == "[llm\nmine = 1\n"


def test_an_edit_that_would_change_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tomlkit.dumps", lambda _document: '[llm]\nbackend = "rocm"\n')
    with pytest.raises(ConfigError, match="cannot be edited"):
        edited("", "backend", "cpu", Path("config.toml"))


@posix
def test_writing_follows_a_link_and_keeps_the_mode(paths: Paths, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "tsuku.toml"
    target.parent.mkdir()
    target.write_text("# mine\n")
    target.chmod(0o640)
    paths.config_file.symlink_to(Path("dotfiles") / "tsuku.toml")
    put(paths.config_file, "llm.backend", "cpu")
    assert paths.config_file.is_symlink()
    assert target.read_text() == '# mine\n\n[llm]\nbackend = "cpu"\n'
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in target.parent.iterdir()] == ["tsuku.toml"]


@posix
def test_writing_through_a_dangling_link_makes_its_target(paths: Paths, tmp_path: Path) -> None:
    paths.config_file.symlink_to(tmp_path / "later" / "c.toml")
    put(paths.config_file, "llm.backend", "cpu")
    assert (tmp_path / "later" / "c.toml").exists()


@not_root
def test_a_folder_that_cannot_be_written_is_named(paths: Paths) -> None:
    folder = paths.config_file.parent
    folder.chmod(0o500)
    try:
        with pytest.raises(NotWritable, match="does not allow"):
            put(paths.config_file, "llm.backend", "cpu")
    finally:
        folder.chmod(0o700)


WORDS = st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,20}", fullmatch=True)
PREFERENCES = st.sampled_from(POLICIES) | st.lists(
    st.sampled_from(NAMES), min_size=1, max_size=8
).map(",".join)
URLS = st.from_regex(
    r"https://[a-z0-9.]{1,20}(:[0-9]{1,5})?(/[!#-+\--Z^-~\u00e4]{0,20})?", fullmatch=True
)
TEXTS = {
    "llm.prefer": PREFERENCES,
    "llm.repository_url": st.lists(URLS, min_size=1, max_size=3).map(",".join),
    "llm.mirror": st.lists(URLS | st.just("origin"), min_size=1, max_size=3).map(",".join),
    "llm.lock_timeout": st.integers(0, 9_999_999).map(str),
    "llm.probe_timeout": st.integers(1, 3600).map(str),
    "llm.refresh": st.sampled_from(keys.REFRESHES),
    "llm.update_check": st.sampled_from(["true", "false"]),
    "llm.canary": st.sampled_from(["true", "short", "false"]),
    "llm.min_age": st.integers(0, 99_999).map(str),
    "llm.ask_above": st.integers(0, 10**12).map(str),
    "llm.max_download": st.integers(0, 10**6).map(lambda count: f"{count} MB"),
    "llm.fallback": st.sampled_from(keys.FALLBACKS),
    "llm.on_gpu_loss": st.sampled_from(keys.ON_GPU_LOSS),
    "llm.placement": st.sampled_from(keys.PLACEMENTS),
    "llm.model_path": st.lists(
        st.from_regex(r"~/[a-z \[\"'#]{0,9}[a-z]", fullmatch=True), min_size=1
    ).map(os.pathsep.join),
    "llm.idle_timeout": st.from_regex(
        r"([0-9]{1,7}(\.[0-9]{1,9})?(h|m|s|ms)){1,3}", fullmatch=True
    ),
}
PAIRS = st.sampled_from(KEYS).flatmap(
    lambda key: st.tuples(st.just(key.name), TEXTS.get(key.name, WORDS))
)
COMMENTS = st.from_regex(r"# [ -~]{0,20}", fullmatch=True)
BEFORE = st.lists(
    st.one_of(
        COMMENTS,
        st.just(""),
        st.sampled_from(["[llm] # t", 'backend = "cpu" # c', "channel = 'x'", "[tsuku]", "a = 1"]),
    ),
    max_size=8,
).map("\n".join)


def is_toml(text: str) -> bool:
    try:
        tomli.loads(text)
    except tomli.TOMLDecodeError:
        return False
    return True


@given(before=BEFORE.filter(is_toml), pairs=st.lists(PAIRS, min_size=1, max_size=4))
@example(before="# only a comment", pairs=[("llm.backend", "cpu")])
def test_a_set_value_is_read_back_and_comments_survive(
    tmp_path_factory: pytest.TempPathFactory, before: str, pairs: list[tuple[str, str]]
) -> None:
    paths = Paths.from_environ({"TSUKU_HOME": str(tmp_path_factory.mktemp("home"))})
    write(paths, before)
    for name, text in pairs:
        value = put(paths.config_file, name, text)
        setting = load(paths, {}).setting(name)
        assert setting.value == value
        assert keys.text_of(value) == text
    after = paths.config_file.read_text("utf-8")
    for line in before.splitlines():
        if line.startswith("#"):
            assert line in after
    others = {key: value for key, value in tomli.loads(before).items() if key != "llm"}
    assert {k: v for k, v in tomli.loads(after).items() if k != "llm"} == others


@given(before=BEFORE.filter(is_toml), pair=PAIRS)
def test_unsetting_a_value_gives_the_default(
    tmp_path_factory: pytest.TempPathFactory, before: str, pair: tuple[str, str]
) -> None:
    paths = Paths.from_environ({"TSUKU_HOME": str(tmp_path_factory.mktemp("home"))})
    write(paths, before)
    put(paths.config_file, *pair)
    unset_value(paths.config_file, pair[0])
    assert not load(paths, {}).setting(pair[0]).chosen


@given(st.text(max_size=200))
def test_any_file_is_read_or_refused(text: str) -> None:
    for key in KEYS:
        try:
            value = key.parse(text)
        except ValueError:
            continue
        assert key.parse(keys.text_of(value)) == value
        assert keys.text_of(value).isprintable()


@pytest.mark.parametrize(
    ("text", "share"), [("0", 0), ("0.5", 0.5), ("1", 1), ("48 %", 0.48), ("50%", 0.5), ("100%", 1)]
)
def test_a_share_is_a_number_or_a_percentage_as_this_program_prints_it(
    text: str, share: float
) -> None:
    assert share_of(parse_share(text)) == share


@pytest.mark.parametrize("text", ["", "%", "-1", "1.5", "101%", "5 5", "1e-1", "\u0665"])
def test_no_other_text_is_a_share(text: str) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        parse_share(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("200MB", 200_000_000),
        ("1.5 GB", 1_500_000_000),
        ("4 KiB", 4096),
        ("2gib", 2 << 30),
        ("17 b", 17),
        (None, None),
    ],
)
def test_a_size_has_decimal_and_binary_units(text: str | None, count: int | None) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("/media/My Stick/llm", "write this folder as file:///media/My%20Stick/llm"),
        ("C:\\llm mirror", "write this folder as file:///C:/llm%20mirror"),
        ("file:///media/My Stick/llm", "write this folder as file:///media/My%20Stick/llm"),
        ("https://anna:p@ss@mirror.example/llm/", "write %40 for @"),
        ("https://anna:pa/ss@mirror.example/llm/", "%2F for /"),
    ],
)
def test_a_place_that_is_nearly_right_is_told_how_to_write_it(place: str, says: str) -> None:
    """RFC 3986 (3.2.1, 2.1) wants such characters escaped; people type passwords as they are."""
    with pytest.raises(ValueError, match="must be https: or file: URLs") as caught:
        keys.parse_mirrors(place)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "place",
    [
        "https://anna:p%40ss@mirror.example:8443/llm/",
        "https://token@mirror.example/a@b",
        "https://[::1]:8443/llm/",
        "https://u:p@[fe80::1]/llm/?token=a:b@c",
    ],
)
def test_a_place_with_a_user_a_port_or_an_address_is_taken(place: str) -> None:
    assert keys.parse_mirrors(place) == (place,)
