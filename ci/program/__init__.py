"""The program without Python: a folder with its interpreter, as an archive and as a .deb."""
