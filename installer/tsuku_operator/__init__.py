"""What people do for other machines: mirrors, bundles and fleets.

Only its commands load it: the client, ``tsuku_llm``, imports nothing of it.
"""
