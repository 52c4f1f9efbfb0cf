"""What others published: downloaded, told apart, and who built it."""
