"""The text of units, timers and of what servers report."""
