"""The interface of a margin loss on linear scores: one factor phi(y | f) that every backend uses.

`log_factor` alone defines a loss. With further closed forms, a backend replaces the factor by a Gaussian
pseudo-observation exp(-precision f^2 / 2 + shift f) of the score f: Gibbs draws the scale-mixture variable (`augment`;
without it Gibbs draws the weights by elliptical slice sampling), SVI takes its expectation (`expect`; without it there
is no SVI), and the small-variance limit sets it to its limit (`majorize`, which has a numerical default). A convex cost
may also have a conjugate (`conjugate`), which the dual solvers need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..config import Config
from ..sums import row_chunks
from .conjugates import Box
from .tilted_normal import draw_interpolated, normal_net, normal_rule


class PseudoObservation(NamedTuple):
    """The factor exp(-precision f^2 / 2 + shift f) of a score f."""

    precision: Tensor  # >= 0, in units of 1 / score^2
    shift: Tensor  # in units of 1 / score


class Loss(Config, ABC):
    """A margin loss. `testing.check_loss` checks every method that a loss has against its `log_factor`.

    Methods act elementwise on scores [..., C] and targets that broadcast with them: C = 1 for a binary or real target,
    C = L for L classes (targets -1 / +1), C = 0 for no target.
    """

    is_likelihood: ClassVar[bool] = False  # phi(y | f) sums to one over the signs y of all scores
    target: ClassVar[str] = "sign"  # "sign": targets -1 / +1; "level": 0, 1, ...; "real": real numbers, for regression
    meets: ClassVar[bool] = False  # whether all class scores have one joint factor, with one column [..., 1]
    takes_missing: ClassVar[bool] = False  # targets may be NaN (see `Masked`)
    keeps_units: ClassVar[bool] = True  # whether a + b y may take the place of real targets y; not of counts
    step: ClassVar[float] = 0.01  # of the trapezoid rule for numerical integrals, in standard deviations

    # -- the definition ----------------------------------------------------------------------------------------

    @abstractmethod
    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        """log phi(y | f), at most 0."""

    # -- properties ----------------------------------------------------------------------------------------------------

    @property
    def binary(self) -> bool:
        """A loss of one score and a sign, which may be used one-versus-rest."""
        return self.target == "sign" and not self.meets

    @property
    def unmasked(self) -> Loss:
        """The loss of targets that are known."""
        return self

    @property
    def untempered(self) -> tuple[Loss, float]:
        """A loss, and the power of its factor that this one is."""
        return self, 1.0

    @property
    def is_augmented(self) -> bool:
        """Whether the factor is Gaussian in the score given the augmentation variable of `augment`."""
        return type(self).augment is not Loss.augment

    @property
    def has_expectation(self) -> bool:
        """Whether SVI has a closed-form bound: `expect` and `expected_log_factor`."""
        return type(self).expect is not Loss.expect

    @property
    def has_marginal(self) -> bool:
        """Whether the integral over the scores of a new component is available: `log_marginal`, `draw_score`."""
        return not self.meets or type(self).log_marginal is not Loss.log_marginal

    @property
    def has_conjugate(self) -> bool:
        """Whether the cost -log phi is convex with a known conjugate: `conjugate`, `best_tilt`, `feasible`."""
        return type(self).conjugate is not Loss.conjugate or type(self).box is not Loss.box

    def lacking(self, reading: str, whose: str, instead: str) -> NotImplementedError:
        """The error to raise where `whose` needs a method that this loss lacks; `reading` is a key of `_READINGS`."""
        names = _READINGS[reading]
        return NotImplementedError(f"{type(self).__name__} has no {names}, which {whose} needs: {instead}.")

    # -- methods for each backend; all but the last are optional -------------------------------------------------------

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        """Gibbs: the pseudo-observation at a draw of the augmentation variable given the score."""
        raise self.lacking("augment", "a draw of omega", f"move the weights by elliptical slice steps; {_ALONE}")

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        """SVI: the pseudo-observation at the optimal q(omega) for a score of this mean and variance."""
        raise self._no_expectation

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        """SVI: the lower bound of E log phi that this q(omega) attains; quadratic in f around it."""
        raise self._no_expectation

    def expect_with_bound(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> tuple[PseudoObservation, Tensor]:
        """SVI: `expect` and `expected_log_factor` of the same scores; computing both at once may be cheaper."""
        return self.expect(score_mean, score_var, y), self.expected_log_factor(score_mean, score_var, y)

    def majorize(self, score: Tensor, y: Tensor) -> PseudoObservation:
        """Small variance: the quadratic that touches `log_factor` at the score and lies below it elsewhere.

        The default without `expect` touches but may cross, so callers halve steps that raise the cost. Its precision is
        the larger of -phi'' (from slopes a small step apart) and the value that keeps its maximum at most 0, as log phi
        is.
        """
        if self.has_expectation:
            return self.expect(score, torch.zeros_like(score), y)
        value, slope, curvature = self._tangent(score, y)
        room = torch.maximum(-2 * value, _WIDTH * slope.abs()).clamp(min=torch.finfo(value.dtype).tiny)
        precision = torch.maximum(curvature, slope.square() / room).clamp(min=_LEAST_PRECISION)
        return PseudoObservation(precision, slope + precision * score)

    def parabola(self, score: Tensor, y: Tensor) -> PseudoObservation:
        """Small variance: the quadratic with slope and curvature of `log_factor`, for a Newton step."""
        _, slope, curvature = self._tangent(score, y)
        precision = curvature.clamp(min=0.0)
        return PseudoObservation(precision, slope + precision * score)

    def _tangent(self, score: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log phi, its derivative and minus its second derivative (from slopes _WIDTH apart), each [..., C]."""
        score, y = torch.broadcast_tensors(score.detach(), y)
        with torch.enable_grad():
            leaf = torch.stack([score - _WIDTH, score, score + _WIDTH]).requires_grad_()
            value = self.log_factor(leaf, y)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        return value[1].detach(), slope[1], (slope[0] - slope[2]) / (2 * _WIDTH)

    @property
    def _no_expectation(self) -> NotImplementedError:
        other = "EpsilonInsensitive()" if self.target == "real" else "OneVsRest(Hinge())"
        averaging = ', or SVI(rule="averaging")' if self.has_conjugate else ""
        instead = f"take another loss such as {other}{averaging}, or another backend of the model: {_ALONE}"
        return self.lacking("expect", "SVI", instead)

    # -- the conjugate of the cost g(f) = -log phi(y | f); optional --------------------------------------------------

    def conjugate(self, tilt: Tensor, y: Tensor) -> Tensor:
        """Duals: g*(-t) = max_f [-t . f - g(f)] at tilts t [..., C], +inf outside its domain.

        It is [..., C], or [..., 1] with a joint factor. By Fenchel and Young g(f) + g*(-t) + t . f >= 0, with equality
        at t = -g'(f): the tilt exp(t . f) is the factor that the margin contributes to a posterior
        (docs/derivations/regbayes, "Conjugates of the losses").
        """
        return self._box(y).value(tilt)

    def best_tilt(self, score: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Duals: the tilt [..., C] that minimizes g*(-t) + t . score + variance |t|^2 / 2, variance >= 0 [..., 1].

        It is the tilt of one point, whose scores are `score` without the tilt and score + variance t with it.
        """
        return self._box(y).best(score, variance)

    def feasible(self, tilt: Tensor, y: Tensor) -> Tensor:
        """Duals: a tilt [..., C] in the domain of the conjugate; unchanged if it is already there."""
        return self._box(y).clamp(tilt)

    def box(self, y: Tensor) -> Box | None:
        """The conjugate as a `Box`, if the cost of one score consists of lines and one parabola; else None."""
        return None

    def _box(self, y: Tensor) -> Box:
        box = self.box(y)
        if box is None:
            other = "EpsilonInsensitive()" if self.target == "real" else "Hinge()"
            instead = f"take {other}, rule='gibbs' if the loss has expectations, or Gibbs, which takes any"
            raise self.lacking("conjugate", "a dual, and with it SVI(rule='averaging'),", instead)
        return box

    # -- one point alone: numerical defaults, overridden if there is a closed form -------------------------------------

    def log_marginal(self, scale: Tensor, y: Tensor) -> Tensor:
        """log E phi(y | f) for f ~ N(0, scale^2): the weight of a new component at a point.

        The default is the trapezoid rule in f with step scale / 100: phi should not change much within a step.
        """
        scale, y = torch.broadcast_tensors(scale, y)
        return torch.cat([log_weights.logsumexp(-1) for _, log_weights in self._tilted(scale, y)]).view(y.shape)

    def draw_score(self, scale: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """A draw from N(0, scale^2) phi(y | f) / (its integral): the first score of a new component.

        The default interpolates the log density between nodes scale / 100 apart.
        """
        scale, y = torch.broadcast_tensors(scale, y)
        draws = [draw_interpolated(nodes, log_weights, generator) for nodes, log_weights in self._tilted(scale, y)]
        return scale * torch.cat(draws).view(y.shape)

    def draw_target(self, score: Tensor, generator: torch.Generator) -> Tensor:
        """A real target [...] with density phi(y | f) / (its integral over y) for each score [...]; optional."""
        raise self.lacking("draw_target", "a draw of new targets", "define it, or take X alone from a model without y")

    def one_point(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Small variance: (score, cost) that minimize -log phi(y | f) + f^2 / (2 variance) over f.

        The default refines around the best of 65 nodes, as if the minimum there were the only one. As log phi <= 0,
        f^2 <= -2 variance log phi(y | 0) at the optimum.
        """
        variance, y = torch.broadcast_tensors(variance, y)
        alone, targets = variance.reshape(-1, 1).clamp(min=torch.finfo(variance.dtype).tiny), y.reshape(-1, 1)
        found = [self._refined(alone[rows], targets[rows]) for rows in row_chunks(alone, _MOST_NODES)]
        score, cost = (torch.cat(parts).view(y.shape) for parts in zip(*found, strict=True))
        return score, cost

    def _refined(self, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The numerical `one_point` [n, 1], of variances and targets [n, 1]."""
        center = torch.zeros_like(variance)
        radius = torch.sqrt(-2 * variance * self.log_factor(center, y))
        for num_nodes, shrinkage in _ZOOMS:
            nodes = torch.linspace(-1, 1, num_nodes, dtype=y.dtype, device=y.device)
            score = center + radius * nodes.view(-1, 1, 1)
            cost, best = (score * (score / variance) / 2 - self.log_factor(score, y)).min(0)
            center, radius = score.gather(0, best.unsqueeze(0)).squeeze(0), radius / shrinkage
        return center, cost

    def probabilities(self, scores: Tensor) -> Tensor:
        """Class probabilities [..., L] of scores [..., C] (C = 1: L = 2), increasing in each class's own score.

        The default is the factor normalized over the classes, for prediction only; it is not a part of the model.
        """
        if self.target == "real":
            raise NotImplementedError(f"{type(self).__name__} has real targets, no classes: use predict(X).")
        if self.meets:
            signs = 2 * torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device) - 1
            return self.log_factor(scores.unsqueeze(-2), signs).squeeze(-1).softmax(-1)
        positive = torch.ones_like(scores)
        log_odds = self.log_factor(scores, positive) - self.log_factor(scores, -positive)
        if scores.shape[-1] == 1:
            log_odds = torch.cat([torch.zeros_like(log_odds), log_odds], -1)
        return log_odds.softmax(-1)

    def moderated(self, score_mean: Tensor, score_var: Tensor) -> Tensor:
        """Scores [..., C] whose `probabilities` are near the expected ones; by default the mean scores."""
        return score_mean

    def expected_probabilities(self, score_mean: Tensor, score_var: Tensor) -> Tensor:
        """Approximation of E probabilities(f) [..., L] for independent Gaussian scores with these moments [..., C].

        A single score is `moderated`; for several scores it is the mean over a fixed set of points.
        """
        if score_mean.shape[-1] == 1:
            return self.probabilities(self.moderated(score_mean, score_var))
        scale, points = score_var.sqrt(), normal_net(score_mean, _NUM_POINTS)
        total = torch.zeros_like(score_mean)
        for point in points:
            total += self.probabilities(torch.addcmul(score_mean, scale, point))
        return total / len(points)

    def _tilted(self, scale: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For chunks of the entries of scale, y: nodes g [G], and log weights [n, G] of N(g; 0, 1) phi(y | scale g)."""
        if self.meets:
            raise self.lacking("log_marginal", "a new component of a collapsed scan", _OTHER_SCANS)
        nodes, log_weights = normal_rule(scale, self.step)
        rows = zip(scale.reshape(-1, 1).split(_CHUNK), y.reshape(-1, 1).split(_CHUNK), strict=True)
        return ((nodes, self.log_factor(width * nodes, target) + log_weights) for width, target in rows)

    # -- overridden by losses with one joint factor of all classes (Crammer-Singer) ------------------------------------

    def blocks(self, num_scores: int) -> list[slice]:
        """Column ranges of the scores; the classifiers of one range are updated together."""
        return [slice(0, num_scores)] if num_scores else []

    def reference(self, scores: Tensor, y: Tensor, columns: slice) -> Tensor | float:
        """The reference [...] such that, given the other columns, the factor is binary in score - reference."""
        return 0.0


_READINGS = {
    "augment": "known Gaussian scale mixture (`augment`)",
    "expect": "closed expectation (`expect`, `expected_log_factor`)",
    "conjugate": "convex conjugate (`conjugate`)",
    "draw_target": "draws of real targets (`draw_target`)",
    "log_marginal": "known integral over all scores (`log_marginal`, `draw_score`)",
}
_ALONE = "Gibbs, SmallVariance, NUTS and Autoguide need log_factor alone"
_OTHER_SCANS = "take CrammerSinger(), or Gibbs with scan='slice' or scan='blocked'"
_CHUNK = 128  # rows of nodes at a time, few enough for a cache
_NUM_POINTS = 64  # of a set of points in the scores of several classes; within some .02 of their expected probabilities
_MOST_NODES = 65
_ZOOMS = ((_MOST_NODES, 16), *[(7, 3)] * 33)  # numbers of nodes, and how much the radius shrinks: to 1e-17 of the first
_WIDTH = 1e-2  # in units of the score: a kink gets the curvature of a parabola this wide
_LEAST_PRECISION = 1e-6
