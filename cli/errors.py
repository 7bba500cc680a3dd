"""How a command ends early: a mistake of the user, told in one line, or Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """What the user gave cannot be used; the message says what, where, and what to do."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a sentence on what was reached and where it is kept."""


def one_line(message: object) -> str:
    """The message without line breaks; of one that quotes an endless cell or name, the beginning and the end."""
    text = " ".join(str(message).split())
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]} ... {text[-_MOST // 2 :]}"


@contextmanager
def reported() -> Iterator[None]:
    """The library's refusals of data, files and values as mistakes of the user."""
    try:
        yield
    except BrokenPipeError:  # whoever read the output has gone: no mistake
        raise
    except (ValueError, OSError, NotImplementedError, FloatingPointError) as error:
        raise CommandError(one_line(error)) from error


_MOST = 1000  # characters


def cut(cell: object) -> str:
    """What a message shows of a cell: its repr, cut where it is long."""
    text = repr(cell)
    return text if len(text) <= 80 else f"{text[:77]}..."
