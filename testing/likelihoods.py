"""Conformance of an observation family: everything that the backends rely on, checked on a data set.

The checks are identities of the interfaces in `models/likelihoods/`, so they need no reference implementation: a new
family is right if its program, its densities and its normalizers fit together.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution, biject_to

from ..models import host
from ..models.arrays import as_features
from ..models.config import Config, resolved
from ..models.likelihoods import ExponentialFamily, Likelihood, Parameters, Product
from ..models.sparse import SparseRows
from .compiled_forms import check_compiled_family
from .normalization import check_mass, check_rows
from .requirements import named_errors


@host.one_thread()
def check_likelihood(likelihood: Likelihood, X: Any, *, generator: torch.Generator | None = None) -> None:
    """Check a family on rows X [N, D] of its support; a few dozen rows are enough.

    For any family it checks the program and the densities; for an `ExponentialFamily` all consequences of conjugacy
    too. The density of a family with independent columns of real or positive numbers, of numbers in the unit interval
    or of counts must have the total mass 1, at parameters drawn from the prior. This is not checked if columns depend
    on one another, their totals are given, or rows cannot be drawn, nor for more than 50 columns.

    Parameters
    ----------
    likelihood : the family; its hyperparameters may be None
    X : rows [N, D] as `fit` takes them, N >= 4; NaN where an entry is missing, if the family takes that
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
    X = as_features(X, missing=likelihood.takes_missing).to_dense().double()
    generator = generator or torch.Generator(X.device).manual_seed(0)
    likelihood.check(X)
    with named_errors(likelihood):
        _check_family(likelihood, X, generator)


def _check_family(likelihood: Likelihood, X: Tensor, generator: torch.Generator) -> None:
    before = _stored(likelihood)
    family = likelihood.resolve(X)
    changed = [name for name, now in _stored(likelihood).items() if not _is_as(before.get(name), now)]
    message = f"resolve changed {', '.join(changed)} in place; expected a copy, self.replace(...)."
    _require(not changed, message)
    _check_resolve(likelihood, family, X)
    _check_program(family, generator)
    _check_support(family, X)
    check_mass(family, X)
    if not (isinstance(likelihood, ExponentialFamily) and isinstance(family, ExponentialFamily)):
        return _check_densities(family, X, family.prior().to(X.device).expand(3, -1), generator)
    _check_shapes(family, X)
    responsibilities = torch.rand(len(X), 3, generator=generator, dtype=X.dtype, device=X.device)
    chi = family.prior() + family.weighted_statistics(X, responsibilities)
    _check_densities(family, X, chi, generator)
    _check_statistics(family, X, responsibilities, generator)
    _check_conjugacy(family, X, generator)
    _check_closed_forms(family, X, chi)
    _check_chain(family, X)
    _check_draws(family, X, chi, generator)
    _check_single_precision(likelihood, X)
    _check_divergence(family, X, generator)
    _check_sparse(likelihood, family, X, chi)
    check_compiled_family(likelihood, X)


# -- any family ------------------------------------------------------------------------------------------------------


