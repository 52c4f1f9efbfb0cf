"""The import table of the design, as data: every edge that is not in it fails."""

import ast
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "installer" / "tsuku_llm"

VALUES = frozenset({"backends", "errors", "hardware", "manifest", "requirements"})

MAY_IMPORT: dict[str, frozenset[str]] = {
    "__init__": frozenset({"_version", "api"}),
    "__main__": frozenset({"cli"}),
    "_version": frozenset(),
    "errors": frozenset(),
    "foreign": frozenset(),
    "backends": frozenset(),
    "clock": frozenset(),
    "packages": frozenset({"backends"}),
    "own_copy": frozenset(),
    "process": frozenset(),
    "children": frozenset({"errors", "foreign", "ownership"}),
    "records": frozenset(),
    "safe_text": frozenset({"secret"}),
    "secret": frozenset(),
    "tree_entry": frozenset(),
    "hardware": frozenset(),
    "system_limits": frozenset({"errors"}),
    "driver_child": frozenset({"errors", "system_limits"}),
    "disk": frozenset({"errors", "system_limits"}),
    "embedded": frozenset({"manifests"}),
    "revocations": frozenset({"disk", "files", "embedded", "errors", "records"}),
    "metadata_status": frozenset({"disk", "files", "embedded", "errors", "revocations", "records"}),
    "files": frozenset({"disk", "errors", "ownership"}),
    "ownership": frozenset({"disk", "errors"}),
    "folders": frozenset({"disk", "files", "errors", "ownership"}),
    "local_host": frozenset({"children", "driver_child", "errors"}),
    "host": frozenset({"driver_child", "errors", "local_host"}),
    "snapshot": frozenset({"errors", "files", "host"}),
    "probe": frozenset({"backends", "errors", "hardware", "host", "local_host", "packages"})
    | {"system_limits"},
    "trust": frozenset({"errors"}),
    "requirements": frozenset(),
    "manifest": frozenset({"backends", "errors", "requirements", "safe_text", "tree_entry"})
    | {"trust"},
    "catalog": frozenset(
        {"clock", "config", "disk", "files", "embedded", "errors", "folders", "manifest"}
    )
    | {"revocations", "metadata_status", "trust"},
    "mirror_folder": frozenset({"catalog", "disk", "errors", "files", "folders", "manifest"})
    | {"records"},
    "cards": frozenset({"hardware"}),
    "fitting": VALUES | {"cards"},
    "combinations": VALUES | {"cards", "fitting"},
    "selection": VALUES | {"cards", "combinations", "fitting"},
    "chain": VALUES | {"fitting", "packages", "selection"},
    # A bundle is one file of a mirror's layout, and ``file:`` URLs lead into it.
    "bundle_file": frozenset({"archive", "disk", "errors", "files", "folders", "records"}),
    "bundle_sbom": frozenset(),
    # A program of its own: it runs where this package is not installed yet, with modules that need
    # nothing but Python.
    "bundle_start": frozenset({"errors", "files", "ownership"}),
    "program_wheels": frozenset(),
    "fetch": frozenset(
        {"_version", "clock", "config", "disk", "errors", "files", "manifest", "safe_text"}
    )
    | {"bundle_file", "children", "records", "secret"},
    "archive": frozenset({"backends", "disk", "errors", "manifest", "tree_entry"}),
    "store": frozenset({"disk", "errors", "files", "folders", "ownership", "process", "records"})
    | {"tree_entry"},
    "launch": frozenset(
        {"backends", "clock", "errors", "packages", "process", "records", "system_limits"}
    )
    | {"children", "safe_text", "secret"},
    "instances": frozenset({"disk", "errors", "files", "folders", "launch", "process", "records"})
    | {"safe_text", "store"},
    "model_caches": frozenset({"launch"}),
    "operations": VALUES
    | {"archive", "catalog", "chain", "fetch", "host", "launch", "model_caches", "probe"}
    | {"children", "combinations"}
    | {"_version", "clock", "config", "disk", "driver_child", "files", "folders", "instances"}
    | {"bundle_file", "bundle_sbom", "bundle_start", "program_wheels"}
    | {"local_host", "mirror_folder", "own_copy"}
    | {"metadata_status", "ownership", "process", "records", "revocations", "safe_text"}
    | {"secret"}
    | {"fitting", "selection", "snapshot", "store", "tree_entry", "trust"},
    "config": frozenset({"backends", "disk", "errors", "files", "ownership", "safe_text"}),
    "api": frozenset({"config", "errors", "hardware", "instances", "operations", "store"})
    | {"system_limits"},
    "cli": VALUES
    | {"_version", "catalog", "chain", "config", "embedded", "files", "host", "instances"}
    | {"launch", "local_host", "metadata_status", "mirror_folder", "model_caches", "operations"}
    | {"own_copy"}
    | {"children", "ownership"}
    | {"revocations", "safe_text", "secret", "selection"}
    | {"snapshot", "store", "system_limits"},
}
"""Which units (modules or subpackages of tsuku_llm) each unit may import, at any place."""

EVERYWHERE = frozenset({"__init__", "foreign"})
"""What each module may import: the package itself, and the bounded reads of foreign bytes."""

