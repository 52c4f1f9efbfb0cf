#!/usr/bin/python
# Copyright (c) The tsuku-llm developers
# MIT license (see LICENSE)
"""The module ``variant``."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: variant
short_description: Install, update, hold or remove the build that fits this machine
description:
  - Installs the build of llama.cpp's server that fits the machine's GPU, or removes builds.
  - The program asks the drivers, chooses, downloads, verifies and tries the build.
author:
  - The tsuku-llm developers (@tsuku)
options:
  state:
    description:
      - V(present) means that a build is active which meets the request. An active build that does
        stays, also if there is a newer release.
      - V(latest) asks the repository for newer metadata, and takes the newest release that fits.
      - V(held) is V(present), and the release stays from then on (setting C(llm.release), V(installed)).
      - V(absent) removes the builds of O(release) and O(backend), or all of them.
    type: str
    choices: [present, latest, held, absent]
    default: present
  bundle:
    description:
      - A bundle on this host, to install from without a network.
      - In check mode, a build of the bundle that is active counts as the right one.
    type: path
  fingerprint:
    description: With O(bundle), add its repository if its root of trust has this SHA-256.
    type: str
  allow_expired:
    description: Install from a bundle whose signatures have expired.
    type: bool
    default: false
  allow_revoked:
    description: Allow a release that its publisher has revoked.
    type: bool
    default: false
  offline:
    description: Use no network, only what this machine already has.
    type: bool
    default: false
  unattended:
    description:
      - With O(state=latest), restart this user's servers with the new build and judge them. If
        they do worse, go back to the former build, mark the release as bad here, and fail.
      - If nothing is installed yet, this is an ordinary install. Else the backend that was
        requested at the install stays.
    type: bool
    default: false
  metrics:
    description: With O(unattended=true), a file for the metrics of the update.
    type: path
extends_documentation_fragment:
  - tsuku.llm.tool
  - tsuku.llm.choice
  - tsuku.llm.choice.backend
attributes:
  check_mode:
    support: full
    details:
      - With O(state=latest), the signed metadata on the host is renewed also in check mode.
  diff_mode:
    support: full
seealso:
  - module: tsuku.llm.variant_info
  - module: tsuku.llm.config
"""

EXAMPLES = r"""
- name: Install the build that fits
  tsuku.llm.variant:

- name: Install exactly this release, on any GPU
  tsuku.llm.variant:
    release: b11429
    backend: gpu

- name: Update, restart the servers, and go back if they do worse
  tsuku.llm.variant:
    state: latest
    unattended: true
"""

RETURN = r"""
build:
  description: The build that is active now, or would be; null without one.
  returned: success
  type: dict
  sample: {id: b11429-vulkan-0123456789ab, release: b11429, variant: vulkan, backend: vulkan}
former:
  description: The build that was active before; null without one.
  returned: success, but not with O(state=absent)
  type: dict
requested:
  description: What was asked for.
  returned: if a build was chosen
  type: str
  sample: auto
detected:
  description: What this machine offers, best first.
  returned: if a build was chosen
  type: list
  elements: str
  sample: [vulkan, cpu]
selected:
  description: The variant that was chosen.
  returned: if a build was chosen
  type: str
  sample: vulkan
passed_over:
  description:
    - Each release of the channel and each other variant that was not taken, and why.
    - C(variant) is null for a whole release, and C(ends) says what
      would end the reason; null if nothing here can.
  returned: if a build was chosen
  type: list
  elements: dict
  sample:
    - release: b11429
      variant: cuda-13.4
      slug: glibc
      text: needs glibc 2.38; this system has 2.36
      ends: null
update:
  description: What an unattended update did, as C(tsuku-llm update --unattended --json) says it.
  returned: with O(unattended=true), if a build was active
  type: dict
removed:
  description: The builds that were removed, or would be.
  returned: with O(state=absent)
  type: list
  elements: str
exit_code:
  description: The exit code of the command that failed; 9 means that an update was rolled back.
  returned: failure
  type: int
error:
  description: The error, with C(code), C(message), C(facts) and C(hint).
  returned: failure
  type: dict
"""

from ansible_collections.tsuku.llm.plugins.module_utils.tool import (
    Tool,
    difference,
    flags,
    make_module,
)

REQUEST = ("backend", "channel", "release", "repository", "allow_revoked", "offline")
SHOWN = ("id", "release", "variant", "backend", "channel", "repository")
CHOICE = ("requested", "detected", "passed_over")


def shown(build):
    """Return what results say of a build."""
    return build and {key: build[key] for key in SHOWN}


def meets_origin(build, params):
    """Tell whether a build is of the channel and the repository that are asked for."""
    return all(params[key] in (None, build[key]) for key in ("channel", "repository"))


def install_words(tool, params, active):
    """Return the command that reaches the wanted state, and what it would do now."""
    words = ["install", *flags(params, *REQUEST)]
    keeps = active and params["state"] != "latest" and not params["release"]
    if keeps and meets_origin(active, params):
        # The release of the active build stays. One that is not offered any more cannot.
        kept = [*words, "--release", active["release"]]
        answer = tool.ask(*kept, "--dry-run")
        if not answer.error:
            return kept, answer.data
    answer = tool.ask(*words, "--dry-run")
    if answer.code == "bad-metadata" and not params["offline"]:
        # A plan uses no network, and the metadata of a new repository may never have come here.
        refresh(tool, params, active)
        answer = tool.ask(*words, "--dry-run")
    if answer.error:
        tool.fail(answer)
    return words, answer.data


