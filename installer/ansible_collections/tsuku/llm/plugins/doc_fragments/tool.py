# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The options that every module of this collection has."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation of these options, for ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
requirements:
  - tsuku-llm on the host (role P(tsuku.llm.tool#role))
options:
  executable:
    description:
      - The program, by its name or its path.
      - A name is looked for in E(PATH), and then in C(~/.local/bin) and C(/usr/local/bin).
    type: str
    default: tsuku-llm
  home:
    description:
      - The folder of the builds, the settings and the servers, as E(TSUKU_HOME).
      - Without it, they are in the folders of the user who runs the module.
    type: path
attributes:
  check_mode:
    description: Can run in check mode, predicts what would change, and changes nothing.
  diff_mode:
    description: Returns what has changed, or would change, in diff mode.
"""
