"""Terms of variational bounds of latent features written in loops, for tests of several structures."""

from __future__ import annotations

import math
from typing import Any

from scipy.special import digamma
from torch import Tensor

from regbayes.models import BetaBernoulli, FeaturePrior


def log_gamma_kl(shape: Any, rate: Any, shape0: float, rate0: float) -> float:
    """KL(Gamma(shape, rate) || Gamma(shape0, rate0))."""
    shape, rate = float(shape), float(rate)
    mean_log = float(digamma(shape)) - math.log(rate)
    own = shape * math.log(rate) - math.lgamma(shape) + (shape - 1) * mean_log - shape
    return own - (shape0 * math.log(rate0) - math.lgamma(shape0) + (shape0 - 1) * mean_log - rate0 * shape / rate)


def loop_prior(
    prior: FeaturePrior, a: Tensor, b: Tensor, concentration: Tensor
) -> tuple[list[float], list[float], float]:
    """E log pi_k, (a bound of) E log(1 - pi_k), and E log p(v, alpha) / q(v, alpha), of q(v_k) = Beta(a_k, b_k) [K]."""
    a, b, K = a.tolist(), b.tolist(), len(a)
    log_v = [digamma(a[k]) - digamma(a[k] + b[k]) for k in range(K)]
    log_rest = [digamma(b[k]) - digamma(a[k] + b[k]) for k in range(K)]
    shape, rate = concentration.tolist()
    alpha, log_alpha, total = shape / rate, math.log(shape / rate), 0.0
    if prior.concentration_prior is not None:
        log_alpha = digamma(shape) - math.log(rate)
        total -= log_gamma_kl(shape, rate, *prior.concentration_prior)
    beta = isinstance(prior, BetaBernoulli)
    for k in range(K):
        log_beta = math.lgamma(a[k]) + math.lgamma(b[k]) - math.lgamma(a[k] + b[k])
        first, log_first = (alpha / K, log_alpha - math.log(K)) if beta else (alpha, log_alpha)
        total += log_first + (first - a[k]) * log_v[k] + (1 - b[k]) * log_rest[k] + log_beta
    if beta:
        return log_v, log_rest, total
    log_pi = [sum(log_v[: k + 1]) for k in range(K)]
    without = [math.log(sum(math.exp(log_rest[i] + sum(log_v[:i])) for i in range(k + 1))) for k in range(K)]
    return log_pi, without, total