def refresh(tool, params, active):
    """Fetch the newest metadata of the repository that counts."""
    named = params["repository"] or tool.get("config", "get", "llm.repository")["value"]
    tool.get("repository", "refresh", named or (active or {}).get("repository", "official"))


def install_bundle(module, tool, active):
    """Install from a bundle; return the results."""
    params = module.params
    if module.check_mode:
        # An install from a bundle has no dry run; what the bundle has is known without one.
        builds = tool.get("bundle", "show", params["bundle"])["builds"]
        kept = active and any(
            all(build[key] == active[key] for key in ("release", "variant")) for build in builds
        )
        after = shown(active) if kept else dict.fromkeys(SHOWN)
        found = {"changed": not kept, "build": after, "former": shown(active)}
        return {**found, "diff": difference(shown(active), after)}
    words = [*flags(params, *REQUEST, "fingerprint", "allow_expired"), "--bundle", params["bundle"]]
    return installed(active, tool.get("install", *words))


def installed(active, answer):
    """Return the results of an install, or of the plan for one."""
    changed = answer["outcome"] != "unchanged"
    after = shown(answer["installed"] or {**answer, "id": None}) if changed else shown(active)
    return {
        "changed": changed,
        "build": after,
        "former": shown(active),
        "diff": difference(shown(active), after),
        **{key: answer[key] for key in CHOICE},
        "selected": answer["variant"],
    }


def install(module, tool, active):
    """Bring the wanted build into place; return the results."""
    params = module.params
    if params["bundle"]:
        return install_bundle(module, tool, active)
    if params["state"] == "latest" and not params["offline"]:
        refresh(tool, params, active)
    words, answer = install_words(tool, params, active)
    if answer["outcome"] != "unchanged" and not module.check_mode:
        answer = tool.get(*words)
    return installed(active, answer)


def update(module, tool, active):
    """Update unattended; return the results."""
    params = module.params
    words = flags(params, "channel", "repository")
    variables = {"TSUKU_LLM_RELEASE": params["release"]} if params["release"] else {}
    if module.check_mode:
        planned = tool.get("update", "--check", *words, **variables)
        after = shown(active)
        changed = planned["candidate"] is not None
        if changed:
            newest = {key: planned["choice"][key] for key in ("release", "repository")}
            after = {**after, **newest, "variant": planned["candidate"]["variant"], "id": None}
        found = {"changed": changed, "build": after, "former": shown(active)}
        return {**found, "update": planned, "diff": difference(shown(active), after)}
    words += flags(params, "metrics")
    answer = tool.ask("update", "--unattended", *words, **variables)
    after = shown(tool.active())
    if answer.error:
        # A build that was tried and is gone again has changed this host for a while.
        tool.fail(answer, changed=bool(answer.data), update=answer.data, build=after)
    return {
        "changed": answer.data["outcome"] == "updated",
        "build": after,
        "former": shown(active),
        "update": answer.data,
        "diff": difference(shown(active), after),
    }


def hold(module, tool, result):
    """Keep the release from now on; return the results with that."""
    if tool.get("config", "get", "llm.release")["value"] == "installed":
        return result
    if not module.check_mode:
        tool.get("config", "set", "llm.release", "installed")
    diff = result["diff"]
    before, after = {"build": diff["before"], "hold": False}, {"build": diff["after"], "hold": True}
    return {**result, "changed": True, "diff": difference(before, after)}


def remove(module, tool):
    """Remove the builds that are named; return the results."""
    params = module.params
    named = [
        build
        for build in tool.get("list")["versions"]
        if params["release"] in (None, build["release"])
        and params["backend"] in (None, "auto", build["backend"], build["variant"])
        and meets_origin(build, params)
    ]
    before = sorted(build["id"] for build in named)
    if before and not module.check_mode:
        for version in before:
            tool.get("uninstall", version)
    return {
        "changed": bool(before),
        "removed": before,
        "build": None if module.check_mode else shown(tool.active()),
        "diff": difference({"builds": before}, {"builds": []}),
    }


def main():
    """Run the module."""
    module = make_module(
        {
            "state": {
                "type": "str",
                "choices": ["present", "latest", "held", "absent"],
                "default": "present",
            },
            "backend": {"type": "str"},
            "channel": {"type": "str"},
            "release": {"type": "str"},
            "repository": {"type": "str"},
            "bundle": {"type": "path"},
            "fingerprint": {"type": "str"},
            "allow_expired": {"type": "bool", "default": False},
            "allow_revoked": {"type": "bool", "default": False},
            "offline": {"type": "bool", "default": False},
            "unattended": {"type": "bool", "default": False},
            "metrics": {"type": "path"},
        },
        mutually_exclusive=[("unattended", "bundle")],
        required_by={"fingerprint": ("bundle",)},
    )
    params, tool = module.params, Tool(module)
    if params["state"] == "absent":
        module.exit_json(**remove(module, tool))
    active = tool.active()
    if params["state"] == "latest" and params["unattended"] and active:
        module.exit_json(**update(module, tool, active))
    result = install(module, tool, active)
    if params["state"] == "held":
        result = hold(module, tool, result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
