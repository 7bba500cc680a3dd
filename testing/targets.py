"""Checks that a model's kernels and its posterior agree about y: targets encode it, predictions decode it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..inference.posterior.scores import ScoreMixture, ScorePrediction
from ..inference.structures import structure_of
from ..models.numbers import as_tensor
from .probabilities import check_expected
from .requirements import OF_ARGUMENTS, named_errors


class _Told(ScorePrediction):
    """A posterior whose training rows have exactly these scores [N, C]."""

    def __init__(self, model: Any, scores: Tensor) -> None:
        self.model, self.samples, self.scores = model, {}, scores

    def checked(self, X: Any) -> Any:
        return self.scores

    def score_mixtures(self, X: Any, *, spread: bool = False) -> Iterator[ScoreMixture]:
        yield ScoreMixture(X.new_zeros(len(X), 1), X.unsqueeze(1), None)


def check_target(model: Any, X: Any, y: Any, seed: int = 0) -> None:
    """Check that at any scores a model predicts the y for which its kernels have the largest factor.

    At any scores of the training rows `predict` returns the y of largest factor, and the probabilities are the softmax
    of the log factors; targets are as kernels see them, predictions as a posterior makes them.

    Parameters
    ----------
    model : with a target, not resolved
    X, y : a few rows [N, D] and their y [N] or [N, M], as for `fit`

    Raises
    ------
    AssertionError    naming what disagrees.
    """
    X, given = model.as_rows(X), as_tensor("y", y)
    with named_errors(model, *OF_ARGUMENTS):
        model = model.resolve(X, y)
    with named_errors(model):
        _check_scores(model, X, y, given.to(X.device), seed)


def _check_scores(model: Any, X: Any, y: Any, given: Tensor, seed: int) -> None:
    """Compare targets and predictions of a resolved model at random scores of the rows of X [N, D]."""
    coding = model.coding
    if callable(codes := getattr(coding, "codes", None)):
        found, expected = list(codes().shape), [len(coding.labels), coding.num_scores]
        what = f"{type(coding).__name__}.codes has the shape {found}; expected {expected}, a row for each class"
        assert found == expected, what
    like = model.data(X, y).targets
    assert like.shape[1] == coding.num_scores, (
        f"kernels see {like.shape[1]} targets of a row; {type(coding).__name__} decodes {coding.num_scores} scores"
    )
    known = like[~like.isnan()]
    wrong = known[known.abs() != 1] if model.loss.target == "sign" else known[:0]
    assert not len(wrong), f"kernels see the target {wrong[0].item():g}; {type(model.loss).__name__} takes -1 and +1"
    generator = torch.Generator(like.device).manual_seed(seed)
    size = torch.tensor([0.5, 2.0, 8.0, 30.0]).to(like).repeat(_NUM_SCORES)[:, None, None]
    scores = size * torch.randn(len(size), *like.shape, generator=generator, dtype=like.dtype, device=like.device)
    if not coding.has_classes:
        return _check_real(model, X, given, scores.clamp(-_MOST_SCORE, _MOST_SCORE))
    classes = like.new_tensor([0, 1], dtype=torch.long) if model.classes is None else model.classes
    every = [torch.full_like(given, label, dtype=torch.long) for label in classes.tolist()]
    factors = torch.stack([_log_factors(model, X, labels, scores) for labels in every], -1)
    stated = torch.stack([coding.log_density(scores, labels, model.loss) for labels in every], -1)
    told = factors.flatten(2, -2).sum(2) if given.ndim == 2 else factors
    _require_close(stated, told, "log_density is not the log factor of the targets that kernels see")
    _check_predictions(model, scores, factors, classes)


def _log_factors(model: Any, X: Any, y: Tensor, scores: Tensor) -> Tensor:
    """The log factors [R, N], or [R, N, M], of rows with this y in the kernels, at scores [R, N, C]."""
    targets = model.data(X, y).targets
    if y.ndim == 2:
        return model.loss.log_factor(scores, targets)
    found: Tensor = model.log_margin(scores, targets)
    return found


def _check_predictions(model: Any, scores: Tensor, factors: Tensor, classes: Tensor) -> None:
    """Compare predictions at scores [R, N, C] with log factors [R, N, L] or [R, N, M, L] of classes [L]."""
    coding, expected = model.coding, factors.softmax(-1)
    decoded, probabilities = coding.decode(scores, model.loss), coding.probabilities(scores, model.loss)
    ours = issubclass(structure_of(model).posterior, ScorePrediction)
    if ours:
        rows = _Told(model, scores.flatten(0, 1))
        assert torch.equal(rows.predict(rows.scores), decoded.flatten(0, 1)), "predict is not what the target decodes"
        probabilities = rows.predict_proba(rows.scores).unflatten(0, scores.shape[:2])
    if probabilities.shape != expected.shape:  # for two classes only that of the larger one
        assert probabilities.shape == expected.shape[:-1], (
            f"there are {probabilities.shape[-1]} probabilities for {len(classes)} classes"
        )
        expected = expected[..., 1]
    _require_close(probabilities, expected, "probabilities are not the softmax of the log factors over the classes")
    _check_uncertain(model, scores[: _NUM_SCORES // 10])
    place = torch.searchsorted(classes, decoded).clamp(max=len(classes) - 1)
    assert torch.equal(classes[place], decoded), "decode gives labels that are no classes"
    gap = factors.amax(-1) - factors.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    assert (gap <= _CLOSE * (1 + factors.abs().amax(-1))).all(), (
        f"decode does not give the class of largest factor: it names {decoded[gap == gap.max()][0].item()} where that "
        f"is {classes[factors[gap == gap.max()][0].argmax()].item()}"
    )
    unseen = sorted(set(classes.tolist()) - set(decoded.unique().tolist()))
    assert not unseen, f"no scores decode to the classes {unseen}"


def _check_uncertain(model: Any, scores: Tensor) -> None:
    """Compare expected probabilities at uncertain scores [R, N, C] with draws, and log odds with decisions."""
    coding, loss = model.coding, model.loss
    certain = coding.probabilities(scores, loss)
    chosen = coding.choose(coding.log_odds(certain))
    assert torch.equal(chosen, coding.decode(scores, loss)), "log_odds of probabilities choose other labels than decode"
    check_expected(
        lambda at: coding.probabilities(at, loss),
        lambda mean, variance: coding.expected_probabilities(mean, variance, loss),
        scores,
        torch.Generator(scores.device).manual_seed(0),
    )


def _check_real(model: Any, X: Any, y: Tensor, scores: Tensor) -> None:
    """Compare the y that scores [R, N, C] decode to with other possible ones: those of near scores, and those of y.

    Predictions must be that y, and a target that keeps its units must be linear in y.
    """
    coding, decode = model.coding, model.coding.decode
    if issubclass(structure_of(model).posterior, ScorePrediction):
        rows = _Told(model, scores.flatten(0, 1))
        told = rows.predict(rows.scores)
        what = "decode gives another y than predict, which calls decisions and choose; write choose in its place"
        _require_close(told, decode(rows.scores, model.loss), what)
    if coding.keeps_units:
        linear = torch.allclose(coding.read(2 * y, scores), 2 * coding.read(y, scores), equal_nan=True)
        assert linear, f"{type(coding).__name__} is not linear in y, but its keeps_units is True; set it to False"
    for some in scores[:: len(scores) // _NUM_REAL + 1]:  # an odd step, so that all sizes occur
        best = _log_factors(model, X, decode(some, model.loss), some.unsqueeze(0))
        others = {f"that of a score {shift:+}": decode(some + shift, model.loss) for shift in _SHIFTS}
        for what, other in {**others, "another row's": y.roll(1, 0)}.items():
            gain = _log_factors(model, X, other, some.unsqueeze(0)) - best
            assert not (gain > _CLOSE * (1 + best.abs())).any(), (
                f"decode does not give the y of largest factor: {what} is better"
            )


def _require_close(found: Tensor, expected: Tensor, what: str) -> None:
    gap = float((found - expected).abs().div(1 + expected.abs()).max())
    assert gap <= _CLOSE, f"{what} (off by {gap:.2g})"


_NUM_SCORES = 100  # for each row and size
_NUM_REAL = 20  # sets of scores of real targets
_MOST_SCORE = 30.0  # whose exponential is still a possible y
_SHIFTS = (-3.0, -0.1, -0.01, 0.01, 0.1, 3.0)
_CLOSE = 1e-5