OPERATIONS: dict[str, frozenset[str]] = {
    # what every operation may use
    "session": frozenset(),
    "state_notes": frozenset(),
    "prefetch": frozenset({"session"}),
    "credentials": frozenset({"session"}),
    "update_notice": frozenset({"session"}),
    "caches": frozenset({"session"}),
    "warming": frozenset({"caches", "session"}),
    "temporary": frozenset(),
    "revocation": frozenset({"session"}),
    "staying": frozenset({"session"}),
    "acceptance": frozenset(),
    "speed_notes": frozenset(),
    "names": frozenset({"session"}),
    "editing": frozenset({"names", "session"}),
    "which": frozenset({"names", "session"}),
    # decisions and answers: they read, and change nothing but notes
    "held_builds": frozenset(),
    "choice": frozenset({"acceptance", "held_builds", "revocation", "session", "staying"}),
    "device_check": frozenset({"session", "state_notes"}),
    "placing": frozenset({"device_check", "fitting"}),
    "doctor": frozenset(
        {"caches", "choice", "copy_facts", "names", "revocation", "session", "staying", "which"}
    ),
    "explain": frozenset({"caches", "choice", "device_check", "fitting", "session", "staying"})
    | {"which"},
    "fitting": frozenset({"device_check"}),
    "models": frozenset({"explain", "session", "which"}),
    "downloads": frozenset({"session", "which"}),
    "reuse": frozenset(),
    "consent": frozenset({"choice", "reuse", "session"}),
    "copy_facts": frozenset(),
    "renewed": frozenset(),
    "signed_program": frozenset(),
    "self_update": frozenset(
        {"choice", "copy_facts", "refresh", "renewed", "session", "signed_program"}
    ),
    "service": frozenset(),
    "verify": frozenset({"choice", "session", "versions"}),
    "versions": frozenset({"revocation", "session", "temporary"}),
    # operations with effects
    "opening": frozenset({"prefetch", "session"}),
    "background": frozenset({"revocation", "session"}),
    "ensuring": frozenset({"background", "fallback", "install", "session"}),
    "swapping": frozenset({"acceptance", "session", "speed_notes"}),
    "server_trials": frozenset({"acceptance"}),
    "unattended": frozenset({"acceptance", "choice", "server_trials", "session", "short_start"})
    | {"speed_notes", "update"},
    "watching": frozenset({"serve", "session", "speed_notes", "swapping"}) | {"version_start"},
    "short_start": frozenset({"session", "state_notes", "version_start"}),
    "bench": frozenset({"choice", "consent", "install", "refresh", "session", "short_start"})
    | {"speed_notes", "versions", "which"},
    "build_version": frozenset({"caches", "choice", "consent", "reuse", "session", "temporary"}),
    "fallback": frozenset({"choice", "consent", "install", "session", "state_notes", "which"}),
    "own_build": frozenset({"build_version", "caches", "session", "temporary"}),
    "from_source": frozenset({"caches", "copy_facts", "own_build", "session"}),
    "install": frozenset({"build_version", "choice", "consent", "refresh", "revocation", "session"})
    | {"staying", "temporary", "which"},
    "maintenance": frozenset({"caches", "revocation", "session", "versions", "which"}),
    "places": frozenset({"session"}),
    "fleet": frozenset({"copy_facts", "session"}),
    "refresh": frozenset({"choice", "places", "revocation", "session"}),
    "mirror_choice": frozenset({"session"}),
    "own_wheel": frozenset({"copy_facts"}),
    "bundle_choice": frozenset({"choice", "mirror_choice", "revocation", "session"}),
    "bundle": frozenset({"bundle_choice", "choice", "mirror", "own_wheel", "refresh", "session"})
    | {"signed_program"},
    "bundle_install": frozenset({"install", "revocation", "session"}),
    "mirror": frozenset({"choice", "mirror_choice", "refresh", "reuse", "session"}),
    "registry_mirror": frozenset({"choice", "mirror", "mirror_choice", "refresh", "session"}),
    "recovery": frozenset(
        {"choice", "consent", "fallback", "install", "session", "state_notes", "temporary"}
    ),
    "repository": frozenset({"refresh", "session"}),
    "serve": frozenset({"fallback", "recovery", "session", "state_notes", "temporary"})
    | {"version_start"},
    "version_start": frozenset({"caches", "device_check", "downloads", "fitting", "placing"})
    | {"revocation"}
    | {"session", "state_notes", "swapping", "update_notice", "warming", "which"},
    "tools": frozenset({"caches", "fallback", "revocation"})
    | {"session", "state_notes", "version_start", "which"},
    "update": frozenset({"choice", "consent", "install", "refresh", "revocation", "session"})
    | {"staying", "temporary", "update_notice"},
}


EFFECTS = frozenset(
    {
        "background",
        "bench",
        "build_version",
        "bundle",
        "bundle_install",
        "ensuring",
        "fallback",
        "from_source",
        "fleet",
        "install",
        "maintenance",
        "mirror",
        "own_build",
        "recovery",
        "refresh",
        "registry_mirror",
        "renewed",
        "repository",
        "self_update",
        "serve",
        "server_trials",
        "short_start",
        "tools",
        "unattended",
        "update",
        "version_start",
        "watching",
    }
)
"""The operations that change what is installed, known or published, or that run a build."""

