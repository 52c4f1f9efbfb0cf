"""What the machine has: one module per source of facts."""
