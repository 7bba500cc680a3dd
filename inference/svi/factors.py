"""The factors of mixtures and of chains of states, the update of each, and the bound: written once over a law of z.

    q = q(prior) prod_k q(theta_k; chi_k) N(eta_k; m_k, V_k) q(z) q(omega | z)

maximizes a bound of log Z of the truncated model. A class of states is a law of z: independent places whose weights are
sticks (`partition.factors`), or a Markov chain (`sequence.factors`). It says how places are weighed and holds the
factors of the prior. Each omega is given its optimal factor for every pair (n, k), so that a margin factor enters
through `Loss.expect` and `Loss.expected_log_factor` alone. Where components repel every pair counts on both sides.
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

SETTLED = 1e-2  # rise of the bound, in nats per point, below which merges are tried and stochastic fits are finished
MERGE_ROUNDS = 3  # of coordinate ascent, before a union is judged


Placed = Data | Sequences | LabelData  # whose `points` are what is observed
D = TypeVar("D", bound=Data | Sequences | LabelData)
M = TypeVar("M", bound=Mixture | StateSpace)
State = TypeVar("State", bound="Variational[Any, Any]")


class Weighed(NamedTuple):
    """q(z) of some points, at its optimum."""

    responsibilities: Tensor  # [m, T]
    log_total: Tensor  # [] float64, the sum of the log normalizers of q(z), each as often as its point counts
    fields: dict[str, Any]  # what else of q(z) a state holds


@dataclass(frozen=True, kw_only=True)
class Variational(Generic[D, M]):
    """Factors of T components with S statistics, P features and C scores; N points or steps."""

    hyperparameters: Tensor  # [T, S] chi of q(theta_k)
    mean: Tensor  # [T, P, C] of q(eta_k)
    precision_tril: Tensor  # [T, C, P, P]
    gram: PartOfSum  # [T, C, P, P] sum_n r_nk precision_nk a_n a_n^T of the expected pseudo-observations
    linear: PartOfSum  # [T, P, C] sum_n r_nk shift_nk a_n
    responsibilities: OfRows  # [N, T] q(z_n), or marginals of it; [0, T] after a stochastic step
    bound: Tensor  # [] float64, the ELBO, or its estimate from the last minibatch
    may_merge: bool = True  # until all promising unions have been tried in vain
    weights: OfRows | None = None  # [N] how many times each point counts; None: once
    counts: Tensor | None = None  # [T] float64 and
    statistics: Tensor | None = None  # [T, S], sums over all points, where these are too many to keep responsibilities
    dropped: OfRows | None = None  # [N, 0] points whose responsibilities, optimal for the other factors, are not kept

    separate: ClassVar[bool]  # whether points are weighed apart: then in chunks, and responsibilities may be dropped

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.responsibilities) + self.num_dropped

    @property
    def num_dropped(self) -> int:
        """How many points have no responsibilities here."""
        return 0 if self.dropped is None else len(self.dropped)

    @cached_property
    def total_weight(self) -> float:
        """R = sum_n r_n; N where each point counts once."""
        if self.weights is None:
            return all_count(self.num_data)
        return float(all_sum(self.weights.sum(dtype=torch.float64)))

    @property
    def memberships(self) -> Tensor:
        """r_n q(z_n) [N, T]: how many times each point counts in each component."""
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
        """Components in another order [T]; sticks stay in their places."""
        own = self._changed(lambda part: part[order], "hyperparameters", "mean", "precision_tril", *_SUMS)
        return replace(self, **own, responsibilities=self.responsibilities[:, order])

    def scaled(self, scale: float) -> Self:
        """As if there were `scale` times as many points like these."""
        return replace(self, **self._changed(lambda part: scale * part, "responsibilities", *_SUMS))

    def _changed(self, change: Callable[[Tensor], Tensor], *names: str) -> dict[str, Any]:
        """Some of the fields, changed where there is anything to change."""
        own = {name: getattr(self, name) for name in names}
        return {name: None if part is None else change(part) for name, part in own.items()}

    def without_rows(self) -> Self:
        """Without what belongs to single rows: that of a minibatch is of no use to the next one."""
        sums: dict[str, Any] = {"counts": None, "statistics": None, "dropped": None}
        return replace(self, responsibilities=self.responsibilities[:0], weights=None, **sums)

    # -- the law of z --------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def started(cls, model: M, data: D, fields: dict[str, Any]) -> Self:
        """A state with these fields of a `Variational` of independent points. Its prior is not up to date."""

    def log_weights(self, log_likelihood: Tensor) -> Tensor | None:
        """Log weights [m, T] of the components for points with log likelihoods [m, T]; None unless points are
        independent."""
        return None

    @abstractmethod
    def weigh(self, log_likelihood: Tensor, data: D) -> Weighed:
        """q(z) of some points, from log densities and gains [m, T]."""

    def of_points(self, data: D, rows: slice) -> Tensor:
        """Responsibilities [m, T] of the points at some rows."""
        return self.responsibilities[rows]

    @abstractmethod
    def with_prior(self, model: M) -> Self:
        """The factors of the prior at their optimum, given expected counts."""

    @abstractmethod
    def prior_kl(self, model: M) -> Tensor:
        """KL of the factors of the prior, [] float64, or a bound of it from above."""

    @abstractmethod
    def reordered(self, model: M) -> Self:
        """Components in their best order, if that raises the bound."""

    def joined(self, kept: int, absorbed: int) -> Self:
        """As if the points of one component were with another, in all that q(z) has beside responsibilities."""
        return self

    @abstractmethod
    def standing_for(self, rows: D, num_data: int, num_units: float) -> Self:
        """The sums over these rows, scaled as if the rows stood for so many points or steps, in so many units."""

    @abstractmethod
    def towards(self, target: Self, model: M, rho: float) -> Self:
        """The factors of the prior a step of size rho towards what the points of a target say."""


# -- what models have --------------------------------------------------------------------------------------------------


def family_of(model: Mixture | StateSpace | BNMC) -> ExponentialFamily:
    """The family of a model; NotImplementedError unless it is conjugate."""
    family = model.likelihood
    if not isinstance(family, ExponentialFamily):
        raise NotImplementedError(
            f"{type(family).__name__} is no conjugate exponential family (`ExponentialFamily`: statistics and their "
            "normalizers), which SVI needs; NUTS and Autoguide take it as it is."
        )
    return family


def loss_of(model: Model) -> Loss | None:
    """The margin loss; None of a model without targets."""
    labelled: Any = model
    return labelled.loss if "loss" in model.get_params(deep=False) else None


def see(q: Ridge, points: Data, model: Mixture | StateSpace, log_weights: Tensor | None = None) -> OwnSide | BothSides:
    """What classifiers expect of points: of their own components, or of all, where these repel.

    log_weights : [m, T] or None, how points that are weighed apart divide among the components but for the gains
    """
    return sides_of(model).expect(points.features, q, points.targets, model.loss, log_weights, points.loss_weights)


# -- one update for each factor: its optimum given the others ----------------------------------------------------------


def update_factors(state: State, data: Placed, model: Mixture | StateSpace) -> State:
    """All factors but q(z)."""
    known = summed(state, data, model).with_prior(model)
    moved = update_classifiers(update_components(known, data, model), model)
    return replace(moved, counts=state.counts, statistics=state.statistics)  # which are of these responsibilities


def summed(state: State, data: Placed, model: Mixture | StateSpace) -> State:
    """With the sums over all points, in one exchange."""
    return summed_with(state, data, model)[0]


def summed_with(state: State, data: Placed, model: Mixture | StateSpace, *others: Tensor) -> tuple[State, list[Tensor]]:
    """The same, and the sums over ranks of some other tensors [...], in the same exchange."""
    if state.statistics is not None:
        return state, [all_sum(other) for other in others]
    points = data.points
    with among(None):
        own = family_of(model).weighted_statistics(points.X, points.counted(state.of_points(data, slice(None))))
    if not state.separate:  # how many steps are in a state its moves say
        statistics, *said = all_sums(own, *others)
        return replace(state, statistics=statistics), said
    counts, statistics, *said = all_sums(state.memberships.sum(0, dtype=torch.float64), own, *others)
    return replace(state, counts=counts, statistics=statistics), said


def update_components(state: State, data: Placed, model: Mixture | StateSpace) -> State:
    """chi_k = chi0 + sum_n r_nk statistics(x_n), each point as often as it counts."""
    statistics = summed(state, data, model).statistics
    assert statistics is not None
    return replace(state, hyperparameters=family_of(model).prior() + statistics)


def update_classifiers(state: State, model: Mixture | StateSpace) -> State:
    """q(eta_k) at its optimum for the pseudo-observations as they are."""
    return _with_classifiers(state, state, model, 1.0)


def _with_classifiers(state: State, target: State, model: Mixture | StateSpace, rho: float) -> State:
    """q(eta_k) a natural step of size rho towards what the points of a target say.

    Raises
    ------
    ValueError    if the sums of a state from a changed file have other shapes than q(eta_k).
    """
    require_shape("gram", state.gram, tuple(state.precision_tril.shape))
    require_shape("linear", state.linear, tuple(state.mean.shape))
    ridge = natural_step(state.classifiers, (target.gram, target.linear), model.weight_scale, rho)
    return replace(state, mean=ridge.mean, precision_tril=ridge.precision_tril)


def allocate(state: State, data: Placed, model: Mixture | StateSpace, penalty: Tensor | None = None) -> State:
    """q(z) prop. to exp of E log p(z | prior), E log p(x_n | theta_k) and the gains of classifiers; and the ELBO.

    At this q(z) the ELBO is the sum of the log normalizers and of what all hyperplanes reject, less the KL terms. If
    the latter are given, as the penalty [], the sum is over the points here alone. Pseudo-observations are kept as
    sums, responsibilities as long as they are few.
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


