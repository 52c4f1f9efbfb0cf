"""Servers in the background: started, watched, updated without a person."""
