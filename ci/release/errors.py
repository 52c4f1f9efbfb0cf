"""The error that stops the release tool."""


class ReleaseError(Exception):
    """The error for data that cannot become a repository; the text says which data and why."""
