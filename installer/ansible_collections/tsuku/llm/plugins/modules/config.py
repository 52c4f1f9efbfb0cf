#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``config``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: config
short_description: Change the settings of tsuku-llm
description:
  - Writes settings into the config file of tsuku-llm; its comments are kept.
  - All values are checked by the program before the first one is written.
author:
  - The tsuku-llm developers (@tsuku)
options:
  settings:
    description:
      - The settings, by their names with or without C(llm.); C(tsuku-llm config list) shows all.
      - A list is written with commas between its items. A null removes the setting.
    type: dict
    required: true
extends_documentation_fragment:
  - tsuku.llm.tool
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Users and passwords in URLs are not shown.
"""

EXAMPLES = r"""
- name: Take builds from the mirror, a week after their release
  tsuku.llm.config:
    settings:
      mirror: https://mirror.example.com/llm/
      min_age: 7

- name: Hold the release no longer
  tsuku.llm.config:
    settings:
      hold: null
"""

RETURN = r"""
settings:
  description: The settings that were named, with their values in the file; null if they are unset.
  returned: success
  type: dict
  sample: {min_age: '7', hold: null}
config_file:
  description: The path of the config file.
  returned: success
  type: str
"""

import os
import re

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Answer,
    Tool,
    difference,
    make_module,
)


def key_of(name):
    """Return the name of a setting without its table."""
    return name[len("llm.") :] if name.startswith("llm.") else name


def text_of(value):
    """Return a value as the command line takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(text_of, value)) if isinstance(value, list) else str(value)


def variable(key):
    """Return the environment variable of a setting."""
    return "TSUKU_LLM_" + key.upper()


def hidden(value):
    """Return a value without the users and passwords of URLs."""
    if isinstance(value, list):
        return [hidden(item) for item in value]
    return re.sub(r"://[^/@\s,]+@", "://***@", value) if isinstance(value, str) else value


def written(tool, key):
    """Return whether the config file has a setting, and its value; None for a wrong value."""
    found = tool.get("config", "get", f"llm.{key}")
    in_file = found["source"].startswith("file ")
    return in_file, found["value"] if in_file and not found["problem"] else None


def wanted(tool, key, text):
    """Return a value as the program reads it; a wrong one fails the module."""
    # A variable is read like the file, so it shows the value without writing it.
    found = tool.get("config", "get", f"llm.{key}", **{variable(key): text})
    if found["problem"]:
        # The values of the variable are the user's words of this task, and no task sets it.
        given = {"facts": [f"given: {text!r}"], "hint": "see: tsuku-llm config list"}
        tool.fail(Answer(2, {}, {**found["problem"], **given}))
    return found["value"]


def main():
    """Run the module."""
    module = make_module({"settings": {"type": "dict", "required": True}})
    tool = Tool(module)
    given = {key_of(name): value for name, value in module.params["settings"].items()}
    for key in given:
        # The file is what counts here. A variable of the login would hide it.
        if os.environ.pop(variable(key), None) is not None:
            module.warn(f"{variable(key)} is set for this user, and comes before the config file")
    files = {key: written(tool, key) for key in given}
    before = {key: found[1] for key, found in files.items()}
    after = {
        key: None if value is None else wanted(tool, key, text_of(value))
        for key, value in given.items()
    }
    changes = [
        key for key in given if before[key] != after[key] or (after[key] is None and files[key][0])
    ]
    if not module.check_mode:
        for key in changes:
            if after[key] is None:
                tool.get("config", "unset", f"llm.{key}")
            else:
                tool.get("config", "set", f"llm.{key}", text_of(given[key]))
    module.exit_json(
        changed=bool(changes),
        settings={key: hidden(after[key]) for key in given},
        config_file=tool.get("config", "path")["config_file"],
        diff=difference(
            {key: hidden(before[key]) for key in changes},
            {key: hidden(after[key]) for key in changes},
        ),
    )


if __name__ == "__main__":
    main()
