"""What the child runs: it loads driver libraries, asks them, and judges nothing.

Standard library only, and no import of the package that it lies in: it runs in an
isolated interpreter without site-packages, where ``worker`` is a top-level package.
It starts at every probe, so it also does without ``json``, ``re``, ``typing`` and
``pathlib``, which take longer to import than most drivers take to answer.
"""
