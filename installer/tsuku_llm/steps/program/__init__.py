"""This program's own copy: how it was installed, and its update."""
