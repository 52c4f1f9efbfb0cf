"""The entry point of ``python -m tsuku_publish``, the same as the command ``tsuku-publish``."""

from tsuku_publish.cli.main import main

if __name__ == "__main__":
    main()
