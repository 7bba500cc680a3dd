"""Conjugate exponential families, which Gibbs, SVI and SmallVariance need.

    log p(x | theta) = <statistics(x), t(theta)> + log_base_measure(x)
    p(theta | chi)   = exp(<chi, t(theta)> - log_partition(chi)),      posterior  chi = prior() + sum of statistics

A family defines its prior, its statistics, their normalizers and its two densities. Predictive densities, block
marginals, expected log densities and KL follow from these; a family overrides one only if a closed form is faster or
more accurate. Gaussian families take the statistics of x - loc, so that nothing cancels for data far from zero.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ..sparse import Rows, entries_sum, group_sums, weighted_sums
from ..sums import all_sum, row_chunks
from .base import Likelihood, Parameters


class ExponentialFamily(Likelihood):
    """A conjugate exponential family for the rows of X [N, D]; S is the length of its statistics.

    What a new family must define is abstract here and in `Likelihood`.
    """

    # -- methods that a family defines ---------------------------------------------------------------------------------

    @abstractmethod
    def prior(self) -> Tensor:
        """Natural hyperparameters chi0 [S] of a resolved family."""

    @abstractmethod
    def statistics(self, X: Rows) -> Tensor:
        """Additive statistics [N, S] of the rows, including the number of rows."""

    @abstractmethod
    def log_base_measure(self, X: Rows) -> Tensor:
        """log h(x) [N]."""

    @abstractmethod
    def log_partition(self, chi: Tensor) -> Tensor:
        """A(chi) [...] of hyperparameters [..., S]: the log normalizer of the conjugate prior."""

    # -- methods that a family defines for the small-variance limit ----------------------------------------------------
    # A Bregman divergence is linear in x:  D(x, mu) = base(x) - <x, slope(mu)> + offset(mu).
    # Rows, means and sums are in `coordinates` throughout; the default divergence is |x - mu|^2 / 2 there.

    def coordinates(self, X: Rows) -> Rows:
        """The rows [N, D] as the divergence takes them: centred and whitened for a Gaussian, unchanged for most others.

        By default they are unchanged if the family has its own `divergence_terms`.

        Raises
        ------
        NotImplementedError    if the family defines no divergence.
        """
        if type(self).divergence_terms is ExponentialFamily.divergence_terms:
            raise NotImplementedError(
                f"{type(self).__name__} defines no divergence, so SmallVariance cannot use it. Give it "
                "`divergence_terms` and `divergence_base`, or `coordinates` in which it is |x - mu|^2 / 2, or fit with "
                "Gibbs() or SVI()."
            )
        return X

    def from_coordinates(self, means: Tensor) -> Tensor:
        """Means [K, D] in the units of the data."""
        return means

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """slope [K, D] and offset [K] of the divergence at the means [K, D]."""
        return means, means.square().sum(-1) / 2

    def divergence_base(self, X: Rows) -> Tensor:
        """base(x) [N], which makes D(x, x) = 0."""
        return entries_sum(X, torch.square) / 2

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Minimizers [K, D] of the summed divergence, from sums of rows [K, D] and numbers of rows [K].

        Without rows the centre is the origin.
        """
        return sums / counts.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-1)

    def pseudo_observation(self) -> tuple[Tensor | None, float]:
        """(row [D], weight): the prior as `weight` copies of one row, which every centre includes ("smoothed").

        (None, 0.0) if the centres need no prior. Each component adds `weight * D(row, mu_k)` to the objective.
        """
        return None, 0.0

    # -- methods with defaults -----------------------------------------------------------------------------------------

    def divergence(self, X: Rows, means: Tensor) -> Tensor:
        """D(x_n, mu_k) [N, K] of rows and means in `coordinates`."""
        slope, offset = self.divergence_terms(means)
        return torch.addmm(offset + self.divergence_base(X).unsqueeze(-1), X, slope.T, alpha=-1)

    def founding_divergence(self, X: Rows) -> Tensor:
        """D(x, mu) + w D(row, mu) [N] of each x and the pseudo-observation, at their centre mu; X in `coordinates`."""
        return X.new_zeros(len(X))

    def weighted_statistics(self, X: Rows, responsibilities: Tensor) -> Tensor:
        """sum_n r_nk statistics(x_n), [K, S], from responsibilities [N, K]; chunks are summed in double precision."""
        return all_sum(weighted_sums(X, responsibilities, self.statistics)).to(X.dtype)

    def summed_statistics(self, X: Rows, assignments: Tensor, num_components: int) -> Tensor:
        """Sums [K, S] of the statistics over the rows of each component, from assignments [N] in 0..K-1."""
        return all_sum(group_sums(X, assignments, num_components, self.statistics)).to(X.dtype)

    def mean_parameters(self, chi: Tensor) -> Tensor:
        """E[t(theta)] [..., S] under hyperparameters [..., S]: the gradient of `log_partition`."""
        with torch.enable_grad():
            chi = chi.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.log_partition(chi).sum(), chi)
        return gradient

    def natural(self, parameters: Parameters) -> Tensor | None:
        """Natural parameters t(theta) [K, S] of K components; None if log densities do not come from statistics."""
        return None

    def linear_log_density(self, X: Rows, natural: Tensor) -> Tensor:
        """<statistics(x_n), t_k> + log h(x_n) [N, K] for natural parameters t [K, S], or their expectations."""
        chunks = (X[rows] for rows in row_chunks(X, natural.shape[1]))
        columns = natural.T.contiguous()  # for few columns the product takes half the time
        parts = [torch.addmm(self.log_base_measure(x).unsqueeze(1), self.statistics(x), columns) for x in chunks]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def expected_log_density(self, X: Rows, chi: Tensor) -> Tensor:
        """E log p(x_n | theta_k) [N, K] under hyperparameters [K, S]."""
        return self.linear_log_density(X, self.mean_parameters(chi))

    def log_predictive(self, X: Rows, chi: Tensor) -> Tensor:
        """log of the integral of p(x_n | theta) p(theta | chi_k), [N, K], for hyperparameters chi [K, S].

        It is A(chi + statistics(x)) - A(chi) + log h(x), in double precision because A grows with the number of points.
        """
        exact, parts = chi.double(), (X[rows] for rows in row_chunks(X, chi.numel()))
        after = torch.cat([self.log_partition(exact + self.statistics(x).unsqueeze(1)) for x in parts])
        return (after - self.log_partition(exact) + self.log_base_measure(X).unsqueeze(1)).to(X.dtype)

    def log_repeat(self, X: Rows) -> Tensor:
        """The log predictive [N] of x_n in a component with x_n as its only point, in double precision."""
        prior, gains = self.prior().double(), []
        for rows in row_chunks(X, len(prior)):
            statistics = self.statistics(X[rows]).double()
            gains.append(self.log_partition(prior + 2 * statistics) - self.log_partition(prior + statistics))
        return torch.cat(gains) + self.log_base_measure(X)

    def log_marginal(self, chi: Tensor) -> Tensor:
        """Log marginal density [...] of blocks with posterior hyperparameters [..., S], without log base measures."""
        prior = self.prior().double()
        log_partition = self.log_partition(torch.cat([chi.double().reshape(-1, len(prior)), prior.unsqueeze(0)]))
        return (log_partition[:-1] - log_partition[-1]).to(chi.dtype).view(chi.shape[:-1])

    def kl(self, chi: Tensor) -> Tensor:
        """KL(q_chi || prior) [...] = A(chi0) - A(chi) + <chi - chi0, E t>, in double precision, since terms cancel."""
        posterior, prior = chi.double(), self.prior().double()
        inner = ((posterior - prior) * self.mean_parameters(posterior)).sum(-1)
        return (self.log_partition(prior) - self.log_partition(posterior) + inner).to(chi.dtype)
