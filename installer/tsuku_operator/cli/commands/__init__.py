"""The commands, loaded by their names in the client's table of commands."""
