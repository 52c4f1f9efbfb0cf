"""The one door to the machine, and the values that say what it has."""
