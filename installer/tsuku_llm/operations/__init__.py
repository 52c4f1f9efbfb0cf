"""The order of steps: what each command does with the parts, knowing neither argv nor print.

One module per job, so that ``serve`` and ``which`` import no more than they need.
"""
