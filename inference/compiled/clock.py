"""CPU seconds that go into machine code. They are spent once: how long a fit takes must be judged without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Clock:
    """What this thread has spent on compilation; functions that are compiled within another one count once."""

    seconds: float = 0.0
    depth: int = 0
    begun: float = 0.0
    say: Callable[[], object] | None = None  # before the next compilation, for which someone waits

    @contextmanager
    def told(self, say: Callable[[], object] | None) -> Iterator[None]:
        """Within it the first compilation calls `say` before it begins; what is loaded from a cache does not. A call
        inside of another one's says it for both, and None leaves it to the outer one."""
        outer, self.say = self.say, say or self.say
        try:
            yield
        finally:
            self.say = self.say and outer

    def start(self) -> None:
        """A compilation begins, perhaps within another one."""
        if self.say is not None:
            say, self.say = self.say, None
            say()
        if not self.depth:
            self.begun = time.thread_time()
        self.depth += 1

    def stop(self) -> None:
        """The innermost compilation ends."""
        self.depth -= 1
        if not self.depth:
            self.seconds += time.thread_time() - self.begun


COMPILATION = Clock()
