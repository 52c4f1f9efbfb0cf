"""The commands: options, one call of an operation, one answer.

click loads the whole module for one command. So a command imports its operation when it runs,
unless the other commands of its module need the same one.
"""
