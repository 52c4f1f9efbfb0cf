"""How much memory a model needs, and on which cards it fits."""
