"""Conformance of an observation family: everything that the backends rely on, checked on a data set.

The checks are identities of the interface in `models/likelihoods/base.py`, so they need no reference implementation:
a new family is right if the program that it states, the densities and the normalizers fit together.
"""

from __future__ import annotations

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

from ..models.likelihoods import Likelihood, Parameters

__all__ = ["check_likelihood"]


def check_likelihood(likelihood: Likelihood, X: Tensor, *, generator: torch.Generator | None = None) -> None:
    """Check a conjugate exponential family on rows X [N, D] of its support; a few dozen rows are enough.

    Parameters
    ----------
    likelihood : the family, hyperparameters given or None
    X : Tensor [N, D], N >= 4
    generator : source of the random splits and draws, on the device of X; None: a fixed seed

    Raises
    ------
    AssertionError    naming the method and the property that fails.

    Examples
    --------
    >>> import torch
    >>> from regbayes.models import PoissonGamma
    >>> check_likelihood(PoissonGamma(), torch.tensor([[0.0, 2.0], [1.0, 7.0], [3.0, 0.0], [0.0, 0.0]]))
    """
    generator = generator or torch.Generator(X.device).manual_seed(0)
    X = X.double()
    likelihood.check(X)
    family = likelihood.resolve(X)
    responsibilities = torch.rand(len(X), 3, generator=generator, dtype=X.dtype, device=X.device)
    chi = family.prior() + family.weighted_statistics(X, responsibilities)

    _check_resolve(likelihood, family, X)
    _check_statistics(family, X, responsibilities, generator)
    _check_conjugacy(family, X, generator)
    _check_predictive(family, X, chi)
    _check_expectations(family, X, chi)
    _check_densities(family, X, chi, generator)
    _check_draws(family, X, chi, generator)
    _check_program(family, generator)
    _check_single_precision(likelihood, X)
    _check_divergence(family, X)


