"""The table of the documents of each command, from which ``ci.schemas`` makes the schemas."""

from __future__ import annotations

from tsuku_llm.cli.documents import builds, models, running

ANSWERS: dict[str, tuple[type, ...]] = {
    "": (running.VersionAnswer,),
    "help": (),
    "version": (running.VersionAnswer,),
    "completion": (running.CompletionAnswer,),
    "self-update": (running.SelfUpdateAnswer,),
    "install": (builds.InstallAnswer,),
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
    "models": (models.ModelsAnswer,),
    "status": (running.StatusAnswer, running.MetricsAnswer),
    "logs": (running.LogsAnswer,),
    "stop": (running.StopAnswer,),
    "fallback": (builds.FallbackAnswer,),
    "run": (running.PlanAnswer,),
    "bench": (running.BenchAnswer,),
    "list": (builds.ListAnswer, builds.AvailableAnswer),
    "which": (builds.WhichAnswer,),
    "update": (builds.InstallAnswer, builds.UpdateCheckAnswer),
    "use": (builds.BuildDocument,),
    "rollback": (builds.BuildDocument,),
    "uninstall": (builds.UninstallAnswer,),
    "prune": (builds.PruneAnswer,),
    "verify": (builds.VerifyAnswer,),
    "config": (),
    "config get": (running.SettingDocument,),
    "config set": (running.SettingDocument,),
    "config unset": (running.SettingDocument,),
    "config list": (running.ConfigListAnswer,),
    "config path": (running.ConfigPathAnswer,),
    "config edit": (running.ConfigEditAnswer,),
    "repository": (),
    "repository add": (running.RepositoryAddAnswer,),
    "repository list": (running.RepositoryListAnswer,),
    "repository refresh": (builds.AvailableAnswer,),
    "repository remove": (running.RepositoryRemoveAnswer,),
    "repository pack": (),
}
"""The documents that each command may have in ``data``, next to that of ``--help`` and none."""
