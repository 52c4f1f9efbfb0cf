"""The table of the documents of each command, from which ``ci.schemas`` makes the schemas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsuku_llm.config.settings import Setting
from tsuku_llm.instances.record import Record
from tsuku_llm.launch.plan.report import StartReport
from tsuku_llm.machine.hardware import Hardware
from tsuku_llm.steps.choosing.which import FoundProgram
from tsuku_llm.steps.install.install import InstallReport
from tsuku_llm.steps.install.maintenance import Cleaned, Uninstalled
from tsuku_llm.steps.install.own_build import OwnBuildReport
from tsuku_llm.steps.install.update import UpdateReport, UpToDate
from tsuku_llm.steps.install.verify import VersionCheck
from tsuku_llm.steps.install.versions import Inventory
from tsuku_llm.steps.metadata.repository import (
    AddedRepository,
    OfferedReleases,
    RepositoryState,
)
from tsuku_llm.steps.program.self_update import SelfUpdate
from tsuku_llm.steps.report.bench import Report
from tsuku_llm.steps.report.doctor import Examination
from tsuku_llm.steps.report.explain import Explanation, ModelList
from tsuku_llm.steps.serve.fallback import NotedFailures
from tsuku_llm.steps.serve.tools import Planned
from tsuku_llm.steps.servers.background import Servers, StoppedServer
from tsuku_llm.steps.servers.unattended import UnattendedReport
from tsuku_llm.store.records.installed import Installed
from tsuku_operator.bundle.bundle import BundleReport
from tsuku_operator.fleet.fleet import FleetHost
from tsuku_operator.mirror.mirror import MirrorCheck, MirrorReport

_VERSION = {"version": str, "way": str}
_HOSTS = {"hosts": tuple[FleetHost, ...]}
_UNITS = {
    "unit": str,
    "units": dict[str, str],
    "credentials": Path | None,
    "written": tuple[Path, ...],
}

ANSWERS: dict[str, tuple[type | Mapping[str, Any], ...]] = {
    "": (_VERSION,),
    "help": (),
    "version": (_VERSION,),
    "completion": ({"shell": str, "script": str},),
    "self-update": (SelfUpdate,),
    "install": (InstallReport, OwnBuildReport),
    "explain": (Explanation,),
    "backends": (Explanation,),
    "probe": ({"platform": str, "hardware": Hardware, "recorded": Path | None},),
    "doctor": (Examination,),
    "serve": (
        {"server_exit_code": int, "start": StartReport | None},
        {"server_exit_code": int},
        Record,
        Planned,
    ),
    "chat": ({"server": str, "answer": str},),
    "service": (),
    "service systemd": (_UNITS,),
    "service launchd": (_UNITS,),
    "service windows": (_UNITS,),
    "models": (ModelList,),
    "status": (Servers, {"metrics": str}),
    "logs": ({"name": str, "lines": list[str]},),
    "open": ({"name": str, "page_url": str},),
    "launch": (
        {
            "tool": str,
            "name": str,
            "place": str,
            "settings": str,
            "models": tuple[str, ...],
            "page": str,
            "written": Path | None,
            "kept": Path | None,
        },
    ),
    "stop": ({"stopped": tuple[StoppedServer, ...]},),
    "restart": (Record,),
    "fallback": (NotedFailures,),
    "run": (Planned,),
    "bench": (Report,),
    "list": (Inventory, OfferedReleases),
    "which": (FoundProgram,),
    "update": (InstallReport, UpToDate, UpdateReport, UnattendedReport, _UNITS),
    "use": (Installed,),
    "rollback": (Installed,),
    "uninstall": (Uninstalled,),
    "prune": (Cleaned,),
    "verify": ({"versions": tuple[VersionCheck, ...]},),
    "fleet": (),
    **dict.fromkeys(("fleet status", "fleet plan", "fleet apply"), (_HOSTS,)),
    "mirror": (MirrorReport, MirrorCheck),
    "bundle": (),
    "bundle create": (BundleReport,),
    "bundle show": (BundleReport,),
    "config": (),
    "config get": (Setting,),
    "config set": (Setting,),
    "config unset": (Setting, {"key": str}),
    "config list": ({"settings": tuple[Setting, ...], "warnings": tuple[str, ...]},),
    "config path": ({"config_file": Path},),
    "repository": (),
    "repository add": (AddedRepository,),
    "repository list": ({"repositories": tuple[RepositoryState, ...]},),
    "repository refresh": (OfferedReleases,),
    "repository remove": ({"name": str},),
}
"""The documents that each command may have in ``data``, next to that of ``--help`` and none.

A mapping has keys that the command itself gives to what its step returned.
"""
