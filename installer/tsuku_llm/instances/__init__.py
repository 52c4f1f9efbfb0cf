"""The servers in the background: their records, processes and logs, and whether they idle.

This package does not know how a server is started. ``status`` and ``stop`` import it.
"""
