"""What the variational posteriors of all structures share: components, hyperplanes, and which of them to merge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ...models.bnmc import BNMC
from ...models.data import Data
from ...models.likelihoods.exponential_family import ExponentialFamily
from ...models.losses import Loss
from ...models.mixture import Mixture
from ...models.sequence import StateSpace
from ...models.sums import row_chunks
from ..classifiers.natural import (
    BothSides,
    OwnSide,
    Seen,
    expect_own,
    expect_sides,
    natural_step,
    prior,
)
from ..classifiers.ridge import Ridge
from ..distributed.collectives import all_sum
from ..protocol import Model

SETTLED = 1e-2  # rise of the bound, in nats per point, below which merges are tried and stochastic fits are finished
State = TypeVar("State", bound="Variational")
MERGE_ROUNDS = 3  # of coordinate ascent, before a union is judged


@dataclass(frozen=True, kw_only=True)
class Variational:
    """Factors of T components with S statistics, P features and C scores; N points or steps."""

    hyperparameters: Tensor  # [T, S] chi of q(theta_k)
    mean: Tensor  # [T, P, C] of q(eta_k)
    precision_tril: Tensor  # [T, C, P, P]
    gram: Tensor  # [T, C, P, P] sum_n r_nk precision_nk a_n a_n^T of the expected pseudo-observations
    linear: Tensor  # [T, P, C] sum_n r_nk shift_nk a_n
    responsibilities: Tensor  # [N, T] q(z_n), or marginals of it; [0, T] after a stochastic step
    bound: Tensor  # [] float64, the ELBO, or its estimate from the last minibatch
    may_merge: bool = True  # until all promising unions have been tried in vain
    weights: Tensor | None = None  # [N] how many times each point counts; None: once

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.responsibilities)

    @cached_property
    def total_weight(self) -> float:
        """R = sum_n r_n; N where each point counts once."""
        return self.num_data if self.weights is None else float(all_sum(self.weights.sum(dtype=torch.float64)))

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
        return all_sum(self.memberships.sum(0, dtype=torch.float64))

    def permuted(self, order: Tensor) -> Self:
        """Components in another order [T]; sticks stay in their places."""
        names = "hyperparameters", "mean", "precision_tril", "gram", "linear"
        own: dict[str, Any] = {name: getattr(self, name)[order] for name in names}
        return replace(self, **own, responsibilities=self.responsibilities[:, order])

    def scaled(self, scale: float) -> Self:
        """As if there were `scale` times as many points like these."""
        r = scale * self.responsibilities
        return replace(self, responsibilities=r, gram=scale * self.gram, linear=scale * self.linear)

    def without_rows(self) -> Self:
        """Without what belongs to single rows: that of a minibatch is of no use to the next one."""
        return replace(self, responsibilities=self.responsibilities[:0], weights=None)


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


def prior_classifiers(model: Mixture | StateSpace, data: Data) -> dict[str, Any]:
    """Fields of a `Variational` with hyperplanes at their prior, and nothing that points say of them."""
    T, C, P, like = model.truncation, data.targets.shape[1], data.features.shape[1], data.features
    q = prior(T, P, C, model.weight_scale, like)
    return {"mean": q.mean, "precision_tril": q.precision_tril, **nothing_observed(model, data)}


def nothing_observed(model: Mixture | StateSpace, data: Data) -> dict[str, Any]:
    """Fields of a `Variational` with the sums of the pseudo-observations of no points."""
    T, C, P = model.truncation, data.targets.shape[1], data.features.shape[1]
    return {"gram": data.features.new_zeros(T, C, P, P), "linear": data.features.new_zeros(T, P, C)}


def see(state: Variational, points: Data, model: Mixture | StateSpace) -> OwnSide | BothSides:
    """What the classifiers expect of points: of their own components, or of all, where these repel."""
    design = Seen(points.features)
    if model.repels:
        return expect_sides(design, state.classifiers, model.loss)
    return expect_own(design, state.classifiers, points.targets, model.loss)


def update_classifiers(state: State, model: Mixture | StateSpace) -> State:
    """q(eta_k) at its optimum for the pseudo-observations as they are."""
    return _with_classifiers(state, state, model, 1.0)


def _with_classifiers(state: State, target: Variational, model: Mixture | StateSpace, rho: float) -> State:
    """q(eta_k) a natural step of size rho towards what the points of a target say."""
    ridge = natural_step(state.classifiers, (target.gram, target.linear), model.weight_scale, rho)
    return replace(state, mean=ridge.mean, precision_tril=ridge.precision_tril)


def components_kl(state: Variational, model: Mixture | StateSpace) -> Tensor:
    """KL of q(theta) and q(eta) from their priors, [] float64."""
    family = family_of(model).kl(state.hyperparameters).sum(dtype=torch.float64)
    return family + state.classifiers.kl(model.weight_scale).sum(dtype=torch.float64)


def pairs(state: Variational, model: Mixture | StateSpace) -> list[list[int]]:
    """Pairs of occupied components, those whose union has the best block marginal first."""
    family, chi = family_of(model), state.hyperparameters
    occupied = torch.nonzero(state.sizes > 0.5).squeeze(1)
    first, second = torch.combinations(occupied).unbind(1) if len(occupied) > 1 else (occupied[:0], occupied[:0])
    own = family.log_marginal(chi)
    unions = [
        family.log_marginal(chi[first[some]] + chi[second[some]] - family.prior())
        for some in row_chunks(first, chi.shape[1])
    ]
    gain = torch.cat(unions) - own[first] - own[second]
    best = gain.topk(min(_MERGE_TRIES, len(gain))).indices
    return torch.stack([first[best], second[best]], 1).tolist()


def move(state: State, target: Variational, model: Mixture | StateSpace, rho: float) -> State:
    """The state with its components and hyperplanes a step of size rho, in natural parameters: towards the components
    of a target, and towards what its points say of the hyperplanes."""
    chi = torch.lerp(state.hyperparameters, target.hyperparameters, rho)
    return replace(_with_classifiers(state.without_rows(), target, model, rho), hyperparameters=chi)


_MERGE_TRIES = 10
