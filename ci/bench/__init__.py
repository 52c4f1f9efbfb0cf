"""Benchmarks: each against a named tool, side by side in the same run."""
