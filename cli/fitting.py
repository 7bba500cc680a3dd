"""Fits in commands: Ctrl-C, checkpoints, and the number of threads."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from tqdm import tqdm

from ..inference import FitInterrupted, Posterior
from ..inference.compiled.clock import COMPILATION
from .errors import reported


def checkpoint_options(path: str | None) -> dict[str, Any]:
    """The arguments of `Backend.fit` that write a checkpoint, and resume from it if it exists."""
    if path is None:
        return {}
    return {"checkpoint": path, "resume": path} if Path(path).exists() else {"checkpoint": path}


@contextmanager
def when_interrupted(act: Callable[[str], Any]) -> Iterator[None]:
    """Call `act` with the message of a fit that Ctrl-C has stopped, in place of showing it as a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", FitInterrupted)
        show = warnings.showwarning

        def show_or_act(message: Warning | str, category: type[Warning], *context: Any, **more: Any) -> None:
            if issubclass(category, FitInterrupted):
                act(str(message))
            else:
                show(message, category, *context, **more)

        warnings.showwarning = show_or_act
        yield


def compiling_told() -> AbstractContextManager[None]:
    """A context that prints a line, on a terminal, before the first compilation: this takes seconds."""
    said = "regbayes: compiling, once; later commands load what this one has compiled"
    return COMPILATION.told(partial(tqdm.write, said, file=sys.stderr) if sys.stderr.isatty() else None)


def stop(message: str) -> NoReturn:
    """Make Ctrl-C in one fit end the whole command."""
    raise KeyboardInterrupt


@contextmanager
def quiet_and_single_threaded() -> Iterator[None]:
    """Use one thread, so that seconds can be compared, and silence rivals' warnings of non-convergence."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), reported(), compiling_told():
            warnings.simplefilter("once")
            warnings.filterwarnings("ignore", module="sklearn")
            yield
    finally:
        torch.set_num_threads(threads)


def final_value(posterior: Posterior) -> float:
    """The final value of the chain that the posterior stands for: the best for a point estimate, the mean for draws."""
    return float(posterior.trace.final.mean()) if len(posterior.num_draws) > 1 else posterior.trace.best
