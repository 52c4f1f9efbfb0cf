#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``repository``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: repository
short_description: Add or remove a signed repository
description:
  - Adds a company's repository with its root of trust. If its places or its root have changed, the
    new ones are verified before the old ones are removed.
author:
  - The tsuku-llm developers (@tsuku)
options:
  name:
    description: The name that this machine gives the repository.
    type: str
    required: true
  urls:
    description:
      - Where the repository is published. Of several places, the first valid answer counts.
    type: list
    elements: str
  root:
    description: The root of trust, a file on the host.
    type: path
  root_content:
    description: The content of the root of trust, such as from the lookup P(ansible.builtin.file#lookup).
    type: str
  fingerprint:
    description: The SHA-256 that the root of trust must have.
    type: str
  state:
    description: Whether the repository is there.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - tsuku.llm.tool
attributes:
  check_mode:
    support: full
    details:
      - The metadata is not fetched, so check mode does not see that it does not verify.
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Trust the company's repository
  tsuku.llm.repository:
    name: company
    urls: [https://builds.example.com/llm/]
    root_content: "{{ lookup('ansible.builtin.file', 'root.json', rstrip=false) }}"

- name: Remove it
  tsuku.llm.repository:
    name: company
    state: absent
"""

RETURN = r"""
repository:
  description: The repository; null if there is none.
  returned: success
  type: dict
  sample: {name: company, urls: [https://builds.example.com/llm/], fingerprint: 1522c053...}
"""

import hashlib
import os
import re

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Answer,
    Tool,
    difference,
    make_module,
)


def described(found):
    """Return what results say of a repository."""
    urls = [found["url"], *found["others"]]
    return {"name": found["name"], "urls": urls, "fingerprint": found["fingerprint"]}


def folder_url(url):
    """Return a URL as the program writes it: with a final slash, unless it has a query."""
    return url if url.endswith("/") or "?" in url else f"{url}/"


def root_file(module):
    """Return the path of the root of trust on this host, and the SHA-256 of its content."""
    path = module.params["root"]
    if path is None:
        path = os.path.join(module.tmpdir, "root.json")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(module.params["root_content"])
    try:
        with open(path, "rb") as file:
            return path, hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        return module.fail_json(msg=f"the root of trust {path} cannot be read: {error.strerror}")


def require_fingerprint(tool, found, wanted):
    """Fail the module if the root of trust is not the expected one."""
    expected = re.sub(r"[\s:]", "", wanted).lower()
    if found != expected:
        error = {
            "code": "digest-mismatch",
            "message": "the root of trust has another fingerprint; nothing was added",
            "facts": [f"given: {expected}", f"found: {found}"],
            "hint": "ask the owner of the repository for the right file",
        }
        tool.fail(Answer(5, {}, error))


def main():
    """Run the module."""
    module = make_module(
        {
            "name": {"type": "str", "required": True},
            "urls": {"type": "list", "elements": "str"},
            "root": {"type": "path"},
            "root_content": {"type": "str"},
            "fingerprint": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        mutually_exclusive=[("root", "root_content")],
        required_if=[
            ("state", "present", ("urls",)),
            ("state", "present", ("root", "root_content"), True),
        ],
    )
    params, tool, name = module.params, Tool(module), module.params["name"]
    listed = {each["name"]: each for each in tool.get("repository", "list")["repositories"]}
    before = described(listed[name]) if name in listed else None
    after, root = None, ""
    if params["state"] == "present":
        root, fingerprint = root_file(module)
        if params["fingerprint"]:
            require_fingerprint(tool, fingerprint, params["fingerprint"])
        urls = list(dict.fromkeys(map(folder_url, params["urls"])))
        after = {"name": name, "urls": urls, "fingerprint": fingerprint}
    if before != after and not module.check_mode:
        words = ["--root", root]
        if before and after:
            # First beside the old one: a repository that does not verify replaces nothing.
            trial = f"{name[:36]}-new"
            tool.get("repository", "add", trial, *after["urls"], *words)
            tool.get("repository", "remove", trial)
        if before:
            tool.get("repository", "remove", name)
        if after:
            tool.get("repository", "add", name, *after["urls"], *words)
    module.exit_json(changed=before != after, repository=after, diff=difference(before, after))


if __name__ == "__main__":
    main()
