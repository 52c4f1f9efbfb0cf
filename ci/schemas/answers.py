"""The table of the documents of each command, from which ``ci.schemas`` makes the schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsuku_llm.cli.documents import builds, repositories, running
from tsuku_llm.steps.choosing.which import FoundProgram
from tsuku_llm.steps.install.maintenance import Cleaned, Uninstalled
from tsuku_llm.steps.install.verify import VersionCheck
from tsuku_llm.steps.install.versions import Inventory
from tsuku_llm.steps.metadata.repository import (
    AddedRepository,
    OfferedReleases,
    RepositoryState,
)
from tsuku_llm.steps.serve.fallback import NotedFailures
from tsuku_llm.store.records.installed import Installed

ANSWERS: dict[str, tuple[type | Mapping[str, Any], ...]] = {
    "": (running.VersionAnswer,),
    "help": (),
    "version": (running.VersionAnswer,),
    "completion": (running.CompletionAnswer,),
    "self-update": (running.SelfUpdateAnswer,),
    "install": (builds.InstallAnswer, builds.OwnBuildAnswer),
    "explain": (builds.ExplainAnswer,),
    "backends": (builds.BackendsAnswer,),
    "probe": (builds.ProbeAnswer,),
    "doctor": (builds.DoctorAnswer,),
    "serve": (
        running.ServeAnswer,
        running.SupervisedAnswer,
        running.ServerDocument,
        running.PlanAnswer,
        running.UnitsAnswer,
    ),
    "models": (running.ModelsAnswer,),
    "status": (running.StatusAnswer, running.MetricsAnswer),
    "logs": (running.LogsAnswer,),
    "open": (running.OpenAnswer,),
    "stop": (running.StopAnswer,),
    "fallback": (NotedFailures,),
    "run": (running.PlanAnswer,),
    "bench": (running.BenchAnswer,),
    "list": (Inventory, OfferedReleases),
    "which": (FoundProgram,),
    "update": (
        builds.InstallAnswer,
        builds.UpdateCheckAnswer,
        builds.UnattendedAnswer,
        running.UnitsAnswer,
    ),
    "use": (Installed,),
    "rollback": (Installed,),
    "uninstall": (Uninstalled,),
    "prune": (Cleaned,),
    "verify": ({"versions": tuple[VersionCheck, ...]},),
    "fleet": (),
    "fleet status": (running.FleetAnswer,),
    "fleet plan": (running.FleetAnswer,),
    "fleet apply": (running.FleetAnswer,),
    "mirror": (repositories.MirrorAnswer, repositories.MirrorCheckAnswer),
    "bundle": (),
    "bundle create": (repositories.BundleAnswer,),
    "bundle show": (repositories.BundleAnswer,),
    "config": (),
    "config get": (running.SettingDocument,),
    "config set": (running.SettingDocument,),
    "config unset": (running.SettingDocument,),
    "config list": (running.ConfigListAnswer,),
    "config path": (running.ConfigPathAnswer,),
    "config edit": (running.ConfigEditAnswer,),
    "repository": (),
    "repository add": (AddedRepository,),
    "repository list": ({"repositories": tuple[RepositoryState, ...]},),
    "repository refresh": (OfferedReleases,),
    "repository remove": ({"name": str},),
    "repository pack": (),
}
"""The documents that each command may have in ``data``, next to that of ``--help`` and none.

A mapping has keys that the command itself gives to what its step returned.
"""
