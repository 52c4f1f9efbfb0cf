"""The containers that we read: tar, gzip and zip, within a budget."""
