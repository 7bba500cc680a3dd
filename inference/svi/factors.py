"""The factors of mixtures and of chains of states, their updates, and the bound, for any law of z.

    q = q(prior) prod_k q(theta_k; chi_k) N(eta_k; m_k, V_k) q(z) q(omega | z)

maximizes a bound of log Z of the truncated model. Each subclass of `Variational` has one law of z: independent points
whose weights are sticks (`partition.factors`), or a Markov chain (`sequence.factors`). It computes q(z) and holds the
factors of the prior. Each omega has its optimal factor for every pair (n, k), so that a margin factor enters through
`Loss.expect` and `Loss.expected_log_factor` alone. Where components repel, a row also counts as a negative.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from ...models.bnmc import BNMC
from ...models.data import Data
from ...models.label_data import LabelData
from ...models.likelihoods.exponential_family import ExponentialFamily
from ...models.losses import Loss
from ...models.mixture import Mixture
from ...models.sequence import Sequences, StateSpace
from ...models.sums import among
from ..classifiers.natural import BothSides, OwnSide, natural_step, sides_of
from ..classifiers.ridge import Ridge
from ..compiled.trusted import require_shape
from ..distributed.collectives import all_count, all_sum, all_sums
from ..protocol import Model
from ..running.chains import OfRows, PartOfSum
from .sums import Sums, keep_rows, slices

SETTLED = 1e-2  # nats per point: below this rise of the bound, merges are tried and stochastic fits are finished
MERGE_ROUNDS = 3  # of coordinate ascent, before a union is accepted or rejected


Placed = Data | Sequences | LabelData  # types of data with `points`, the observed rows
D = TypeVar("D", bound=Data | Sequences | LabelData)
M = TypeVar("M", bound=Mixture | StateSpace)
State = TypeVar("State", bound="Variational[Any, Any]")


class Weighed(NamedTuple):
    """q(z) of m points at its optimum."""

    responsibilities: Tensor  # [m, T]
    log_total: Tensor  # [] float64, sum of the log normalizers of q(z), each times the weight of its point
    fields: dict[str, Any]  # other fields of the state that depend on q(z)


@dataclass(frozen=True, kw_only=True)
class Variational(Generic[D, M]):
    """Factors of T components with S statistics, P features and C scores; N points or steps."""

    hyperparameters: Tensor  # [T, S] chi of q(theta_k)
    mean: Tensor  # [T, P, C] of q(eta_k)
    precision_tril: Tensor  # [T, C, P, P]
    gram: PartOfSum  # [T, C, P, P] sum_n r_nk precision_nk a_n a_n^T of the expected pseudo-observations
    linear: PartOfSum  # [T, P, C] sum_n r_nk shift_nk a_n
    responsibilities: OfRows  # [N, T] q(z_n) or its marginals; [0, T] after a stochastic step
    bound: Tensor  # [] float64, the ELBO, or its estimate from the last minibatch
    may_merge: bool = True  # False once no promising union was accepted
    weights: OfRows | None = None  # [N] how many times each point counts; None: once
    counts: Tensor | None = None  # [T] float64 and
    statistics: Tensor | None = None  # [T, S], sums over all points, where these are too many to keep responsibilities
    dropped: OfRows | None = None  # [N, 0] points whose responsibilities are not kept: the other factors give them

    separate: ClassVar[bool]  # independent points: visited in chunks; responsibilities may be dropped

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.responsibilities) + self.num_dropped

    @property
    def num_dropped(self) -> int:
        """The number of points whose responsibilities are not kept."""
        return 0 if self.dropped is None else len(self.dropped)

    @cached_property
    def total_weight(self) -> float:
        """R = sum_n r_n; N where each point counts once."""
        if self.weights is None:
            return all_count(self.num_data)
        return float(all_sum(self.weights.sum(dtype=torch.float64)))

    @property
    def memberships(self) -> Tensor:
        """r_n q(z_n) [N, T]: responsibilities times the weights of the points."""
        r = self.responsibilities
        return r if self.weights is None else r * self.weights.to(r.dtype).unsqueeze(1)

    @cached_property
    def classifiers(self) -> Ridge:
        """q(eta_k)."""
        return Ridge(self.mean, self.precision_tril)

    @cached_property
    def sizes(self) -> Tensor:
        """Expected number of points of each component, [T] float64."""
        return all_sum(self.memberships.sum(0, dtype=torch.float64)) if self.counts is None else self.counts

    def permuted(self, order: Tensor) -> Self:
        """Reorder the components [T]; sticks stay in their places."""
        own = self._changed(lambda part: part[order], "hyperparameters", "mean", "precision_tril", *_SUMS)
        return replace(self, **own, responsibilities=self.responsibilities[:, order])

    def scaled(self, scale: float) -> Self:
        """The sums that would result if each point were there `scale` times."""
        return replace(self, **self._changed(lambda part: scale * part, "responsibilities", *_SUMS))

    def _changed(self, change: Callable[[Tensor], Tensor], *names: str) -> dict[str, Any]:
        """The named fields after `change`; None stays None."""
        own = {name: getattr(self, name) for name in names}
        return {name: None if part is None else change(part) for name, part in own.items()}

    def without_rows(self) -> Self:
        """Drop the values of single rows, which are of no use for the next minibatch."""
        sums: dict[str, Any] = {"counts": None, "statistics": None, "dropped": None}
        return replace(self, responsibilities=self.responsibilities[:0], weights=None, **sums)

    # -- the law of z --------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def started(cls, model: M, data: D, fields: dict[str, Any]) -> Self:
        """A state from the fields that `Variational` has for independent points; its prior is not yet updated."""

    def log_weights(self, log_likelihood: Tensor) -> Tensor | None:
        """Log weights [m, T] of the components given log likelihoods [m, T]; None unless points are independent."""
        return None

    @abstractmethod
    def weigh(self, log_likelihood: Tensor, data: D) -> Weighed:
        """Compute q(z) of some points from log densities plus gains [m, T]."""

    def of_points(self, data: D, rows: slice) -> Tensor:
        """Responsibilities [m, T] of the points at some rows."""
        return self.responsibilities[rows]

    @abstractmethod
    def with_prior(self, model: M) -> Self:
        """Set the factors of the prior to their optimum given expected counts."""

    @abstractmethod
    def prior_kl(self, model: M) -> Tensor:
        """The KL of the factors of the prior, [] float64, or an upper bound of it."""

    @abstractmethod
    def reordered(self, model: M) -> Self:
        """Put the components into their best order if that raises the bound."""

    def joined(self, kept: int, absorbed: int) -> Self:
        """Merge component `absorbed` into `kept` in all variables of q(z) except responsibilities."""
        return self

    @abstractmethod
    def standing_for(self, rows: D, num_data: int, num_units: float) -> Self:
        """Scale the sums over these rows to `num_data` points or steps that count `num_units`."""

    @abstractmethod
    def towards(self, target: Self, model: M, rho: float) -> Self:
        """Take a step of size rho of the prior's factors towards their optimum for the points of `target`."""


