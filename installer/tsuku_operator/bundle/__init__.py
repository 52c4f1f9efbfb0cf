"""One file that installs a build on a machine without a network."""
