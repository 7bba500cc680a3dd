"""What the variational posteriors of all structures share: components, hyperplanes, and which of them to merge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ...models.data import Data
from ...models.likelihoods.exponential_family import ExponentialFamily
from ...models.sums import row_chunks
from ..classifiers.ridge import Ridge
from ..distributed.collectives import all_sum

SETTLED = 1e-2  # rise of the bound, in nats per point, below which merges are tried and stochastic fits are finished
LAST_GAP = 1e-9  # relative, of the dual at the end of a fit
State = TypeVar("State", bound="Variational")
MERGE_ROUNDS = 3  # of coordinate ascent, before a union is judged


@dataclass(frozen=True, kw_only=True)
class Variational:
    """Factors of T components with S statistics, P features and C scores; N points or steps."""

    hyperparameters: Tensor  # [T, S] chi of q(theta_k)
    mean: Tensor  # [T, P, C] of q(eta_k)
    precision_tril: Tensor  # [T, C, P, P]
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
        return replace(
            self,
            hyperparameters=self.hyperparameters[order],
            mean=self.mean[order],
            precision_tril=self.precision_tril[order],
            responsibilities=self.responsibilities[:, order],
        )

    def without_rows(self) -> Self:
        """Without what belongs to single rows: that of a minibatch is of no use to the next one."""
        return replace(self, responsibilities=self.responsibilities[:0], weights=None)


def family_of(model: Any) -> ExponentialFamily:
    """The family of a model; NotImplementedError unless it is conjugate."""
    family = model.likelihood
    if not isinstance(family, ExponentialFamily):
        raise NotImplementedError(
            f"{type(family).__name__} is no conjugate exponential family (`ExponentialFamily`: statistics and their "
            "normalizers), which SVI needs; NUTS and Autoguide take it as it is."
        )
    return family


def require(model: Any) -> None:
    """Raise NotImplementedError, which says what is missing, unless the family is conjugate and the loss has
    expectations."""
    family_of(model)
    if not model.loss.has_expectation:
        model.loss.expect(*torch.zeros(3, 1))  # says what serves


def require_averaging(backend: Any, model: Any, known: bool) -> None:
    """Raise NotImplementedError, which says what is missing, unless a fit may follow the averaging rule.

    `known` : whether the structure of the model has it; it needs hyperplanes that see their own components alone.
    """
    family_of(model)
    if not known or model.repels or "loss" not in model.get_params(deep=False):
        raise NotImplementedError(
            f'{type(model).__name__} has no rule="averaging", which InfiniteSVM has: take rule="gibbs".'
        )
    if not model.loss.has_conjugate:
        other = "EpsilonInsensitive()" if model.loss.target == "real" else "Hinge()"
        raise NotImplementedError(
            f'{type(model.loss).__name__} has no convex conjugate (`conjugate`), which rule="averaging" needs: take '
            f'rule="gibbs", or another loss such as {other}.'
        )
    if backend.batch_size is not None:
        raise NotImplementedError(f'rule="averaging" with batch_size={backend.batch_size}: it {ALL_AT_ONCE}')


ALL_AT_ONCE = 'sees all points at once: pass tensors and batch_size=None, or take rule="gibbs".'


def prior_classifiers(model: Any, data: Data) -> dict[str, Any]:
    """Fields of a `Variational` with hyperplanes at their prior: `mean` [T, P, C] and `precision_tril`."""
    T, C, P = model.truncation, data.targets.shape[1], data.features.shape[1]
    like = data.features
    identity = torch.eye(P, dtype=like.dtype, device=like.device)
    return {
        "mean": like.new_zeros(T, P, C),
        "precision_tril": (identity / model.weight_scale).expand(T, C, P, P),
    }


def components_kl(state: Variational, model: Any) -> Tensor:
    """KL of q(theta) and q(eta) from their priors, [] float64."""
    family = family_of(model).kl(state.hyperparameters).sum(dtype=torch.float64)
    return family + state.classifiers.kl(model.weight_scale).sum(dtype=torch.float64)


def pairs(state: Variational, model: Any) -> list[list[int]]:
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


def move(state: State, hyperparameters: Tensor, natural: tuple[Tensor, Tensor], rho: float) -> State:
    """The state with its components and hyperplanes a step of size rho, in natural parameters, towards those given:
    chi [T, S] of the components, (A [T, C, P, P], A m [T, P, C]) of the hyperplanes."""
    ridge = state.classifiers.towards(natural, rho)
    return replace(
        state.without_rows(),
        hyperparameters=torch.lerp(state.hyperparameters, hyperparameters, rho),
        mean=ridge.mean,
        precision_tril=ridge.precision_tril,
    )


_MERGE_TRIES = 10
