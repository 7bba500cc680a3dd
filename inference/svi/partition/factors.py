"""The law of z of a mixture: the components of points are independent given the sticks.

    q(v) q(h) prod_n q(z_n),    q(v_k) = Beta,    E log pi_k = E log v_k + sum_{j<k} E log(1 - v_j)

h are the hyperparameters of the prior over partitions, which determines the form of their factor (Blei & Jordan 2006).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.data import Data
from ....models.mixture import Mixture
from ....models.priors import StickExpectations
from ....models.priors.sticks import (
    best_order,
    broken,
    expected_log_sticks,
    log_beta,
    log_labelled_prior,
    posterior_sticks,
)
from ....models.shares import shares_of
from ..factors import Variational, Weighed


@dataclass(frozen=True, kw_only=True)
class VariationalPartition(Variational[Data, Mixture]):
    """A variational posterior of the assignments of N points to T components."""

    sticks: Tensor  # [2, T - 1] float64, of q(v_k) = Beta
    q: Tensor  # [...] float64, factor of the prior's hyperparameters, in the prior's own form

    separate: ClassVar[bool] = True

    @classmethod
    def started(cls, model: Mixture, data: Data, fields: dict[str, Any]) -> Self:
        q = model.prior.initial(data.features)
        prior = model.prior.expect(q, model.truncation)
        return cls(**fields, sticks=torch.stack([prior.a, prior.b]), q=q)

    @cached_property
    def expected_log_sticks(self) -> tuple[Tensor, Tensor]:
        """(E log v, E log(1 - v)), each [T - 1] float64."""
        return expected_log_sticks(*self.sticks)

    @cached_property
    def expected_log_mixture(self) -> Tensor:
        """E log pi [T] float64."""
        return broken(*self.expected_log_sticks)

    def log_weights(self, log_likelihood: Tensor) -> Tensor:
        """log r_nk [n, T] = E log pi_k + log likelihood + const."""
        return self.expected_log_mixture.to(log_likelihood.dtype) + log_likelihood

    def weigh(self, log_likelihood: Tensor, data: Data) -> Weighed:
        responsibilities, log_total = shares_of(self.log_weights(log_likelihood))
        return Weighed(responsibilities, data.counted(log_total).sum(dtype=torch.float64), {})

    def with_prior(self, model: Mixture) -> Self:
        return update_prior(update_sticks(self, model), model)

    def prior_kl(self, model: Mixture | BNMC) -> Tensor:
        """The KL of q(v) and q(h), [] float64.

        That of sticks with parameters (A, B) under q and (a, b) a priori is E log B(a, b) - log B(A, B) + (A - E a) E
        log v + (B - E b) E log(1 - v).
        """
        prior, (A, B), (log_v, log_rest) = expected_prior(self, model), self.sticks, self.expected_log_sticks
        sticks = ((A - prior.a) * log_v + (B - prior.b) * log_rest - log_beta(A, B)).sum() + prior.log_normalizer
        return sticks + prior.kl

    def reordered(self, model: Mixture | BNMC) -> Self:
        """Sort the components if that raises the sticks' terms of the bound at their best q(v).

        Up to a constant these are log p(z) of the expected counts with E a and E b under q(h). With a discount, largest
        first is not always best.
        """
        prior = expected_prior(self, model)
        order = best_order(self.sizes, prior.a, prior.b)
        sizes = torch.stack([self.sizes, self.sizes[order]])
        if torch.equal(*sizes):
            return self
        now, best = log_labelled_prior(sizes, prior.a, prior.b)
        return self.permuted(order) if best - now > _ALIKE * now.abs() else self

    def standing_for(self, rows: Data, num_data: int, num_units: float) -> Self:
        return self.scaled(num_units / rows.total_weight)

    def towards(self, target: Variational[Data, Mixture], model: Mixture, rho: float) -> Self:
        return self.stepped(target.sizes, model, rho)

    def stepped(self, sizes: Tensor, model: Mixture | BNMC, rho: float) -> Self:
        """Move the sticks by rho towards their optimum for expected counts [T].

        q(h) depends on no rows. It is set to its optimum given the sticks before they move: afterwards, its mean over
        batches would depend on how much the batches differ.
        """
        state = update_prior(self, model)
        return replace(state, sticks=torch.lerp(state.sticks, _best_sticks(state, sizes, model), rho))


P = TypeVar("P", bound=VariationalPartition)


def expected_prior(state: VariationalPartition, model: Mixture | BNMC) -> StickExpectations:
    """Expectations under q(h) of the sticks' Beta parameters, each [T - 1], and of h."""
    return model.prior.expect(state.q, model.truncation)


def update_sticks(state: P, model: Mixture) -> P:
    """Set q(v_k) = Beta(E a_k + sum_n r_nk, E b_k + sum_n sum_{j>k} r_nj)."""
    return replace(state, sticks=_best_sticks(state, state.sizes, model))


def update_prior(state: P, model: Mixture | BNMC) -> P:
    """Set q(h) prop. to p(h) exp E log p(v | h)."""
    return replace(state, q=model.prior.update(state.q, *state.expected_log_sticks))


def _best_sticks(state: VariationalPartition, sizes: Tensor, model: Mixture | BNMC) -> Tensor:
    prior = expected_prior(state, model)
    return torch.stack(posterior_sticks(sizes, prior.a, prior.b))


_ALIKE = 1e-12  # rounding error: at concentration 1 the last two sticks are equally good in either order
