"""The modules of the Ansible collection, run in this process against the real command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.program import run_program
from support.tools import require_tool

Ended = tuple[int, str, str]

COLLECTION = "ansible_collections.tsuku.llm.plugins.modules"


def _forked(
    _: object, line: Sequence[str], environ_update: Mapping[str, str] | None = None
) -> Ended:
    """Run a command as ``AnsibleModule.run_command`` does; ours is forked, which is much faster."""
    env = {**os.environ, **(environ_update or {})}
    if Path(line[0]).name == "tsuku-llm":
        result = run_program(*line[1:], env=env)
        return result.code, result.stdout, result.stderr
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True)
class Host:
    """A host with tsuku-llm, and the environment in which Ansible runs modules there."""

    env: Mapping[str, str]

    def run(
        self, module: str, *, check: bool = False, diff: bool = True, **params: Any
    ) -> dict[str, Any]:
        """Run a module; return its result."""
        # The modules of a collection are no package that others import by a plain name.
        from ansible.module_utils import basic  # noqa: PLC0415 - not on Windows

        special = {"_ansible_check_mode": check, "_ansible_diff": diff}
        arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {**params, **special}}).encode()
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.setattr(basic, "_ANSIBLE_ARGS", arguments)
            # How newer versions of Ansible write the arguments.
            patch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
            patch.setattr(basic.AnsibleModule, "run_command", _forked)
            with pytest.raises(SystemExit):
                import_module(f"{COLLECTION}.{module}").main()
        return dict(json.loads(said.getvalue().splitlines()[-1]))

    def fails(self, module: str, **params: Any) -> dict[str, Any]:
        """Run a module that fails; return its result."""
        result = self.run(module, **params)
        assert result.get("failed"), result
        return result

    def changes(self, module: str, **params: Any) -> dict[str, Any]:
        """Run a module that changes something; check mode says so before, the second run nothing.

        Return the result, with that of check mode as ``predicted``.
        """
        before = self.state()
        predicted = self.run(module, check=True, **params)
        assert predicted.get("changed"), predicted
        assert self.state() == before, "check mode has changed something"
        result = self.run(module, **params)
        assert result.get("changed"), result
        second = self.run(module, **params)
        assert second.get("changed") is False, second
        return {**result, "predicted": predicted}

    def state(self) -> dict[str, bytes]:
        """What the user has: the settings, and what is installed, added and running."""
        home = Path(self.env["TSUKU_HOME"])
        kept = ["config.toml", "llm/active.json", "llm/versions/*/receipt.json"]
        kept += [
            ".config/systemd/user/*",
            "llm/metadata/*/repository.json",
            "llm/state/servers/*.json",
        ]
        files = (file for pattern in kept for file in home.glob(pattern))
        return {str(file): file.read_bytes() for file in files if file.is_file()}


def require_ansible() -> None:
    """Skip the tests of a module where Ansible is not there, such as on Windows."""
    require_tool("ansible-playbook")
