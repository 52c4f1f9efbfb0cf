"""The steps of each command, in order; these modules know neither argv nor print.

One module per job, so that ``serve`` and ``which`` import only what they need.
"""
