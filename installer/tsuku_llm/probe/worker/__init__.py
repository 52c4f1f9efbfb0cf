"""The program that the child runs: it loads driver libraries, asks them, and judges nothing.

It uses the standard library only and imports nothing from ``tsuku_llm``: it runs in an isolated
interpreter without site-packages, where ``worker`` is a top-level package. It starts at every
probe, so it also does without ``json``, ``re``, ``typing`` and ``pathlib``, which take longer to
import than most drivers take to answer.
"""
