"""A published repository: read, checked, written, and packed as a wheel."""
