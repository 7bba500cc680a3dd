"""Margin losses: every loss in the table keeps the interface's identities; the closed forms against quadrature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import kstest, norm
from setups import Softmax, spoiled
from torch import Tensor

from regbayes.estimators import Regressor
from regbayes.models import InfiniteSVM
from regbayes.models.losses import (
    AllThresholds,
    CrammerSinger,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Loss,
    Masked,
    OneVsRest,
    PseudoObservation,
    SquaredHinge,
    StudentT,
)
from regbayes.models.losses.tilted_normal import log_survival_ratio, normal_excess
from regbayes.testing import check_loss

pytestmark = pytest.mark.usefixtures("few_restarts")


@dataclass
class SquaredError(Loss):
    """phi(y | f) = exp(-c (y - f)^2): already Gaussian; the one-point readings are the numerical defaults."""

    strength: float = 0.7

    target: ClassVar[str] = "real"

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -self.strength * (y - score).square()

    def augment(self, score: Tensor, y: Tensor, generator: torch.Generator) -> PseudoObservation:
        return self.expect(score, torch.zeros_like(score), y)

    def expect(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> PseudoObservation:
        precision = torch.full_like(score_mean, 2 * self.strength)
        return PseudoObservation(precision, precision * y)

    def expected_log_factor(self, score_mean: Tensor, score_var: Tensor, y: Tensor) -> Tensor:
        return self.log_factor(score_mean, y) - self.strength * score_var


@dataclass
class Ramp(Loss):
    """phi(y | f) = exp(-sigmoid(1 - 2 y f)), not convex: a loss with `log_factor` alone."""

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -torch.sigmoid(1 - 2 * y * score)


class PlainHinge(Hinge):
    """The hinge with the numerical defaults of `Loss` in place of its closed forms."""

    log_marginal = Loss.log_marginal
    draw_score = Loss.draw_score
    one_point = Loss.one_point


# a new loss is one row
STANDARD = [
    Hinge(),
    Hinge(strength=4.0, margin=2.0),
    Logistic(),
    EpsilonInsensitive(),
    EpsilonInsensitive(strength=3.0, epsilon=0.6),
    EpsilonInsensitive(strength=0.5, epsilon=0.0),
    OneVsRest(Hinge(strength=0.8)),
    OneVsRest(Logistic()),
    CrammerSinger(),
    SquaredHinge(strength=0.6, margin=1.5),
    StudentT(df=3.0, scale=0.6),
    Masked(Hinge()),
    Masked(OneVsRest(Logistic())),
    Ramp(),
    AllThresholds(Hinge(0.8)),
    AllThresholds(Logistic(), (-1.0, 0.3)),
]
VARIANTS = [
    Hinge(strength=0.1, margin=0.5),
    CrammerSinger(strength=0.4, margin=2.0),
    SquaredHinge(),
    StudentT(),
    Masked(CrammerSinger()),
    SquaredError(),
    PlainHinge(),
    AllThresholds(SquaredHinge(), (-2.0, 0.5, 3.0)),
]
LOSSES = [*STANDARD, *VARIANTS]
AGAIN = {repr(STANDARD[place]) for place in (1, 4, 5, 7, 12, 15)}  # of a kind that another one has by day
ELEMENTWISE = [loss for loss in LOSSES if not loss.meets]


def repr_(value: object) -> str:
    return repr(value) if isinstance(value, Loss) else str(value)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    "loss",
    [pytest.param(loss, marks=pytest.mark.nightly if repr(loss) in AGAIN else ()) for loss in STANDARD],
    ids=repr_,
)
def test_loss_keeps_the_interface(loss, generator):
    check_loss(loss, generator=generator)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("loss", VARIANTS, ids=repr_)
def test_loss_keeps_the_interface_at_other_parameters(loss, generator):
    check_loss(loss, generator=generator)


# -- check_loss finds what is wrong --------------------------------------------------------------------------------


def scaled(observed: NamedTuple, **factors: float) -> NamedTuple:
    """The tuple with some of its entries multiplied."""
    return observed._replace(**{name: factor * getattr(observed, name) for name, factor in factors.items()})


def steeper(right, score, y):
    """A parabola of the same slope at the score, with a tenth more curvature."""
    precision, shift = right(score, y)
    return PseudoObservation(1.1 * precision, shift + 0.1 * precision * score)


def lower_score(right, variance, y):
    """A score below the optimum, and what it costs."""
    score = 0.9 * right(variance, y)[0]
    return score, score.square() / (2 * variance) - Logistic().log_factor(score, y)


@pytest.mark.parametrize(
    ("loss", "method", "wrong", "message"),
    [
        (Hinge(), "box", lambda right, y: right(y)._replace(linear=1.01 * y), "conjugate"),
        (EpsilonInsensitive(), "box", lambda right, y: right(y)._replace(upper=torch.full_like(y, 3.0)), "conjugate"),
        (Logistic(), "best_tilt", lambda right, *given: 0.99 * right(*given), "best_tilt"),
        (CrammerSinger(), "feasible", lambda right, tilt, y: tilt, "feasible"),
        (CrammerSinger(), "conjugate", lambda right, tilt, y: 0.9 * right(tilt, y), "conjugate"),
        (Hinge(), "expect", lambda right, *given: scaled(right(*given), shift=1.001), "expect shift"),
        (Logistic(), "augment", lambda right, *given: scaled(right(*given), precision=1.1), "augment"),
        (Hinge(), "augment", lambda right, *given: right(*given[:2], torch.Generator().manual_seed(0)), "generator"),
        (Logistic(), "expected_log_factor", lambda right, *given: right(*given) + 0.01, "expected_log_factor exceeds"),
        (Hinge(), "expect_with_bound", lambda right, *given: (right(*given)[0], right(*given)[1] - 0.01), "with_bound"),
        (Hinge(), "log_marginal", lambda right, *given: right(*given) + 1e-3, "log_marginal"),
        (EpsilonInsensitive(), "draw_score", lambda right, *given: 1.1 * right(*given), "draw_score"),
        (Logistic(), "one_point", lower_score, "one_point"),
        (Logistic(), "parabola", lambda right, *given: scaled(right(*given), shift=-1.0), "parabola has not the slope"),
        (Logistic(), "parabola", steeper, "parabola precision is not minus the curvature"),
        (Hinge(), "probabilities", lambda right, scores: right(-scores), "probabilities"),
        (Logistic(), "moderated", lambda right, mean, width: mean / (1.1 + width).sqrt(), "expected_probabilities"),
        (Logistic(), "probabilities", lambda right, scores: right(3 * scores), "probabilities are not the factors"),
        (
            Logistic(),
            "moderated",
            lambda right, mean, width: mean * (1 + 9 * width),
            "are further off than those at the mean",
        ),
        (CrammerSinger(), "reference", lambda right, *given: right(*given) + 0.1, "reference"),
        (CrammerSinger(), "log_marginal", lambda right, *given: right(*given) + 0.2, "log_marginal"),
        (CrammerSinger(), "draw_score", lambda right, scale, *given: right(scale, *given) + 0.2 * scale, "draw_score"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Loss) else value if isinstance(value, str) else "",
)
def test_check_loss_names_the_method_that_is_wrong(loss, method, wrong, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(spoiled(loss, method, wrong))


class Plain(Loss):
    """A hinge by its factor alone."""

    slope = 8.0

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -self.slope * torch.relu(1 - y * score)


def test_a_steep_loss_by_its_factor_alone_passes_or_needs_a_smaller_step():
    check_loss(Plain())
    steep = Plain()
    steep.slope = 300.0
    with pytest.raises(AssertionError, match=r"log_marginal is not the integral .* needs a smaller `step`"):
        check_loss(steep)


class Counts(Loss):
    """Poisson counts of mean exp(score), relative to their largest probability."""

    target = "real"
    keeps_units = False

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return y * score - score.exp() - torch.xlogy(y, y) + y


def test_a_loss_of_counts_is_checked_at_counts():
    check_loss(Counts(), targets=[0.0, 1.0, 7.0])
    with pytest.raises(AssertionError):
        check_loss(Counts())


def test_a_loss_of_counts_is_not_given_standardized_targets(monkeypatch: pytest.MonkeyPatch):
    X, y = torch.arange(12.0).view(6, 2).sin().numpy(), [0.0, 1.0, 4.0, 2.0, 0.0, 3.0]
    with pytest.raises(ValueError, match=r"model has the loss Counts.*Regressor puts y in units"):
        Regressor(InfiniteSVM(loss=Counts())).fit(X, y)
    monkeypatch.setattr(Counts, "keeps_units", True)
    with pytest.raises(AssertionError, match="Counts does not take every y, but its keeps_units is True"):
        check_loss(Counts(), targets=[0.0, 1.0, 7.0])


class Unlikely(Hinge):
    """It says that its factors are probabilities of the labels."""

    is_likelihood: ClassVar[bool] = True


class Summed(Loss):
    """One factor for all classes, as of a loss in which they meet."""

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -torch.sigmoid(1 - 2 * y * score).sum(-1, keepdim=True)


class Centred(Loss):
    """The scores of the others are in the factor of each."""

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        return -torch.sigmoid(1 - 2 * y * (score + score[..., :1] / 9))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Unlikely(), "log_factor sums to no 1 over labels, yet `is_likelihood` is True"),
        (Summed(), r"log_factor has shape \(241, 1\) for scores \(241, 2\); expected a factor of each, or `meets`"),
        (Centred(), "log_factor of one score depends on the others: set `meets` = True"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_check_loss_sees_what_no_reading_of_one_score_shows(loss, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(loss)


class Counted(Ramp):
    """It tells how many threads there are."""

    seen: ClassVar[set[int]] = set()

    def log_factor(self, score: Tensor, y: Tensor) -> Tensor:
        self.seen.add(torch.get_num_threads())
        raise ArithmeticError


def test_check_loss_has_one_thread():
    """Those of a busy machine wait for one another: 30 seconds in place of 1.4 of a loss with `log_factor` alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(AssertionError, match=r"^Counted.log_factor raised ArithmeticError"):
            check_loss(Counted())
        assert Counted.seen == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@dataclass
