"""Checks on a real GPU: a refusal with its reason, a server on the card, a comparison."""
