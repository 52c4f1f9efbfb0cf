"""The servers in the background: their records, processes and logs, and whether they idle.

This package does not know how a server is started. ``status`` and ``stop`` import it.
"""

from tsuku_llm.instances.folder import Instances
from tsuku_llm.instances.idle import IdleWatch, Sight, see
from tsuku_llm.instances.log import follow_log, open_log, read_log, turn
from tsuku_llm.instances.record import Record, State, checked_name
from tsuku_llm.launch import StartReport, Verdict
from tsuku_llm.process import Process

__all__ = [
    "IdleWatch",
    "Instances",
    "Process",
    "Record",
    "Sight",
    "StartReport",
    "State",
    "Verdict",
    "checked_name",
    "follow_log",
    "open_log",
    "read_log",
    "see",
    "turn",
]
