"""The chain from the PCI bus to the server's own list of devices, and its first broken link.

Pure. Each link is judged by itself from what was found. A link that cannot be seen (a bus in
a container) is unknown. An unknown link breaks nothing, as only a driver's API knows its
devices.
"""
