"""Start a server with the chosen build, and fall back if it fails."""
