"""The names of this program and of its commands, and how a user types them."""
