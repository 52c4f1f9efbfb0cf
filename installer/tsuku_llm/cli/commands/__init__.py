"""The commands: options, one call of an operation, one answer. A module per command."""