def union(state: State, data: Placed, model: Mixture | StateSpace, kept: int, absorbed: int) -> State:
    """The sums, at these classifiers, as if the points of a second component were with the first."""
    sums = Sums(family_of(model), data.points, model.truncation, keep=False)
    for rows, some in chunks(state.separate, data, model):
        seen = see(state.classifiers, some.points, model)
        r = best_places(state, some, model, seen) if state.num_dropped else state.of_points(data, rows)
        sums.add(rows, some.points, joined(r, kept, absorbed), seen)
    return replace(state.joined(kept, absorbed), **sums.fields())


def best_places(state: State, data: Placed, model: Mixture | StateSpace, seen: OwnSide | BothSides) -> Tensor:
    """Responsibilities [m, T] of points at their optimum, given what classifiers expect of them."""
    return state.weigh(log_density(state, data.points, model) + seen.gain, data).responsibilities


def joined(responsibilities: Tensor, kept: int, absorbed: int) -> Tensor:
    """Responsibilities [n, T] with the points of a second component in the first."""
    r = responsibilities.clone()
    r[:, kept] += r[:, absorbed]
    r[:, absorbed] = 0
    return r


def chunks(separate: bool, data: Placed, model: Mixture | StateSpace) -> Iterator[tuple[slice, Any]]:
    """Rows of points with their data, in pieces where points are weighed apart."""
    if not separate:
        yield slice(None), data
        return
    for rows in slices(data.points, model.truncation):
        yield rows, data.points.rows(rows)


