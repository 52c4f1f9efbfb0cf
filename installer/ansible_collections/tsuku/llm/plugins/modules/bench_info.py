#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``bench_info``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bench_info
short_description: Measure the installed builds with a model
description:
  - Starts each installed build that fits, one after the other, and measures its tokens per second.
    It installs nothing and changes no setting.
  - M(tsuku.llm.variant) compares a new release with the last measurement (O(tsuku.llm.variant#module:unattended)).
author:
  - The tsuku-llm developers (@tsuku)
options:
  model:
    description: A GGUF file on the host, or the name of a model that is there.
    type: str
    required: true
  rounds:
    description: How often each build is measured; the medians count.
    type: int
    default: 3
  args:
    description: Arguments for the server, the same for every build.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - tsuku.llm.tool
attributes:
  check_mode:
    support: partial
    details:
      - Check mode measures nothing, because that loads the GPU; the result is marked as skipped.
  diff_mode:
    support: none
"""

EXAMPLES = r"""
- name: Measure
  tsuku.llm.bench_info:
    model: /srv/models/model.gguf
  register: speed

- name: Require 30 tokens per second
  ansible.builtin.assert:
    that: speed.results[0].generation >= 30
"""

RETURN = r"""
results:
  description: Each build with its speeds in tokens per second, the fastest first.
  returned: success
  type: list
  elements: dict
  sample: [{variant: vulkan, release: b11429, prompt: 2400.5, generation: 61.2}]
fastest:
  description: The fastest variant; null in check mode.
  returned: success
  type: str
failed:
  description: Each build that failed, with the reason.
  returned: success
  type: list
  elements: dict
hints:
  description: What the results suggest.
  returned: success
  type: list
  elements: str
"""

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Tool,
    make_module,
)


def main():
    """Run the module."""
    module = make_module(
        {
            "model": {"type": "str", "required": True},
            "rounds": {"type": "int", "default": 3},
            "args": {"type": "list", "elements": "str", "default": []},
        }
    )
    params, tool = module.params, Tool(module)
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, results=[], fastest=None, failed=[], hints=[])
    words = ["bench", "--model", params["model"], "--rounds", str(params["rounds"])]
    found = tool.get(*words, "--", *params["args"])
    results = found["results"]
    fastest = results[0]["variant"] if results else None
    kept = {key: found[key] for key in ("results", "failed", "hints")}
    module.exit_json(changed=False, fastest=fastest, **kept)


if __name__ == "__main__":
    main()
