"""What the models of state sequences share: the truncated Pyro program, and what kernels ask of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from .arrays import as_sequences
from .config import Config
from .likelihoods.base import Likelihood
from .losses.base import Loss
from .markov import log_normalizers
from .mixture import Data, check_hyperparameters
from .priors.dirichlet_process import log_stick_weights
from .priors.hierarchical_dirichlet_process import row_means

__all__ = ["Sequences", "StateSpace", "check_state_space"]


@dataclass(frozen=True, eq=False)
class Sequences:
    """What the kernels see of B sequences with N steps in all, M of them observed."""

    points: Data  # of the M observed steps
    steps: Tensor  # [M] int64, the step 0..N-1 of every observed one
    lengths: list[int]

    @property
    def X(self) -> Tensor:
        """The observed rows [M, D]."""
        return self.points.X

    @property
    def num_data(self) -> int:
        """N, missing steps included."""
        return sum(self.lengths)

    @property
    def starts(self) -> Tensor:
        """True [N] at the first step of every sequence."""
        ends = torch.tensor([0, *self.lengths[:-1]], device=self.steps.device).cumsum(0)
        return torch.zeros(self.num_data, dtype=torch.bool, device=self.steps.device).index_fill(0, ends, True)

    def spread(self, rows: Tensor) -> Tensor:
        """[N, ...] with the rows [M, ...] at the observed steps and 0 at the missing ones."""
        return rows.new_zeros(self.num_data, *rows.shape[1:]).index_copy(0, self.steps, rows)

    def sequences(self, chosen: list[int]) -> Sequences:
        """The data of some of the sequences."""
        labels = torch.arange(len(self.lengths)).repeat_interleave(torch.tensor(self.lengths)).to(self.steps.device)
        number = {sequence: index for index, sequence in enumerate(chosen)}
        order = torch.cat([torch.nonzero(labels == sequence).squeeze(1) for sequence in number])
        place = torch.full_like(labels, -1).index_copy(0, order, torch.arange(len(order), device=order.device))
        steps = place[self.steps]
        kept = torch.nonzero(steps >= 0).squeeze(1)
        kept = kept[steps[kept].argsort()]
        return Sequences(self.points.rows(kept), steps[kept], [self.lengths[sequence] for sequence in chosen])


class StateSpace(Config):
    """What the infinite hidden Markov models share: the truncated Pyro program and what kernels ask of a model.

    Kernels call the methods below on a *resolved* model: one in which every None has been set from the data.
    """

    structure = "sequence"
    repels = False
    classes = None

    likelihood: Likelihood
    concentration: float
    concentration_prior: tuple[float, float] | None
    top_concentration: float
    top_concentration_prior: tuple[float, float] | None
    stickiness: float
    truncation: int
    loss: Loss
    weight_scale: float
    num_features: int | None

    def resolve(self, X: Any, y: Any = None) -> Self:
        """A copy with all data-dependent defaults set from the observed rows of X [M, D]; checks arguments and data."""
        raise NotImplementedError

    def features(self, X: Tensor) -> Tensor:
        """What the hyperplanes see [M, P] of the rows of X."""
        raise NotImplementedError

    def targets(self, X: Tensor, y: Any = None) -> Tensor:
        """+1 [M, C] for every hyperplane of a state."""
        raise NotImplementedError

    def data(self, X: Any, lengths: Any = None) -> Sequences:
        """The kernels' view of the rows X [N, D] of the sequences of a resolved model; NaN rows are missing."""
        rows, sizes, observed = as_sequences(X, lengths, num_features=self.num_features)
        steps = torch.nonzero(observed).squeeze(1)
        points = rows[steps]
        return Sequences(Data(points, self.features(points), self.targets(points)), steps, sizes)

    def prepare(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Self, Sequences]:
        """The resolved model and the kernels' view of what a user passes to `fit`."""
        if y is not None:
            raise ValueError(f"{type(self).__name__} finds states without labels: leave y out.")
        rows, _, observed = as_sequences(X, lengths, num_features=self.num_features, min_rows=2)
        model = self.resolve(rows[observed])
        return model, model.data(X, lengths)

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """What a step adds to the log weight of a state, [...] from scores [..., C]; 0 without hyperplanes."""
        return scores.new_zeros(scores.shape[:-1])

    def log_rejection(self, scores: Tensor) -> Tensor:
        """What the hyperplanes say of a step apart from its own state, [M]; 0 without hyperplanes."""
        return scores.new_zeros(len(scores))

    def __call__(self, X: Any, lengths: Any = None) -> None:
        """The Pyro program on the truncated model, state sequences summed out.

        Sites: `concentration` and `top_concentration` (with a prior only), `sticks` [T-1], `transitions` [T + 1, T]
        (last row: where sequences start), the family's own parameters [T, ...], `weights` [T, P, C], and the factors
        `paths` (log density of the observations) and, where states repel, `rejection`.
        """
        rows, _, observed = as_sequences(X, lengths)
        model = self.resolve(rows[observed])
        data, T = model.data(X, lengths), model.truncation
        X = data.X
        concentration = _sample_concentration("concentration", model.concentration, model.concentration_prior, X)
        top = _sample_concentration("top_concentration", model.top_concentration, model.top_concentration_prior, X)
        with pyro.plate("sticks_plate", T - 1):
            sticks = pyro.sample("sticks", dist.Beta(X.new_ones(()), top))
        means = row_means(log_stick_weights(sticks).exp(), T, model.stickiness)
        with pyro.plate("rows", T + 1):
            tiny = torch.finfo(X.dtype).tiny
            transitions = pyro.sample("transitions", dist.Dirichlet((concentration * means).clamp(min=tiny)))
        with pyro.plate("components", T):
            parameters = model.likelihood.parameters(model.likelihood.prior(), pyro.sample)
            scale = X.new_full((data.points.features.shape[1], data.points.targets.shape[1]), model.weight_scale)
            weights = pyro.sample("weights", dist.Normal(torch.zeros_like(scale), scale).to_event(2))
        scores = torch.einsum("np,kpc->nkc", data.points.features, weights)
        margin = model.log_margin(scores, data.points.targets.unsqueeze(1))
        emission = model.likelihood.log_density(X, parameters) + margin
        if model.repels:
            pyro.factor("rejection", model.log_rejection(scores.squeeze(-1)).sum())
        log_rows = transitions.clamp(min=tiny).log()
        pyro.factor("paths", log_normalizers(log_rows[T], log_rows[:T], data.spread(emission), data.lengths).sum())


def check_state_space(model: StateSpace) -> None:
    """Raise ValueError that names a hyperparameter outside its domain."""
    check_hyperparameters(model)
    top, prior = model.top_concentration, model.top_concentration_prior
    if not (isinstance(top, int | float) and 0 < top < float("inf")):
        raise ValueError(f"top_concentration is {top!r}; it must be a positive number.")
    if prior is not None and not all(value > 0 for value in prior):
        raise ValueError(f"top_concentration_prior is {prior!r}; expected (shape > 0, rate > 0).")
    if not (isinstance(model.stickiness, int | float) and 0 <= model.stickiness < 1):
        raise ValueError(f"stickiness is {model.stickiness!r}; it must be at least 0 and less than 1.")


def _sample_concentration(name: str, value: float, prior: tuple[float, float] | None, X: Tensor) -> Tensor:
    if prior is None:
        return X.new_tensor(value)
    shape, rate = prior
    return pyro.sample(name, dist.Gamma(X.new_tensor(shape), X.new_tensor(rate)))
