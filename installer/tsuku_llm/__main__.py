"""The entry point of ``python -m tsuku_llm``, the same as the command ``tsuku-llm``."""

from tsuku_llm.cli.main import main

if __name__ == "__main__":
    main()
