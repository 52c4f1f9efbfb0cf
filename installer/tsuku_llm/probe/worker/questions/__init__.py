"""The questions to drivers and systems: each module has ``ask(channel, root)``."""
