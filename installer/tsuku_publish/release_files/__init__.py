"""Release files and channels, made from the data and from what upstream published."""
