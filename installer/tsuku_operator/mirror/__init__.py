"""A copy of a repository, in a folder or in a registry."""
