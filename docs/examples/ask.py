"""Ask a model on this machine: install a build, serve the model, and use OpenAI's package.

pip install tsuku-llm openai
python ask.py MODEL.gguf "Why is the sky blue?"
"""

import sys

from openai import OpenAI

from tsuku_llm import api


class Progress(api.Events):
    """The downloads and warnings, on stderr."""

    def note(self, text: str) -> None:
        """Print a warning."""
        print(text, file=sys.stderr)

    def download(self, name: str, done: int, total: int | None) -> None:
        """Print how much of a file is there, on one line."""
        whole = f" of {total / 1e6:,.0f}" if total else ""
        print(f"\r{name}: {done / 1e6:,.0f}{whole} MB", end="", file=sys.stderr)


def main(model: str, question: str) -> None:
    """Print the model's answer."""
    with api.ensure_server(model, events=Progress()) as server:
        print(f"{server.name} at {server.base_url}", file=sys.stderr)
        client = OpenAI(base_url=server.base_url, api_key="none")
        answer = client.chat.completions.create(
            model="any", max_tokens=200, messages=[{"role": "user", "content": question}]
        )
        print(answer.choices[0].message.content)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except api.Error as error:
        sys.exit("\n".join((f"error: {error.message}", *error.facts, error.hint)))