BUILT_ON_EFFECTS = {
    "from_source": "compiles a build, and installs it as one of the user's own",
    "own_build": "describes the machine in its receipt as the build of a version does",
    "install": "refreshes the metadata, and builds the version",
    "update": "is a refresh and an install",
    "serve": "falls back to another variant, and moves to a better one",
    "recovery": "installs the better variant, as fallback would",
    "fallback": "installs the next variant",
    "bench": "installs and starts each variant",
    "short_start": "is a start that ends when it was seen",
    "unattended": "is an update, and starts what it has to judge",
    "ensuring": "installs a build if there is none, and starts a server in the background",
    "watching": "is serve, with a name and a record",
    "repository": "fetches the metadata of the repository that it adds",
    "bundle": "fetches the newest metadata, as a mirror does",
    "bundle_install": "is an install from one file",
    "mirror": "fetches the newest metadata of the repository that it copies",
    "registry_mirror": "is a mirror in another place",
    "tools": "plans in a dry run what serve would start",
    "self_update": "changes a copy of the packages, which then takes their place",
}
"""The only operations that may import another operation with effects, and why."""

FETCH: dict[str, frozenset[str]] = {
    "failures": frozenset(),
    "limits": frozenset(),
    "pieces": frozenset(),
    "progress": frozenset(),
    "proxies": frozenset(),
    "race": frozenset(),
    "segments": frozenset(),
    "tls": frozenset(),
    "urls": frozenset(),
    "connections": frozenset({"limits", "race", "tls"}),
    "transport": frozenset({"connections", "failures", "limits", "proxies", "race", "tls", "urls"}),
    "mirrors": frozenset({"urls"}),
    "registry_login": frozenset({"urls"}),
    "network": frozenset({"limits", "registry_login", "transport", "urls"}),
    "http_get": frozenset({"failures", "network", "registry_login", "urls"}),
    "registry": frozenset({"mirrors", "network", "small_files"}),
    "registry_push": frozenset({"failures", "http_get", "mirrors", "network", "registry"})
    | {"retries", "urls"},
    "retries": frozenset({"failures", "limits", "network", "urls"}),
    "pip_index": frozenset({"network", "urls"}),
    "beginnings": frozenset({"failures", "http_get", "network", "retries", "urls"}),
    "small_files": frozenset({"failures", "http_get", "network", "retries", "urls"}),
    "partial": frozenset({"segments", "urls"}),
    "stream": frozenset(),
    "transfer": frozenset({"http_get", "network", "partial", "pieces", "progress", "retries"})
    | {"segments", "stream", "urls"},
    "parallel": frozenset({"failures", "http_get", "partial", "pieces", "retries", "segments"})
    | {"transfer"},
    "sequential": frozenset({"failures", "http_get", "pieces", "pip_index", "retries"})
    | {"small_files", "transfer", "urls"},
    "download": frozenset(
        {"mirrors", "network", "parallel", "partial", "progress", "sequential", "stream"}
    )
    | {"transfer", "urls"},
}


TRANSPORT_OF_FETCH = ("transport", "connections", "race", "tls", "network", "proxies")
"""The modules of ``fetch`` that talk to a host."""

DISK_OF_FETCH = {"download", "parallel", "partial", "segments", "sequential", "transfer"}
"""The modules of ``fetch`` that know which bytes of a file are there: no host is their concern."""

INSIDE: dict[str, Mapping[str, AbstractSet[str]]] = {
    "operations": OPERATIONS,
    "fetch": FETCH,
    "launch": {
        # Pure: they decide, and read or ask nothing.
        "causes": set(),
        "causes_arguments": {"causes"},
        "causes_gpu": {"causes"},
        "causes_model": {"causes"},
        "causes_system": {"causes"},
        "devices": set(),
        "driver_caches": set(),
        "last_words": set(),
        "log": set(),
        "memory_options": {"wishes"},
        "model_header": set(),
        "need": {"memory_options", "model_header"},
        "fit": {"memory_options", "need", "report"},
        "addresses": set(),
        "report": {"addresses"},
        "diagnosis": {"causes", "causes_arguments", "causes_gpu", "causes_model", "causes_system"}
        | {"last_words"},
        "wishes": set(),
        "card_speeds": set(),
        "placement": {"card_speeds", "devices", "need", "report"},
        "verdict": {"report"},
        "life": {"report"},
        "gpu_use": {"devices", "log", "report", "wishes"},
        # They look at the machine, or ask it.
        "fingerprint": set(),
        "gguf": {"model_header"},
        "main_memory": {"fit"},
        "fit_tool": {"child", "memory_options", "need", "planning"},
        "nvml_worker": set(),
        "secret_arguments": set(),
        "planning": {"addresses", "report", "secret_arguments"},
        "speed": {"addresses", "health"},
        "child": {"last_words", "planning"},
        "health": {"addresses", "log", "planning"},
        "canary": {"addresses", "report", "health", "wishes"},
        "warm_up": {"addresses", "canary", "health", "wishes"},
        "nvml": {"card_speeds", "child", "placement", "planning", "report"},
        "proc": {"gpu_use"},
        "life_sampling": {
            "addresses",
            "canary",
            "fingerprint",
            "health",
            "life",
            "nvml",
            "planning",
            "proc",
        }
        | {"report", "wishes"},
        "observation": {
            "addresses",
            "canary",
            "devices",
            "gguf",
            "gpu_use",
            "health",
            "log",
            "nvml",
        }
        | {"memory_options", "need", "planning", "proc", "report", "verdict", "wishes"},
        "failure": {
            "addresses",
            "causes",
            "diagnosis",
            "health",
            "last_words",
            "planning",
            "wishes",
        },
        "gate": {"causes", "child", "devices", "diagnosis", "failure", "last_words", "planning"},
        # One start, and the threads around it.
        "forwarding": set(),
        "replace_process": {"failure", "planning"},
        "supervise": {"causes", "child", "failure", "forwarding", "health", "planning"}
        | {"replace_process"},
        "monitor": {
            "addresses",
            "devices",
            "gpu_use",
            "health",
            "life",
            "life_sampling",
            "log",
            "nvml",
        }
        | {
            "observation",
            "planning",
            "proc",
            "report",
            "supervise",
            "verdict",
            "warm_up",
            "wishes",
        },
    },
    "store": {
        # What is on disk: files and their formats.
        "in_use": set(),
        "legacy": set(),
        "receipt": set(),
        "integrity": {"receipt"},
        "installed": {"integrity", "receipt"},
        "updates": {"receipt"},
        "layout": {"in_use", "installed", "integrity", "receipt", "updates"},
        "foreign": {"in_use", "installed", "integrity", "layout"},
        # For a start: it reads, and loads nothing that writes.
        "reader": {"foreign", "in_use", "installed", "integrity", "layout", "receipt"},
        # What writes, from a lock to a commit.
        "locks": {"layout"},
        "staging": {"in_use", "integrity", "layout", "locks", "receipt"},
        "reuse": {"installed", "integrity", "staging"},
        "finalize": {"in_use", "integrity", "receipt", "reuse", "staging"},
        "store": {"finalize", "foreign", "in_use", "installed", "integrity", "layout", "legacy"}
        | {"locks", "reader", "receipt", "reuse", "staging", "updates"},
    },
    "catalog": {
        "copies": set(),
        "offered": set(),  # unverified names, to complete a word
        "repositories": {"copies"},
        "copy_store": {"copies", "repositories"},
        "roots": {"copies", "copy_store", "repositories"},
        "entries": set(),  # which releases a verified copy offers
        "loading": {"copies", "copy_store", "entries", "repositories", "roots"},
        # Only these two know python-tuf's updater.
        "updater_state": {"copies", "roots"},
        "refreshing": {"copies", "copy_store", "entries", "loading", "repositories", "roots"}
        | {"updater_state"},
    },
    "chain": {
        "links": set(),
        "driver": {"links"},
        "judging": {"driver", "links"},
    },
    "model_caches": {
        # Pure: the names, and what belongs together.
        "naming": set(),
        "places": set(),
        # They look into folders and files, and change nothing.
        "walking": set(),
        "files": {"walking"},
        "grouping": {"files", "naming"},
        "ollama": {"files", "places", "walking"},
        "finding": {"files", "grouping", "naming", "ollama", "places", "walking"},
    },
    "instances": {
        "idle": set(),
        "loading": set(),
        "log": set(),
        "notify": set(),
        "record": set(),
        "swap": set(),
        "folder": {"record", "swap"},
    },
}
"""The same inside a unit: which of its other modules each module may import, at any place."""

