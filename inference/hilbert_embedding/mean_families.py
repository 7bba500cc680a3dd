"""Functions of a likelihood that kernel mean embeddings use: its components in forms with integrals in closed form.

Each is a generic function, for which a user's likelihood can register an implementation: `function.register(Family,
answer)`. A likelihood without any is embedded by random features of rows drawn from its components. Parameters are in
common form, each [T, ...]; all results are in double precision.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ...models.likelihoods import (
    BernoulliBeta,
    DiagonalGaussian,
    FullGaussian,
    Likelihood,
    MultinomialDirichlet,
    Parameters,
    PoissonGamma,
    SphericalGaussian,
)


def answers(question: Any, family: Likelihood) -> bool:
    """Whether a likelihood, or one of its base classes, has an implementation of a function of this file."""
    answer, default = question.dispatch(type(family)), question.dispatch(object)
    return answer is not default


# -- in closed form ----------------------------------------------------------------------------------------------------


@singledispatch
def gaussian_moments(family: Likelihood, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Means [T, D] and covariances of Gaussian components, [T, D] where they are diagonal, else [T, D, D]."""
    raise NotImplementedError(f"{type(family).__name__} has no Gaussian components.")


@gaussian_moments.register
def _(family: SphericalGaussian, parameters: Parameters) -> tuple[Tensor, Tensor]:
    loc = parameters["loc"].double()
    return loc, family.variance.double().expand_as(loc)


@gaussian_moments.register
def _(family: DiagonalGaussian, parameters: Parameters) -> tuple[Tensor, Tensor]:
    return parameters["loc"].double(), 1 / parameters["precision"].double()


@gaussian_moments.register
def _(family: FullGaussian, parameters: Parameters) -> tuple[Tensor, Tensor]:
    factor = torch.linalg.cholesky(parameters["precision"].double())
    return parameters["loc"].double(), torch.cholesky_inverse(factor)


@singledispatch
def column_probabilities(family: Likelihood, parameters: Parameters) -> Tensor:
    """P(x_d = v) [D, T, V] of components with independent counts v = 0..V-1 in columns; the tail is negligible."""
    raise NotImplementedError(f"{type(family).__name__} has no independent columns of counts.")


@column_probabilities.register
def _(family: BernoulliBeta, parameters: Parameters) -> Tensor:
    probs = parameters["probs"].double().T
    return torch.stack([1 - probs, probs], -1)


@column_probabilities.register
def _(family: PoissonGamma, parameters: Parameters) -> Tensor:
    rate = parameters["rate"].double()
    largest = rate.max()
    last = int(largest + 10 * largest.sqrt()) + 25  # the tail beyond has mass below 1e-15
    counts = torch.arange(last + 1, dtype=torch.float64, device=rate.device)
    means = rate.T.unsqueeze(-1)
    return torch.exp(torch.xlogy(counts, means) - means - torch.lgamma(counts + 1))


@singledispatch
def count_moments(family: Likelihood, parameters: Parameters, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(m [T, D], a [T, D], c []) with E x = m and E x x^T = diag(a) + c m m^T.

    A likelihood whose rows become frequencies x / sum x uses `totals` [2]: the share of rows with any count, and the
    mean of 1 / sum x over all rows (0 for rows without counts).
    """
    raise NotImplementedError(f"{type(family).__name__} has no second moments of this form.")


@count_moments.register
def _(family: BernoulliBeta, parameters: Parameters, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    probs = parameters["probs"].double()
    return probs, probs * (1 - probs), probs.new_ones(())


@count_moments.register
def _(family: PoissonGamma, parameters: Parameters, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rate = parameters["rate"].double()
    return rate, rate, rate.new_ones(())


@count_moments.register
def _(family: MultinomialDirichlet, parameters: Parameters, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E u u^T = E[1/n] diag(p) + (P(n > 0) - E[1/n]) p p^T of frequencies u = x / n."""
    probs, (some, inverse) = parameters["probs"].double(), totals.double()
    return some * probs, inverse * probs, (some - inverse) / some.square().clamp(min=torch.finfo(some.dtype).tiny)


@singledispatch
def characteristic(family: Likelihood, parameters: Parameters, frequencies: Tensor) -> Tensor:
    """E exp(i w_m^T x) [T, M], complex, from frequencies [D, M]."""
    if answers(gaussian_moments, family):
        loc, covariance = gaussian_moments(family, parameters)
        if covariance.ndim == 2:
            spread = covariance @ frequencies.square()
        else:
            spread = torch.einsum("dm,tde,em->tm", frequencies, covariance, frequencies)
        return torch.polar(torch.exp(-spread / 2), loc @ frequencies)
    columns = column_probabilities(family, parameters).to(torch.complex128)
    counts = torch.arange(columns.shape[-1], dtype=torch.float64, device=columns.device)
    found = torch.ones(columns.shape[1], frequencies.shape[1], dtype=columns.dtype, device=columns.device)
    for column, frequency in zip(columns, frequencies, strict=True):
        angles = torch.outer(counts, frequency)
        found = found * (column @ torch.polar(torch.ones_like(angles), angles))
    return found


@characteristic.register
def _(family: PoissonGamma, parameters: Parameters, frequencies: Tensor) -> Tensor:
    rate = parameters["rate"].double()
    return torch.polar(torch.exp(rate @ (frequencies.cos() - 1)), rate @ frequencies.sin())


# -- components and rows -----------------------------------------------------------------------------------------------


@singledispatch
def point_parameters(family: Any, chi: Tensor, generator: torch.Generator) -> Parameters:
    """One value of the parameters [T, ...] for each row of the hyperparameters chi [T, S].

    For our own likelihoods these are expectations, for any other a draw.
    """
    drawn: Parameters = family.draw(chi, generator)
    return drawn


@point_parameters.register
def _(family: SphericalGaussian, chi: Tensor, generator: torch.Generator) -> Parameters:
    return {"loc": family.loc + chi[:, :-1] / chi[:, -1:]}


@point_parameters.register
def _(family: DiagonalGaussian, chi: Tensor, generator: torch.Generator) -> Parameters:
    m, _, a, b = family.common(chi)
    return {"loc": family.loc + m, "precision": a / b}


@point_parameters.register
def _(family: FullGaussian, chi: Tensor, generator: torch.Generator) -> Parameters:
    m, _, nu, factor = family.common(chi)
    return {"loc": family.loc + m, "precision": nu[:, None, None] * torch.cholesky_inverse(factor)}


@point_parameters.register
def _(family: PoissonGamma, chi: Tensor, generator: torch.Generator) -> Parameters:
    return {"rate": chi[:, :-1] / chi[:, -1:]}


@point_parameters.register
def _(family: BernoulliBeta, chi: Tensor, generator: torch.Generator) -> Parameters:
    a, b = chi.chunk(2, -1)
    return {"probs": a / (a + b)}


@point_parameters.register
def _(family: MultinomialDirichlet, chi: Tensor, generator: torch.Generator) -> Parameters:
    return {"probs": chi / chi.sum(-1, keepdim=True)}
