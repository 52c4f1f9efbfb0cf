"""The version, as a constant: reading it must not cost an import of anything."""

__version__ = "0.1.0"
