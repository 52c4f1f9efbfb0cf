"""Questions to a server that runs or starts: health, an answer, a speed, its log."""
