"""The interface of a prior over partitions, for the Pyro program, every kernel and the exact references.

    urn          a block of size m has weight exp(log_sizes[m]), a new one exp(log_new[K])      collapsed scan
    partition    log p(n_1, ..., n_K), the EPPF                                 split-merge, log joint, enumeration
    sticks       v_k ~ Beta(a_k, b_k),  pi_k = v_k prod_{j<k} (1 - v_j)         program, blocked scan, SVI
    rest         new blocks have weights of density mass x^(-1-exponent) e^(-x)           slice scan
    price        Lambda(K), the cost of K components                            small variance

A prior defines `hyperpriors`, `urn` and `log_partition`; these suffice for the collapsed scan and
small variance. `sticks` is needed by everything with T components, `draw_rest` by the slice scan. All other methods
have defaults, and are overridden if there is a closed form. (docs/derivations/priors, "The interface")
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..distributions.sampling import draw
from .hyper import Hyper as Hyper
from .hyper import HyperPrior, hyper_product
from .hyper import gamma_law as gamma_law
from .sticks import log_beta, log_labelled_prior


class StickExpectations(NamedTuple):
    """Expectations under q(h) that SVI needs, of the prior's Beta parameters of T - 1 sticks."""

    a: Tensor  # [T - 1]
    b: Tensor  # [T - 1]
    log_normalizer: Tensor  # [] E sum_k log B(a_k, b_k)
    kl: Tensor  # [] KL(q(h) || p(h))
    hyper: Hyper  # means


