"""Rows that a family draws, and the total mass of their density, by quadrature or sums, where columns are independent.

    log of the integral of p = sum_d log of the integral of p(x_d, r_-d) over x_d - (D - 1) log p(r)

for any row r. The variable of integration is t with u = center + scale sinh(t), where u is x, its logarithm (positive
numbers) or its log odds (the unit interval): steps are small where the mass is and reach far into heavy tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to, constraints

from ..models.distributions.sampling import draw
from ..models.likelihoods import Likelihood


def check_mass(family: Likelihood, X: Tensor) -> None:
    """Require that the density of rows [D] has the total mass 1 at parameters from the prior, where it is decided."""
    if hasattr(family, "split"):  # the law of several blocks of columns has no support of its own
        for part, own in family.split(X):
            check_mass(part, own)
        return
    if family.given_totals:
        return
    generator = torch.Generator(X.device).manual_seed(0)
    parameters = family.draw(family.prior().to(X.device).expand(3, -1), generator)
    for k in range(3):
        one = {name: value[k : k + 1] for name, value in parameters.items()}
        many = {name: value.expand(1000, *value.shape[1:]) for name, value in one.items()}
        try:
            draws = family.draw_rows(many, generator)
        except NotImplementedError:
            return
        found = log_mass(family.distribution(one), draws)
        if found is not None and abs(found) > _CLOSE * X.shape[1]:
            raise AssertionError(
                "distribution: the density of rows, at parameters drawn from the prior, has a total mass of "
                f"exp({found:.4g}); expected 1."
            )


def check_rows(family: Likelihood, X: Tensor) -> None:
    """Require that rows [D] of `draw_rows` have the law of `distribution` and come from the generator alone."""
    if family.given_totals:
        return
    generator = torch.Generator(X.device).manual_seed(0)
    two = family.draw(family.prior().to(X.device).expand(2, -1), generator)
    many = {name: value[:1].expand(_NUM_ROWS, *value.shape[1:]) for name, value in two.items()}
    with torch.random.fork_rng(devices=[]):
        before, state = torch.get_rng_state(), generator.get_state()
        try:
            drawn, again = family.draw_rows(many, generator), family.draw_rows(many, generator.set_state(state))
            others = draw(family.distribution(many), generator)
        except NotImplementedError:
            return
        alone = torch.equal(drawn, again) and torch.equal(torch.get_rng_state(), before)
    if not alone:
        raise AssertionError("draw_rows is not a function of the generator's state alone.")
    ours, theirs = (family.log_density(rows, two) for rows in (drawn, others))  # under both components
    error = ((ours.var(0) + theirs.var(0)) / _NUM_ROWS).sqrt()
    if not ((ours.mean(0) - theirs.mean(0)).abs() <= 5 * error + 1e-8 * (1 + theirs.mean(0).abs())).all():
        raise AssertionError("draw_rows: rows have another mean log density than those of distribution.")


LogFunction = Callable[[Tensor], Tensor]


def log_mass(law: Distribution, draws: Tensor) -> float | None:
    """The log of the total mass of a law of batch shape [1] and event shape [D], given draws [M, D]; None: undecided.

    It is decided for independent columns of real or positive numbers, of numbers in the unit interval, or of counts,
    if the mass beyond the last node is negligible and draws do not repeat numbers (a law with atoms).
    """
    support: Any = law.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    center, D = draws.median(0).values, draws.shape[1]
    if not (draws.isfinite().all() and _has_independent_columns(law, center, draws[:8])):
        return None
    total = math.nan
    for adaptive in (False, True):  # a plain grid does for smooth densities
        if _MOST_NODES * D**2 > _MOST:
            return None
        columns = [_of_column(law, support, center, draws, column, adaptive) for column in range(D)]
        total = sum(columns) - (D - 1) * float(law.log_prob(center))
        if math.isnan(total) or abs(total) <= _CLOSE * D:
            break
    return total if math.isfinite(total) else None


def _has_independent_columns(law: Distribution, center: Tensor, rows: Tensor) -> bool:
    """Whether log p of rows [n, D] is a sum over columns, each with the others at `center` [D]."""
    own = torch.eye(len(center), dtype=torch.bool, device=rows.device)
    at_center = law.log_prob(center)
    terms = law.log_prob(torch.where(own, rows.unsqueeze(1), center)) - at_center
    gap = (law.log_prob(rows) - at_center - terms.sum(1)).abs().max()
    return bool(gap <= 1e-8 * (1 + at_center.abs() + terms.abs().sum(1).max()))  # False where some are not finite


def _of_column(law: Distribution, support: Any, center: Tensor, draws: Tensor, column: int, adaptive: bool) -> float:
    """The log of the integral over one column, with the others at `center` [D]; NaN where it cannot be decided."""

    def log_density(x: Tensor) -> Tensor:
        rows = center.repeat(*x.shape, 1)
        rows[..., column] = x
        return law.log_prob(rows).nan_to_num(nan=-math.inf)

    own = draws[:, column]
    if support.is_discrete:
        return _sum(log_density, *_counts(support, own))
    if support not in _ENDS or len(own.unique()) < len(own):
        return math.nan
    to_support = biject_to(support)
    u = to_support.inv(own)
    low, middle, high = u.quantile(u.new_tensor([0.25, 0.5, 0.75]))
    scale, ends = high - low, u.new_tensor(_ENDS[support])

    def log_integrand(t: Tensor) -> Tensor:
        u = middle + scale * t.sinh()
        x = to_support(u)
        return log_density(x) + to_support.log_abs_det_jacobian(u, x) + scale.log() + t.cosh().log()

    first, last = ((ends - middle) / scale).asinh().clamp(-_FAR, _FAR)
    t = torch.linspace(float(first), float(last), _NUM_NODES, dtype=u.dtype, device=u.device)
    if not adaptive:
        return float((log_integrand(t) + (t[1] - t[0]).log()).logsumexp(0))
    return _adaptive_integral(log_integrand, torch.cat([t, ((u - middle) / scale).asinh().clamp(first, last)]).unique())


def _adaptive_integral(log_integrand: LogFunction, t: Tensor) -> float:
    """log of the integral by Simpson's rule, whose intervals between nodes t [G] are halved until it is exact.

    Draws among the nodes show where modes are that are narrower than the intervals.
    """
    nodes = _with_middles(t[:-1], t[1:])
    log_f = log_integrand(nodes)
    ends, shift = log_f[[0, 2], [0, -1]], log_f.max()
    found = shift
    for _ in range(_MOST_HALVINGS):
        f, width = (log_f - shift).exp(), nodes[2] - nodes[0]
        parts = width * (f[0] + 4 * f[1] + f[2]) / 6
        found = parts.sum()
        rough = ((width * (f[0] + f[2]) / 2 - parts).abs() > 1e-7 * found) & (width > 1e-13)
        if not rough.any() or len(width) > _MOST_NODES:
            break
        low, middle, high = nodes[:, rough]
        halves = _with_middles(torch.cat([low, middle]), torch.cat([middle, high]))
        nodes = torch.cat([nodes[:, ~rough], halves], 1)
        log_f = torch.cat([log_f[:, ~rough], log_integrand(halves)], 1)
    return float(found.log() + shift) if bool((ends - found.log() - shift < _NEGLIGIBLE).all()) else math.nan


def _with_middles(low: Tensor, high: Tensor) -> Tensor:
    """The ends and the middles [3, G] of intervals from `low` [G] to `high` [G]."""
    return torch.stack([low, (low + high) / 2, high])


def _sum(log_density: LogFunction, values: Tensor, finite: bool) -> float:
    """log of the sum over values [n], which are all if `finite`; NaN if there are none, or mass beyond the last."""
    if not len(values):
        return math.nan
    log_p = log_density(values)
    found = log_p.logsumexp(0)
    return float(found) if finite or bool(log_p[-1] + values[-1].log() - found < _NEGLIGIBLE) else math.nan


def _counts(support: Any, draws: Tensor) -> tuple[Tensor, bool]:
    """The values [n] of a discrete support, and whether these are all; none if they are too many, or unknown."""
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if support is constraints.boolean:
        low, high = 0, 1
    last = 4 * draws.max() + 1000 if high is None else high
    edges = [torch.as_tensor(edge).unique() for edge in (low, last)] if low is not None else []
    if any(len(edge) > 1 for edge in edges) or not edges or edges[1] - edges[0] > _MOST_COUNTS:
        return draws[:0], False
    values = torch.arange(int(edges[0]), int(edges[1]) + 1, dtype=draws.dtype, device=draws.device)
    return values, high is not None


_NUM_ROWS = 2000
_CLOSE = 1e-3  # of the log of the mass, for each column
_NUM_NODES = 1000
_MOST_NODES = 20_000
_MOST_COUNTS = 50_000
_MOST = 5e7  # numbers in the rows of all nodes
_MOST_HALVINGS = 50
_FAR = 45.0
_NEGLIGIBLE = math.log(1e-5)
_ENDS = {  # of u, where x and its powers are numbers
    constraints.real: (-1e100, 1e100),
    constraints.positive: (-200.0, 200.0),
    constraints.nonnegative: (-200.0, 200.0),
    constraints.unit_interval: (-200.0, 36.0),
}