PURE = {
    "launch": {
        "addresses",
        "card_speeds",
        "causes",
        "causes_arguments",
        "causes_gpu",
        "causes_model",
    }
    | {
        "causes_system",
        "devices",
        "diagnosis",
        "fit",
        "gpu_use",
        "last_words",
        "life",
        "log",
        "memory_options",
    }
    | {"model_header", "need", "placement", "report", "secret_arguments", "verdict", "wishes"},
}
"""The modules that import nothing that reads, asks or waits, and open no file."""

IO = {"asyncio", "ctypes", "http", "io", "os", "pathlib", "shutil", "socket", "subprocess"}
IO |= {"select", "tempfile", "threading", "time", "urllib"}

PUBLISHER = Path(__file__).parents[2] / "installer" / "tsuku_publish"

PUBLISHER_MAY_IMPORT: dict[str, frozenset[str]] = {
    "__init__": frozenset(),
    "__main__": frozenset({"cli", "tsuku_llm.cli"}),
    "errors": frozenset({"tsuku_llm.errors"}),
    # What others published, and what it holds.
    "fatbin": frozenset({"errors"}),
    "offload": frozenset({"errors"}),
    "binaries": frozenset({"errors", "fatbin", "offload"}),
    "facts": frozenset({"errors", "tsuku_llm.files"}),
    "classify": frozenset({"binaries", "errors", "facts"}),
    "contents": frozenset({"binaries", "errors", "tsuku_llm.files"})
    | {"tsuku_llm.archive", "tsuku_llm.errors", "tsuku_llm.manifest", "tsuku_llm.tree_entry"},
    "hosting": frozenset({"errors", "facts", "tsuku_llm.clock", "tsuku_llm.errors"})
    | {"tsuku_llm.fetch"},
    "attestations": frozenset({"classify", "errors", "facts", "hosting", "tsuku_llm.fetch"})
    | {"tsuku_llm.files"},
    "refresh": frozenset({"classify", "contents", "documents", "errors", "facts", "hosting"})
    | {"packages", "tsuku_llm.errors", "tsuku_llm.fetch", "tsuku_llm.manifest"},
    # Release files, and the plan that names them.
    "documents": frozenset({"classify", "contents", "errors", "facts"}),
    "packages": frozenset({"contents", "documents", "errors", "facts"}),
    "revoked": frozenset({"checking", "documents", "errors"})
    | {"tsuku_llm.files", "tsuku_llm.manifest", "tsuku_llm.revocations", "tsuku_llm.trust"},
    "keys": frozenset({"errors", "tsuku_llm.errors", "tsuku_llm.trust"}),
    "sightings": frozenset({"documents", "errors", "tsuku_llm.files", "tsuku_llm.trust"}),
    "promoted": frozenset({"documents", "errors", "sightings", "tsuku_llm.files"}),
    "plan": frozenset({"errors", "keys", "promoted", "revoked", "sightings"})
    | {"tsuku_llm.files", "tsuku_llm.revocations", "tsuku_llm.trust"},
    "releases": frozenset({"attestations", "classify", "contents", "documents", "errors", "facts"})
    | {"packages", "plan", "promoted", "revoked", "sightings", "tsuku_llm.errors"}
    | {"tsuku_llm.manifest", "tsuku_llm.trust"},
    "isolated": frozenset(),
    # Signatures, and the repository that they make.
    "passphrases": frozenset({"errors"}),
    "founding": frozenset({"errors", "folder", "keys", "signers"})
    | {"tsuku_llm.errors", "tsuku_llm.files"},
    "tokens": frozenset({"errors"}),
    "signers": frozenset({"errors", "keys", "passphrases", "tokens"}),
    "copies": frozenset({"errors", "tsuku_llm.errors", "tsuku_llm.fetch", "tsuku_llm.trust"}),
    "checking": frozenset({"copies", "errors"})
    | {"tsuku_llm.errors", "tsuku_llm.manifest", "tsuku_llm.revocations", "tsuku_llm.trust"},
    "signing": frozenset({"copies", "documents", "errors", "plan", "sightings"})
    | {"tsuku_llm.revocations", "tsuku_llm.trust"},
    "folder": frozenset({"checking", "copies", "errors"})
    | {"tsuku_llm.files", "tsuku_llm.errors", "tsuku_llm.ownership", "tsuku_llm.trust"},
    "review": frozenset({"checking", "documents", "keys", "plan", "revoked", "signing"})
    | {"tsuku_llm.revocations", "tsuku_llm.trust"},
    "wheel": frozenset({"checking", "copies", "errors"})
    | {"tsuku_llm.errors", "tsuku_llm.fetch", "tsuku_llm.files", "tsuku_llm.trust"},
    "ceremony": frozenset({"checking", "copies", "documents", "errors", "folder", "keys", "plan"})
    | {"releases", "sightings", "signing", "tsuku_llm.files", "tsuku_llm.trust"},
    "published": frozenset({"ceremony", "checking", "copies", "errors", "plan", "signing"})
    | {"tsuku_llm.errors", "tsuku_llm.trust"},
    "secrets": frozenset({"errors", "tsuku_llm.children"}),
    "feed": frozenset({"attestations", "checking", "classify", "contents", "copies", "documents"})
    | {"errors", "facts", "folder", "hosting", "plan", "refresh", "tsuku_llm.archive"}
    | {"isolated", "tsuku_llm.children", "tsuku_llm.errors", "tsuku_llm.fetch", "tsuku_llm.files"}
    | {"tsuku_llm.manifest", "tsuku_llm.safe_text"},
    # Builds of one's own.
    "packing": frozenset({"binaries", "errors", "tsuku_llm.archive", "tsuku_llm.backends"})
    | frozenset({"tsuku_llm.disk", "tsuku_llm.files"})
    | {"tsuku_llm.errors", "tsuku_llm.fetch", "tsuku_llm.manifest", "tsuku_llm.tree_entry"}
    | {"tsuku_llm.trust"},
    "building": frozenset({"binaries", "errors", "isolated", "packing", "tsuku_llm.children"})
    | {"tsuku_llm.disk", "tsuku_llm.errors"}
    | {"tsuku_llm.files", "tsuku_llm.packages", "tsuku_llm.safe_text", "tsuku_llm.tree_entry"},
    # The rim: the client's own rules for arguments, answers and exit codes.
    "cli": frozenset(
        {"attestations", "building", "ceremony", "checking", "copies", "errors", "feed", "folder"}
    )
    | {"classify", "documents", "founding", "keys", "packing", "passphrases", "plan", "promoted"}
    | {"published", "refresh"}
    | {"releases", "review", "revoked", "secrets", "sightings", "signers", "signing", "wheel"}
    | {"tsuku_llm.cli", "tsuku_llm.clock", "tsuku_llm.errors", "tsuku_llm.revocations"}
    | {"tsuku_llm.safe_text"}
    # The command that adds this program's own extra.
    | {"tsuku_llm.operations", "tsuku_llm.own_copy"},
}
"""The same for ``tsuku_publish``; what it shares with the client has that package's name."""