class PartitionPrior(HyperPrior):
    """A prior over partitions of Gibbs type: weights depend only on block sizes and on (N, K)."""

    # -- methods that a prior defines ----------------------------------------------------------------------------------

    @abstractmethod
    def urn(self, h: Hyper, num_data: int, capacity: int) -> tuple[Tensor, Tensor]:
        """Log weights of the urn for the last of N points: of a block by its size, and of a new block.

        They are [N + 1] by the size 1..N, and [capacity + 1] by the number of blocks 1..capacity; entries 0 are unused.
        """

    @abstractmethod
    def log_partition(self, counts: Tensor, h: Hyper) -> Tensor:
        """log p [] of a partition with block sizes `counts` [K] > 0."""

    # -- methods that a prior may define -------------------------------------------------------------------------------

    def sticks(self, h: Hyper, truncation: int) -> tuple[Tensor, Tensor]:
        """Beta parameters (a, b), each [..., T - 1], of the sticks; h may have values [..., 1]."""
        raise NotImplementedError(f"{self.lacks('sticks')}.")

    def sample_sticks(self, truncation: int, like: Tensor) -> Tensor:
        """Sample the sites of `sample`, and `sticks` [T - 1], which it returns, in the dtype of `like` [...]."""
        a, b = self.sticks(self.sample(like), truncation)
        with pyro.plate("sticks_plate", truncation - 1):
            return pyro.sample("sticks", dist.Beta(a.to(like), b.to(like)))

    def draw_rest(self, h: Hyper, num_components: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(exponent, mass), both [], of the density of the weights of new blocks beside K occupied ones."""
        raise NotImplementedError(f"{self.lacks('draw_rest')}.")

    def lacks(self, method: str, instead: str = "") -> str:
        """A message that the prior lacks `sticks` or `draw_rest`, and what to use `instead`; "" if it has it."""
        if self._defines(method):
            return ""
        if instead:
            return f"{type(self).__name__} defines no {method}: {instead}"
        scans = "".join(f", Gibbs(scan={scan!r})" for scan, needed in NEEDED.items() if self._defines(needed))
        return f"{type(self).__name__} defines no {method}: use Gibbs(scan='collapsed'){scans} or SmallVariance()"

    def _defines(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(PartitionPrior, method)

    def price(self, penalty: float | Tensor, num_components: int) -> float | Tensor:
        """The cost Lambda(K) [] of K components in the small-variance limit; it never falls with K."""
        return penalty * num_components

    def expected_components(self, num_data: int) -> float:
        """E[K] for N points at the starting values, by a chain of urn draws."""
        h, law = self.start(torch.zeros(())), torch.ones(1, dtype=torch.float64)  # of 1..n blocks
        for n in range(1, num_data):
            sizes, new = (table.double().exp() for table in self.urn(h, n + 1, n))
            blocks = torch.arange(1, n + 1, dtype=torch.float64)
            # sizes have weights proportional to n_k - 1, beside the weight of size one
            old = (sizes[2] - sizes[1]) * (n - blocks) + sizes[1] * blocks
            share = law * new[1:] / (old + new[1:])
            law = torch.cat([law - share, share.new_zeros(1)]) + torch.cat([share.new_zeros(1), share])
        return float(law @ torch.arange(1, num_data + 1, dtype=torch.float64))

    # -- defaults: hyperparameters -------------------------------------------------------------------------------------

    def draw(self, h: Hyper, counts: Tensor, generator: torch.Generator) -> Hyper:
        """Draw new hyperparameters given a partition with block sizes `counts` [K], by slice sampling with the EPPF."""
        return self.slide(h, lambda at: self.log_partition(counts, at), generator)

    def draw_truncated(self, h: Hyper, counts: Tensor, generator: torch.Generator) -> Hyper:
        """As `draw`, given the counts [T] of the truncated model's components, with sticks integrated out."""
        return self.slide(h, lambda at: log_labelled_prior(counts, *self.sticks(at, len(counts))), generator)

    def log_expected_weights(self, counts: Tensor, h: Hyper) -> Tensor:
        """log E[pi_k | z] [K + 1] of the infinite model from block sizes [K]; the last entry is for all new blocks."""
        K, total = len(counts), int(counts.sum())
        log_sizes, log_new = self.urn(h, total + 1, K)
        return torch.cat([log_sizes[counts.long()], log_new[K : K + 1]]).log_softmax(0)

    # -- defaults: q(h) of SVI on a grid of prior quantiles, a single point if no hyperparameter has a law -------------

    def initial(self, like: Tensor) -> Tensor:
        """The initial q(h) [H + 1, G]: grid values of the H hyperparameters, and their probabilities."""
        laws, start = self.laws(like), self.start(like)
        axes = [start[name].reshape(1) if law is None else _quantiles(law) for name, law in laws.items()]
        values = hyper_product(axes, like.new_empty(0, dtype=torch.float64))
        return torch.cat([values, values.new_full((1, values.shape[1]), 1 / values.shape[1])])

    def update(self, q: Tensor, log_v: Tensor, log_rest: Tensor) -> Tensor:
        """The optimal q(h) given E log v_k and E log(1 - v_k), each [T - 1]:  log q_g = log p_g + E log p(v | h_g)."""
        a, b = self._grid_sticks(q, len(log_v) + 1)
        scores = ((a - 1) * log_v + (b - 1) * log_rest - log_beta(a, b)).sum(1)
        return torch.cat([q[:-1], scores.softmax(0).unsqueeze(0)])

    def expect(self, q: Tensor, truncation: int) -> StickExpectations:
        """Expectations under q(h) [H + 1, G] for the sticks of T = truncation components."""
        a, b = self._grid_sticks(q, truncation)
        probabilities = q[-1]
        kl = math.log(q.shape[1]) - torch.special.entr(probabilities).sum()
        means = dict(zip(self.laws(q), q[:-1] @ probabilities, strict=True))
        log_normalizer = probabilities @ log_beta(a, b).sum(1)
        return StickExpectations(probabilities @ a, probabilities @ b, log_normalizer, kl, means)

    def _grid_sticks(self, q: Tensor, truncation: int) -> tuple[Tensor, Tensor]:
        """The Beta parameters [G, T - 1] of the sticks at each grid point."""
        a, b = self.sticks(dict(zip(self.laws(q), q[:-1].unsqueeze(-1), strict=True)), truncation)
        return a.expand(q.shape[1], -1), b.expand(q.shape[1], -1)


def _quantiles(law: Distribution) -> Tensor:
    """Midpoints [20] of twenty equally likely intervals of a law, from draws of a fixed stream."""
    device = law.mean.device
    draws = draw(law.expand((_NUM_DRAWS,)), torch.Generator(device).manual_seed(0)).sort().values
    return draws.view(_NUM_QUANTILES, -1)[:, _NUM_DRAWS // _NUM_QUANTILES // 2]


NEEDED = {"slice": "draw_rest", "blocked": "sticks"}  # the method that a scan needs of a prior beyond `urn`
_NUM_QUANTILES = 20
_NUM_DRAWS = 4000
