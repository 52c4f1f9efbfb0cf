"""The version and the public addresses, as constants: reading them costs no import."""

__version__ = "0.1.0"

# Below the domain that serves the releases, which redirects to the repository. An account of that
# name at a code host may belong to somebody else.
HOME_PAGE = "https://tsuku.dev/tsuku-llm"
REPORTS = f"{HOME_PAGE}/issues"
"""Where people report a bug, or attach the file of ``probe --record``."""
