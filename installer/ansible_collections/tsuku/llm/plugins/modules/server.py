#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``server``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: server
short_description: Run a server in the background, or as a service of systemd
description:
  - Starts a server with the active build and waits until it answers. A start that fails is
    explained with its cause and a fix.
  - A server with another model or other arguments is started again. Other options count at its
    next start; O(state=restarted) makes one.
author:
  - The tsuku-llm developers (@tsuku)
options:
  name:
    description: The name of the server.
    type: str
    default: default
  state:
    description:
      - V(started) and V(stopped) are about the server now. A service is also enabled, or disabled.
      - V(restarted) starts it again.
      - V(absent) stops it, and removes the units of a service.
    type: str
    choices: [started, stopped, restarted, absent]
    default: started
  supervisor:
    description:
      - V(background) is a process of tsuku-llm, which ends with the machine.
      - V(systemd) is a service, which starts with the machine.
    type: str
    choices: [background, systemd]
    default: background
  scope:
    description:
      - With O(supervisor=systemd), a service of the user or of the system.
      - One of the system needs root, and builds below O(home) that every user can read.
    type: str
    choices: [user, system]
    default: user
  model:
    description: A GGUF file, or the name of a model as C(tsuku-llm models) lists it.
    type: str
  args:
    description:
      - More arguments for llama-server.
      - A secret does not belong here; put it into a file and use C(--api-key-file).
    type: list
    elements: str
    default: []
  backend:
    description: The backend of this server, if not that of the active build.
    type: str
  require_gpu:
    description: Fail if the model is not on the GPU.
    type: bool
    default: false
  idle_timeout:
    description: The time without a request after which the server ends, such as V(10m).
    type: str
  start_timeout:
    description: The time without progress after which a start is given up, such as V(5m).
    type: str
  on_demand:
    description: With O(supervisor=systemd), start at the first connection and end when idle.
    type: bool
    default: false
extends_documentation_fragment:
  - tsuku.llm.tool
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
notes:
  - A service of a user needs that user's systemd. For one who is not logged in, run
    C(loginctl enable-linger) and set E(XDG_RUNTIME_DIR) to C(/run/user/UID).
"""

EXAMPLES = r"""
- name: Serve a model
  tsuku.llm.server:
    model: /srv/models/model.gguf
    args: [--port, "8080", --host, 0.0.0.0]

- name: Serve it as a service of the system
  become: true
  tsuku.llm.server:
    supervisor: systemd
    scope: system
    home: /opt/tsuku
    model: /srv/models/model.gguf
    require_gpu: true
"""

RETURN = r"""
server:
  description: The server as C(tsuku-llm status --json) shows it; null if there is none.
  returned: success
  type: dict
verdict:
  description: Whether it computes on the GPU; V(on_gpu), V(partly), V(on_cpu) or V(unknown).
  returned: success
  type: str
units:
  description: The paths of the units.
  returned: with O(supervisor=systemd)
  type: list
  elements: str
