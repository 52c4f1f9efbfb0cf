"""The command line: arguments in, an answer out. ``main`` is its entry point."""
