"""The interface of an observation family: one conjugate exponential family, read by every backend.

    log p(x | theta) = <statistics(x), t(theta)> + log_base_measure(x)
    p(theta | chi)   = exp(<chi, t(theta)> - log_partition(chi)),      posterior  chi = prior() + sum of statistics

A family states its prior, its statistics, their normalizers and its two densities; everything else (predictive,
block marginal, expected log density, KL) follows, and is overridden only where a closed form is faster or stabler.
Gaussian families take the statistics of x - loc, so that nothing cancels for data far from zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..config import Config
from ..distributions.sampling import draw

__all__ = [
    "Likelihood",
    "Parameters",
    "Sample",
    "check_counts",
    "column_means",
    "column_variances",
    "hyperparameter",
    "row_chunks",
]

Parameters = dict[str, Tensor]
"""The parameters of K components in common form, each [K, ...]; for instance {"loc": [K, D], "precision": [K, D]}."""

Sample = Callable[[str, Any], Tensor]
"""What gives a parameter its value: (name, distribution) -> value, such as `pyro.sample`."""


class Likelihood(Config, ABC):
    """A conjugate exponential family for the rows of X [N, D]; S is the length of its statistics.

    What a new family must define is abstract here. `testing.check_likelihood` checks all of it on a data set.
    """

    # -- what a family defines ------------------------------------------------------------------------------------

    def resolve(self, X: Tensor) -> Self:
        """A copy in which every hyperparameter left as None is set from the data; tensors take X's dtype, device."""
        return self

    def check(self, X: Tensor) -> None:
        """Raise ValueError, naming the value found, if a row of X is outside the support."""

    @abstractmethod
    def prior(self) -> Tensor:
        """Natural hyperparameters chi0 [S] of a resolved family."""

    @abstractmethod
    def statistics(self, X: Tensor) -> Tensor:
        """Additive statistics [N, S] of the rows, counts included."""

    @abstractmethod
    def log_base_measure(self, X: Tensor) -> Tensor:
        """log h(x) [N]."""

    @abstractmethod
    def log_partition(self, chi: Tensor) -> Tensor:
        """A(chi) [...] of hyperparameters [..., S]: the log normalizer of the conjugate prior."""

    @abstractmethod
    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        """The conjugate density of hyperparameters [..., S] as a program: `sample(name, distribution)` gives each
        parameter. With `pyro.sample` it is the prior in a model; `draw` below uses it for posterior draws."""

    @abstractmethod
    def distribution(self, parameters: Parameters) -> Distribution:
        """p(x | theta): batch shape [...] of the parameters, event shape [D]."""

    # -- what a family defines for the small-variance limit ------------------------------------------------------
    # A Bregman divergence is linear in x:  D(x, mu) = base(x) - <x, slope(mu)> + offset(mu).
    # Rows, means and sums are in `coordinates` throughout; the default divergence is |x - mu|^2 / 2 there.

    def coordinates(self, X: Tensor) -> Tensor:
        """The rows [N, D] as the divergence takes them: centred and whitened for a Gaussian, as they are for counts."""
        raise NotImplementedError(f"{type(self).__name__} defines no divergence, so SmallVariance cannot use it.")

    def from_coordinates(self, means: Tensor) -> Tensor:
        """Means [K, D] in the units of the data."""
        return means

    def divergence_terms(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """slope [K, D] and offset [K] of the divergence at the means [K, D]."""
        return means, means.square().sum(-1) / 2

    def divergence_base(self, X: Tensor) -> Tensor:
        """base(x) [N], which makes D(x, x) = 0."""
        return X.square().sum(-1) / 2

    def centers(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Minimizers [K, D] of the summed divergence from sums of rows [K, D] and numbers of rows [K].

        No row at all has the origin for its centre.
        """
        return sums / counts.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-1)

    def pseudo_observation(self) -> tuple[Tensor | None, float]:
        """(row [D], weight): the prior as `weight` copies of one row, which every centre includes ("smoothed").

        (None, 0.0) where the centres need no prior. Each component then pays `weight * D(row, mu_k)`.
        """
        return None, 0.0

    # -- what follows ------------------------------------------------------------------------------------------

    def divergence(self, X: Tensor, means: Tensor) -> Tensor:
        """D(x_n, mu_k) [N, K] of rows and means in `coordinates`."""
        slope, offset = self.divergence_terms(means)
        return torch.addmm(offset + self.divergence_base(X).unsqueeze(-1), X, slope.T, alpha=-1)

    def weighted_statistics(self, X: Tensor, responsibilities: Tensor) -> Tensor:
        """sum_n r_nk statistics(x_n), [K, S], from responsibilities [N, K]; chunks are added up in double precision."""
        total = X.new_zeros(responsibilities.shape[1], len(self.prior()), dtype=torch.float64)
        for rows in row_chunks(X, total.shape[1] + total.shape[0]):
            total += responsibilities[rows].T @ self.statistics(X[rows])
        return total.to(X.dtype)

    def summed_statistics(self, X: Tensor, assignments: Tensor, num_components: int) -> Tensor:
        """Sums [K, S] of the statistics over the rows of each component, from assignments [N] in 0..K-1.

        A product with one-hot rows: unlike `index_add_` it is the same in every run on a GPU.
        """
        total = X.new_zeros(num_components, len(self.prior()), dtype=torch.float64)
        labels = torch.arange(num_components, device=X.device)
        for rows in row_chunks(X, total.shape[1] + num_components):
            members = (assignments[rows] == labels.unsqueeze(1)).to(X.dtype)
            total += members @ self.statistics(X[rows])
        return total.to(X.dtype)

    def mean_parameters(self, chi: Tensor) -> Tensor:
        """E[t(theta)] [..., S] under hyperparameters [..., S]: the gradient of `log_partition`."""
        with torch.enable_grad():
            chi = chi.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.log_partition(chi).sum(), chi)
        return gradient

    def draw(self, chi: Tensor, generator: torch.Generator) -> Parameters:
        """Parameters of K components from hyperparameters [K, S]."""
        return self.parameters(chi, lambda name, distribution: draw(distribution, generator))

    def log_density(self, X: Tensor, parameters: Parameters) -> Tensor:
        """log p(x_n | theta_k) [N, K]. A family whose t(theta) is short overrides it by `linear_log_density`."""
        distribution = self.distribution(parameters)
        width = sum(value.numel() for value in parameters.values())
        return torch.cat([distribution.log_prob(X[rows].unsqueeze(1)) for rows in row_chunks(X, width)])

    def linear_log_density(self, X: Tensor, natural: Tensor) -> Tensor:
        """<statistics(x_n), t_k> + log h(x_n) [N, K] for natural parameters t [K, S], or their expectations."""
        return torch.cat(
            [
                torch.addmm(self.log_base_measure(X[rows]).unsqueeze(1), self.statistics(X[rows]), natural.T)
                for rows in row_chunks(X, natural.shape[1])
            ]
        )

    def expected_log_density(self, X: Tensor, chi: Tensor) -> Tensor:
        """E log p(x_n | theta_k) [N, K] under hyperparameters [K, S]."""
        return self.linear_log_density(X, self.mean_parameters(chi))

    def log_predictive(self, X: Tensor, chi: Tensor) -> Tensor:
        """log of the integral of p(x_n | theta) p(theta | chi_k), [N, K], under hyperparameters [K, S].

        A(chi + statistics(x)) - A(chi) + log h(x), in double precision because A grows with the number of points.
        """
        exact = chi.double()
        log_partition = self.log_partition(exact)
        gains = [
            self.log_partition(exact + self.statistics(X[rows]).unsqueeze(1)) - log_partition
            for rows in row_chunks(X, chi.numel())
        ]
        return (torch.cat(gains) + self.log_base_measure(X).unsqueeze(1)).to(X.dtype)

    def log_marginal(self, chi: Tensor) -> Tensor:
        """log m [...] of blocks with posterior hyperparameters [..., S], without the blocks' log base measures."""
        return (self.log_partition(chi.double()) - self.log_partition(self.prior().double())).to(chi.dtype)

    def kl(self, chi: Tensor) -> Tensor:
        """KL(q_chi || prior) [...] = A(chi0) - A(chi) + <chi - chi0, E t>, in double precision: its terms cancel."""
        posterior, prior = chi.double(), self.prior().double()
        inner = ((posterior - prior) * self.mean_parameters(posterior)).sum(-1)
        return (self.log_partition(prior) - self.log_partition(posterior) + inner).to(chi.dtype)


# -- what families share -----------------------------------------------------------------------------------------------


def hyperparameter(
    name: str, value: Any, default: Any, X: Tensor, size: int | None = None, *, above: float = 0.0
) -> Tensor:
    """The argument `name` in the dtype and on the device of X: a scalar, or [size] (a scalar is repeated).

    Raises
    ------
    ValueError    unless every entry is finite and larger than `above`, and the shape is accepted.
    """
    value = default if value is None else value
    tensor = torch.as_tensor(value, dtype=X.dtype, device=X.device).detach()
    shape = () if size is None else (size,)
    if tensor.shape not in {(), shape}:
        accepted = "a number" if size is None else f"a number, or one for each of the {size} columns of X"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {accepted}.")
    if not (torch.isfinite(tensor) & (tensor > above)).all():
        domain = "finite" if above == -torch.inf else "positive" if above == 0 else f"larger than {above:g}"
        raise ValueError(f"{name} is {value!r}; it must be {domain}.")
    return tensor.expand(shape).clone()


def column_means(X: Tensor) -> Tensor:
    """Means [D] of the columns, summed in double precision."""
    return X.mean(0, dtype=torch.float64).to(X.dtype)


def column_variances(X: Tensor) -> Tensor:
    """Variances [D] of the columns; 0 for a column that is constant up to rounding."""
    scale = X.double().std(0, correction=0)
    constant = scale <= 8 * torch.finfo(X.dtype).eps * X.abs().amax(0)
    return torch.where(constant, torch.zeros_like(scale), scale).square().to(X.dtype)


def check_counts(X: Tensor, family: str) -> None:
    """Raise ValueError unless X holds whole numbers from 0 up."""
    for wrong, fault in ((X < 0, "negative"), (X.round() != X, "not a whole number")):
        if wrong.any():
            row, column = torch.nonzero(wrong)[0].tolist()
            raise ValueError(
                f"X has a value that is {fault}: {X[row, column].item()} in row {row}, column {column}. "
                f"{family} accepts counts 0, 1, 2, ...; use a Gaussian family for other data."
            )


def row_chunks(X: Tensor, width: int) -> Iterator[slice]:
    """Slices of the rows of X, so that an array of `width` numbers for each row fits a cache, or a GPU."""
    step = max(1, (2**25 if X.is_cuda else 2**18) // max(1, width))
    # one empty chunk for no rows, so that results have their shape
    yield from (slice(start, start + step) for start in range(0, max(1, len(X)), step))
