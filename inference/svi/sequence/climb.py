"""Ascent of the hierarchy's bound in its free variables, the sticks and the rate of q(alpha), on the host in numpy.

Given these, the rows and q(gamma) are at their optimum, so that the bound's derivatives through them vanish, and only
direct dependence on the free variables counts. The sticks (a, b) enter through E v and E[1 - v], of which E[beta] is a
product, and through E log v and E log(1 - v), of which the lower bound of E log b_jk is a sum.

Derivation: docs/derivations/sequences.md, Variational inference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma, expit, gammaln, polygamma
from torch import Tensor

from ....models.priors import HierarchicalDirichletProcess

Array = NDArray[np.float64]


class Given(NamedTuple):
    """The constants of the ascent."""

    counts: Array  # [T + 1, T] expected transitions
    shape: float  # of q(alpha)
    prior: HierarchicalDirichletProcess


def climbed(sticks: Tensor, rate: Tensor, given: Given) -> tuple[Tensor, Tensor]:
    """The sticks' (a, b) [2, T - 1] and the rate [1] of q(alpha), float64 on the host, after 30 L-BFGS iterations."""
    from scipy.optimize import minimize  # slow to import, and other models do not need it

    def cost(logs: Array) -> tuple[float, Array]:
        free = np.exp(logs)
        bound, slopes = bound_and_slopes(free, given)
        return -bound, -free * slopes

    start = torch.cat([sticks.flatten(), rate]).log().numpy()
    options = {"maxiter": _NUM_STEPS, "ftol": 1e-12, "gtol": 1e-7}
    free = torch.from_numpy(np.exp(minimize(cost, start, jac=True, method="L-BFGS-B", options=options).x))
    return free[:-1].view_as(sticks), free[-1:]


def bound_and_slopes(free: Array, given: Given) -> tuple[float, Array]:
    """`hierarchy_bound` at the best rows and q(gamma), up to a constant; derivatives by (a, b, rate) [2 T - 1]."""
    T, rho, (a, b) = given.counts.shape[1], given.prior.stickiness, free[:-1].reshape(2, -1)
    both, alpha = a + b, given.shape / free[-1]
    log_v, log_rest = digamma(a) - digamma(both), digamma(b) - digamma(both)
    beta, log_beta = np.exp(_broken(np.log(a / both), np.log(b / both))), _broken(log_v, log_rest)
    means = np.vstack([(1 - rho) * beta + rho * np.eye(T), beta])
    least = given.counts + alpha * means
    rows = np.maximum(least, TINY)
    log_rows = digamma(rows) - digamma(rows.sum(1, keepdims=True))
    own, own_slope = _own(log_beta, rho)
    top, mean_top = _top(float(log_rest.sum()), T, given.prior)
    rate, rate_slope = _rate(free[-1], float((means * log_rows).sum()), T, given)

    bound = ((least - rows) * log_rows).sum() + _log_normalizer(rows) + _log_normalizer(np.stack([a, b], 1))
    bound += T * log_beta.sum() + own.sum() - ((a - 1) * log_v + b * log_rest).sum() + top + rate

    mean_v, mean_rest = _by_sticks(alpha * beta * ((1 - rho) * log_rows[:-1].sum(0) + log_rows[-1]))
    by_v, by_rest = _by_sticks(T + own_slope)
    by_v, by_rest = by_v - (a - 1), by_rest - (b - mean_top)
    shared = (by_v + by_rest) * polygamma(1, both) + (mean_v + mean_rest) / both
    by_a, by_b = by_v * polygamma(1, a) + mean_v / a - shared, by_rest * polygamma(1, b) + mean_rest / b - shared
    return float(bound), np.concatenate([by_a, by_b, [rate_slope]])


def _own(log_beta: Array, rho: float) -> tuple[Array, Array]:
    """The lower bound [T] of E log b_kk, minus log(1 - rho) for the other rows, and its derivatives [T] by log beta."""
    if not rho:
        return log_beta, np.ones_like(log_beta)
    rest = log_beta + np.log1p(-rho)
    return np.logaddexp(rest, np.log(rho)), expit(rest - np.log(rho))


def _top(log_rest: float, num_states: int, prior: HierarchicalDirichletProcess) -> tuple[float, float]:
    """The sticks' term at the best q(gamma), and E[gamma], its derivative by the sum of E log(1 - v)."""
    if prior.top_concentration_prior is None:
        return prior.top_concentration * log_rest, prior.top_concentration
    shape, rate = prior.top_concentration_prior
    shape, rate = shape + num_states - 1, rate - log_rest
    return -shape * float(np.log(rate)), shape / rate


def _rate(rate: float, by_alpha: float, num_states: int, given: Given) -> tuple[float, float]:
    """The term of q(alpha) itself, and the bound's derivative by its rate; 0 for a fixed alpha."""
    if given.prior.concentration_prior is None:
        return 0.0, 0.0
    shape, prior_rate = given.prior.concentration_prior
    shape = shape + num_states**2 - 1
    mean = given.shape / rate
    return -shape * float(np.log(rate)) - mean * prior_rate, (mean * (prior_rate - by_alpha) - shape) / rate


def _broken(log_v: Array, log_rest: Array) -> Array:
    """log beta [T] from log v and log(1 - v), each [T - 1]; also for their expectations."""
    return np.append(log_v, 0.0) + np.append(0.0, log_rest.cumsum())


def _by_sticks(by_log: Array) -> tuple[Array, Array]:
    """Derivatives by log v and log(1 - v), each [T - 1], from those by log beta [T]."""
    after = by_log[::-1].cumsum()[::-1] - by_log
    return by_log[:-1], after[:-1]


def _log_normalizer(shape: Array) -> float:
    """The sum of log B of Dirichlet parameters [..., K]."""
    return float(gammaln(shape).sum() - gammaln(shape.sum(-1)).sum())


TINY = 1e-100  # least Dirichlet parameter: its trigamma is still finite
_NUM_STEPS = 30
