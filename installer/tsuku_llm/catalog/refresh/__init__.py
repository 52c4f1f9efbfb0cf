"""The refresh of signed metadata."""
