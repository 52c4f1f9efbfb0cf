"""What is kept about the drivers: their caches, a check of the devices, notes."""
