"""The version and the public addresses, as constants: reading them costs no import."""

__version__ = "0.1.0"

HOME_PAGE = "https://github.com/tsuku/tsuku-llm"
REPORTS = f"{HOME_PAGE}/issues"
"""Where people report a bug, or attach the file of ``probe --record``."""