PUBLISHER_HOMES: dict[str, frozenset[str]] = {
    "backports": frozenset({"offload"}),
    "click": frozenset({"cli"}),
    "compression": frozenset({"offload"}),  # of Python 3.14
    "cryptography": frozenset({"attestations", "keys", "signers"}),
    "elftools": frozenset({"binaries"}),
    "filelock": frozenset({"building", "folder"}),
    "msgspec": frozenset(
        {"building", "classify", "errors", "feed", "keys", "plan", "promoted", "refresh"}
    )
    | {"sightings"},
    "securesystemslib": frozenset({"founding", "keys", "plan", "signers", "signing", "tokens"}),
    "sigstore": frozenset({"attestations"}),
    "tomli": frozenset(
        {"attestations", "building", "classify", "feed", "keys", "packages", "plan"}
    ),
    "tomlkit": frozenset({"plan"}),
    "tuf": frozenset({"signing"}),
}

PURE_PUBLISHER = (
    "building.recipe",
    "documents",
    "fatbin",
    "feed.choosing",
    "feed.drafts",
    "packing.parts",
    "signing",
)
"""Modules of the publisher that decide: no file is opened there, nothing is fetched or run."""

HOMES: dict[str, frozenset[str]] = {
    "click": frozenset({"cli"}),
    "cryptography": frozenset({"trust"}),
    "filelock": frozenset({"store"}),
    "httpcore": frozenset({"fetch"}),
    "ansible_runner": frozenset({"operations"}),
    "httpx": frozenset({"fetch"}),
    "isal": frozenset({"archive"}),
    "msgspec": frozenset({"manifest", "requirements"}),
    "packageurl": frozenset({"fetch"}),
    "packaging": frozenset({"fetch", "fitting", "operations", "program_wheels", "selection"}),
    "prometheus_client": frozenset({"cli"}),
    "psutil": frozenset({"instances", "process"}),
    "platformdirs": frozenset({"config"}),
    "securesystemslib": frozenset({"catalog", "trust"}),
    "socksio": frozenset({"fetch"}),
    "tomli": frozenset({"config", "operations"}),  # settings; the receipt of uv
    "tomlkit": frozenset({"config"}),
    "truststore": frozenset({"fetch"}),
    "tuf": frozenset({"catalog", "trust"}),
}
"""The units in which each third-party library may be imported."""

