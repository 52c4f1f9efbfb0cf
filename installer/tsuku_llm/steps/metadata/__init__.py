"""Bring the newest signed metadata, and manage the places that they come from."""
