"""The command line of ``tsuku-publish``: arguments to calls, results to text and JSON."""
