"""Where an artifact may come from: mirrors, registries, package indexes, a bundle."""