"""

import os
import re

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Tool,
    difference,
    flags,
    make_module,
    unit_folder,
)

UP = ("starting", "running")
SECRET = re.compile(r"(-hft|--([a-z_-]*[_-])?(key|token|password|secret))(=|$)")
OPTIONS = ("backend", "require_gpu", "idle_timeout", "start_timeout")


def status(tool, name):
    """Return the server of a name, None without one."""
    found = tool.get("status")
    return next((each for each in found["servers"] if each["name"] == name), None)


def wanted_model(tool, model):
    """Return the path of a model that is named as ``models`` lists it; a path stays."""
    if model is None or "/" in model:
        return model
    found = tool.get("models")["models"]
    return next((each["path"] for each in found if each["name"] == model), model)


def same_arguments(tool, server, params):
    """Tell whether a server runs with the wanted model and arguments."""
    running, args = server["arguments"], params["args"]
    if running is None:
        # An older version started it, and did not write down how.
        return False
    at = len(running) - len(args)
    model = wanted_model(tool, params["model"])
    # The files of a model come first: its own, and its projector's.
    before = running[: max(at, 0)]
    same_model = before[:2] == ["-m", model] if model else not before
    return at >= 0 and same_model and running[at:] == args


def serve_words(params):
    """Return the options of ``serve`` for this server, and its arguments."""
    own = ["--name", params["name"], *flags(params, *OPTIONS)]
    if params["model"]:
        own += ["--model", params["model"]]
    return own, ["--", *params["args"]]


def in_background(module, tool):
    """Bring a server in the background into the wanted state; return the results."""
    params, state = module.params, module.params["state"]
    before = status(tool, params["name"])
    is_up = before is not None and before["state"] in UP
    if state in ("stopped", "absent"):
        # A record of a server that has ended stays until it is stopped or its name is used.
        changes = before is not None and (state == "absent" or before["state"] != "ended")
        if changes and not module.check_mode:
            tool.get("stop", params["name"])
        after = None if changes else before
        return result(before, after, changed=changes)
    keeps = state == "started" and is_up and same_arguments(tool, before, params)
    if keeps:
        return result(before, before, changed=False)
    own, args = serve_words(params)
    if module.check_mode:
        # The same checks as a start, up to the plan.
        tool.get("serve", "--dry-run", *own, *args)
        planned = {"name": params["name"], "state": "running", "arguments": params["args"]}
        return result(before, planned, changed=True)
    if before:
        tool.get("stop", params["name"])
    after = tool.get("serve", "--detach", *own, *args)
    return result(before, after, changed=True)


def result(before, after, changed):
    """Return the results of a change from one state to another."""
    report = (after or {}).get("report")
    return {
        "changed": changed,
        "server": after,
        "verdict": report and report["verdict"],
        "diff": difference(brief(before), brief(after)),
    }


def brief(server):
    """Return what diff mode shows of a server."""
    return server and {key: server[key] for key in ("name", "state", "arguments")}


class Systemd:
    """The units of one server, and systemctl of their scope."""

    def __init__(self, module):
        self.module = module
        self.scope = module.params["scope"]
        self.folder = unit_folder(self.scope)
        name = module.params["name"]
        self.unit = "tsuku-llm" if name == "default" else f"tsuku-llm-{name}"
        self.names = [f"{self.unit}.{kind}" for kind in ("service", "proxy.service", "socket")]

    def control(self, *words, **options):
        """Run systemctl; return its exit code and what it said."""
        line = [self.module.get_bin_path("systemctl", required=True)]
        line += ["--user"] if self.scope == "user" else []
        code, out, err = self.module.run_command([*line, *words])
        if code and options.get("must"):
            self.module.fail_json(
                msg=f"systemctl {' '.join(words)} failed: {(err or out).strip()}; "
                f"see: journalctl {'--user ' if self.scope == 'user' else ''}-u {self.unit}",
                exit_code=code,
            )
        return code, out.strip()

    def is_in(self, what, unit):
        """Tell whether a unit is active or enabled."""
        return self.control(f"is-{what}", "--quiet", unit)[0] == 0

    def written(self):
        """Return the text of each unit that is there, by the name of its file."""
        texts = {}
        for name in self.names:
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    texts[name] = file.read()
        return texts


def as_service(module, tool):
    """Bring a service of systemd into the wanted state; return the results."""
    params, state, systemd = module.params, module.params["state"], Systemd(module)
    before = systemd.written()
    if state in ("stopped", "absent"):
        return end_service(module, systemd, before)
    own, args = serve_words(params)
    own += ["--scope", params["scope"], *flags(params, "on_demand")]
    after = tool.get("service", "systemd", *own, *args)["units"]
    main_unit = systemd.unit + (".socket" if params["on_demand"] else ".service")
    stale = [name for name in before if name not in after]
    rewrites = before != after
    runs, enabled = systemd.is_in("active", main_unit), systemd.is_in("enabled", main_unit)
    changed = rewrites or not (runs and enabled) or state == "restarted"
    if changed and not module.check_mode:
        for name in stale:
            systemd.control("disable", "--now", name)
            os.unlink(os.path.join(systemd.folder, name))
        if rewrites:
            tool.get("service", "systemd", *own, "--output", systemd.folder, *args)
            systemd.control("daemon-reload", must=True)
        systemd.control("enable", main_unit, must=True)
        again = runs and (rewrites or state == "restarted")
        if again and params["on_demand"]:
            # The socket cannot be opened again while the server has the connection.
            systemd.control("stop", f"{systemd.unit}.proxy.service", f"{systemd.unit}.service")
        systemd.control("restart" if again else "start", main_unit, must=True)
    server = None
    if params["scope"] == "user" and not module.check_mode:
        server = status(tool, params["name"])
    return {
        **result(None, server, changed=changed),
        "units": [os.path.join(systemd.folder, name) for name in after],
        "diff": [
            {
                "before": before.get(name, ""),
                "after": after.get(name, ""),
                "before_header": os.path.join(systemd.folder, name),
                "after_header": os.path.join(systemd.folder, name),
            }
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ],
    }


def end_service(module, systemd, before):
    """Stop and disable a service, and remove its units if it is to be absent."""
    removes = before if module.params["state"] == "absent" else {}
    on = [
        name for name in before if systemd.is_in("active", name) or systemd.is_in("enabled", name)
    ]
    if not module.check_mode:
        # The socket first: it would start the server again.
        for name in reversed(on):
            systemd.control("disable", "--now", name, must=True)
        for name in removes:
            os.unlink(os.path.join(systemd.folder, name))
        if removes:
            systemd.control("daemon-reload", must=True)
    return {
        **result(None, None, changed=bool(on or removes)),
        "units": [] if removes else [os.path.join(systemd.folder, name) for name in before],
        "diff": difference(
            {"on": on, "units": sorted(before)},
            {"on": [], "units": sorted(set(before) - set(removes))},
        ),
    }


def main():
    """Run the module."""
    states = ["started", "stopped", "restarted", "absent"]
    module = make_module(
        {
            "name": {"type": "str", "default": "default"},
            "state": {"type": "str", "choices": states, "default": "started"},
            "supervisor": {
                "type": "str",
                "choices": ["background", "systemd"],
                "default": "background",
            },
            "scope": {"type": "str", "choices": ["user", "system"], "default": "user"},
            "model": {"type": "str"},
            "args": {"type": "list", "elements": "str", "default": []},
            "backend": {"type": "str"},
            "require_gpu": {"type": "bool", "default": False},
            "idle_timeout": {"type": "str"},
            "start_timeout": {"type": "str"},
            "on_demand": {"type": "bool", "default": False},
        }
    )
    params = module.params
    secret = next((word for word in params["args"] if SECRET.match(word)), None)
    if secret:
        module.fail_json(
            msg=f"args has the secret of {secret.partition('=')[0]}, which results would show; "
            "put it into a file on the host, and use --api-key-file"
        )
    if params["supervisor"] == "background" and (params["on_demand"] or params["scope"] != "user"):
        module.fail_json(msg="on_demand and scope are only for supervisor: systemd")
    tool = Tool(module)
    way = as_service if params["supervisor"] == "systemd" else in_background
    module.exit_json(**way(module, tool))


if __name__ == "__main__":
    main()