HEAVY = frozenset(
    {
        "cryptography",
        "httpcore",
        "httpx",
        "msgspec",
        "packaging",
        "pip",
        "prometheus_client",
        "psutil",
        "securesystemslib",
        "tomlkit",
        "truststore",
        "tuf",
    }
)
"""Libraries that ``serve``, ``list`` and ``which`` do without."""

LIGHT = (
    "cli.main",
    "cli.entry",
    "cli.commands.serve",
    "cli.commands.servers",
    "cli.commands.versions",
    "cli.session",
    "config",
    "launch.monitor",
    "launch.replace_process",
    "operations.background",
    "operations.serve",
    "operations.tools",
    "operations.versions",
    "operations.watching",
    "operations.which",
    "store.reader",
)
"""What those commands load: whatever these modules import at their top, everybody pays for."""

SHARED_BY_SOURCES = {"answers", "containers", "elf", "icd", "machine", "protocol", "search"}
"""The modules of ``probe`` that every source of facts may use: how to search, read and answer."""

ABOVE_SOURCES = {"assemble", "main", "probe", "worker"}
"""The modules of ``probe`` that put the sources together."""

WRITES_SETTINGS = {
    "tsuku_llm.backends.build_name",
    "tsuku_llm.config.keys.text_of",
    "tsuku_llm.config.settings.warning_of",
    "tsuku_llm.safe_text.redacted",
    "tsuku_llm.safe_text.shortened",
}
"""The functions that ``cli.render`` may import: they write a setting, URL or build as a text."""

WITH_CODE = {"__init__", "archive", "fetch", "probe", "trust"}
"""The packages whose ``__init__`` has more than a docstring."""

MAY_PRINT = ("bundle_start", "cli", "probe.worker")
MAY_EXIT = ("bundle_start", "cli", "probe.worker", "__main__")

EXITS = {"exit", "quit", "sys.exit", "os._exit", "os.abort"}
STREAMS = {"sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"}


@dataclass(frozen=True)
class Module:
    """One source file: ``name`` is dotted, without the package ("probe.nvidia")."""

    name: str
    is_package: bool
    tree: ast.Module

    @property
    def unit(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Import:
    """``target`` is absolute and dotted; ``top`` is true when importing the module runs it."""

    target: str
    line: int
    top: bool


def sources(package: Path) -> dict[str, Module]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package and len(parts) > 1 else parts)
        found[name] = Module(name, is_package, ast.parse(path.read_text("utf-8"), str(path)))
    return found


MODULES = sources(PACKAGE)
PUBLISHING = sources(PUBLISHER)


def imports(module: Module) -> Iterator[Import]:
    deferred = {
        id(node)
        for block in ast.walk(module.tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef) or only_for_types(block)
        for node in ast.walk(block)
    }
    for node in ast.walk(module.tree):
        for target in targets(module, node):
            yield Import(target, node.lineno, id(node) not in deferred)


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING")


