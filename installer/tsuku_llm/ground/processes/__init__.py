"""Processes that we start, their limits and their death."""
