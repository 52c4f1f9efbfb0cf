"""What the store writes down of a build, and what it compares with the disk."""
