#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``bundle``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bundle
short_description: Put the program and builds for other machines into one file
description:
  - Makes a file from which machines install without a network. It runs where there is one, such as
    on the controller (C(delegate_to)).
  - The file stays if it has the same builds and has not expired. So a newer release makes a new one,
    and metadata that was only signed again does not.
author:
  - The tsuku-llm developers (@tsuku)
options:
  path:
    description: The file.
    type: path
    required: true
  snapshots:
    description:
      - The machines, as M(tsuku.llm.hardware_facts) returns them with C(snapshot). Machines of one
        kind count once.
    type: list
    elements: dict
    default: []
  platforms:
    description: Platforms, such as V(linux-amd64), for every build that is offered for them.
    type: list
    elements: str
    default: []
  backends:
    description: Only builds of these backends or variants.
    type: list
    elements: str
    default: []
  program:
    description: Whether the file also has the program.
    type: bool
    default: true
  pythons:
    description: The program for these versions of Python only, such as V("3.11").
    type: list
    elements: str
    default: []
  wheel:
    description: A wheel of the program, in place of the copy that runs here.
    type: path
  state:
    description: Whether the file is there.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - tsuku.llm.tool
  - tsuku.llm.choice
attributes:
  check_mode:
    support: full
    details:
      - Check mode uses no network, so it does not know newer metadata than this machine has.
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Record every machine
  tsuku.llm.hardware_facts:
    snapshot: true
  register: machine

- name: Make one file for all of them
  tsuku.llm.bundle:
    path: /srv/machines.bundle
    snapshots: "{{ ansible_play_hosts | map('extract', hostvars, 'machine') | map(attribute='snapshot') }}"
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
sha256:
  description: The digest of the file; null in check mode and without a file.
  returned: success
  type: str
builds:
  description: The builds in the file.
  returned: success
  type: list
  elements: dict
  sample: [{release: b11429, variant: vulkan, platform: linux-amd64, channel: stable}]
programs:
  description: The platforms and versions of Python for which the file has the program.
  returned: success
  type: list
  elements: dict
expires:
  description: Until when the metadata in the file is accepted.
  returned: with O(state=present)
  type: str
"""

import json
import os
from datetime import datetime, timezone

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Tool,
    difference,
    flags,
    make_module,
)


def repeated(option, values):
    """Return an option once for each value."""
    return [word for value in values for word in (option, str(value))]


def wanted_words(module):
    """Return the options of ``bundle create``; each kind of machine is a file of its own."""
    params = module.params
    kinds = {json.dumps(machine, sort_keys=True) for machine in params["snapshots"]}
    files = []
    for number, text in enumerate(sorted(kinds)):
        files.append(os.path.join(module.tmpdir, f"machine-{number}.json"))
        with open(files[-1], "w", encoding="utf-8") as file:
            file.write(text)
    words = repeated("--hardware", files) + repeated("--platform", params["platforms"])
    words += repeated("--backend", params["backends"])
    words += flags(params, "channel", "release", "repository")
    if not params["program"]:
        return [*words, "--no-program"]
    return [*words, *repeated("--python", params["pythons"]), *flags(params, "wheel")]


def is_good(shown, planned, params):
    """Tell whether a file has what is wanted, and its metadata is still accepted."""
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    pythons = {program["python"] for program in shown["programs"]}
    has_program = bool(pythons) == params["program"] and pythons >= set(params["pythons"])
    same = all(shown[key] == planned[key] for key in ("builds", "repository", "fingerprint"))
    return (
        same and has_program and shown["made_by"] == planned["made_by"] and now < shown["expires"]
    )


def brief(about):
    """Return what diff mode shows of a bundle."""
    return about and {key: about[key] for key in ("builds", "programs", "expires")}


def present(module, tool):
    """Make the file if it is not there or not what is wanted; return the results."""
    path, words = module.params["path"], wanted_words(module)
    before = None
    if os.path.lexists(path):
        shown = tool.ask("bundle", "show", path)
        # It may be a file of something else, so it is not replaced.
        if shown.error:
            tool.fail(shown)
        before = shown.data
        words.append("--force")
    planned = tool.ask("bundle", "create", path, *words, "--dry-run")
    if planned.error and planned.code != "bad-metadata":
        tool.fail(planned)
    plan = planned.data or None
    if before and plan and is_good(before, plan, module.params):
        return {"changed": False, "about": before, "diff": difference(brief(before), brief(before))}
    after = plan
    if not module.check_mode:
        after = tool.get("bundle", "create", path, *words)
    return {"changed": True, "about": after, "diff": difference(brief(before), brief(after))}


def main():
    """Run the module."""
    texts = {"type": "list", "elements": "str", "default": []}
    module = make_module(
        {
            "path": {"type": "path", "required": True},
            "snapshots": {"type": "list", "elements": "dict", "default": []},
            "platforms": texts,
            "backends": texts,
            "channel": {"type": "str"},
            "release": {"type": "str"},
            "repository": {"type": "str"},
            "program": {"type": "bool", "default": True},
            "pythons": texts,
            "wheel": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        }
    )
    path = module.params["path"]
    if module.params["state"] == "absent":
        there = os.path.lexists(path)
        if there and not module.check_mode:
            os.unlink(path)
        diff = difference({"path": path if there else None}, {"path": None})
        module.exit_json(changed=there, path=path, sha256=None, builds=[], programs=[], diff=diff)
    result = present(module, Tool(module))
    about = result.pop("about") or {"builds": [], "programs": [], "expires": None}
    kept = {key: about[key] for key in ("builds", "programs", "expires")}
    module.exit_json(path=path, sha256=about.get("sha256"), **kept, **result)


if __name__ == "__main__":
    main()
