"""One artifact's way to the disk: parts, resume, hashing while it arrives."""
