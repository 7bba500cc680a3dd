"""The interface of a prior over binary features: which of K features each of N rows has.

    z_nk ~ Bernoulli(pi_k),    pi ~ the prior given its hyperparameters h

The Pyro program needs pi as sites. The kernels need draws of pi and of h given the numbers m_k of rows that have each
feature (blocked scan); an optimal q(pi) and a bound of E log p(Z, pi) (SVI); the cost Lambda(K) of K features (small
variance). A prior that is also one over infinitely many features defines four further methods.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from .. import host
from ..distributions.sampling import uniforms
from .hyper import Hyper, HyperPrior


class FeatureFactors(NamedTuple):
    """q(pi) and q(h): Beta(a_k, b_k) of K sticks or probabilities, and the parameters of the concentration's law."""

    a: Tensor  # [K]
    b: Tensor  # [K]
    concentration: Tensor  # [2]: Gamma(shape, rate), or (alpha, 1) if alpha is fixed


class FeaturePrior(HyperPrior):
    """A prior over binary features. Its infinite form is the limit of many features."""

    @abstractmethod
    def probabilities(self, h: Hyper, truncation: int) -> Tensor:
        """Sample pi [K] of K = truncation features, as sites of the Pyro program in the dtype of h."""

    @abstractmethod
    def log_probabilities(self, pi: Tensor, h: Hyper) -> Tensor:
        """log p(pi | h) [] of probabilities [K]."""

    @abstractmethod
    def start_probabilities(self, h: Hyper, truncation: int) -> Tensor:
        """Starting probabilities [K] float64."""

    @abstractmethod
    def draw_probabilities(
        self, pi: Tensor, counts: Tensor, num_data: int, h: Hyper, generator: torch.Generator
    ) -> Tensor:
        """Draw new pi [K] given pi [K] and the numbers `counts` [K] of rows, of N, that have each feature."""

    @abstractmethod
    def draw_truncated(self, h: Hyper, pi: Tensor, generator: torch.Generator) -> Hyper:
        """Draw new hyperparameters given the probabilities [K]."""

    @abstractmethod
    def log_features(self, counts: Tensor, num_data: int, h: Hyper) -> Tensor:
        """log p(Z | h) [] of the truncated model with pi integrated out, from counts [K]: for tiny data and tests."""

    # -- the infinite model: a prior defines all of these methods, or none ---------------------------------------------

    @property
    def infinite(self) -> bool:
        """Whether this is also a prior over infinitely many features."""
        return type(self).draw_active is not FeaturePrior.draw_active

    def log_infinite(self, counts: Tensor, num_data: int, h: Hyper) -> Tensor:
        """log p [] of a matrix with column counts [K+] > 0, up to the number of orders of its columns."""
        raise self._finite("log_infinite")

    def draw_active(self, counts: Tensor, num_data: int, generator: torch.Generator) -> Tensor:
        """Draw probabilities [K+] float64 of features that counts [K+] > 0 of the N rows have."""
        raise self._finite("draw_active")

    def draw_empty(self, floor: Tensor, num_data: int, h: Hyper, generator: torch.Generator) -> Tensor:
        """Draw the probabilities [J] float64 above `floor` [] of features that no row has."""
        raise self._finite("draw_empty")

    def draw(self, h: Hyper, num_features: int, num_data: int, generator: torch.Generator) -> Hyper:
        """Draw new hyperparameters given the number of features that some of the N rows have."""
        raise self._finite("draw")

    def _finite(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} defines no {name}: use scan='blocked'.")

    # -- SVI -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def initial(self, like: Tensor, truncation: int) -> FeatureFactors:
        """Initial factors, in the dtype and on the device of `like` [...]."""

    @abstractmethod
    def update_sticks(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> FeatureFactors:
        """The optimal q(pi) given q(h) and the expected numbers [K] of rows with each feature, of `total` rows.

        a and b are affine in these numbers, so that those of minibatches average to those of all rows. The update
        decreases neither the bound below nor any other term.
        """

    @abstractmethod
    def update_concentration(self, q: FeatureFactors) -> FeatureFactors:
        """The optimal q(h) given q(pi); the update decreases neither the bound nor any other term."""

    def update(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> FeatureFactors:
        """Update q(pi), then q(h), from expected counts [K] of `total` rows."""
        return self.update_concentration(self.update_sticks(q, expected, total))

    @abstractmethod
    def log_odds(self, q: FeatureFactors) -> Tensor:
        """The prior's term in the log odds [K] of a feature: (a bound of) E log pi_k - E log(1 - pi_k)."""

    @abstractmethod
    def bound(self, q: FeatureFactors, expected: Tensor, total: float | Tensor) -> Tensor:
        """(A lower bound of) E log p(Z, pi, h) - E log q(pi) q(h) [] for expected counts [K] of `total` rows."""

    def mean_hyper(self, q: FeatureFactors) -> Hyper:
        """Expected hyperparameters, each []."""
        return {"concentration": q.concentration[0] / q.concentration[1]}

    # -- small variance ------------------------------------------------------------------------------------------------

    def price(self, penalty: float | Tensor, num_features: int) -> float | Tensor:
        """The cost Lambda(K) [] of K features in the small-variance limit; it never falls with K."""
        return penalty * num_features


def slice_between(
    value: Tensor, low: Tensor, high: Tensor, power: Tensor, fails: Tensor, generator: torch.Generator
) -> Tensor:
    """An elementwise slice step [K] for the density prop. to x^power (1 - x)^fails d log x on (low, high).

    The level is uniform below the density at `value` [K]; the interval of proposals shrinks towards `value`.
    """
    # u = log x; if low is 0, the left end is so far that the probability beyond it is below rounding
    u, top = value.log(), high.log()
    bottom = torch.where(low > 0, low.clamp(min=_TINY).log(), torch.minimum(u, top) - _FAR / power.clamp(min=1e-3))

    def log_density(at: Tensor) -> Tensor:
        return power * at + fails * (-torch.expm1(at)).clamp(min=_TINY).log()

    level = log_density(u) + uniforms(u.shape, generator).to(u).clamp(min=_TINY).log()
    waiting, result = torch.ones_like(u, dtype=torch.bool), u
    for step in count():
        if host.looks(u, step) and not bool(waiting.any()):
            break
        proposal = bottom + (top - bottom) * uniforms(u.shape, generator).to(u)
        inside = log_density(proposal) >= level
        result = torch.where(waiting & inside, proposal, result)
        waiting = waiting & ~inside & (top - bottom > _NARROW)
        below = proposal < u
        bottom, top = torch.where(below, proposal, bottom), torch.where(below, top, proposal)
    return result.exp()


_TINY = 1e-300
_FAR = 80.0  # in units of 1 / power, at which the density has fallen by e^80
_NARROW = 1e-13