def _check_resolve(likelihood: Likelihood, family: Likelihood, X: Tensor) -> None:
    """Every hyperparameter becomes a tensor like X, and resolving again changes nothing."""
    again = family.resolve(X[: len(X) // 2])
    for name, value in family.get_params(deep=False).items():
        _require(isinstance(value, Tensor), f"resolve left {name} as {value!r}; expected a tensor.")
        _require(value.dtype == X.dtype and value.device == X.device, f"resolve gave {name} another dtype or device.")
        _require(torch.equal(value, getattr(again, name)), f"resolving a resolved family changed {name}.")
    _require(likelihood.resolve(X) is not likelihood, "resolve changed the family in place; expected a copy.")


def _check_statistics(family: Likelihood, X: Tensor, responsibilities: Tensor, generator: torch.Generator) -> None:
    """Shapes, and the sums over components against plain sums."""
    statistics, prior = family.statistics(X), family.prior()
    _require(statistics.shape == (len(X), *prior.shape), "statistics and prior differ in length.")
    _require(family.log_base_measure(X).shape == (len(X),), "log_base_measure has not the shape [N].")
    _close(family.weighted_statistics(X, responsibilities), responsibilities.T @ statistics, "weighted_statistics")
    assignments = torch.randint(4, (len(X),), generator=generator, device=X.device)
    assignments[assignments == 2] = 3  # one component stays empty
    plain = torch.stack([statistics[assignments == k].sum(0) for k in range(4)])
    _close(family.summed_statistics(X, assignments, 4), plain, "summed_statistics")


def _check_conjugacy(family: Likelihood, X: Tensor, generator: torch.Generator) -> None:
    """Bayes: log p(x|theta) + log p(theta|chi) - log p(theta|chi + statistics(x)) = A(chi + ..) - A(chi) + log h(x)."""
    prior = family.prior()
    parameters = family.draw(prior.expand(4, -1), generator)
    posterior = prior + family.statistics(X)
    evidence = family.log_partition(posterior) - family.log_partition(prior) + family.log_base_measure(X)
    log_prior = _log_conjugate(family, prior.expand(4, -1), parameters)
    log_posterior = torch.stack([_log_conjugate(family, chi.expand(4, -1), parameters) for chi in posterior])
    log_density = family.distribution(parameters).log_prob(X.unsqueeze(1))
    terms = torch.stack([log_density.abs().amax(), log_prior.abs().amax(), log_posterior.abs().amax()])
    actual = log_density + log_prior - log_posterior
    _close(
        actual, evidence.unsqueeze(1).expand(-1, 4), "Bayes' rule for parameters, distribution, log_partition", terms
    )


def _check_predictive(family: Likelihood, X: Tensor, chi: Tensor) -> None:
    """The predictive is the generic one, and a chain of predictives gives the block marginal in any order."""
    _close(family.log_predictive(X, chi), Likelihood.log_predictive(family, X, chi), "log_predictive")
    for order, name in ((X, "in order"), (X.flip(0), "in reverse")):
        before = family.statistics(order).cumsum(0) - family.statistics(order)
        chain = family.log_predictive(order, family.prior() + before).diagonal().sum()
        block = family.log_marginal(family.prior() + family.statistics(order).sum(0)) + family.log_base_measure(X).sum()
        _close(chain, block, f"log_marginal against the chain of predictives {name}")


def _check_expectations(family: Likelihood, X: Tensor, chi: Tensor) -> None:
    """Expectations against the gradient of the normalizer; KL is zero at the prior only; batch shapes."""
    _close(family.mean_parameters(chi), Likelihood.mean_parameters(family, chi), "mean_parameters")
    _close(family.expected_log_density(X, chi), Likelihood.expected_log_density(family, X, chi), "expected_log_density")
    _close(family.kl(chi), Likelihood.kl(family, chi), "kl")
    _require(bool((family.kl(chi) >= -1e-8).all()), "kl is negative.")
    _close(family.kl(family.prior()), X.new_zeros(()), "kl at the prior")
    batch = torch.stack([chi, chi.flip(0)])
    for method in (family.log_partition, family.mean_parameters, family.kl, family.log_marginal):
        _close(method(batch)[1, 0], method(chi[-1]), f"{method.__name__} under batches of hyperparameters")


def _check_densities(family: Likelihood, X: Tensor, chi: Tensor, generator: torch.Generator) -> None:
    """log_density against the distribution, also with parameters indexed as in a program."""
    parameters = family.draw(chi, generator)
    log_density = family.log_density(X, parameters)
    _close(log_density, Likelihood.log_density(family, X, parameters), "log_density")
    enumerated = torch.arange(len(chi), device=X.device).unsqueeze(1)  # [T, 1], as an enumerated site has it
    own = family.distribution({name: value[enumerated] for name, value in parameters.items()})
    _require(own.event_shape == X.shape[1:], f"distribution has event shape {own.event_shape}; expected [D].")
    _close(own.log_prob(X), log_density.T, "distribution of enumerated parameters")


def _check_draws(family: Likelihood, X: Tensor, chi: Tensor, generator: torch.Generator) -> None:
    """Averages over draws, within five standard errors of the expected log density and of the KL divergence."""
    num_draws, rows = 2000, X[:5]
    many = chi.repeat_interleave(num_draws, 0)
    draws = family.log_density(rows, family.draw(many, generator)).view(len(rows), len(chi), num_draws)
    expected = family.expected_log_density(rows, chi)
    error = draws.std(-1) / num_draws**0.5
    rounding = 1e-8 * (1 + expected.abs())
    worst = ((draws.mean(-1) - expected).abs() / (5 * error + rounding)).amax()
    _require(bool(worst <= 1), f"draw: mean log density lies {5 * worst.item():.1f} standard errors off.")
    parameters = family.draw(many, generator)
    gain = _log_conjugate(family, many, parameters) - _log_conjugate(family, family.prior().expand_as(many), parameters)
    gain = gain.view(len(chi), num_draws)
    worst = ((gain.mean(-1) - family.kl(chi)).abs() / (5 * gain.std(-1) / num_draws**0.5 + 1e-8)).amax()
    _require(
        bool(worst <= 1), f"kl: lies {5 * worst.item():.1f} standard errors off the mean log ratio of the densities."
    )
    state = generator.get_state()
    first = family.draw(chi, generator)
    second = family.draw(chi, generator.set_state(state))
    same = all(torch.equal(first[name], second[name]) for name in first)
    _require(same, "draw is not a function of the generator's state.")


def _check_program(family: Likelihood, generator: torch.Generator) -> None:
    """The prior as a Pyro program under a plate: sites named as the parameters, with the density of the draws."""
    prior = family.prior()
    parameters = family.draw(prior.expand(3, -1), generator)

    def program() -> Parameters:
        with pyro.plate("components", 3):
            return family.parameters(prior, pyro.sample)

    with torch.random.fork_rng(devices=[prior.device] if prior.is_cuda else []):
        free = poutine.trace(program).get_trace()
    returned: Parameters = free.nodes["_RETURN"]["value"]
    for name, value in returned.items():
        _require(name in free.nodes, f"parameters: {name} is not the name of a site.")
        _require(value.shape == parameters[name].shape, f"parameters: {name} has not the shape [K, ...] under a plate.")
    trace = poutine.trace(poutine.condition(program, data=parameters)).get_trace()
    expected = _log_conjugate(family, prior.expand(3, -1), parameters).sum()
    _close(torch.as_tensor(trace.log_prob_sum()), expected, "density of the Pyro program")


def _check_single_precision(likelihood: Likelihood, X: Tensor) -> None:
    """The same hyperparameters and rows in single and in double precision."""
    single = X.float()
    family = likelihood.resolve(single)
    double = family.resolve(single.double())
    chi = family.prior() + family.weighted_statistics(single, single.new_ones(len(X), 1))
    _require(chi.dtype == torch.float32, f"chi of single-precision rows is {chi.dtype}.")
    for name in ("expected_log_density", "log_predictive"):
        actual = getattr(family, name)(single, chi)
        _require(actual.dtype == torch.float32, f"{name} of single-precision rows is {actual.dtype}.")
        _close(actual.double(), getattr(double, name)(single.double(), chi.double()), f"{name} in float32", tol=1e-4)


def _check_divergence(family: Likelihood, X: Tensor) -> None:
    """D(x, x) = 0 <= D(x, mu), and the centres minimize the summed divergence; skipped if there is none."""
    try:
        U = family.coordinates(X)
    except NotImplementedError:
        return
    _close(family.from_coordinates(U), X, "from_coordinates of coordinates")
    points = family.centers(U, U.new_ones(len(U)))
    divergence = family.divergence(U, points)
    _close(divergence.diagonal(), U.new_zeros(len(U)), "divergence of a row from itself", divergence.abs().amax())
    _require(bool((divergence >= -1e-8 * (1 + divergence.abs().amax())).all()), "divergence is negative somewhere.")

    row, weight = family.pseudo_observation()
    sums, count, rows, weights = U.sum(0), float(len(U)), U, U.new_ones(len(U))
    if row is not None:
        sums, count = sums + weight * row, count + weight
        rows, weights = torch.cat([U, row.unsqueeze(0)]), torch.cat([weights, weights.new_full((1,), weight)])
    center = family.centers(sums.unsqueeze(0), sums.new_full((1,), count))
    lowest = weights @ family.divergence(rows, center)
    steps = torch.logspace(-4, -1, 4, dtype=U.dtype, device=U.device)
    others = (center + steps[:, None, None] * (points - center)).flatten(0, 1)
    rounding = 1e-11 * (1 + weights @ family.divergence(rows, points).abs().clamp(max=1e6).amax(1))
    excess = (weights @ family.divergence(rows, others) - lowest).amin()
    _require(
        bool(excess >= -rounding), f"centers: a neighbour has a smaller summed divergence by {-excess.item():.1e}."
    )


def _log_conjugate(family: Likelihood, chi: Tensor, parameters: Parameters) -> Tensor:
    """log p(theta | chi) [K] of the program `parameters`."""
    log_probs = []

    def sample(name: str, distribution: Distribution) -> Tensor:
        log_probs.append(distribution.log_prob(parameters[name]))
        return parameters[name]

    family.parameters(chi, sample)
    return torch.stack(log_probs).sum(0)


def _close(actual: Tensor, expected: Tensor, what: str, terms: Tensor | None = None, tol: float = 1e-8) -> None:
    """Equal up to `tol` of the largest number that enters."""
    _require(actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}.")
    largest = torch.cat([expected.abs().flatten(), (expected if terms is None else terms).abs().flatten()]).amax()
    error = (actual - expected).abs().amax()
    _require(
        bool(error <= tol * (1 + largest)),
        f"{what}: off by {error.item():.1e} where values reach {largest.item():.1e}.",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
