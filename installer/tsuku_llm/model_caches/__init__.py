"""The model files that other programs keep on this machine: where they are, and their names."""
