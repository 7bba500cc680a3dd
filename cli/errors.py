"""Early ends of a command: a mistake of the user, reported in one line, or Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """Unusable input of the user; the message says what is wrong, where, and what to do."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; the message says how far the command came and where its results are saved."""


def one_line(message: object) -> str:
    """The message without line breaks; of a very long one, the beginning and the end."""
    text = " ".join(str(message).split())
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]} ... {text[-_MOST // 2 :]}"


@contextmanager
def reported() -> Iterator[None]:
    """A context that turns the library's errors about data, files and values into CommandError."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has stopped, which is no mistake
        raise
    except (ValueError, OSError, NotImplementedError, FloatingPointError) as error:
        raise CommandError(one_line(error)) from error


_MOST = 1000  # characters


def cut(cell: object) -> str:
    """The text of a cell in a message: its repr, cut where it is long."""
    text = repr(cell)
    return text if len(text) <= 80 else f"{text[:77]}..."