# -- parts of models ---------------------------------------------------------------------------------------------------


def family_of(model: Mixture | StateSpace | BNMC) -> ExponentialFamily:
    """The likelihood of a model; NotImplementedError unless it is conjugate."""
    family = model.likelihood
    if not isinstance(family, ExponentialFamily):
        raise NotImplementedError(
            f"{type(family).__name__} is no conjugate exponential family (`ExponentialFamily`: statistics and their "
            "normalizers), which SVI needs; NUTS and Autoguide take it as it is."
        )
    return family


def loss_of(model: Model) -> Loss | None:
    """The margin loss; None for a model without targets."""
    labelled: Any = model
    return labelled.loss if "loss" in model.get_params(deep=False) else None


def see(q: Ridge, points: Data, model: Mixture | StateSpace, log_weights: Tensor | None = None) -> OwnSide | BothSides:
    """Expected pseudo-observations of points, for their own components or, where components repel, for all hyperplanes.

    log_weights : [m, T] or None, the terms of log q(z) of independent points except the gains
    """
    return sides_of(model).expect(points.features, q, points.targets, model.loss, log_weights, points.loss_weights)


# -- updates: the optimum of each factor given the others --------------------------------------------------------------


def update_factors(state: State, data: Placed, model: Mixture | StateSpace) -> State:
    """Update all factors except q(z)."""
    known = summed(state, data, model).with_prior(model)
    moved = update_classifiers(update_components(known, data, model), model)
    return replace(moved, counts=state.counts, statistics=state.statistics)  # those of the present responsibilities


def summed(state: State, data: Placed, model: Mixture | StateSpace) -> State:
    """Compute the sums over all points, in one exchange of ranks."""
    return summed_with(state, data, model)[0]


def summed_with(state: State, data: Placed, model: Mixture | StateSpace, *others: Tensor) -> tuple[State, list[Tensor]]:
    """`summed`, and the sums over ranks of other tensors [...], in the same exchange."""
    if state.statistics is not None:
        return state, [all_sum(other) for other in others]
    points = data.points
    with among(None):
        own = family_of(model).weighted_statistics(points.X, points.counted(state.of_points(data, slice(None))))
    if not state.separate:  # a chain's counts are those of its transitions
        statistics, *said = all_sums(own, *others)
        return replace(state, statistics=statistics), said
    counts, statistics, *said = all_sums(state.memberships.sum(0, dtype=torch.float64), own, *others)
    return replace(state, counts=counts, statistics=statistics), said


def update_components(state: State, data: Placed, model: Mixture | StateSpace) -> State:
    """Set chi_k = chi0 + sum_n r_nk statistics(x_n), each point times its weight."""
    statistics = summed(state, data, model).statistics
    assert statistics is not None
    return replace(state, hyperparameters=family_of(model).prior() + statistics)


def update_classifiers(state: State, model: Mixture | StateSpace) -> State:
    """Set q(eta_k) to its optimum for the present pseudo-observations."""
    return _with_classifiers(state, state, model, 1.0)


