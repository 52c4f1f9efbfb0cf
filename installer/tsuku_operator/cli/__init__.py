"""The commands for other machines, and the text of their answers."""
