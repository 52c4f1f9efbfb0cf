"""The fault laboratory: injects each row of ``rows.toml`` and reports the results.

``rows`` reads the table, and ``suite`` runs the tests that carry a row's id. Each *trial* injects
faults into the program itself: ``system_calls`` (strace), ``power`` (crash states), ``devices``
(disks that lose power or are full; ``turns`` holds the program at its calls), ``crowds``
(processes), ``archives``, ``servers``, ``resuming``. ``bench`` is what trials share: a release
server, homes, and a fork server that starts the program without repeating its imports. ``waiting``
puts a limit on every wait.
"""
