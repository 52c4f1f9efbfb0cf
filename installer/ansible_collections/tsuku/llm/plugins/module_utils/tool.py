# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""Runs tsuku-llm on the host and reads its JSON documents; nothing of its package is imported."""

from __future__ import annotations

import json
import os

from ansible.module_utils.basic import AnsibleModule

OPTIONS = {
    "executable": {"type": "str", "default": "tsuku-llm"},
    "home": {"type": "path"},
}
"""The options of every module, as the documentation fragment ``tool`` describes them."""

FOLDERS = ("~/.local/bin", "/usr/local/bin")


UNITS = {"user": "~/.config/systemd/user", "system": "/etc/systemd/system"}


def unit_folder(scope):
    """Return the folder in which an administrator puts the units of a user, or of the system."""
    return os.path.expanduser(UNITS[scope])


class Answer:
    """What a command said: its exit code, the ``data`` of its document, and its error or None."""

    def __init__(self, exit_code, data, error):
        self.exit_code = exit_code
        self.data = data
        self.error = error

    @property
    def code(self):
        """The stable name of the error; empty without one."""
        return self.error["code"] if self.error else ""


class Tool:
    """The program on this host, for one module."""

    def __init__(self, module):
        self.module = module
        self.path = self._found(module.params["executable"])
        # A module decides by its options and the config file, not by a login's variables.
        self.environ = {"TSUKU_LLM_UPDATE_CHECK": "false"}
        if module.params["home"]:
            self.environ["TSUKU_HOME"] = module.params["home"]

    def _found(self, name):
        if "/" in name:
            path = os.path.expanduser(name)
            if os.access(path, os.X_OK):
                return path
        else:
            folders = [os.path.expanduser(folder) for folder in FOLDERS]
            path = self.module.get_bin_path(name, opt_dirs=folders)
            if path:
                return path
        return self.module.fail_json(
            msg=f"{name} is not on this host; install it with the role tsuku.llm.tool",
            error={
                "code": "no-tool",
                "message": f"{name} is not on this host",
                "facts": [],
                "hint": "install it with the role tsuku.llm.tool",
            },
        )

    def ask(self, *words, **variables):
        """Run a command; return its answer, also after an error that it reports."""
        line = [self.path, "--json", *words]
        code, out, err = self.module.run_command(line, environ_update={**self.environ, **variables})
        for note in err.splitlines():
            if note.startswith("warning: "):
                self.module.warn(note[len("warning: ") :])
        try:
            document = json.loads(out)
            return Answer(code, document["data"], document["error"])
        except (ValueError, KeyError, TypeError):
            said = (err or out).strip().splitlines()
            return self.module.fail_json(
                msg=f"{' '.join(line[:3])} gave no JSON document: {' '.join(said[-3:])[:500]}",
                exit_code=code,
                error={
                    "code": "no-document",
                    "message": "the program gave no JSON document",
                    "facts": said[-3:],
                    "hint": f"run it on the host: {self.path} version",
                },
            )

    def get(self, *words, **variables):
        """Run a command; return the data of its answer. An error fails the module."""
        answer = self.ask(*words, **variables)
        if answer.error:
            self.fail(answer)
        return answer.data

    def fail(self, answer, **results):
        """Fail the module with the reason, the facts and the hint of an error."""
        error = answer.error
        parts = [error["message"], *error["facts"]]
        if error["hint"]:
            parts.append(f"hint: {error['hint']}")
        self.module.fail_json(
            msg=f"[{error['code']}] {'; '.join(parts)}",
            exit_code=answer.exit_code,
            error=error,
            **results,
        )

    def active(self):
        """Return the build that is active, None without one."""
        builds = self.get("list")["versions"]
        return next((build for build in builds if build["active"]), None)


def make_module(options, **arguments):
    """Return a module with these options and those of every module."""
    return AnsibleModule(
        argument_spec={**OPTIONS, **options}, supports_check_mode=True, **arguments
    )


def flags(params, *names):
    """Return the options of the command line for those of the module that are given."""
    words = []
    for name in names:
        value = params[name]
        if value is True:
            words.append("--" + name.replace("_", "-"))
        elif value not in (None, False):
            words += ["--" + name.replace("_", "-"), str(value)]
    return words


def difference(before, after):
    """Return two states for diff mode."""
    return {"before": before, "after": after}
