"""The fault laboratory: injects each row of ``rows.toml`` and says what came of it.

``rows`` reads the table, ``suite`` runs the tests that carry a row's id, and each *trial*
injects faults into the program itself: ``system_calls`` (strace), ``power`` (crash states),
``devices`` (disks that lose their power or are full; ``turns`` holds the program at its calls),
``crowds`` (processes), ``archives``, ``servers``, ``resuming``. ``bench`` is what trials share: a
release server, homes, and a fork server that starts the program without paying for its imports
each time. ``waiting`` puts a limit to every wait.
"""
