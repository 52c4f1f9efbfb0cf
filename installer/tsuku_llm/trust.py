"""Verification of signed metadata; the only maker of ``VerifiedBytes``."""

from __future__ import annotations

from typing import NewType

VerifiedBytes = NewType("VerifiedBytes", bytes)
"""Bytes whose signature chain, length and SHA-256 were checked in this process."""
