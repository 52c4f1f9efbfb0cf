"""The text and data of what these commands answer."""