def log_density(state: Variational[Any, Any], points: Data, model: Mixture | StateSpace) -> Tensor:
    """E log p(x_n | theta_k) [n, T]."""
    return family_of(model).expected_log_density(points.X, state.hyperparameters)


def move(state: State, target: State, model: Mixture | StateSpace, rho: float) -> State:
    """The state without rows, its factors a step of size rho, in natural parameters: towards the components of a
    target, and towards what its points say of the prior and of the hyperplanes."""
    chi = torch.lerp(state.hyperparameters, target.hyperparameters, rho)
    moved = _with_classifiers(state.without_rows(), target, model, rho)
    return replace(moved, hyperparameters=chi).towards(target, model, rho)


# -- the bound ---------------------------------------------------------------------------------------------------------


def kl(state: Variational[Any, Any], model: Mixture | StateSpace) -> Tensor:
    """KL of the global factors from their priors, [] float64."""
    return state.prior_kl(model) + components_kl(state, model)


def components_kl(state: Variational[Any, Any], model: Mixture | StateSpace) -> Tensor:
    """KL of q(theta) and q(eta) from their priors, [] float64."""
    family = family_of(model).kl(state.hyperparameters).sum(dtype=torch.float64)
    return family + state.classifiers.kl(model.weight_scale).sum(dtype=torch.float64)


_SUMS = "gram", "linear", "counts", "statistics"
