"""What stops the release tool."""


class ReleaseError(Exception):
    """The data cannot become a repository; the text says which and why."""
