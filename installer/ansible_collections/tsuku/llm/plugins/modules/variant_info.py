#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``variant_info``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: variant_info
short_description: Show which builds fit this machine, and what is installed
description:
  - Returns each variant of the release on offer, with the one reason why it does not fit.
  - Uses no network.
author:
  - The tsuku-llm developers (@tsuku)
options:
  hardware:
    description: A recorded machine on this host, which replaces this one.
    type: path
  model:
    description: A GGUF file, or a model's name; the result then says whether it fits into memory.
    type: str
extends_documentation_fragment:
  - tsuku.llm.tool
  - tsuku.llm.choice
  - tsuku.llm.choice.backend
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
"""

EXAMPLES = r"""
- name: See what fits
  tsuku.llm.variant_info:
  register: choice

- name: Require a GPU
  ansible.builtin.assert:
    that: choice.selected not in [none, 'cpu']
"""

RETURN = r"""
selected:
  description: The variant that would be installed; null if none fits.
  returned: success
  type: str
  sample: vulkan
release:
  description: The release on offer.
  returned: success
  type: str
  sample: b11429
detected:
  description: What this machine offers, best first.
  returned: success
  type: list
  elements: str
variants:
  description: Each variant, with C(compatible), C(reason), C(code), C(device), C(download_size).
  returned: success
  type: list
  elements: dict
problems:
  description: The problems of this machine, each with its fix.
  returned: success
  type: list
  elements: dict
hint:
  description: What helps if no variant fits, else null.
  returned: success
  type: str
model:
  description: Whether the model fits; null without one.
  returned: success
  type: dict
installed:
  description: The installed builds, as C(tsuku-llm list --json) has them.
  returned: success
  type: list
  elements: dict
active:
  description: The build that is active; null without one.
  returned: success
  type: dict
rolled_back:
  description: The releases that failed on this machine.
  returned: success
  type: list
  elements: dict
tool_version:
  description: The version of tsuku-llm on this host.
  returned: success
  type: str
"""

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Tool,
    flags,
    make_module,
)

CHOICE = ("selected", "release", "detected", "variants", "problems", "hint", "model")


def main():
    """Run the module."""
    module = make_module(
        {
            "backend": {"type": "str"},
            "channel": {"type": "str"},
            "release": {"type": "str"},
            "repository": {"type": "str"},
            "hardware": {"type": "path"},
            "model": {"type": "str"},
        }
    )
    tool = Tool(module)
    words = flags(module.params, "backend", "channel", "release", "repository", "hardware", "model")
    choice = tool.get("explain", *words)
    listed = tool.get("list")
    builds = listed["versions"]
    module.exit_json(
        changed=False,
        installed=builds,
        active=next((build for build in builds if build["active"]), None),
        rolled_back=listed["rolled_back"],
        tool_version=tool.get("version")["version"],
        **{key: choice[key] for key in CHOICE},
    )


if __name__ == "__main__":
    main()
