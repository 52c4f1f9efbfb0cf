"""The commands: options, one call of an operation, one answer.

Each command imports its operation when it runs, as click loads the whole module for one of them.
"""
