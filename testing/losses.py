"""Conformance of a margin loss: every reading of the factor is checked against its definition, `log_factor`.

The checks are identities that hold for any loss, so they need no reference implementation: quadrature for the
integrals, automatic differentiation for the bound, a grid for the optimum, a Gibbs pair for the augmentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..models.losses import Loss

__all__ = ["check_loss"]

_NUM_DRAWS = 4_000
_NUM_SLOPES = 10_000
_NUM_JOINT_DRAWS = 5_000
_KS_LIMIT = 2.7  # of sqrt(n) times the distance to an exact law: probability 1e-6
_SCALES = (0.3, 1.0, 4.0)
_NUM_CLASSES = 4
_CLOSE = 1e-6
_FISHER = "the mean of shift - precision * score is not the slope of log_factor"


def check_loss(loss: Loss, *, generator: torch.Generator | None = None) -> None:
    """Check a loss in double precision on scores up to a few times its margin.

    Parameters
    ----------
    loss : a binary loss, a regression loss (`target` "real"), or a loss of several classes
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
    if len(loss.blocks(_NUM_CLASSES)) > 1:
        _check_joint(loss, generator)
        return
    scores = torch.linspace(-6, 6, 241, dtype=torch.float64, device=generator.device)
    for y in _targets(loss, scores):
        _check_factor(loss, scores, y)
        _check_expectation(loss, scores, y)
        _check_majorizer(loss, scores, y)
        _check_slope(loss, scores[::17] + 0.0137, y, generator)
        for scale in _SCALES:
            draws = _check_one_point(loss, scores.new_tensor(scale), y, generator)
            _check_augmentation(loss, scores.new_tensor(scale), y, draws, generator)
    _check_probabilities(loss, scores)


def _targets(loss: Loss, like: Tensor) -> Iterator[Tensor]:
    values = (-1.0, 1.0) if loss.target == "sign" else (-2.5, 0.0, 0.4)
    return (like.new_tensor(value) for value in values)


# -- elementwise losses --------------------------------------------------------------------------------------------


def _check_factor(loss: Loss, scores: Tensor, y: Tensor) -> None:
    log_factor = loss.log_factor(scores, y)
    _require(log_factor.shape == scores.shape, "log_factor", f"has shape {tuple(log_factor.shape)} for scores [241]")
    _require((log_factor <= 0).all(), "log_factor", "is positive somewhere; subtract its largest value")
    if loss.target == "sign":
        _require((y * log_factor.diff() >= -1e-12).all(), "log_factor", "does not rise with the score's own sign")


def _check_expectation(loss: Loss, scores: Tensor, y: Tensor) -> None:
    """The bound lies below E log phi, and its derivatives are the pseudo-observation (q(omega) being optimal)."""
    nodes = torch.linspace(-8, 8, 2001, dtype=scores.dtype, device=scores.device)
    weights = (-nodes.square() / 2).softmax(0)
    for deviation in (1e-3, 0.5, 2.0):
        mean = scores[::8].clone().requires_grad_()
        variance = torch.full_like(mean, deviation**2).detach().requires_grad_()
        bound = loss.expected_log_factor(mean, variance, y)
        exact = (weights * loss.log_factor(mean.unsqueeze(1) + deviation * nodes, y)).sum(1)
        _require((bound <= exact + _CLOSE).all(), "expected_log_factor", "exceeds E log phi, so it is no lower bound")
        by_mean, by_variance = torch.autograd.grad(bound.sum(), (mean, variance))
        precision, shift = loss.expect(mean, variance, y)
        where = f"at score variance {deviation**2:g}"
        _require((precision >= 0).all(), "expect", f"has a negative precision {where}")
        _require_close(
            -precision / 2, by_variance, "expect", f"precision is not -2 d expected_log_factor / d var {where}"
        )
        message = f"shift - precision * mean is not d expected_log_factor / d mean {where}"
        _require_close(shift - precision * mean, by_mean, "expect", message)