def _check_resolve(likelihood: Likelihood, family: Likelihood, X: Tensor) -> None:
    """Require that `resolve` makes every hyperparameter a tensor like X [N, D], within the family's own domains.

    Fields of float, int, text and lists of columns stay as they are. Resolving again must change nothing, and all that
    was found must be in fields.
    """
    again = _hyperparameters(family.resolve(X[: len(X) // 2]))
    for name, value in _hyperparameters(family).items():
        plain = value if isinstance(value, list) else [value]
        if all(isinstance(number, int | float | str) for number in plain):
            _require(value == again[name], f"resolving a resolved family changed {name}.")
            continue
        _require(isinstance(value, Tensor), f"resolve left {name} as {value!r}; expected a tensor.")
        _require(value.dtype == X.dtype and value.device == X.device, f"resolve gave {name} another dtype or device.")
        _require(torch.equal(value, again[name]), f"resolving a resolved family changed {name}.")
    try:
        kept = type(family)(**family.get_params(deep=False)).prior()
    except Exception:  # without what it needs a family may raise anything
        kept = X[:0]
    whole = torch.equal(kept, family.prior())
    _require(whole, "resolve stores hyperparameters outside of the fields, which files would lose.")
    try:
        resolved(likelihood, X)
    except ValueError as error:
        raise AssertionError(str(error)) from error
    if "weights" in inspect.signature(likelihood.resolve).parameters:
        _check_weights(likelihood, X)


def _check_weights(likelihood: Likelihood, X: Tensor) -> None:
    """Require that a row of X [N, D] with an integer weight counts as that many copies of it."""
    counts = torch.arange(len(X), device=X.device) % 3 + 1
    counted = _hyperparameters(likelihood.resolve(X, counts.double()))
    for name, value in _hyperparameters(likelihood.resolve(X.repeat_interleave(counts, 0))).items():
        if isinstance(value, Tensor):
            _close(counted[name], value, f"resolve, {name}, of rows with weights beside as many copies of them")
        else:
            _require(counted[name] == value, f"resolve: weights of rows give another {name} than copies of them.")


def _check_program(family: Likelihood, generator: torch.Generator) -> None:
    """Require that under a plate the program has sites named as the parameters, with the density of the draws."""
    prior = family.prior().to(generator.device)
    parameters = family.draw(prior.expand(3, -1), generator)

    def sample(name: str, law: Any) -> Tensor:
        _require(callable(law), f"parameters: {name} has a law of torch; expected one of pyro.distributions.")
        value: Tensor = pyro.sample(name, law)
        return value

    def program() -> Parameters:
        with pyro.plate("components", 3):
            return family.parameters(prior, sample)

    with torch.random.fork_rng(devices=[prior.device] if prior.is_cuda else []):
        free = poutine.trace(program).get_trace()
    returned: Parameters = free.nodes["_RETURN"]["value"]
    for name, value in returned.items():
        _require(name in free.nodes, f"parameters: {name} is not the name of a site.")
        biject_to(free.nodes[name]["fn"].support)  # or NUTS and the autoguides cannot move the site
        _require(value.shape == parameters[name].shape, f"parameters: {name} has not the shape [K, ...] under a plate.")
    trace = poutine.trace(poutine.condition(program, data=parameters)).get_trace()
    expected = _log_prior(family, prior.expand(3, -1), parameters).sum()
    _close(torch.as_tensor(trace.log_prob_sum()), expected, "density of the Pyro program")


def _check_densities(family: Likelihood, X: Tensor, chi: Tensor, generator: torch.Generator) -> None:
    """Compare log_density with the distribution [N, K], also with parameters indexed as in a program."""
    parameters = family.draw(chi, generator)
    log_density = family.log_density(X, parameters)
    _require(bool(torch.isfinite(log_density).all()), "log_density is not finite on X.")
    _close(log_density, Likelihood.log_density(family, X, parameters), "log_density")
    enumerated = torch.arange(len(chi), device=X.device).unsqueeze(1)  # [T, 1], the shape of an enumerated site
    own = family.distribution({name: value[enumerated] for name, value in parameters.items()})
    _close(own.log_prob(X), log_density.T, "distribution of enumerated parameters")
    check_rows(family, X)


def _check_support(family: Likelihood, X: Tensor) -> None:
    """Require that rows have event shape [D] and that X [N, D] is in the support, at parameters from the prior."""
    generator = torch.Generator(X.device).manual_seed(0)
    parameters = family.draw(family.prior().to(X.device).expand(3, -1), generator)
    own = family.distribution({name: value.unsqueeze(1) for name, value in parameters.items()})
    _require(own.event_shape == X.shape[1:], f"distribution has event shape {own.event_shape}; expected [D].")
    whole = X.where(~X.isnan(), X.nan_to_num(-torch.inf).amax(0))  # a missing entry may take any value of its column
    inside = own.support is not None and bool(own.support.check(whole).all())
    _require(inside, "distribution: rows of X that `check` accepts are outside its support.")


# -- exponential families --------------------------------------------------------------------------------------------


def _check_shapes(family: ExponentialFamily, X: Tensor) -> None:
    """Require statistics [N, S] of rows X [N, D] as long as the prior [S], and normalizers [N]."""
    statistics, N, S = family.statistics(X), len(X), len(family.prior())
    found = {"statistics": (statistics, (N, S)), "log_base_measure": (family.log_base_measure(X), (N,))}
    for name, (value, shape) in found.items():
        _require(
            value.shape == shape, f"{name} has shape {tuple(value.shape)}; expected {shape}, for a prior [S = {S}]."
        )
    shape = family.log_partition(family.prior().expand(N, -1)).shape
    _require(shape == (N,), f"log_partition has shape {tuple(shape)} for hyperparameters {(N, S)}; expected {(N,)}.")


def _check_statistics(
    family: ExponentialFamily, X: Tensor, responsibilities: Tensor, generator: torch.Generator
) -> None:
    """Compare the sums over components [K, S] with plain sums."""
    statistics, prior = family.statistics(X), family.prior()
    _close(family.weighted_statistics(X, responsibilities), responsibilities.T @ statistics, "weighted_statistics")
    assignments = torch.randint(4, (len(X),), generator=generator, device=X.device)
    assignments[assignments == 2] = 3  # so that one component is empty
    plain = torch.stack([statistics[assignments == k].sum(0) for k in range(4)])
    _close(family.summed_statistics(X, assignments, 4), plain, "summed_statistics")
    parameters = family.draw(prior.expand(3, -1), generator)
    if (natural := family.natural(parameters)) is not None:
        log_density = statistics @ natural.T + family.log_base_measure(X).unsqueeze(1)
        _close(log_density, family.log_density(X, parameters), "natural")


def _check_conjugacy(family: ExponentialFamily, X: Tensor, generator: torch.Generator) -> None:
    """Bayes: log p(x|theta) + log p(theta|chi) - log p(theta|chi + statistics(x)) = A(chi + ..) - A(chi) + log h(x)."""
    prior = family.prior()
    parameters = family.draw(prior.expand(4, -1), generator)
    posterior = prior + family.statistics(X)
    evidence = family.log_partition(posterior) - family.log_partition(prior) + family.log_base_measure(X)
    log_prior = _log_prior(family, prior.expand(4, -1), parameters)
    log_posterior = torch.stack([_log_prior(family, chi.expand(4, -1), parameters) for chi in posterior])
    log_density = family.distribution(parameters).log_prob(X.unsqueeze(1))
    terms = torch.stack([log_density.abs().amax(), log_prior.abs().amax(), log_posterior.abs().amax()])
    what = "Bayes' rule for parameters, distribution, log_partition"
    _close(log_density + log_prior - log_posterior, evidence.unsqueeze(1).expand(-1, 4), what, terms)


def _check_closed_forms(family: ExponentialFamily, X: Tensor, chi: Tensor) -> None:
    """Compare overrides with the default methods [K, S]; KL must be 0 only at the prior; check batch shapes."""
    for name, arguments in {"log_predictive": (X, chi), "mean_parameters": (chi,), "kl": (chi,)}.items():
        _close(getattr(family, name)(*arguments), getattr(ExponentialFamily, name)(family, *arguments), name)
    linear = ExponentialFamily.linear_log_density(family, X, family.mean_parameters(chi))
    _close(family.expected_log_density(X, chi), linear, "expected_log_density")
    repeat = family.log_predictive(X, family.prior() + family.statistics(X)).diagonal()
    _close(family.log_repeat(X), repeat, "log_repeat")
    _require(bool((family.kl(chi) >= -1e-8).all()), "kl is negative.")
    _close(family.kl(family.prior()), X.new_zeros(()), "kl at the prior")
    batch = torch.stack([chi, chi.flip(0)])
    for method in (family.log_partition, family.mean_parameters, family.kl, family.log_marginal):
        _close(method(batch)[1, 0], method(chi[-1]), f"{method.__name__} under batches of hyperparameters")


def _check_chain(family: ExponentialFamily, X: Tensor) -> None:
    """Require that a chain of predictives of X [N, D] gives the block marginal, in any order."""
    prior, total = family.prior(), family.statistics(X).sum(0)
    block = family.log_marginal(prior + total) + family.log_base_measure(X).sum()
    for order, name in ((X, "in order"), (X.flip(0), "in reverse")):
        before = family.statistics(order).cumsum(0) - family.statistics(order)
        chain = family.log_predictive(order, prior + before).diagonal().sum()
        _close(chain, block, f"log_marginal against the chain of predictives {name}")


def _check_draws(family: ExponentialFamily, X: Tensor, chi: Tensor, generator: torch.Generator) -> None:
    """Require that averages over draws are the expected log density [N, K] and KL; draws follow the generator."""
    num_draws, rows = 2000, X[:5]
    many = chi.repeat_interleave(num_draws, 0)
    draws = family.log_density(rows, family.draw(many, generator)).view(len(rows), len(chi), num_draws)
    _centered(draws, family.expected_log_density(rows, chi), "draw: the mean log density")
    parameters = family.draw(many, generator)
    gain = _log_prior(family, many, parameters) - _log_prior(family, family.prior().expand_as(many), parameters)
    _centered(gain.view(len(chi), num_draws), family.kl(chi), "kl: the mean log ratio of the densities")
    state = generator.get_state()
    first, second = family.draw(chi, generator), family.draw(chi, generator.set_state(state))
    same = all(torch.equal(first[name], second[name]) for name in first)
    _require(same, "draw is not a function of the generator's state.")


def _check_single_precision(likelihood: ExponentialFamily, X: Tensor) -> None:
    """Compare single with double precision, for the same hyperparameters and rows [N, D]."""
    single = X.float()
    family = likelihood.resolve(single)
    double = family.resolve(single.double())
    chi = family.prior() + family.weighted_statistics(single, single.new_ones(len(X), 1))
    _require(chi.dtype == torch.float32, f"chi of single-precision rows is {chi.dtype}.")
    for name in ("expected_log_density", "log_predictive"):
        actual = getattr(family, name)(single, chi)
        _require(actual.dtype == torch.float32, f"{name} of single-precision rows is {actual.dtype}.")
        _close(actual.double(), getattr(double, name)(single.double(), chi.double()), f"{name} in float32", tol=1e-4)


def _check_divergence(family: ExponentialFamily, X: Tensor, generator: torch.Generator) -> None:
    """Require D(x, x) = 0 <= D(x, mu) [N, K], and that the centres minimize the summed divergence.

    Its size must be that of log densities. Skipped if there is no divergence.
    """
    try:
        U = family.coordinates(X)
    except NotImplementedError:
        return
    _close(family.from_coordinates(U).where(~X.isnan(), 0.0), X.nan_to_num(0.0), "from_coordinates of coordinates")
    points = family.centers(U, U.new_ones(len(U)))
    divergence = family.divergence(U, points)
    _close(divergence.diagonal(), U.new_zeros(len(U)), "divergence of a row from itself", divergence.abs().amax())
    _require(bool((divergence >= -1e-8 * (1 + divergence.abs().amax())).all()), "divergence is negative somewhere.")
    _check_size(family, X, U, generator)
    row, weight = family.pseudo_observation()
    rows, weights = U, U.new_ones(len(U))
    both = family.centers(U if row is None else U + weight * row, 1 + weight * weights)
    founding = family.divergence(U, both).diagonal()
    if row is not None:
        founding = founding + weight * family.divergence(row.unsqueeze(0), both)[0]
        rows, weights = torch.cat([U, row.unsqueeze(0)]), torch.cat([weights, weights.new_full((1,), weight)])
    _close(family.founding_divergence(U), founding, "founding_divergence", family.divergence_base(U))
    if family.accepts_sparse:
        readings = {"divergence": (family.centers(U[:3], X.new_ones(3)),), "founding_divergence": ()}
        _agree(family, readings, family.coordinates(cast(Tensor, SparseRows.of(X))), U)
    _check_centers(family, rows, weights, points)


def _check_size(family: ExponentialFamily, X: Tensor, U: Tensor, generator: torch.Generator) -> None:
    """Require D(x, mu) = max log p(x | theta) - log p(x | theta of mu) [N], with so many copies that no prior is left.

    Skipped if the log density of a row has no maximum, as with an unknown covariance: then the prior determines how
    large the divergence is.
    """
    prior, statistics = family.prior(), family.statistics(X)
    few, many = (family.expected_log_density(X, prior + n * statistics).diagonal() for n in (1e4, _MANY))
    if bool(((many - few).abs() > 1).any()):
        return
    weights = torch.rand(3, len(X), generator=generator, dtype=X.dtype, device=X.device) ** 4 + 0.01
    drop = many.unsqueeze(1) - family.expected_log_density(X, prior + _MANY * weights @ statistics)
    found = family.divergence(U, family.centers(weights @ U, weights.sum(1)))
    _close(found, drop, "divergence, beside the drop in log density,", tol=1e-5)


def _check_centers(family: ExponentialFamily, rows: Tensor, weights: Tensor, points: Tensor) -> None:
    """Require that no step from the centre of rows [N, D] with these weights towards a point lowers the divergence."""
    center = family.centers((weights @ rows).unsqueeze(0), weights.sum().unsqueeze(0))
    lowest = weights @ family.divergence(rows, center)
    steps = torch.logspace(-4, -1, 4, dtype=rows.dtype, device=rows.device)
    others = (center + steps[:, None, None] * (points - center)).flatten(0, 1)
    rounding = 1e-11 * (1 + weights @ family.divergence(rows, points).abs().clamp(max=1e6).amax(1))
    excess = (weights @ family.divergence(rows, others) - lowest).amin()
    message = f"centers: a neighbour has a smaller summed divergence by {-excess.item():.1e}."
    _require(bool(excess >= -rounding), message)


def _check_sparse(likelihood: ExponentialFamily, family: ExponentialFamily, X: Tensor, chi: Tensor) -> None:
    """Require that sparse rows [N, D] give the same results as dense rows, if the family accepts them."""
    if not family.accepts_sparse:
        return
    sparse = cast(Tensor, SparseRows.of(X))
    likelihood.admit(sparse)
    dense = _hyperparameters(family)
    for name, value in _hyperparameters(likelihood.resolve(sparse)).items():
        if isinstance(value, Tensor | float | int):
            found, expected = map(torch.as_tensor, (value, dense[name]))
            _close(found, expected, f"resolve, {name}, of sparse rows", tol=1e-10)
    labels = torch.arange(len(X), device=X.device) % 3
    readings: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(("statistics", "log_base_measure", "log_repeat"), ()),
        **dict.fromkeys(("expected_log_density", "log_predictive"), (chi,)),
        "weighted_statistics": (labels.unsqueeze(1) + X.new_tensor([0.1, 0.2]),),
        "summed_statistics": (labels, 3),
        "log_density": (family.draw(chi, torch.Generator(X.device).manual_seed(0)),),
    }
    _agree(family, readings, sparse, X)


# -- tools -----------------------------------------------------------------------------------------------------------


def _stored(family: Likelihood) -> dict[str, tuple[Any, Any]]:
    """The attributes of a family by name, each with a copy if it is a tensor; not those that are cached."""
    known = {
        name: value
        for name, value in vars(family).items()
        if not hasattr(getattr(type(family), name, None), "attrname")
    }
    return {name: (value, value.clone() if isinstance(value, Tensor) else value) for name, value in known.items()}


def _is_as(before: tuple[Any, Any] | None, now: tuple[Any, Any]) -> bool:
    """Whether an attribute is the same object, with the same numbers, as `before`."""
    if before is None or before[0] is not now[0]:
        return False
    return not isinstance(now[0], Tensor) or torch.equal(before[1].nan_to_num(), now[1].nan_to_num())


def _hyperparameters(family: Likelihood) -> dict[str, Any]:
    """The arguments of a family and of its parts by name; for blocks of columns, the arguments of each block."""
    if not isinstance(family, Product):
        return {name: value for name, value in family.get_params().items() if not isinstance(value, Config)}
    parts = [_hyperparameters(part) for part, _ in family.parts]
    return {f"parts[{index}].{name}": value for index, own in enumerate(parts) for name, value in own.items()}


def _agree(family: ExponentialFamily, readings: dict[str, tuple[Any, ...]], sparse: Any, dense: Any) -> None:
    """Require that the methods named in `readings` give the same results for sparse and dense rows."""
    for name, arguments in readings.items():
        method = getattr(family, name)
        _close(method(sparse, *arguments), method(dense, *arguments), f"{name} of sparse rows", tol=1e-10)


def _log_prior(family: Likelihood, chi: Tensor, parameters: Parameters) -> Tensor:
    """log p(theta | chi) [K] of the program `parameters`."""
    log_probs = []

    def sample(name: str, distribution: Distribution) -> Tensor:
        log_probs.append(distribution.log_prob(parameters[name]))
        return parameters[name]

    family.parameters(chi, sample)
    return torch.stack(log_probs).sum(0)


def _close(actual: Tensor, expected: Tensor, what: str, terms: Tensor | None = None, tol: float = 1e-8) -> None:
    """Require equality [...] up to `tol` times the largest number involved."""
    _require(actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}.")
    largest = torch.cat([expected.abs().flatten(), (expected if terms is None else terms).abs().flatten()]).amax()
    error = (actual - expected).abs().amax()
    message = f"{what}: off by {error.item():.1e} where values reach {largest.item():.1e}."
    _require(bool(error <= tol * (1 + largest)), message)


def _centered(draws: Tensor, expected: Tensor, what: str) -> None:
    """Require that the means [...] of draws [..., n] are the expected ones within five standard errors."""
    error = draws.std(-1) / draws.shape[-1] ** 0.5
    worst = ((draws.mean(-1) - expected).abs() / (5 * error + 1e-8 * (1 + expected.abs()))).amax()
    _require(bool(worst <= 1), f"{what} lies {5 * worst.item():.1f} standard errors off.")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


_MANY = 1e8  # copies of rows, beside which the prior is negligible
