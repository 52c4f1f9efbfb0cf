"""Whether a server really computes on the GPU, at its start and while it lives."""