def _check_majorizer(loss: Loss, scores: Tensor, y: Tensor) -> None:
    """The quadratic has the factor's value and slope at its own score and never exceeds the factor."""
    own = scores[3:-3:7].unsqueeze(1)
    precision, shift = loss.majorize(own, y)
    _require(torch.isfinite(precision).all() and torch.isfinite(shift).all(), "majorize", "is not finite")
    rise = shift * (scores - own) - precision * (scores.square() - own.square()) / 2
    exact = loss.log_factor(scores, y) - loss.log_factor(own, y)
    _require((rise <= exact + 2e-3).all(), "majorize", "crosses log_factor: the quadratic is no lower bound")
    step = 1e-3
    slope = (loss.log_factor(own + step, y) - loss.log_factor(own - step, y)) / (2 * step)
    smooth = (
        loss.log_factor(own + step, y) + loss.log_factor(own - step, y) - 2 * loss.log_factor(own, y)
    ).abs() < 1e-5
    _require_close((shift - precision * own)[smooth], slope[smooth], "majorize", "does not touch log_factor", 1e-4)
    touching = loss.expected_log_factor(own, torch.zeros_like(own), y)
    message = "at zero variance is not log_factor"
    _require_close(touching, loss.log_factor(own, y), "expected_log_factor", message, 2e-3)


def _check_slope(loss: Loss, scores: Tensor, y: Tensor, generator: torch.Generator) -> None:
    """Fisher's identity: given f, the mean over omega of shift - precision f is the slope of log phi."""
    score = scores.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss.log_factor(score, y).sum(), score)
    precision, shift = loss.augment(scores.expand(_NUM_SLOPES, -1), y.expand(_NUM_SLOPES, len(scores)), generator)
    _require_centered(shift - precision * scores - slope, "augment", f"is not a mixture of phi: {_FISHER}")


