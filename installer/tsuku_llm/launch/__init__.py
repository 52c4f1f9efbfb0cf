"""The start of a build's server: plan it, check it, run it, explain why it did not start.

This package does not know how the build was chosen or where it came from.
"""
