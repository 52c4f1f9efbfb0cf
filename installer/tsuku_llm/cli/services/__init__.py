"""Units, timers and login items that start a server without a person."""
