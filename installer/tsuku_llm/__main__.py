"""``python -m tsuku_llm`` is ``tsuku-llm``."""

from tsuku_llm.cli import main

if __name__ == "__main__":
    main()
