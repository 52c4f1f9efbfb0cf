"""The refresh of signed metadata, and the state of the updater that does it."""
