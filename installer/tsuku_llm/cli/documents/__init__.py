"""The types of the ``--json`` documents, for ``cli.render``; no command loads them."""