def _check_one_point(loss: Loss, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """The readings of a component with one point; returns the scores drawn, once found right."""
    nodes, log_density = _one_point_law(loss, scale, y)
    step = nodes[1] - nodes[0]
    where = f"at scale {scale:g}, target {y:g}"
    exact = log_density.logsumexp(0) + step.log()
    _require_close(loss.log_marginal(scale, y), exact, "log_marginal", f"is not the integral {where}", 1e-4)
    draws = loss.draw_score(scale.expand(_NUM_DRAWS), y.expand(_NUM_DRAWS), generator)
    _require_law(draws, nodes, log_density, "draw_score", f"is not a draw from N(0, scale^2) phi {where}")

    score, cost = loss.one_point(scale.square(), y)
    costs = nodes.square() / (2 * scale.square()) - loss.log_factor(nodes, y)
    attained = score.square() / (2 * scale.square()) - loss.log_factor(score, y)
    _require_close(cost, attained, "one_point", f"has a cost that is not that of its score {where}")
    _require(bool(cost <= costs.min() + _CLOSE), "one_point", f"is not the minimum {where}")
    return draws


def _check_augmentation(loss: Loss, scale: Tensor, y: Tensor, start: Tensor, generator: torch.Generator) -> None:
    """omega given f, then f given omega under f ~ N(0, scale^2), leaves N(0, scale^2) phi as it is."""
    nodes, log_density = _one_point_law(loss, scale, y)
    score = _gibbs_step(loss, start, y.expand(_NUM_DRAWS), scale, generator)
    _require_law(score, nodes, log_density, "augment", f"does not leave phi invariant at scale {scale:g}, target {y:g}")
    # a reversible pair: the joint law of (start, score) is symmetric, which a wrong omega breaks even at the right law
    lag = (start - score) * (start + score).tanh()
    _require_centered(lag, "augment", f"is not the conditional of its mixture at scale {scale:g}, target {y:g}")
    corner = start.square() * score - start * score.square()
    _require_centered(corner, "augment", f"is not the conditional of its mixture at scale {scale:g}, target {y:g}")


def _check_probabilities(loss: Loss, scores: Tensor) -> None:
    if loss.target == "real":
        try:
            loss.probabilities(scores.unsqueeze(1))
        except NotImplementedError:
            return
        raise AssertionError("probabilities of a real target must raise NotImplementedError.")
    binary = loss.probabilities(scores.unsqueeze(1))
    _require(binary.shape == (len(scores), 2), "probabilities", f"has shape {tuple(binary.shape)} for scores [241, 1]")
    _require_close(binary.sum(1), torch.ones_like(scores), "probabilities", "do not sum to one")
    _require((binary[:, 1].diff() >= 0).all(), "probabilities", "of the larger class do not rise with the score")
    several = torch.stack([scores, scores.flip(0) / 2, torch.sin(scores)], 1)
    _require_ordered(loss.probabilities(several), several)


# -- losses in which several scores meet ----------------------------------------------------------------------------


def _check_joint(loss: Loss, generator: torch.Generator) -> None:
    like: dict[str, Any] = {"dtype": torch.float64, "device": generator.device}
    index = torch.arange(_NUM_CLASSES, device=generator.device)
    y = 2 * torch.nn.functional.one_hot(index, _NUM_CLASSES).to(torch.float64) - 1
    scores = 2 * torch.randn(_NUM_CLASSES, _NUM_CLASSES, generator=generator, **like)
    shape = tuple(loss.log_factor(scores, y).shape)
    _require(shape == (_NUM_CLASSES, 1), "log_factor", f"has shape {shape}; expected [N, 1]")
    for columns in loss.blocks(_NUM_CLASSES):
        _check_conditional(loss, scores, y, columns, generator)
    _require_ordered(loss.probabilities(scores), scores)
    for scale in _SCALES:
        _check_joint_one_point(loss, scores.new_tensor(scale), y[1:2], generator)


def _check_conditional(loss: Loss, scores: Tensor, y: Tensor, columns: slice, generator: torch.Generator) -> None:
    """As this column varies, the factor changes by what `majorize` bounds at (score - reference)."""
    sign = y[:, columns]
    shifted = scores[:, columns] - loss.reference(scores, y, columns)
    precision, shift = loss.majorize(shifted, sign)
    before = loss.log_factor(scores, y)

    leaf = scores.clone().requires_grad_()
    slope = torch.autograd.grad(loss.log_factor(leaf, y).sum(), leaf)[0][:, columns]
    draws = loss.augment(shifted.expand(_NUM_SLOPES, -1, -1), sign.expand(_NUM_SLOPES, -1, -1), generator)
    gap = draws.shift - draws.precision * shifted - slope
    _require_centered(gap, "augment", f"in column {columns.start} less its reference: {_FISHER}")

    for change in torch.linspace(-4, 4, 33).tolist():
        moved = scores.clone()
        moved[:, columns] += change
        unmoved = loss.reference(moved, y, columns)
        _require_close(unmoved, loss.reference(scores, y, columns), "reference", "depends on the column it is for")
        rise = shift * change - precision * ((shifted + change).square() - shifted.square()) / 2
        gap = loss.log_factor(moved, y) - before - rise
        _require((gap >= -2e-3).all(), "reference", f"with majorize crosses log_factor in column {columns.start}")
        if abs(change) <= 0.25:
            message = f"with majorize does not touch log_factor in column {columns.start}"
            _require((gap <= precision * change**2 + 2e-3).all(), "reference", message)


def _check_joint_one_point(loss: Loss, scale: Tensor, y: Tensor, generator: torch.Generator) -> None:
    num_draws, where = _NUM_JOINT_DRAWS, f"at scale {scale:g}"
    wide, signs = scale.expand(num_draws, 1), y.expand(num_draws, -1)
    prior = scale * torch.randn(num_draws, y.shape[1], generator=generator, dtype=y.dtype, device=y.device)
    factors = loss.log_factor(prior, signs).exp()
    marginal = loss.log_marginal(scale.view(1, 1), y).exp()
    _require(marginal.shape == (1, 1), "log_marginal", f"has shape {tuple(marginal.shape)}; expected [N, 1]")
    _require_centered((factors - marginal).squeeze(1), "log_marginal", f"is not the mean of the factor {where}")

    draws = loss.draw_score(wide, signs, generator)
    _require(draws.shape == signs.shape, "draw_score", f"has shape {tuple(draws.shape)}; expected [N, L]")
    for name, moment in _moments(y).items():
        gap = factors * moment(prior) - factors * moment(draws).mean(0)
        _require_centered(
            gap.squeeze(1) / marginal.squeeze() + (moment(draws) - moment(draws).mean(0)).squeeze(1),
            "draw_score",
            f"has another {name} than the tilted prior {where}",
        )
    score = draws
    for columns in loss.blocks(y.shape[1]):
        moved = score.clone()
        reference = loss.reference(score, signs, columns)
        moved[:, columns] = _gibbs_step(
            loss, score[:, columns] - reference, signs[:, columns], scale, generator, reference
        )
        score = moved
    for name, moment in _moments(y).items():
        gap = (moment(score) - moment(draws)).squeeze(1)
        _require_centered(gap, "augment", f"with reference changes the {name} of the tilted prior {where}")

    best, cost = loss.one_point(scale.square().view(1, 1), y)
    attained = best.square().sum(1, keepdim=True) / (2 * scale.square()) - loss.log_factor(best, y)
    _require_close(cost, attained, "one_point", f"has a cost that is not that of its scores {where}")
    for radius in (1.0, 0.1, 1e-2, 1e-3):
        others = best + radius * scale * torch.randn(
            2000, y.shape[1], generator=generator, dtype=y.dtype, device=y.device
        )
        costs = others.square().sum(1, keepdim=True) / (2 * scale.square()) - loss.log_factor(others, y)
        _require(bool((cost <= costs.min() + _CLOSE).all()), "one_point", f"is not the minimum {where}")


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


def _gibbs_step(
    loss: Loss, score: Tensor, y: Tensor, scale: Tensor, generator: torch.Generator, reference: Tensor | float = 0.0
) -> Tensor:
    """A draw of the whole score given the augmentation of (score - reference), under the prior N(0, scale^2)."""
    precision, shift = loss.augment(score, y, generator)
    total = precision + scale.square().reciprocal()
    noise = torch.randn(score.shape, generator=generator, dtype=score.dtype, device=score.device)
    return (shift + precision * reference) / total + noise / total.sqrt()


def _one_point_law(loss: Loss, scale: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes f [G], and the log density [G] of N(f; 0, scale^2) phi(y | f)."""
    nodes = scale * torch.linspace(-9, 9, 40_001, dtype=scale.dtype, device=scale.device)
    log_prior = -(nodes / scale).square() / 2 - scale.log() - math.log(2 * math.pi) / 2
    return nodes, log_prior + loss.log_factor(nodes, y)


def _require_ordered(probabilities: Tensor, scores: Tensor) -> None:
    message = f"have shape {tuple(probabilities.shape)} for scores {tuple(scores.shape)}"
    _require(probabilities.shape == scores.shape, "probabilities", message)
    _require_close(probabilities.sum(1), torch.ones_like(scores[:, 0]), "probabilities", "do not sum to one")
    lead = probabilities.amax(1, keepdim=True) - probabilities.gather(1, scores.argmax(1, keepdim=True))
    _require((lead <= 1e-12).all(), "probabilities", "have another order than scores")


def _require_law(draws: Tensor, nodes: Tensor, log_density: Tensor, method: str, message: str) -> None:
    """Two moments and the Kolmogorov-Smirnov distance of independent draws to the law with this density."""
    density = log_density.softmax(0)
    _require_centered(draws - density @ nodes, method, f"{message}: another mean")
    _require_centered(draws.square() - density @ nodes.square(), method, f"{message}: another second moment")
    cdf = density.cumsum(0) - density / 2
    right = torch.searchsorted(nodes, draws.sort().values).clamp(1, len(nodes) - 1)
    exact = cdf[right - 1] + (cdf[right] - cdf[right - 1]) * (
        (draws.sort().values - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    )
    rank = torch.arange(len(draws), dtype=exact.dtype, device=exact.device)
    distance = torch.maximum((rank + 1) / len(draws) - exact, exact - rank / len(draws)).max()
    statistic = float(distance) * math.sqrt(len(draws))
    _require(statistic < _KS_LIMIT, method, f"{message} (Kolmogorov-Smirnov statistic {statistic:.2f})")


def _require_centered(values: Tensor, method: str, message: str) -> None:
    """The means of independent values [n, ...] are zero within five standard errors."""
    ratio = float((values.mean(0).abs() / (values.std(0) / math.sqrt(len(values))).clamp(min=1e-12)).max())
    _require(ratio < 5, method, f"{message} ({ratio:.1f} standard errors)")


def _require_close(
    actual: Tensor | float, expected: Tensor | float, method: str, message: str, tol: float = 1e-8
) -> None:
    actual, expected = torch.as_tensor(actual).detach(), torch.as_tensor(expected).detach()
    gap = float(((actual - expected).abs() / expected.abs().clamp(min=1.0)).max()) if actual.numel() else 0.0
    _require(gap <= tol, method, f"{message} (off by {gap:.1e})")


def _require(condition: bool | Tensor, method: str, message: str) -> None:
    if not bool(condition):
        raise AssertionError(f"{method} {message}.")
