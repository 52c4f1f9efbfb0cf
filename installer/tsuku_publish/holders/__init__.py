"""The people and machines that sign, their private and public keys."""
