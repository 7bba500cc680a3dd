"""CPU seconds that go into machine code. They are spent once: how long a fit takes must be judged without them."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Clock:
    """What this thread has spent on compilation; functions that are compiled within another one count once."""

    seconds: float = 0.0
    depth: int = 0
    begun: float = 0.0

    def start(self) -> None:
        """A compilation begins, perhaps within another one."""
        if not self.depth:
            self.begun = time.thread_time()
        self.depth += 1

    def stop(self) -> None:
        """The innermost compilation ends."""
        self.depth -= 1
        if not self.depth:
            self.seconds += time.thread_time() - self.begun


COMPILATION = Clock()
