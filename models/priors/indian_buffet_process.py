"""The Indian buffet process: a prior over binary matrices with unboundedly many columns.

    v_k ~ Beta(alpha, 1),   pi_k = prod_{j<=k} v_j,   z_nk ~ Bernoulli(pi_k),   alpha ~ Gamma

The truncated model stops after K sticks. Sources: Griffiths & Ghahramani (2011); Teh, Gorur & Ghahramani (2007) for the
sticks; Doshi-Velez, Miller, Van Gael & Teh (2009) for the bound; docs/derivations/latent-features, "Joint density" and
"Mean field" and "Gibbs".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ..distributions.sampling import uniforms
from ..domains import GammaPrior, Positive
from .features import FeatureFactors, FeaturePrior, slice_between
from .hyper import GammaConcentration, Hyper
from .sticks import expected_log_sticks, log_beta


@dataclass(eq=False)
class IndianBuffetProcess(GammaConcentration, FeaturePrior):
    """Indian buffet process: a prior over binary features of rows, with no limit on the number of features.

    Parameters
    ----------
    concentration : alpha > 0 (the starting value if it has a prior); a row is expected to have alpha features
    concentration_prior : (shape, rate) of alpha ~ Gamma, or None for a fixed alpha

    Examples
    --------
    >>> round(IndianBuffetProcess(concentration=2.0).expected_features(100), 2)
    10.37
    """

    concentration: Positive = 2.0
    concentration_prior: GammaPrior | None = None

    def expected_features(self, num_data: int) -> float:
        """E[K+] for N rows at the starting value: alpha H_N."""
        return self.concentration * _harmonic(num_data)

    # -- the truncated model -------------------------------------------------------------------------------------------

    def probabilities(self, h: Hyper, truncation: int) -> Tensor:
        alpha = h["concentration"]
        with pyro.plate("sticks_plate", truncation):
            return pyro.sample("sticks", dist.Beta(alpha, torch.ones_like(alpha))).cumprod(-1)

    def log_probabilities(self, pi: Tensor, h: Hyper) -> Tensor:
        """K log alpha + alpha log pi_K - sum_k log pi_k of decreasing pi [K]."""
        alpha, log_pi = h["concentration"], pi.log()
        return len(pi) * alpha.log() + alpha * log_pi[-1] - log_pi.sum()

    def start_probabilities(self, h: Hyper, truncation: int) -> Tensor:
        alpha = h["concentration"]
        return (alpha / (1 + alpha)).expand(truncation).cumprod(0)

    def draw_probabilities(
        self, pi: Tensor, counts: Tensor, num_data: int, h: Hyper, generator: torch.Generator
    ) -> Tensor:
        """Slice steps for each pi_k of [K] between pi_{k-1} and pi_{k+1}, first for even and then for odd places."""
        power = counts.to(pi)
        power = torch.cat([power[:-1], power[-1:] + h["concentration"].to(pi)])
        for first in (0, 1):
            places = torch.arange(first, len(pi), 2, device=pi.device)
            ends = torch.cat([pi.new_ones(1), pi, pi.new_zeros(1)])
            moved = slice_between(
                pi[places], ends[places + 2], ends[places], power[places], num_data - counts[places].to(pi), generator
            )
            pi = pi.index_copy(0, places, moved)
        return pi

    def draw_truncated(self, h: Hyper, pi: Tensor, generator: torch.Generator) -> Hyper:
        """alpha | pi ~ Gamma(shape + K, rate - log pi_K), from pi [K]."""
        return self.draw_concentration(h, len(pi), -pi[-1].log(), generator)

    def log_features(self, counts: Tensor, num_data: int, h: Hyper) -> Tensor:
        """The nested integral [] over pi_K < ... < pi_1, from counts [K], as a polynomial in the outermost pi."""
        alpha = h["concentration"]
        coefficients, shift = torch.ones_like(alpha).unsqueeze(0), alpha  # of x^(shift + i)
        for count in reversed(counts.tolist()):
            fails = torch.arange(num_data - int(count) + 1, dtype=alpha.dtype, device=alpha.device)
            most = fails[-1:]
            choose = (torch.lgamma(most + 1) - torch.lgamma(fails + 1) - torch.lgamma(most - fails + 1)).exp()
            signed = choose * (1 - 2 * (fails % 2))
            product = coefficients.new_zeros(len(coefficients) + len(signed) - 1)
            for index, value in enumerate(signed):
                product[index : index + len(coefficients)] += value * coefficients
            shift = shift + count
            coefficients = product / (shift + torch.arange(len(product), dtype=alpha.dtype, device=alpha.device))
        return len(counts) * alpha.log() + coefficients.sum().log()

    # -- the infinite model --------------------------------------------------------------------------------------------

    def log_infinite(self, counts: Tensor, num_data: int, h: Hyper) -> Tensor:
        """log p [] of a matrix with column counts [K+] > 0, up to the number of orders of its columns.

        The log probability of the class of matrices that differ in the order of columns is this minus sum_h log K_h!
        over groups of equal columns.
        """
        alpha, m = h["concentration"], counts.to(h["concentration"])
        total = torch.as_tensor(float(num_data + 1), dtype=m.dtype, device=m.device)
        each = torch.lgamma(m) + torch.lgamma(total - m) - torch.lgamma(total)
        return len(counts) * alpha.log() - alpha * _harmonic(num_data) + each.sum()

    def draw_active(self, counts: Tensor, num_data: int, generator: torch.Generator) -> Tensor:
        """Draw pi_k | Z ~ Beta(m_k, N - m_k + 1) [K+] of features that some row has."""
        one, two = (
            torch._standard_gamma(shape.double(), generator=generator) for shape in (counts, num_data - counts + 1)
        )
        return one / (one + two)

    def draw_empty(self, floor: Tensor, num_data: int, h: Hyper, generator: torch.Generator) -> Tensor:
        """Probabilities above `floor` [J]: a Poisson process of intensity alpha (1 - pi)^N / pi, by thinning."""
        width = -floor.log()
        number = int(torch.poisson((h["concentration"] * width).reshape(1), generator=generator))
        place, kept = uniforms((2, number), generator)
        pi = (floor.log() + width * place).exp()
        return pi[kept < (num_data * torch.log1p(-pi)).exp()]

    def draw(self, h: Hyper, num_features: int, num_data: int, generator: torch.Generator) -> Hyper:
        """alpha | Z ~ Gamma(shape + K+, rate + H_N), pi integrated out."""
        return self.draw_concentration(h, num_features, _harmonic(num_data), generator)

    # -- SVI: for E log(1 - pi_k) the multinomial bound L_k at its optimum, without an array [K, K] --------------------

    def initial(self, like: Tensor, truncation: int) -> FeatureFactors:
        q = self.initial_concentration(like)
        return FeatureFactors((q[0] / q[1]).expand(truncation).clone(), like.new_ones(truncation), q)

    def update_sticks(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> FeatureFactors:
        _, terms, bounds = _bounds(q)
        log_without = (total - expected).clamp(min=torch.finfo(expected.dtype).tiny).log()
        after = _from_the_end(log_without - bounds)
        extra = (terms + after).exp()  # b - 1
        mean = q.concentration[0] / q.concentration[1]
        a = mean + _sum_from_the_end(expected) + _sum_from_the_end(extra) - extra
        return FeatureFactors(a, 1 + extra, q.concentration)

    def update_concentration(self, q: FeatureFactors) -> FeatureFactors:
        rate = -expected_log_sticks(q.a, q.b)[0].sum()
        return q._replace(concentration=self.best_concentration(q.concentration, len(q.a), rate))

    def log_odds(self, q: FeatureFactors) -> Tensor:
        log_pi, _, bounds = _bounds(q)
        return log_pi - bounds

    def bound(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> Tensor:
        log_pi, _, bounds = _bounds(q)
        log_v, log_rest = expected_log_sticks(q.a, q.b)
        mean, log_mean, kl = self.expect_concentration(q.concentration)
        sticks = log_mean + (mean - q.a) * log_v - (q.b - 1) * log_rest + log_beta(q.a, q.b)
        return sticks.sum() - kl + (expected * log_pi + (total - expected) * bounds).sum()


def _bounds(q: FeatureFactors) -> tuple[Tensor, Tensor, Tensor]:
    """E log pi_k, h_k = E log(1 - v_k) + sum_{j<k} E log v_j, and L_k = log sum_{i<=k} exp h_i <= E log(1 - pi_k)."""
    log_v, log_rest = expected_log_sticks(q.a, q.b)
    log_pi = log_v.cumsum(0)
    terms = log_rest + log_pi - log_v
    return log_pi, terms, terms.logcumsumexp(0)


def _sum_from_the_end(values: Tensor) -> Tensor:
    return values.flip(0).cumsum(0).flip(0)


def _from_the_end(values: Tensor) -> Tensor:
    return values.flip(0).logcumsumexp(0).flip(0)


@cache
def _harmonic(number: int) -> float:
    return float(torch.arange(1, number + 1, dtype=torch.float64).reciprocal().sum())