def _with_classifiers(state: State, target: State, model: Mixture | StateSpace, rho: float) -> State:
    """Take a natural-gradient step of q(eta_k) of size rho towards the optimum for the sums of `target`.

    Raises
    ------
    ValueError    if the sums of a state from a changed file have other shapes than q(eta_k).
    """
    require_shape("gram", state.gram, tuple(state.precision_tril.shape))
    require_shape("linear", state.linear, tuple(state.mean.shape))
    ridge = natural_step(state.classifiers, (target.gram, target.linear), model.weight_scale, rho)
    return replace(state, mean=ridge.mean, precision_tril=ridge.precision_tril)


def allocate(state: State, data: Placed, model: Mixture | StateSpace, penalty: Tensor | None = None) -> State:
    """Set q(z) prop. to exp(E log p(z | prior) + E log p(x_n | theta_k) + gains of classifiers), and compute the ELBO.

    At this q(z) the ELBO is the sum of the log normalizers and of the rejection terms of all hyperplanes, minus the KL
    terms. If the KL terms are given as `penalty` [], the sum is over this rank's points alone. Pseudo-observations are
    kept as sums; responsibilities are kept if they need little memory.
    """
    keep = not state.separate or keep_rows(data.points, model.truncation)
    sums = Sums(family_of(model), data.points, model.truncation, keep=keep)
    total, places = data.points.features.new_zeros((), dtype=torch.float64), dict[str, Any]()
    for rows, some in chunks(state.separate, data, model):
        densities = log_density(state, some.points, model)
        seen = see(state.classifiers, some.points, model, state.log_weights(densities))
        found = state.weigh(densities + seen.gain, some)
        total += found.log_total + some.points.counted(seen.rejection).sum(dtype=torch.float64)
        sums.add(rows, some.points, found.responsibilities, seen)
        places = found.fields
    bound = all_sum(total) - kl(state, model) if penalty is None else total - penalty
    return replace(state, weights=data.points.weights, bound=bound, **(sums.fields() | places))


def union(state: State, data: Placed, model: Mixture | StateSpace, kept: int, *absorbed: int) -> State:
    """The sums that result if the points of `absorbed` components move to `kept`, with the present classifiers."""
    sums = Sums(family_of(model), data.points, model.truncation, keep=False)
    for rows, some in chunks(state.separate, data, model):
        seen = see(state.classifiers, some.points, model)
        r = best_places(state, some, model, seen) if state.num_dropped else state.of_points(data, rows)
        sums.add(rows, some.points, joined(r, kept, *absorbed), seen)
    for one in absorbed:
        state = state.joined(kept, one)
    return replace(state, **sums.fields())


def best_places(state: State, data: Placed, model: Mixture | StateSpace, seen: OwnSide | BothSides) -> Tensor:
    """The optimal responsibilities [m, T] of points, given their expected pseudo-observations."""
    return state.weigh(log_density(state, data.points, model) + seen.gain, data).responsibilities


def joined(responsibilities: Tensor, kept: int, *absorbed: int) -> Tensor:
    """Responsibilities [n, T] after `absorbed` components are merged into `kept`."""
    r = responsibilities.clone()
    r[:, kept] += r[:, list(absorbed)].sum(1)
    r[:, list(absorbed)] = 0
    return r


def chunks(separate: bool, data: Placed, model: Mixture | StateSpace) -> Iterator[tuple[slice, Any]]:
    """Slices of the points with their data; one slice for all unless points are independent."""
    if not separate:
        yield slice(None), data
        return
    for rows in slices(data.points, model.truncation):
        yield rows, data.points.rows(rows)


def log_density(state: Variational[Any, Any], points: Data, model: Mixture | StateSpace) -> Tensor:
    """E log p(x_n | theta_k) [n, T]."""
    return family_of(model).expected_log_density(points.X, state.hyperparameters)


def move(state: State, target: State, model: Mixture | StateSpace, rho: float) -> State:
    """Take a step of size rho in natural parameters towards `target`, and drop the rows of the state.

    The components move towards those of `target`; the prior and the hyperplanes move to the optimum for its points.
    """
    chi = torch.lerp(state.hyperparameters, target.hyperparameters, rho)
    moved = _with_classifiers(state.without_rows(), target, model, rho)
    return replace(moved, hyperparameters=chi).towards(target, model, rho)


# -- the bound ---------------------------------------------------------------------------------------------------------


def kl(state: Variational[Any, Any], model: Mixture | StateSpace) -> Tensor:
    """KL of the global factors from their priors, [] float64."""
    return state.prior_kl(model) + components_kl(state, model)


def components_kl(state: Variational[Any, Any], model: Mixture | StateSpace) -> Tensor:
    """The KL of q(theta) and q(eta) from their priors, [] float64."""
    family = family_of(model).kl(state.hyperparameters).sum(dtype=torch.float64)
    return family + state.classifiers.kl(model.weight_scale).sum(dtype=torch.float64)


_SUMS = "gram", "linear", "counts", "statistics"
