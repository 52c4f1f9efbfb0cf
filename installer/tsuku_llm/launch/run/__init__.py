"""Start a server, watch it, warm it up, and end it."""
