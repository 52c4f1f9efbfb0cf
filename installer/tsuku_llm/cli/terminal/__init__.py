"""What is printed: colours, progress, width, the text of values."""
