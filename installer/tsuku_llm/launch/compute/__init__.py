"""The two models that a build computes before it is installed, and their right answers."""
