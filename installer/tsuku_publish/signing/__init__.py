"""Signed metadata: made, collected from several holders, and reviewed."""