class WrongDomain(Hinge):
    strength: Any = 1.0


def test_check_loss_names_the_field_whose_domain_is_wrong():
    with pytest.raises(AssertionError, match="checked accepts strength"):
        check_loss(WrongDomain())


# -- closed forms against quadrature -------------------------------------------------------------------------------


def hinge_integral(strength: float, margin: float, scale: float) -> float:
    """E exp(-2 c max(0, l - f)), f ~ N(0, s^2), by adaptive quadrature in f / s around the bumps of the integrand."""

    def integrand(g: float) -> float:
        return math.exp(-g * g / 2 - 2 * strength * max(0.0, margin - scale * g)) / math.sqrt(2 * math.pi)

    kink, tilted = margin / scale, min(margin / scale, 2 * strength * scale)
    decay = 1 / (2 * strength * scale)
    points = {kink, tilted, kink - decay, kink - 5 * decay, kink - 40 * decay, kink + 1, tilted - 1, -4.0, 0.0, 4.0}
    edges = sorted({-38.0, 38.0} | {point for point in points if -38 < point < 38})
    pieces = pairwise(edges)
    return sum(quad(integrand, low, high, epsabs=0, epsrel=1e-11, limit=200)[0] for low, high in pieces)


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize("margin", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("strength", [0.05, 0.3, 1.0, 7.0, 50.0])
def test_hinge_marginal_is_the_integral(strength, margin):
    scales = [0.02, 0.1, 0.5, 1.0, 3.0, 20.0, 300.0]
    actual = Hinge(strength, margin).log_marginal(f64(*scales), f64(1.0)).exp()
    expected = f64(*(hinge_integral(strength, margin, scale) for scale in scales))
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("strength", [0.05, 1.0, 20.0])
def test_epsilon_insensitive_marginal_is_the_integral(strength, epsilon):
    loss = EpsilonInsensitive(strength, epsilon)
    for scale in (0.1, 1.0, 30.0):
        for y in (-3.0, 0.0, 0.05, 1.5):

            def integrand(g, y=y, scale=scale):
                excess = max(0.0, abs(y - scale * g) - epsilon)
                return math.exp(-g * g / 2 - 2 * strength * excess) / math.sqrt(2 * math.pi)

            edges = sorted({-38.0, 38.0, 0.0, *((y + e) / scale for e in (-epsilon, epsilon)), y / scale})
            edges = [edge for edge in edges if abs(edge) <= 38]
            pieces = pairwise(edges)
            exact = sum(quad(integrand, low, high, epsabs=0, epsrel=1e-11, limit=200)[0] for low, high in pieces)
            assert loss.log_marginal(f64(scale), f64(y)).exp().item() == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("loss", [Hinge(), SquaredHinge(), Logistic(), EpsilonInsensitive()], ids=repr_)
def test_numerical_defaults_agree_with_the_closed_forms(loss):
    scale, y = f64(0.3, 1.0, 4.0), f64(-1.0, 1.0, 1.0)
    torch.testing.assert_close(Loss.log_marginal(loss, scale, y), loss.log_marginal(scale, y), rtol=1e-4, atol=1e-4)
    for default, closed in zip(Loss.one_point(loss, scale**2, y), loss.one_point(scale**2, y), strict=True):
        torch.testing.assert_close(default, closed, rtol=1e-6, atol=1e-6)


def test_many_points_alone_are_refined_in_chunks():
    scale, y = torch.linspace(0.1, 5, 9_000, dtype=torch.float64), torch.linspace(-6, 6, 9_000, dtype=torch.float64)
    score, cost = StudentT().one_point(scale.view(-1, 3), y.view(-1, 3))
    exact = StudentT().log_factor(score, y.view(-1, 3)) - score.square() / (2 * scale.view(-1, 3))
    torch.testing.assert_close(cost, -exact)
    slope = score / scale.view(-1, 3) - 5 * (y.view(-1, 3) - score) / (4 + (y.view(-1, 3) - score).square())
    assert slope.abs().max() < 1e-6


def test_numerical_majorizer_agrees_with_the_closed_ones():
    """Where a hinge is violated, its parabola is the flattest whose top is 0: the same as that of its scale mixture."""
    for loss in (Hinge(2.0, 1.5), SquaredHinge(0.6)):
        score = torch.linspace(-4, 0.9, 50, dtype=torch.float64)
        bare = type("Bare", (Loss,), {"log_factor": lambda _, score, y, loss=loss: loss.log_factor(score, y)})()
        for numerical, closed in zip(bare.majorize(score, f64(1.0)), loss.majorize(score, f64(1.0)), strict=True):
            torch.testing.assert_close(numerical, closed)
    with torch.no_grad():  # as a kernel calls it
        precision, shift = Ramp().majorize(score, f64(1.0))
    assert (precision > 0).all()
    assert not shift.requires_grad


@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("strength", [0.3, 4.0])
def test_crammer_singer_marginal_is_the_integral(strength, scale):
    """Two classes: a hinge of the difference of two scores. Three classes: a two-dimensional trapezoid rule."""
    loss, width = CrammerSinger(strength, 1.5), f64(scale).view(1, 1)
    two = Hinge(strength, 1.5).log_marginal(width * math.sqrt(2), f64(1.0))
    torch.testing.assert_close(loss.log_marginal(width, f64(-1.0, 1.0).view(1, 2)), two, rtol=1e-11, atol=1e-11)

    g = torch.linspace(-8, 8, 801, dtype=torch.float64)  # the other classes' scores / scale; the own one in closed form
    values, where = torch.maximum(g[:, None], g).unique(return_inverse=True)
    own = f64(*(Hinge(strength, 1.5 + scale * value).log_marginal(f64(scale), f64(1.0)).item() for value in values))
    log_density = 2 * math.log(0.02 / math.sqrt(2 * math.pi)) - (g[:, None].square() + g.square()) / 2
    exact = (own[where] + log_density).flatten().logsumexp(0).item()
    assert loss.log_marginal(width, f64(-1.0, 1.0, -1.0).view(1, 3)).item() == pytest.approx(exact, abs=2e-4)


def test_logistic_optimum_solves_its_equation():
    variance = torch.logspace(-30, 30, 121, dtype=torch.float64)
    score, _ = Logistic().one_point(variance, f64(-1.0))
    torch.testing.assert_close(-score, variance * torch.sigmoid(score), rtol=1e-12, atol=0)
    single, _ = Logistic().one_point(variance.float(), torch.tensor(-1.0))
    torch.testing.assert_close(single.double(), score, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hinge_draws_fifty_deviations_away(dtype, generator):
    """Halfway between the prior and the shifted normal both tails at the margin are exponential to order 1 / 50^2."""
    scale = torch.full((20_000,), 10.0, dtype=dtype, device=generator.device)
    draws = Hinge(strength=5.0, margin=500.0).draw_score(scale, -torch.ones_like(scale), generator)
    assert kstest(draws.double().cpu().numpy(), "laplace", args=(-500.0, 0.2)).pvalue > 1e-6


def test_epsilon_insensitive_draws_forty_deviations_away(generator):
    """With a steep loss the score lies in the tube, above its near end by an exponential of rate 40 / scale."""
    scale = torch.full((20_000,), 0.1, dtype=torch.float64, device=generator.device)
    draws = EpsilonInsensitive(strength=1e4, epsilon=0.5).draw_score(scale, torch.full_like(scale, -4.5), generator)
    inside = -4.0 - draws[draws < -4.0].cpu().numpy()
    assert len(inside) > 19_000
    assert kstest(inside, "expon", args=(0, 1 / 400)).pvalue > 1e-6


def test_normal_excess_inverts_the_survival_function():
    bound = f64(1e-6, 1e-2, 0.3, 2.0, 30.0, 1e4, 1e8)[:, None]
    level = torch.linspace(-35, -1e-3, 200, dtype=torch.float64)
    ratio = log_survival_ratio(bound, normal_excess(bound, level))
    torch.testing.assert_close(ratio, level.expand(7, -1), atol=1e-11, rtol=1e-11)
    z = (normal_excess(f64(-3.0), level) - 3).numpy()
    torch.testing.assert_close(torch.from_numpy(norm.logsf(z) - norm.logsf(-3)), level, atol=1e-9, rtol=1e-9)


# -- numbers -------------------------------------------------------------------------------------------------------


def targets(loss: Loss, like: Tensor) -> Tensor:
    return torch.full_like(like, 0.7 if loss.target == "real" else 1.0)


@pytest.mark.parametrize("loss", ELEMENTWISE, ids=repr_)
def test_single_precision_agrees_with_double(loss):
    mean = torch.linspace(-5, 5, 101)[:, None]
    variance, y = torch.full_like(mean, 0.3), targets(loss, mean)
    scale = torch.logspace(-1, 1, 101)[:, None]
    readings = {
        "log_factor": (mean, y),
        "log_marginal": (scale, y),
        "one_point": (scale, y),
        "majorize": (mean + 0.013, y),
    }
    if loss.has_expectation:
        readings |= {name: (mean, variance, y) for name in ("expect", "expected_log_factor")}
    for name, arguments in readings.items():
        single = getattr(loss, name)(*arguments)
        double = getattr(loss, name)(*(argument.double() for argument in arguments))
        pairs = zip(single, double, strict=True) if isinstance(single, tuple) else [(single, double)]
        for actual, expected in pairs:
            assert actual.dtype == torch.float32, name
            # a zoom finds the flat top of the cost only to the root of its rounding
            tolerance = 5e-3 if name == "one_point" and type(loss).one_point is Loss.one_point else 2e-4
            torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", LOSSES, ids=repr_)
def test_extreme_arguments_stay_finite(loss, dtype, generator):
    like = {"dtype": dtype, "device": generator.device}
    num_columns = 3 if loss.meets else 1
    size = torch.tensor([0.0, 1e-12, 1e-3, 1.0, 1e3, 1e6], **like)
    scores = torch.cat([-size, size])[:, None].repeat(1, num_columns)
    y = targets(loss, scores)
    y[:, 1:] = -1.0
    readings = [loss.log_factor(scores, y)]
    for columns in loss.blocks(num_columns):
        for score in (scores, torch.ones_like(scores)):  # 1: on the hinge's kink
            readings += [*loss.majorize(score[:, columns], y[:, columns])]
            if loss.is_augmented:
                readings += [*loss.augment(score[:, columns], y[:, columns], generator)]
    if loss.has_expectation:
        readings += [*loss.expect(scores, scores.abs(), y), loss.expected_log_factor(scores, scores.abs(), y)]
    scale = scores[6:, :1].clamp(max=1e4)
    readings += [
        loss.log_marginal(scale, y[6:]),
        loss.draw_score(scale, y[6:], generator),
        *loss.one_point(scale**2, y[6:]),
    ]
    for number, reading in enumerate(readings):
        assert torch.isfinite(reading).all(), number


def test_single_precision_marginals_hold_over_seven_decades_of_scale():
    scale = torch.logspace(-3, 4, 29, dtype=torch.float64)[:, None]
    y = f64(1.0, -1.0, -1.0).expand(29, 3)
    for loss in (Hinge, CrammerSinger, EpsilonInsensitive):  # with its narrow tube under a wide prior
        for strength in (1e-3, 0.1, 3.0, 1e2, 1e4):
            exact = loss(strength).log_marginal(scale, y)
            single = loss(strength).log_marginal(scale.float(), y.float())
            torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", [Hinge(3.0, 2.0), Logistic(), EpsilonInsensitive(), CrammerSinger(50.0)], ids=repr_)
def test_a_prior_without_width_leaves_the_factor_at_score_zero(loss, device):
    generator, y = torch.Generator(device).manual_seed(0), torch.tensor([[1.0, -1.0]], device=device).expand(3, 2)
    scale = torch.tensor([[0.0], [1e-18], [1e-12]], device=device)
    expected = loss.log_factor(torch.zeros_like(y), y)
    torch.testing.assert_close(loss.log_marginal(scale, y), expected)
    torch.testing.assert_close(loss.one_point(scale**2, y)[1], -expected)
    assert (loss.draw_score(scale, y, generator).abs() < 1e-6).all()
    assert (loss.one_point(scale**2, y)[0].abs() < 1e-6).all()


@pytest.mark.parametrize("loss", ELEMENTWISE, ids=repr_)
def test_no_points_and_no_columns(loss, generator):
    for shape in ((0, 1), (5, 0)):
        empty = torch.zeros(shape, dtype=torch.float64, device=generator.device)
        assert loss.log_factor(empty, empty).shape == shape
        if loss.is_augmented:
            assert loss.augment(empty, empty, generator).precision.shape == shape
        assert loss.majorize(empty, empty).shift.shape == shape
        assert loss.log_marginal(empty, empty).shape == shape
        assert loss.draw_score(empty, empty, generator).shape == shape
        assert loss.one_point(empty, empty)[1].shape == shape


@pytest.mark.parametrize("loss", LOSSES, ids=repr_)
def test_draws_are_a_function_of_the_generator(loss, device):
    num_columns = 3 if loss.meets else 1
    y = targets(loss, torch.ones(50, num_columns, device=device))
    y[:, 1:] = -1.0
    first, again = (loss.draw_score(y[:, :1], y, torch.Generator(device).manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)


# -- several classes -----------------------------------------------------------------------------------------------


def test_crammer_singer_of_two_classes_is_the_hinge_of_their_difference(generator):
    scores = torch.randn(50, 2, generator=generator, dtype=torch.float64, device=generator.device)
    y = torch.ones_like(scores)
    y[:, 0] = -1.0
    expected = Hinge(0.7, 1.5).log_factor(scores[:, 1:] - scores[:, :1], y[:, 1:])
    torch.testing.assert_close(CrammerSinger(0.7, 1.5).log_factor(scores, y), expected)


def test_crammer_singer_changes_with_a_column_as_a_hinge_does(generator):
    loss, hinge = CrammerSinger(0.7, 1.5), Hinge(0.7, 1.5)
    scores = 2 * torch.randn(60, 4, generator=generator, dtype=torch.float64, device=generator.device)
    y = 2 * torch.eye(4, dtype=torch.float64, device=generator.device).repeat(15, 1) - 1
    for columns in loss.blocks(4):
        moved = scores.clone()
        moved[:, columns] += torch.linspace(-5, 5, 60, dtype=torch.float64, device=generator.device)[:, None]
        reference, sign = loss.reference(scores, y, columns), y[:, columns]
        rise = hinge.log_factor(moved[:, columns] - reference, sign) - hinge.log_factor(
            scores[:, columns] - reference, sign
        )
        torch.testing.assert_close(loss.log_factor(moved, y) - loss.log_factor(scores, y), rise)


# -- missing targets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Hinge(0.8), OneVsRest(Logistic()), CrammerSinger(), StudentT()], ids=repr_)
def test_missing_targets_give_the_factor_one_and_leave_the_others(loss, generator):
    columns = 1 if loss.target == "real" or loss.binary else 3
    scores = torch.randn(6, columns, generator=generator, dtype=torch.float64, device=generator.device)
    y = torch.where(torch.arange(columns, device=scores.device) == 0, torch.ones_like(scores), -1.0)
    holed = y.clone()
    holed[:4] = torch.nan
    masked = Masked(loss)
    factor = masked.log_factor(scores, holed)
    assert (factor[:4] == 0).all()
    assert torch.equal(factor[4:], loss.log_factor(scores[4:], y[4:]))
    assert torch.equal(masked.log_factor(scores.unsqueeze(1), holed.unsqueeze(1)).squeeze(1), factor)  # [N, K, C]
    for block in masked.blocks(columns):
        shifted = scores[:, block] - masked.reference(scores, holed, block)
        observed = masked.augment(shifted, holed[:, block], generator)
        assert torch.isfinite(shifted).all()
        assert all((part[:4] == 0).all() and (part[4:] != 0).all() for part in observed)


def test_one_missing_class_of_several():
    y = f64(1.0, torch.nan, -1.0)[None]
    score = f64(0.3, 5.0, 0.2)[None]
    apart = Masked(OneVsRest(Hinge())).log_factor(score, y)
    torch.testing.assert_close(apart, f64(-1.4, 0.0, -2.4)[None])
    assert Masked(CrammerSinger()).log_factor(score, y) == 0  # scores meet, so a row is known or it is not


# -- what a loss says of itself ------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_numbers():
    assert type(Hinge(np.float32(2.0), np.int64(1)).checked().margin) is float
    EpsilonInsensitive(epsilon=0).checked()


def test_what_a_loss_offers():
    offers = {
        Hinge: (True, True, True, False),
        SquaredHinge: (False, True, True, False),
        StudentT: (True, True, False, False),
        Ramp: (False, False, True, False),
        OneVsRest: (True, True, False, False),
        CrammerSinger: (True, False, False, True),
    }
    for kind, expected in offers.items():
        for loss in (kind(), Masked(kind())):
            assert (loss.is_augmented, loss.has_expectation, loss.binary, loss.meets) == expected, loss
    assert not OneVsRest(Ramp()).is_augmented


def test_losses_say_what_they_cannot_do(generator):
    score = torch.zeros(2, 3)
    for method in (CrammerSinger().expect, CrammerSinger().expected_log_factor, Masked(CrammerSinger()).expect):
        with pytest.raises(NotImplementedError, match=r"CrammerSinger has no closed expectation .*OneVsRest"):
            method(score, score, score)
    with pytest.raises(
        NotImplementedError, match=r"SquaredHinge has no known Gaussian scale mixture .*elliptical slice"
    ):
        SquaredHinge().augment(score, score, generator)
    for method in (Softmax().log_marginal, partial(Masked(Softmax()).draw_score, generator=generator)):
        with pytest.raises(
            NotImplementedError, match=r"Softmax has no known integral .* collapsed scan needs: .*slice"
        ):
            method(score, score)
    with pytest.raises(NotImplementedError, match="predict"):
        EpsilonInsensitive().probabilities(score)


# -- prediction ----------------------------------------------------------------------------------------------------


def test_expected_probabilities_are_those_of_uncertain_scores():
    mean, deviation = torch.linspace(-6, 6, 25, dtype=torch.float64)[:, None, None], f64(0.05, 0.5, 1.0, 3.0)[:, None]
    nodes = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    exact = torch.sigmoid(mean + deviation * nodes) @ (-nodes.square() / 2).softmax(0)
    variance = deviation.square().squeeze(1).expand(25, 4)
    gap = (Logistic().expected_probabilities(mean, variance.unsqueeze(2))[..., 1] - exact).abs()
    assert gap.max() < 0.015
    assert gap[:, 0].max() < 3e-5  # with another factor than pi / 8 the term of first order in the variance is wrong
    scores, wide = f64(2.0, -1.0, 0.5)[None], f64(8.0, 0.0, 8.0)[None] / math.pi
    points, mass = nodes[::20], (-nodes[::20].square() / 2).softmax(0)
    for loss in (OneVsRest(Logistic()), Masked(OneVsRest(Logistic())), OneVsRest(Hinge())):
        plane = torch.stack(torch.broadcast_tensors(points[:, None], f64(0.0), points), -1)
        expected = torch.einsum("i,j,ijc->c", mass, mass, loss.probabilities(scores + wide.sqrt() * plane))
        torch.testing.assert_close(loss.expected_probabilities(scores, wide)[0], expected, rtol=0, atol=0.02)
        assert (loss.probabilities(scores)[0] - expected).abs().max() > 0.1
        certain = loss.expected_probabilities(scores, 0 * wide)
        torch.testing.assert_close(certain, loss.probabilities(scores))
