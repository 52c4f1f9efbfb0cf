# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The options with which a module says which release and which build is meant."""

from __future__ import annotations


class ModuleDocFragment:
    """The documentation of these options, for ``extends_documentation_fragment``."""

    DOCUMENTATION = r"""
options:
  channel:
    description: The channel of releases.
    type: str
  release:
    description: The release, such as V(b11429).
    type: str
  repository:
    description: The signed repository, by the name that this machine gives it.
    type: str
"""

    BACKEND = r"""
options:
  backend:
    description:
      - The backend, the maker of a GPU, or a variant, such as V(vulkan), V(nvidia), V(cuda-13.4).
      - V(gpu) takes any GPU, and fails if no build can use one.
    type: str
"""