def targets(module: Module, node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Import):
        return tuple(alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = ["tsuku_llm", *module.name.split(".")]
            kept = parts[: len(parts) - node.level + module.is_package]
            base = ".".join([*kept, *([base] if base else [])])
        return tuple(f"{base}.{alias.name}" for alias in node.names)
    if isinstance(node, ast.Call) and dotted(node.func) in (
        "importlib.import_module",
        "__import__",
    ):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return (first.value,)
    return ()


def unit_of(target: str) -> str | None:
    """Return the unit that an import reaches; None for a module of another package."""
    package, _, rest = target.partition(".")
    if package != "tsuku_llm":
        return None
    unit = rest.partition(".")[0]
    return unit if unit in MAY_IMPORT or unit == "manifests" else "__init__"


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def forbidden_edges(module: Module) -> list[str]:
    allowed = MAY_IMPORT[module.unit] | EVERYWHERE | {module.unit}
    return [
        f"{module.name}:{found.line} imports {found.target}"
        for found in imports(module)
        if (unit := unit_of(found.target)) is not None and unit not in allowed
    ]


def foreign(module: Module) -> Iterator[tuple[str, Import]]:
    for found in imports(module):
        library = found.target.partition(".")[0]
        if library != "tsuku_llm" and library not in sys.stdlib_module_names:
            yield library, found


def homeless(module: Module) -> list[str]:
    return [
        f"{module.name}:{found.line} imports {library}"
        for library, found in foreign(module)
        if module.unit not in HOMES.get(library, ())
    ]


def calls(module: Module, names: set[str]) -> list[str]:
    return [
        f"{module.name}:{node.lineno} calls {dotted(node.func)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and dotted(node.func) in names
    ]


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def loaded_by(names: tuple[str, ...]) -> dict[str, Import]:
    """Every import that runs when these modules are imported, by the importing module's name."""
    seen: dict[str, Import] = {}
    queue = list(names)
    visited: set[str] = set()
    while queue:
        name = queue.pop()
        if name in visited or name not in MODULES:
            continue
        visited.add(name)
        for found in imports(MODULES[name]):
            if not found.top:
                continue
            if found.target.startswith("tsuku_llm"):
                rest = found.target.partition(".")[2]
                queue += [rest, rest.rpartition(".")[0]]
            else:
                seen[f"{name}:{found.line} imports {found.target.partition('.')[0]}"] = found
    return seen


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_the_table_allows(name: str) -> None:
    assert MODULES[name].unit in MAY_IMPORT, f"give {name} a row in the table"
    assert not forbidden_edges(MODULES[name])


@pytest.mark.parametrize("name", MODULES)
def test_a_third_party_library_has_one_home(name: str) -> None:
    assert not homeless(MODULES[name])


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, MAY_PRINT)])
def test_only_the_command_line_prints(name: str) -> None:
    assert not calls(MODULES[name], {"print", *STREAMS})


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, MAY_EXIT)])
def test_only_the_command_line_exits(name: str) -> None:
    assert not calls(MODULES[name], {"SystemExit", *EXITS})


@pytest.mark.parametrize("name", [name for name in MODULES if name != "trust"])
def test_only_trust_makes_verified_bytes(name: str) -> None:
    assert not calls(MODULES[name], {"VerifiedBytes", "trust.VerifiedBytes"})


def test_sources_of_facts_do_not_import_each_other() -> None:
    parts = {name for name, module in MODULES.items() if module.unit == "probe"}
    shared = {name for name in parts if name.rpartition(".")[2] in SHARED_BY_SOURCES}
    above = {name for name in parts if name.rpartition(".")[2] in ABOVE_SOURCES}
    crossed = [
        f"{name} imports {found.target}"
        for name in parts - shared - above
        for found in imports(MODULES[name])
        for other in parts - shared - {"probe", "probe.worker", name}
        if f"{found.target}.".startswith(f"tsuku_llm.{other}.")
    ]
    assert not crossed


def test_the_transport_of_fetch_knows_no_file() -> None:
    reached: set[str] = set()
    queue = list(TRANSPORT_OF_FETCH)
    while queue:
        name = queue.pop()
        if name not in reached:
            reached.add(name)
            queue += FETCH[name]
    assert not reached & DISK_OF_FETCH


def test_what_renders_answers_imports_value_types_only() -> None:
    others = [
        f"{name} imports {found.target}"
        for name, module in MODULES.items()
        if within(name, ("cli.render",))
        for found in imports(module)
        # And what makes a text safe for its reader.
        if unit_of(found.target) not in (None, "_version", "cli", "safe_text")
        and found.target not in WRITES_SETTINGS
        and not is_class(found.target)
    ]
    assert not others


def is_class(target: str) -> bool:
    module, _, name = target.rpartition(".")
    return isinstance(getattr(import_module(module), name, None), type)


def test_a_package_has_a_docstring_and_no_code() -> None:
    full = {name for name, module in MODULES.items() if module.is_package and has_code(module)}
    assert full == WITH_CODE


