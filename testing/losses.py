"""Conformance of a margin loss: every method that the loss has is checked against its `log_factor`.

The checks are identities that hold for any loss, so they need no reference implementation: quadrature for the
integrals, automatic differentiation for the bound, a grid for the optimum, a Gibbs pair for the augmentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..inference.classifiers.minimum import slopes
from ..models.distributions.sampling import normals
from ..models.host import one_thread
from ..models.losses import Loss, Masked
from .compiled_forms import check_compiled_loss
from .probabilities import check_probabilities
from .requirements import named_errors, require, require_centered, require_close

_NUM_DRAWS = 4_000
_NUM_INHERITED_DRAWS = 500  # of scores by the default, which is checked with every loss that has it
_NUM_SLOPES = 10_000
_NUM_JOINT_DRAWS = 5_000
_KS_LIMIT = 2.7  # limit of sqrt(n) times the distance to an exact law: probability 1e-6
_SCALES = (0.3, 1.0, 4.0)
_NUM_CLASSES = 4
_CLOSE = 1e-6
_STEP = 1e-2  # of slopes, for curvatures


@one_thread()
def check_loss(loss: Loss, *, targets: Sequence[float] | None = None, generator: torch.Generator | None = None) -> None:
    """Check a loss in double precision on scores up to a few times its margin.

    It takes a second or two.

    Parameters
    ----------
    loss : a binary loss, a regression loss (its `target` is "real"), a loss of levels ("level"), or a loss of several
        classes
    targets : some real y, for a loss that does not take every number, such as one of counts, and that therefore has
        `keeps_units = False`; None: -2.5, 0 and 0.4
    generator : source of the random draws, on the device to check; None: a fixed seed on the CPU

    Raises
    ------
    AssertionError    naming the method and the property that fails.

    Examples
    --------
    >>> from regbayes.models import Hinge
    >>> check_loss(Hinge(strength=2.0))
    """
    generator = generator or torch.Generator().manual_seed(0)
    like = torch.zeros((), dtype=torch.float64, device=generator.device)
    _check_parameters(loss)
    if targets is not None and loss.target == "real" and loss.keeps_units:
        name = type(loss).__name__
        raise AssertionError(f"{name} does not take every y, but its keeps_units is True: `Regressor` would change y.")
    with named_errors(loss):
        if loss.meets:
            rows = _signs(like)
            _check_joint(loss, like, generator)
        else:
            real = (-2.5, 0.0, 0.4) if targets is None else tuple(targets)
            each = {"sign": (-1.0, 1.0), "level": (0.0, 1.0, 2.0)}.get(loss.target, real)
            rows = torch.tensor(each).to(like).unsqueeze(1)
            _check_elementwise(loss, rows, generator)
        _check_mask(loss, rows, generator)
        if loss.has_conjugate:
            _check_conjugate(loss, rows, generator)
        check_compiled_loss(loss, generator)


def _check_parameters(loss: Loss) -> None:
    loss.checked()
    for name in (name for name, value in loss.get_params(deep=False).items() if isinstance(value, int | float)):
        for value in (math.nan, "1"):
            try:
                loss.replace(**{name: value}).checked()
            except ValueError as error:
                require(name in str(error), "checked", f"refuses {name} = {value!r} without its name")
            else:
                raise AssertionError(f"checked accepts {name} = {value!r}: state the domain of {name} at its field.")


def _check_elementwise(loss: Loss, targets: Tensor, generator: torch.Generator) -> None:
    like = torch.zeros_like(targets[0, 0])
    scores = torch.linspace(-6, 6, 241, dtype=like.dtype, device=like.device).unsqueeze(1)
    for y in targets.squeeze(1):
        _check_factor(loss, scores, y)
        _check_columns(loss, scores, y)
        _check_parabola(loss, scores + 0.0137, y)
        if loss.has_expectation:
            _check_expectation(loss, scores, y)
        _check_conditional(loss, scores[::7] + 0.0137, y.expand(35, 1), slice(0, 1), generator)
        for scale in _SCALES:
            _check_one_point(loss, like + scale, y, generator)
        if getattr(loss.draw_target, "__func__", None) is not Loss.draw_target:  # a wrapped loss has its own
            _check_drawn_target(loss, y, generator)
    if loss.target == "sign":
        several = torch.cat([scores, scores.flip(0) / 2, torch.sin(scores)], 1)
        for values in (scores, several):
            check_probabilities(loss, values, generator)
    _check_likelihood(loss, scores)
    if loss.target != "real":
        probabilities = loss.probabilities(scores)
        rising = (probabilities[:, 0].diff() <= 0) & (probabilities[:, -1].diff() >= 0)
        return require(rising.all(), "probabilities", "of the largest class do not rise with the score")
    try:
        loss.probabilities(scores)
    except NotImplementedError:
        return None
    raise AssertionError("probabilities of a real target must raise NotImplementedError.")


def _check_joint(loss: Loss, like: Tensor, generator: torch.Generator) -> None:
    y, scores = _signs(like), 2 * normals((_NUM_CLASSES, _NUM_CLASSES), generator, like)
    shape = tuple(loss.log_factor(scores, y).shape)
    require(shape == (_NUM_CLASSES, 1), "log_factor", f"has shape {shape}; expected [N, 1]")
    for columns in loss.blocks(_NUM_CLASSES):
        _check_conditional(loss, scores, y, columns, generator)
    check_probabilities(loss, scores, generator)
    _check_likelihood(loss, scores)
    for scale in _SCALES:
        _check_joint_one_point(loss, like + scale, y[1:2], generator)


# -- readings at given scores ----------------------------------------------------------------------------------------


def _check_factor(loss: Loss, scores: Tensor, y: Tensor) -> None:
    log_factor = loss.log_factor(scores, y)
    require(log_factor.shape == scores.shape, "log_factor", f"has shape {tuple(log_factor.shape)} for scores [241, 1]")
    require((log_factor <= 0).all(), "log_factor", "is positive somewhere; subtract its largest value")
    if loss.target == "sign":
        require((y * log_factor.diff(dim=0) >= -1e-12).all(), "log_factor", "does not rise with the score's own sign")


def _check_columns(loss: Loss, scores: Tensor, y: Tensor) -> None:
    """Require that each of several scores [N, C] has its own factor, the same as that of the score alone."""
    several = torch.cat([scores, scores.flip(0) / 2], 1)
    found, shape = loss.log_factor(several, y.expand_as(several)), tuple(several.shape)
    message = f"has shape {tuple(found.shape)} for scores {shape}; expected a factor of each, or `meets` = True"
    require(found.shape == several.shape, "log_factor", message)
    alone = loss.log_factor(several[:, 1:], y.expand_as(scores))
    require_close(found[:, 1:], alone, "log_factor", "of one score depends on the others: set `meets` = True")


def _check_likelihood(loss: Loss, scores: Tensor) -> None:
    """If the loss `is_likelihood`, require that its factors sum to one over the labels at any scores [N, C]."""
    if not loss.is_likelihood or loss.target == "real":
        return
    num_labels = loss.probabilities(scores).shape[1]
    labels = [scores.new_tensor(value) for value in (range(num_labels) if loss.target == "level" else (-1, 1))]
    factors = [loss.log_factor(scores, y).exp() for y in (_signs(scores) if loss.meets else labels)]
    total = torch.stack(factors).sum(0)
    require_close(total, torch.ones_like(total), "log_factor", "sums to no 1 over labels, yet `is_likelihood` is True")
    found = loss.probabilities(scores)
    require_close(found, torch.cat(factors, 1), "probabilities", "are not the factors, yet `is_likelihood` is True")


def _check_expectation(loss: Loss, scores: Tensor, y: Tensor) -> None:
    """Require that the bound [N, 1] lies below E log phi, and that its derivatives are the pseudo-observation."""
    nodes = torch.linspace(-8, 8, 2001, dtype=scores.dtype, device=scores.device)
    weights = (-nodes.square() / 2).softmax(0)
    for deviation in (1e-3, 0.5, 2.0):
        mean = scores[::8].clone().requires_grad_()
        variance = torch.full_like(mean, deviation**2).requires_grad_()
        bound = loss.expected_log_factor(mean, variance, y)
        exact = loss.log_factor(mean + deviation * nodes, y) @ weights.unsqueeze(1)
        require((bound <= exact + _CLOSE).all(), "expected_log_factor", "exceeds E log phi, so it is no lower bound")
        by_mean, by_variance = torch.autograd.grad(bound.sum(), (mean, variance))
        precision, shift = loss.expect(mean, variance, y)
        where = f"at score variance {deviation**2:g}"
        require((precision >= 0).all(), "expect", f"has a negative precision {where}")
        message = f"precision is not -2 d expected_log_factor / d var {where}"
        require_close(-precision / 2, by_variance, "expect", message)
        message = f"shift - precision * mean is not d expected_log_factor / d mean {where}"
        require_close(shift - precision * mean, by_mean, "expect", message)
        observed, value = loss.expect_with_bound(mean, variance, y)
        for found, alone in zip((*observed, value), (precision, shift, bound), strict=True):
            require_close(found, alone, "expect_with_bound", f"is not `expect` and `expected_log_factor` {where}")
    touching = loss.expected_log_factor(scores, torch.zeros_like(scores), y)
    message = "at zero variance is not log_factor"
    require_close(touching, loss.log_factor(scores, y), "expected_log_factor", message, 2e-3)


def _check_conditional(loss: Loss, scores: Tensor, y: Tensor, columns: slice, generator: torch.Generator) -> None:
    """Compare `majorize` and `augment` at (score - reference) with log_factor [N, 1], as one column varies.

    The quadratic of `majorize` must have the slope of log_factor and, if it is a closed bound, nowhere exceed it; so
    must the pseudo-observation of `augment`, on average over omega (Fisher's identity).
    """
    reference = loss.reference(scores, y, columns)
    shifted, sign, slope = scores[:, columns] - reference, y[:, columns], slopes(loss, scores, y)[:, columns]
    where = f"(score - reference) in column {columns.start}"
    precision, shift = loss.majorize(shifted, sign)
    require(torch.isfinite(precision).all() and torch.isfinite(shift).all(), "majorize", "is not finite")
    require((precision >= 0).all(), "majorize", "has a negative precision")

    def moved(change: Tensor) -> Tensor:
        others = scores.expand(len(change), -1, -1).clone()
        others[..., columns] += change.view(-1, 1, 1)
        return others

    change = torch.linspace(-12, 12, 481, dtype=scores.dtype, device=scores.device).view(-1, 1, 1)
    unmoved = loss.reference(moved(change), y, columns)
    require_close(unmoved, reference, "reference", "depends on the column it is for")
    before, rise = loss.log_factor(scores, y), shift * change - precision * change * (2 * shifted + change) / 2
    lower = (rise <= loss.log_factor(moved(change), y) - before + 2e-3).all()
    # callers halve steps of the numerical default
    require(lower or not (loss.has_expectation or loss.meets), "majorize", f"crosses log_factor at {where}")
    smooth = (loss.log_factor(moved(change.new_tensor([-1e-3, 1e-3])), y).sum(0) - 2 * before).abs() < 1e-5
    message = f"does not touch log_factor at {where}"
    require_close((shift - precision * shifted)[smooth], slope[smooth], "majorize", message, _CLOSE)
    if loss.is_augmented:
        draws = loss.augment(shifted.expand(_NUM_SLOPES, -1, -1), sign.expand(_NUM_SLOPES, -1, -1), generator)
        message = f"is not a mixture of phi at {where}: the mean of shift - precision * score is not phi's slope"
        require_centered(draws.shift - draws.precision * shifted - slope, "augment", message)
        _check_source(loss, shifted.expand(2, -1, -1), sign.expand(2, -1, -1), generator)


def _check_source(loss: Loss, shifted: Tensor, sign: Tensor, generator: torch.Generator) -> None:
    """Require that omega, of two equal tables of scores [2, N, C], comes from the given generator."""
    state = generator.get_state()
    first, second = (loss.augment(shifted, sign, generator).precision for _ in range(2))
    again = loss.augment(shifted, sign, generator.set_state(state)).precision
    repeats = torch.equal(first, second) and not torch.equal(first[0], first[1])
    message = "does not draw omega from the generator that it is given"
    require(torch.equal(first, again) and not repeats, "augment", message)


def _check_parabola(loss: Loss, scores: Tensor, y: Tensor) -> None:
    """Require the slope of log_factor, and minus its curvature where it is positive, at smooth scores [N, 1]."""
    precision, shift = loss.parabola(scores, y)
    before, slope, after = (slopes(loss, scores + change, y) for change in (-_STEP, 0.0, _STEP))
    curvature, bend = (before - after) / (2 * _STEP), (before - 2 * slope + after) / _STEP
    smooth = bend.abs() <= _STEP * (1 + curvature.abs())
    require(precision.isfinite().all() and (precision >= 0).all(), "parabola", "has a precision below 0")
    message = "is not minus the curvature of log_factor, or 0 where that is negative"
    require_close(precision[smooth], curvature[smooth].clamp(min=0.0), "parabola", f"precision {message}", 0.01)
    require_close((shift - precision * scores)[smooth], slope[smooth], "parabola", "has not the slope of log_factor")


def _check_mask(loss: Loss, rows: Tensor, generator: torch.Generator) -> None:
    """Require that under `Masked` every result [...] is 0 for a missing target and unchanged for a known one.

    Targets are the rows [L, C], repeated.
    """
    y, like = rows.repeat(8, 1)[:8], rows
    known = torch.arange(8, device=y.device) % 3 > 0
    scores, one = 2 * normals(y.shape, generator, like), torch.ones_like(y[:, :1])
    holed, masked = torch.where(known.unsqueeze(1), y, torch.nan), Masked(loss)
    readings = [("log_factor", [scores]), ("majorize", [scores[:, :1]]), ("log_marginal", [one]), ("one_point", [one])]
    if loss.has_expectation:
        readings += [("expect", [scores, one]), ("expected_log_factor", [scores, one])]
    for name, arguments in readings:
        columns = 1 if name == "majorize" else y.shape[1]
        found = getattr(masked, name)(*arguments, holed[:, :columns])
        exact = getattr(loss, name)(*arguments, y[:, :columns])
        pairs = zip(found, exact, strict=True) if isinstance(exact, tuple) else [(found, exact)]
        for part, whole in pairs:
            require(not part[~known].any(), name, "is not 0 at a missing target")
            require_close(part[known], whole[known], name, "changes if other targets are missing")
    if loss.has_expectation:
        observed, bound = masked.expect_with_bound(scores, one, holed)
        alone = (*masked.expect(scores, one, holed), masked.expected_log_factor(scores, one, holed))
        for part, whole in zip((*observed, bound), alone, strict=True):
            require_close(part, whole, "expect_with_bound", "differs from both alone if targets are missing")
    if loss.is_augmented:
        draws = masked.augment(scores[:, :1], holed[:, :1], generator)
        require(not any(part[~known].any() for part in draws), "augment", "is not 0 at a missing target")
    slope = slopes(masked, scores, holed)
    require(not slope[~known].any() and slope.isfinite().all(), "log_factor", "has a slope at a missing target")
    number = _number_of_scores(loss)
    free = masked.draw_score(2 * one[:1].expand(number, 1), holed[:1].expand(number, -1), generator)
    require_centered(torch.stack([free, free.square() - 4], 1), "draw_score", "is not the prior's at a missing target")


# -- the conjugate ---------------------------------------------------------------------------------------------------


def _check_conjugate(loss: Loss, rows: Tensor, generator: torch.Generator) -> None:
    """Require g(f) + g*(-t) + t . f >= 0 at all scores and tilts [N, C], and 0 at t = -g'(f).

    For a convex g this determines g*. Tilts are multiples and mixtures of slopes, inside and outside the domain. The
    best tilt must be that of its own score.
    """
    y, like = rows.repeat(200 // len(rows), 1), rows
    scores, others = (4 * normals(y.shape, generator, like) for _ in range(2))
    slope, other = slopes(loss, scores, y), slopes(loss, others, y)

    def young(score: Tensor, tilt: Tensor) -> Tensor:
        conjugate = loss.conjugate(tilt, y)
        shape = (len(y), 1) if loss.meets else y.shape
        require(conjugate.shape == shape, "conjugate", f"has shape {tuple(conjugate.shape)}; expected {tuple(shape)}")
        return (conjugate - loss.log_factor(score, y)).sum(1) + (tilt * score).sum(1)

    nothing = torch.zeros(len(y), dtype=like.dtype, device=like.device)
    require_close(young(scores, slope), nothing, "conjugate", "at minus the slope of the cost is not -t f - g(f)")
    for share in (0.0, 0.3, 1.0):
        mixed = torch.lerp(slope, other, share)
        require(young(others, mixed).min() >= -_CLOSE, "conjugate", "is less than -t f - g(f) at some score")
        require_close(loss.feasible(mixed, y), mixed, "feasible", "moves a tilt that is in the domain")
    for factor in (-3.0, 1.3, 40.0):
        require(young(others, factor * slope).min() >= -_CLOSE, "conjugate", "is less than -t f - g(f) at some score")
        inside = loss.conjugate(loss.feasible(factor * slope, y), y).isfinite().all()
        require(inside, "feasible", "gives a tilt outside the domain")
    for variance in (1e-3, 0.1, 3.0):
        width = torch.full_like(y, variance)
        tilt = loss.best_tilt(scores, width, y)
        message = f"is not the optimum for a point alone at variance {variance:g}"
        require_close(young(scores + variance * tilt, tilt), nothing, "best_tilt", message, _CLOSE)


# -- a component of one point ----------------------------------------------------------------------------------------


def _check_one_point(loss: Loss, scale: Tensor, y: Tensor, generator: torch.Generator) -> None:
    """Check the integral of phi, draws, the optimum and a Gibbs step for f ~ N(0, scale^2), scale []."""
    where = f"at scale {scale:g}, target {y:g}"
    nodes = scale * torch.linspace(-9, 9, 40_001, dtype=scale.dtype, device=scale.device)
    log_prior = -(nodes / scale).square() / 2 - scale.log() - math.log(2 * math.pi) / 2
    log_density = log_prior + loss.log_factor(nodes, y)
    exact = log_density.logsumexp(0) + (nodes[1] - nodes[0]).log()
    tolerance = 1e-3 if type(loss).log_marginal is Loss.log_marginal else 1e-4  # the default is a quadrature
    message = f"is not the integral {where}; the default needs a smaller `step` if phi is steep"
    require_close(loss.log_marginal(scale, y), exact, "log_marginal", message, tolerance)
    number = _number_of_scores(loss)
    draws = loss.draw_score(scale.expand(number), y.expand(number), generator)
    _require_law(draws, nodes, log_density, "draw_score", f"is not a draw from N(0, scale^2) phi {where}")
    _check_optimum(loss, scale.view(1, 1), y.view(1, 1), nodes.unsqueeze(1), where)
    if not loss.is_augmented:
        return
    draws = nodes[log_density.softmax(0).multinomial(_NUM_DRAWS, replacement=True, generator=generator)]
    score = _gibbs_step(loss, draws, y.expand(_NUM_DRAWS), scale, generator)
    _require_law(score, nodes, log_density, "augment", f"does not leave phi invariant {where}")
    # a reversible pair: the joint law of (draws, score) is symmetric; a wrong omega breaks this even at the right law
    lag, corner = (draws - score) * (draws + score).tanh(), draws.square() * score - draws * score.square()
    require_centered(torch.stack([lag, corner], 1), "augment", f"is not the conditional of its mixture {where}")


def _check_drawn_target(loss: Loss, score: Tensor, generator: torch.Generator) -> None:
    """Require that real targets drawn at a score [] have the density phi(y | f) over its integral."""
    nodes = score + torch.linspace(-400, 400, 400_001, dtype=score.dtype, device=score.device)
    draws = loss.draw_target(score.expand(_NUM_DRAWS), generator)
    message = f"is not a draw from phi(y | f) over its integral at the score {score:g}"
    _require_law(draws, nodes, loss.log_factor(score, nodes), "draw_target", message)


def _check_joint_one_point(loss: Loss, scale: Tensor, y: Tensor, generator: torch.Generator) -> None:
    """As `_check_one_point`, by draws of all scores from the prior, weighted by the factor, for one target [1, L]."""
    where, (num_draws, num_classes) = f"at scale {scale:g}", (_NUM_JOINT_DRAWS, y.shape[1])
    wide, signs = scale.expand(num_draws, 1), y.expand(num_draws, -1)
    prior = scale * normals((num_draws, num_classes), generator, y)
    factors = loss.log_factor(prior, signs).exp()
    marginal = loss.log_marginal(scale.view(1, 1), y).exp()
    require(marginal.shape == (1, 1), "log_marginal", f"has shape {tuple(marginal.shape)}; expected [N, 1]")
    require_centered(factors - marginal, "log_marginal", f"is not the mean of the factor {where}")

    draws = loss.draw_score(wide, signs, generator)
    require(draws.shape == signs.shape, "draw_score", f"has shape {tuple(draws.shape)}; expected [N, L]")
    score = draws.clone()
    for columns in loss.blocks(num_classes) if loss.is_augmented else []:
        reference = loss.reference(score, signs, columns)
        shifted = score[:, columns] - reference
        score[:, columns] = _gibbs_step(loss, shifted, signs[:, columns], scale, generator, reference)
    for name, moment in _moments(y).items():
        own = moment(draws)
        gap = factors * (moment(prior) - own.mean(0)) / marginal + own - own.mean(0)
        require_centered(gap, "draw_score", f"has another {name} than the tilted prior {where}")
        message = f"with reference changes the {name} of the tilted prior {where}"
        require_centered(moment(score) - own, "augment", message)

    radii = scale * torch.tensor([1.0, 0.1, 1e-2, 1e-3]).to(y).repeat_interleave(2000).unsqueeze(1)
    best, _ = loss.one_point(scale.square().view(1, 1), y)
    _check_optimum(loss, scale.view(1, 1), y, best + radii * normals((len(radii), num_classes), generator, y), where)


def _check_optimum(loss: Loss, scale: Tensor, y: Tensor, others: Tensor, where: str) -> None:
    """Require that score and cost at scale [1, 1] fit together, and that none of the others [G, C] costs less."""

    def cost_of(scores: Tensor) -> Tensor:
        return (scores / scale).square().sum(1, keepdim=True) / 2 - loss.log_factor(scores, y)

    score, cost = loss.one_point(scale.square(), y)
    require_close(cost, cost_of(score), "one_point", f"has a cost that is not that of its score {where}")
    require((cost <= cost_of(others).min() + _CLOSE).all(), "one_point", f"is not the minimum {where}")


def _moments(y: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    own = y.argmax(1)
    return {
        "mean of the class's score": lambda f: f[:, own],
        "second moment of the class's score": lambda f: f[:, own].square(),
        "mean of the largest score": lambda f: f.amax(1, keepdim=True),
        "second moment of the first score": lambda f: f[:, :1].square(),
        "product of two scores": lambda f: f[:, own] * f[:, -1:],
    }


# -- tools ---------------------------------------------------------------------------------------------------------


def _number_of_scores(loss: Loss) -> int:
    """How many scores of one point alone to draw."""
    return _NUM_INHERITED_DRAWS if type(loss).draw_score is Loss.draw_score else _NUM_DRAWS


def _signs(like: Tensor) -> Tensor:
    """The targets [L, L]: one row of signs for each class."""
    return 2 * torch.eye(_NUM_CLASSES, dtype=like.dtype, device=like.device) - 1


def _gibbs_step(
    loss: Loss, score: Tensor, y: Tensor, scale: Tensor, generator: torch.Generator, reference: Tensor | float = 0.0
) -> Tensor:
    """Draw the score [...] given the augmentation of (score - reference), under the prior N(0, scale^2)."""
    precision, shift = loss.augment(score, y, generator)
    total = precision + scale.square().reciprocal()
    return (shift + precision * reference) / total + normals(score.shape, generator, score) / total.sqrt()


def _require_law(draws: Tensor, nodes: Tensor, log_density: Tensor, method: str, message: str) -> None:
    """Check two moments and the Kolmogorov-Smirnov distance of independent draws [n] to the law with this density."""
    density = log_density.softmax(0)
    require_centered(draws - density @ nodes, method, f"{message}: another mean")
    require_centered(draws.square() - density @ nodes.square(), method, f"{message}: another second moment")
    cdf, draws = density.cumsum(0) - density / 2, draws.sort().values
    right = torch.searchsorted(nodes, draws).clamp(1, len(nodes) - 1)
    share = (draws - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    exact = torch.lerp(cdf[right - 1], cdf[right], share)
    rank = torch.arange(len(draws), dtype=exact.dtype, device=exact.device)
    distance = torch.maximum((rank + 1) / len(draws) - exact, exact - rank / len(draws)).max()
    statistic = float(distance) * math.sqrt(len(draws))
    require(statistic < _KS_LIMIT, method, f"{message} (Kolmogorov-Smirnov statistic {statistic:.2f})")
