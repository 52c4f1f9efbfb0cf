"""What is in the archives of a build: files, libraries, code for cards."""