def test_no_class_name_is_used_twice() -> None:
    names = [
        node.name
        for path in sorted(PUBLISHER.parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    # Ansible wants this name in each module of documentation.
    repeated = {name for name in names if names.count(name) > 1} - {"ModuleDocFragment"}
    assert sorted(repeated) == []


def has_code(module: Module) -> bool:
    return any(not isinstance(node, ast.Expr) for node in module.tree.body)


def test_the_light_commands_import_nothing_heavy() -> None:
    heavy = [
        text for text, found in loaded_by(LIGHT).items() if found.target.split(".")[0] in HEAVY
    ]
    assert not heavy


def test_few_operations_are_built_on_others_with_effects() -> None:
    built = {name for name, allowed in OPERATIONS.items() if allowed & EFFECTS}
    assert built == BUILT_ON_EFFECTS.keys()
    assert built <= EFFECTS <= OPERATIONS.keys()


def test_the_table_runs_one_way() -> None:
    require_one_way({unit: set(allowed) - {"manifests"} for unit, allowed in MAY_IMPORT.items()})


def require_one_way(rows: Mapping[str, AbstractSet[str]]) -> None:
    """Assert that the rows can be put in an order in which each uses only earlier ones."""
    order: list[str] = []
    rest = dict(rows)
    while rest:
        free = [row for row, allowed in rest.items() if allowed <= set(order)]
        assert free, f"a circle among {sorted(rest)}"
        order += free
        rest = {row: allowed for row, allowed in rest.items() if row not in free}


@pytest.mark.parametrize("unit", INSIDE)
def test_inside_a_unit_the_table_holds_and_runs_one_way(unit: str) -> None:
    modules = {name: module for name, module in MODULES.items() if module.unit == unit}
    assert {f"{unit}.{row}" for row in INSIDE[unit]} == set(modules) - {unit}
    crossed = [
        f"{name}:{found.line} imports {found.target}"
        for name, module in modules.items()
        if name != unit  # the package itself may offer what all its modules have
        for found in imports(module)
        if (other := inside(unit, found.target)) is not None
        and other not in INSIDE[unit].get(name.partition(".")[2], ())
    ]
    assert not crossed
    require_one_way(INSIDE[unit])


def inside(unit: str, target: str) -> str | None:
    """The module of the unit that an import reaches; None for any other import."""
    parts = target.split(".")
    return parts[2] if parts[:2] == ["tsuku_llm", unit] and len(parts) > 2 else None


@pytest.mark.parametrize(
    "name", [f"{unit}.{name}" for unit, names in PURE.items() for name in sorted(names)]
)
def test_a_module_that_only_decides_reads_nothing(name: str) -> None:
    module = MODULES[name]
    assert not {found.target.partition(".")[0] for found in imports(module)} & IO
    assert not calls(module, {"open"})
    unit, _, own = name.partition(".")
    assert INSIDE[unit][own] <= PURE[unit]


def test_every_row_of_the_table_is_a_module() -> None:
    units = {module.unit for module in MODULES.values()}
    assert set(MAY_IMPORT) - units <= {"__main__"}


# --- the publisher's package -------------------------------------------------------------


def reached(found: Import) -> str | None:
    """The row that an import of the publisher needs; None for a library."""
    package, _, rest = found.target.partition(".")
    if package == "tsuku_publish":
        return rest.partition(".")[0] or "__init__"
    return f"tsuku_llm.{rest.partition('.')[0]}" if package == "tsuku_llm" else None


@pytest.mark.parametrize("name", MODULES)
def test_the_client_imports_nothing_of_the_publisher(name: str) -> None:
    assert not [found for found in imports(MODULES[name]) if "tsuku_publish" in found.target]


@pytest.mark.parametrize("name", PUBLISHING)
def test_a_module_of_the_publisher_imports_only_what_the_table_allows(name: str) -> None:
    module = PUBLISHING[name]
    allowed = PUBLISHER_MAY_IMPORT[module.unit] | {module.unit, "tsuku_llm.foreign", None}
    for found in imports(module):
        assert reached(found) in allowed, f"{name}:{found.line} imports {found.target}"


@pytest.mark.parametrize("name", PUBLISHING)
def test_a_library_of_the_publisher_has_its_homes(name: str) -> None:
    for library, found in foreign(PUBLISHING[name]):
        if library != "tsuku_publish":
            assert PUBLISHING[name].unit in PUBLISHER_HOMES.get(library, ()), found


@pytest.mark.parametrize("name", [name for name in PUBLISHING if not within(name, ("cli",))])
def test_only_the_publishers_command_line_prints_and_exits(name: str) -> None:
    assert not calls(PUBLISHING[name], {"print", *STREAMS, "SystemExit", *EXITS})


@pytest.mark.parametrize("name", PURE_PUBLISHER)
def test_what_decides_opens_and_fetches_nothing(name: str) -> None:
    assert not calls(PUBLISHING[name], {"open", "Path"})
    doors = {"os", "subprocess", "tempfile", "tsuku_llm.files", "tsuku_llm.fetch"}
    assert not [found for found in imports(PUBLISHING[name]) if within(found.target, (*doors,))]


def test_the_publishers_table_runs_one_way_and_has_no_row_too_many() -> None:
    assert {module.unit for module in PUBLISHING.values()} == set(PUBLISHER_MAY_IMPORT)
    rest = {
        unit: {each for each in allowed if not each.startswith("tsuku_llm")}
        for unit, allowed in PUBLISHER_MAY_IMPORT.items()
    }
    while rest:
        free = [unit for unit, allowed in rest.items() if not allowed & rest.keys()]
        assert free, f"a circle among {sorted(rest)}"
        rest = {unit: allowed for unit, allowed in rest.items() if unit not in free}


# --- the checks themselves ---------------------------------------------------------------


def example(source: str, name: str = "store", *, is_package: bool = False) -> Module:
    return Module(name, is_package, ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import tsuku_llm.fetch",
        "from tsuku_llm import fetch",
        "from tsuku_llm.fetch import x",
        "from .fetch import x",
        "from . import fetch",
        "def f():\n    from tsuku_llm import fetch",
        "import importlib\nimportlib.import_module('tsuku_llm.fetch')",
    ],
)
def test_a_forbidden_import_is_seen(source: str) -> None:
    assert forbidden_edges(example(source))


def test_an_import_of_the_own_or_a_lower_layer_is_allowed() -> None:
    assert not forbidden_edges(example("from tsuku_llm.errors import StoreError"))
    assert not forbidden_edges(example("from . import locks", "store", is_package=True))


def test_a_circle_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"a circle among \['a', 'b'\]"):
        require_one_way({"a": {"b"}, "b": {"a", "c"}, "c": set()})


def test_a_library_away_from_home_is_seen() -> None:
    assert homeless(example("def f():\n    import httpx"))
    assert homeless(example("import some_new_library"))
    assert not homeless(example("import filelock"))


def test_an_import_in_a_function_does_not_load_with_the_module() -> None:
    (inner, outer) = sorted(
        imports(example("import json\ndef f():\n    import httpx")), key=lambda found: found.target
    )
    assert (inner.target, inner.top) == ("httpx", False)
    assert (outer.target, outer.top) == ("json", True)


def test_prints_and_exits_are_seen() -> None:
    assert calls(example("print('x')"), {"print"})
    assert calls(example("import sys\nsys.exit(1)"), EXITS)
    assert calls(example("raise SystemExit(1)"), {"SystemExit"})
