"""Which build fits a machine, and why another does not. Pure."""
