#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``hardware_facts``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hardware_facts
short_description: Gather the GPUs, drivers and libraries of this machine
description:
  - Asks the drivers themselves, in a child process with a time limit.
author:
  - The tsuku-llm developers (@tsuku)
options:
  snapshot:
    description:
      - Also return what the drivers said, as C(tsuku-llm probe --record) writes it. It stands for
        this machine on another one, such as with M(tsuku.llm.bundle).
    type: bool
    default: false
extends_documentation_fragment:
  - tsuku.llm.tool
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  facts:
    description: Adds to C(ansible_facts).
    support: full
"""

EXAMPLES = r"""
- name: Gather the GPUs
  tsuku.llm.hardware_facts:

- name: Make a group for each kind of GPU
  ansible.builtin.group_by:
    key: "gpu_{{ tsuku_llm_gpu }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts of this machine.
  returned: success
  type: dict
  contains:
    tsuku_llm_platform:
      description: The platform, as releases name it.
      type: str
      sample: linux-amd64
    tsuku_llm_gpu:
      description: The first GPU, as a word for the name of a group; C(none) without one.
      type: str
      sample: nvidia_h200
    tsuku_llm_gpus:
      description: The names of all GPUs that a driver lists, each once.
      type: list
      elements: str
      sample: [NVIDIA H200]
    tsuku_llm_hardware:
      description: Everything that was found, as C(tsuku-llm probe --json) says it.
      type: dict
snapshot:
  description: What the drivers said.
  returned: with O(snapshot=true)
  type: dict
"""

import json
import os
import re

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Tool,
    make_module,
)


def names(hardware):
    """Return the names of the GPUs that a driver lists, without software renderers."""
    found = (gpu for api in hardware["apis"] for gpu in api["gpus"] if gpu["kind"] != "software")
    return list(dict.fromkeys(gpu["name"] for gpu in found))


def word(name):
    """Return a name as a word for a group: lower-case letters, digits and underscores."""
    return re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")


def main():
    """Run the module."""
    module = make_module({"snapshot": {"type": "bool", "default": False}})
    tool = Tool(module)
    words, result = ["probe"], {}
    file = os.path.join(module.tmpdir, "machine.json")
    if module.params["snapshot"]:
        words += ["--record", file]
    found = tool.get(*words)
    if module.params["snapshot"]:
        with open(file, encoding="utf-8") as recorded:
            result["snapshot"] = json.load(recorded)
    gpus = names(found["hardware"])
    facts = {
        "tsuku_llm_platform": found["platform"],
        "tsuku_llm_gpu": word(gpus[0]) if gpus else "none",
        "tsuku_llm_gpus": gpus,
        "tsuku_llm_hardware": found["hardware"],
    }
    module.exit_json(changed=False, ansible_facts=facts, **result)


if __name__ == "__main__":
    main()
