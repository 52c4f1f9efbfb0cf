"""Which installed or offered build a command means."""
