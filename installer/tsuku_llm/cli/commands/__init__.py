"""The commands: options, one call of an operation, one answer. There is one module per command."""
