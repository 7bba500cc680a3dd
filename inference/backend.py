"""What the backends share: check, resolve, run the kernel, wrap the draws."""

from __future__ import annotations

import os
import warnings
from typing import Any, ClassVar

import torch

from ..models.config import Config
from .engine import Chain, Draw, Kernel, Schedule, TruncationWarning, run
from .posterior import Posterior, Trace, result_class, stack

__all__ = ["Backend"]


class Backend(Config):
    """A way to compute posteriors. Subclasses give a kernel for each structure they serve, and a schedule."""

    structures: ClassVar[tuple[str, ...]] = ()
    value_name: ClassVar[str] = "value"
    resumable: ClassVar[bool] = True  # whether a chain is all in its state, so that it can go on from a file
    seed: int
    progress: bool | None

    def kernel(self, model: Any) -> Kernel:
        """The algorithm for this model, with this backend's options bound."""
        raise NotImplementedError

    def schedule(self) -> Schedule:
        """Length, chains and stopping rule of a fit."""
        raise NotImplementedError

    def results(self, kernel: Kernel, model: Any, data: Any, chains: list[Chain]) -> list[list[Draw]]:
        """The draws that the posterior keeps, chain by chain."""
        raise NotImplementedError

    def check(self, model: Any) -> None:
        """Raise ValueError that names an option outside its domain."""

    def require_counts(self, **least: int) -> None:
        """Raise ValueError unless each named option is an integer of at least its bound."""
        for name, bound in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < bound:
                raise ValueError(f"{name} is {value!r}; it must be an integer of at least {bound}.")

    def fit(
        self,
        model: Any,
        X: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> Posterior:
        """The posterior of `model` given X [N, D] and targets y [N].

        Parameters
        ----------
        model : a model of `regbayes.models`; it is not changed
        X, y : torch tensors (device and dtype are kept) or anything numpy-like
        lengths : rows of each sequence, one after another in X, for the models of sequences; None: one sequence
        checkpoint : file that the chains are written to, atomically, every 50 steps and at the end
        resume : a checkpoint to go on from; the result is the same, bit for bit, as that of one long run

        Raises
        ------
        NotImplementedError    if this backend has no kernel for the model (names those that have).
        ValueError             on bad data or options, before any work.
        """
        self.admit(model)
        if not self.resumable and (checkpoint is not None or resume is not None):
            raise ValueError(
                f"{type(self).__name__} writes no checkpoints: leave checkpoint and resume out, or use Gibbs or SVI."
            )
        model, data = model.prepare(X, y, lengths)
        return self.finish(model, data, self.schedule().with_files(checkpoint, resume))

    def admit(self, model: Any) -> None:
        """Raise unless this backend serves the model and its options are valid."""
        if getattr(model, "structure", None) not in self.structures:
            able = [
                cls.__name__ for cls in Backend.__subclasses__() if getattr(model, "structure", None) in cls.structures
            ]
            raise NotImplementedError(
                f"{type(model).__name__} has no {type(self).__name__} backend; it has: {', '.join(able) or 'none'}."
            )
        self.check(model)

    def warn_if_full(self, draws: list[Draw], model: Any, remedy: str = "") -> None:
        """Warn where all components of the truncated model are occupied; `remedy` comes after a larger truncation."""
        if num_full := sum(len(torch.unique(draw["assignments"])) == model.truncation for draw in draws):
            warnings.warn(
                f"All {model.truncation} components are occupied in {num_full} of {len(draws)} draws, so the "
                f"truncation binds. Fit again with truncation={2 * model.truncation}{remedy}.",
                TruncationWarning,
                stacklevel=5,
            )

    def finish(self, model: Any, data: Any, schedule: Schedule) -> Posterior:
        """Run the kernel of a resolved model on its data, and wrap the draws."""
        kernel = self.kernel(model)
        chains = run(kernel, model, data, schedule)
        trace = Trace.of(self.value_name, chains)
        drawn = self.results(kernel, model, data, chains)
        if not any(drawn):  # interrupted in the warm-up: what it had reached is better than nothing
            drawn = [[kernel.draw(chains[-1].state, data, model)]]
        return result_class(model)(model, self, stack(drawn), trace)
