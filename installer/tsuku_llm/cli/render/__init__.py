"""The two forms of answers: ``data`` for programs, ``lines`` for people. This decides nothing."""
