"""What answers look like: ``data`` for programs, ``lines`` for people. Nothing is decided here."""
