"""CPU seconds spent on compilation, which estimates of the length of a fit must exclude."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Clock:
    """The seconds that this thread has spent on compilation; nested compilations count once."""

    seconds: float = 0.0
    depth: int = 0
    begun: float = 0.0
    say: Callable[[], object] | None = None  # before the next compilation, for which someone waits

    @contextmanager
    def told(self, say: Callable[[], object] | None) -> Iterator[None]:
        """In this context the first compilation calls `say` before it begins; loading from a cache does not call it.

        A nested context's call counts for the outer one too. None leaves the call to the outer context.
        """
        outer, self.say = self.say, say or self.say
        try:
            yield
        finally:
            self.say = self.say and outer

    def start(self) -> None:
        """Note the start of a compilation, which may be nested; call `say` first, once."""
        if self.say is not None:
            say, self.say = self.say, None
            say()
        if not self.depth:
            self.begun = time.thread_time()
        self.depth += 1

    def stop(self) -> None:
        """Note the end of the innermost compilation."""
        self.depth -= 1
        if not self.depth:
            self.seconds += time.thread_time() - self.begun


COMPILATION = Clock()
