"""Targets: what encodes y and decodes scores, ordered classes in every model and backend, and targets of outsiders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from setups import spoiled
from sklearn.base import clone
from torch import Tensor

from regbayes.datasets import load
from regbayes.estimators import Classifier, ClassifierCV, MultiTaskRegressor, Regressor
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import (
    AllThresholds,
    Binary,
    ClassTarget,
    CrammerSinger,
    EachClass,
    EpsilonInsensitive,
    Hinge,
    InfiniteLatentSVM,
    InfiniteSVM,
    Logistic,
    Loss,
    Masked,
    MedLDA,
    MissingLabelWarning,
    MultiTaskInfiniteLatentSVM,
    OneVsRest,
    Ordinal,
    Real,
    SquaredHinge,
    StudentT,
)
from regbayes.models.targets import LabelSet, Target, Tasks
from regbayes.testing import check_model, check_target

pytestmark = pytest.mark.usefixtures("few_restarts")

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(6, 2, generator=GENERATOR, dtype=torch.float64)
LEVELS, NUMBERS = torch.tensor([0, 1, 2, 3, 1, 0]), X[:, 0] * 2
HOLES = torch.tensor([0.0, 1.0, torch.nan, 3.0, 2.0, 0.0], dtype=torch.float64)
TINY = torch.tensor([[-1.2], [-0.9], [0.3], [1.0], [1.3]], dtype=torch.float64)
THREE = torch.tensor([0, 0, 1, 2, 1])


# -- a target of an outsider -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Steps(ClassTarget):
    """Ordered classes, a score for each step: whether y is above it."""

    def codes(self) -> Tensor:
        L = len(self.labels)
        return 2.0 * (torch.arange(L).unsqueeze(1) > torch.arange(L - 1)) - 1


def ordered(number: int, num_levels: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows [number, 3] and levels by a linear score with noise."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(number, 3, generator=generator, dtype=torch.float64)
    score = rows @ rows.new_tensor([1.5, -1.0, 0.5]) + 0.3 * torch.randn(number, generator=generator)
    return rows, torch.bucketize(score, torch.linspace(-1.5, 1.5, num_levels - 1, dtype=torch.float64))


def errors(model, backend=None, num_levels: int = 4, **options) -> tuple[float, float]:
    """Share of wrong levels, and mean absolute error, of new rows."""
    rows, y = ordered(600, num_levels)
    posterior = (backend or SVI(num_steps=100)).fit(model, rows[:300], y[:300], **options)
    found = posterior.predict(rows[300:])
    probabilities = posterior.predict_proba(rows[300:])
    assert probabilities.shape == (300, num_levels)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(300, dtype=torch.float64))
    chosen = probabilities.gather(1, found.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(chosen, probabilities.amax(1))  # levels that no plane singles out are alike
    off = (found - y[300:]).abs().double()
    return float((off > 0).double().mean()), float(off.mean())


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=str)
def test_a_target_of_an_outsider_behaves(loss) -> None:
    """The table of codes is all that it states."""
    model = InfiniteSVM(loss=loss, target=Steps(), truncation=4)
    check_model(model, X, LEVELS)
    wrong, _ = errors(model)
    assert wrong < 0.25  # an encoding alone, decoded as one-versus-rest, is wrong for .8 of the rows


def second_best(right, decisions):
    """The class of the second largest score."""
    return decisions.argsort(-1)[..., -2].contiguous()


def backwards(right, mean, variance, loss):
    """Probabilities of the wrong sign where scores are uncertain."""
    return right(torch.where(variance > 0, -mean, mean), variance, loss)


def three_steps(right, X, y=None):
    """What a posterior is told nothing of."""
    return (2.0 * (torch.as_tensor(y).unsqueeze(1) > torch.arange(3)) - 1).to(X.dtype)


def bits(right, X, y=None):
    """Codes 0 and 1 in place of signs."""
    return (right(X, y) + 1) / 2


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (spoiled(InfiniteSVM(), "targets", bits), "kernels see the target 0; OneVsRest takes -1 and .1"),
        (
            InfiniteSVM(target=spoiled(Ordinal(), "read", lambda right, *given: 3 - right(*given))),
            "largest factor|softmax",
        ),
        (
            InfiniteSVM(target=spoiled(EachClass(), "choose", second_best)),
            "decode does not give the class of largest factor",
        ),
        (
            InfiniteSVM(target=spoiled(Ordinal(), "probabilities", lambda right, *given: right(*given)[..., 1:])),
            "3 probabilities for 4 classes",
        ),
        (
            InfiniteSVM(target=spoiled(EachClass(), "log_odds", lambda right, p: -right(p))),
            "log_odds of probabilities choose other labels",
        ),
        (
            InfiniteSVM(target=spoiled(EachClass(), "expected_probabilities", backwards), loss=Logistic()),
            "expected_probabilities are further off than those at the mean",
        ),
        (spoiled(InfiniteSVM(), "targets", three_steps), "kernels see 3 targets of a row; EachClass decodes 4 scores"),
        (
            spoiled(InfiniteSVM(target=Ordinal()), "targets", lambda right, *given: 3 - right(*given)),
            "log_density is not the log factor",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_encode_and_decode_that_disagree_are_caught(model, found) -> None:
    with pytest.raises(AssertionError, match=found):
        check_model(model.replace(truncation=3), X, LEVELS)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (3, "SpoiledSteps.* raised IndexError: index 3"),
        (5, r"SpoiledSteps.codes has the shape \[5, 3\]; expected \[4, 3\]"),
    ],
)
def test_a_code_table_of_another_length_is_named(rows, found) -> None:
    target = spoiled(Steps(), "codes", lambda right: torch.cat([right(), right()])[:rows])
    for check in (check_target, check_model):
        with pytest.raises(AssertionError, match=found):
            check(InfiniteSVM(target=target, truncation=3), X, LEVELS)


def test_wrong_arguments_of_a_check_are_refused_as_those_of_a_fit() -> None:
    for check in (check_target, check_model):
        with pytest.raises(ValueError, match="y"):
            check(InfiniteSVM(target=Steps()), X, LEVELS[:3])


# -- real targets of an outsider ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Logarithm(Target):
    """Positive y, of which the score is the logarithm; `by` and `plus` make a wrong inverse."""

    by: float = 1.0
    plus: float = 0.0

    num_scores = 1

    def read(self, y: Tensor, like: Tensor) -> Tensor:
        return y.to(like.dtype).log().unsqueeze(-1)

    def decisions(self, scores: Tensor, loss: Loss) -> Tensor:
        return scores.squeeze(-1)

    def choose(self, decisions: Tensor) -> Tensor:
        return (self.by * decisions + self.plus).exp()


SIZES = (X[:, 0] + 3).exp()
OF_SIZES = InfiniteSVM(loss=StudentT(df=100.0, scale=0.1), target=Logarithm(), weight_scale=3.0)


def test_a_real_target_of_an_outsider_is_predicted_and_drawn_in_its_own_units() -> None:
    check_target(OF_SIZES, X, SIZES)
    posterior = SVI(num_steps=30).fit(OF_SIZES, X, SIZES)
    assert (posterior.predict(X) / SIZES).log().abs().max() < 0.6
    drawn = posterior.sample(500).y
    assert (drawn > 0).all()
    assert 4 < drawn.median() < 40  # of the data 10; scores are near 2.3


@pytest.mark.parametrize("target", [Logarithm(by=1.02), Logarithm(plus=0.04), Logarithm(by=0.0)])
def test_a_wrong_inverse_of_a_real_target_is_found(target) -> None:
    with pytest.raises(AssertionError, match="decode does not give the y of largest factor"):
        check_target(OF_SIZES.replace(target=target), X, SIZES)


class Decoded(Real):
    def decode(self, scores: Tensor, loss: Loss) -> Tensor:
        return super().decode(scores, loss).exp()


class Units(Logarithm):
    keeps_units = True


@pytest.mark.parametrize(("target", "found"), [(Decoded(), "another y than predict"), (Units(), "not linear in y")])
def test_a_real_target_that_predicts_or_scales_otherwise_is_found(target: Target, found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        check_target(OF_SIZES.replace(target=target), X, SIZES)


def test_a_y_without_a_target_is_refused_and_not_missing() -> None:
    with pytest.raises(ValueError, match=r"y is -1.0 in row 2, for which Logarithm\(\) has no target"):
        SVI(num_steps=2).fit(OF_SIZES, X, torch.where(torch.arange(6) == 2, -1.0, SIZES))
    missing = torch.where(torch.arange(6) == 2, torch.nan, SIZES)
    assert SVI(num_steps=2).fit(OF_SIZES, X, missing).predict(X).isfinite().all()


def test_estimators_that_change_the_units_of_y_refuse_such_a_target() -> None:
    many = MultiTaskInfiniteLatentSVM(loss=StudentT(), target=Logarithm())
    for estimator, y in ((Regressor(OF_SIZES), SIZES), (MultiTaskRegressor(many), SIZES.expand(2, 6).T)):
        with pytest.raises(ValueError, match="TransformedTargetRegressor"):
            estimator.fit(X, y)


# -- every target decodes what it encodes ------------------------------------------------------------------------------

COUNTS = torch.poisson(torch.full((6, 5), 2.0), generator=GENERATOR).double()
PAIRS = torch.stack([LEVELS, LEVELS.flip(0)], 1)
MODELS = {
    "binary": (InfiniteSVM(), X, LEVELS % 2),
    "binary, logistic": (InfiniteSVM(loss=Logistic()), X, LEVELS % 2 + 4),
    "signs": (InfiniteSVM(), X, LEVELS % 2 * 2 - 1),
    "one-versus-rest": (InfiniteSVM(loss=Logistic()), X, LEVELS),
    "two scores": (InfiniteSVM(loss=OneVsRest(Hinge())), X, LEVELS % 2),
    "joint": (InfiniteSVM(loss=CrammerSinger()), X, HOLES),
    "ordinal": (InfiniteSVM(target=Ordinal()), X, HOLES),
    "ordinal, other thresholds": (InfiniteSVM(loss=SquaredHinge(), target=Ordinal(thresholds=[-3, 0, 0.1])), X, LEVELS),
    "ordinal by the loss": (InfiniteSVM(loss=AllThresholds(Hinge(), (0.0, 1.0, 2.0))), X, LEVELS),
    "ordinal topics": (MedLDA(loss=Logistic(), target=Ordinal(), num_topics=2), COUNTS, LEVELS),
    "ordinal tasks": (MultiTaskInfiniteLatentSVM(target=Ordinal()), X, PAIRS),
    "tasks": (MultiTaskInfiniteLatentSVM(), X, PAIRS % 2),
    "tasks, logistic": (MultiTaskInfiniteLatentSVM(loss=Logistic()), X, PAIRS % 2),
    "real tasks": (MultiTaskInfiniteLatentSVM(loss=StudentT()), X, torch.stack([NUMBERS, -NUMBERS], 1)),
    "real": (InfiniteLatentSVM(loss=EpsilonInsensitive(), feature_map=None), X, NUMBERS),
}


@pytest.mark.parametrize("name", MODELS)
def test_decoding_is_the_inverse_of_encoding(name) -> None:
    check_target(*MODELS[name])


@pytest.mark.parametrize("name", ["one-versus-rest", "real", "ordinal topics", "tasks"])
@pytest.mark.parametrize("form", [torch.Tensor.numpy, torch.Tensor.tolist], ids=["numpy", "lists"])
def test_the_checks_take_rows_as_a_fit_does(name, form) -> None:
    model, rows, y = MODELS[name]
    check_target(model, form(rows), form(y))
    if name == "one-versus-rest":
        check_model(model.replace(truncation=3), form(rows), form(y))


@pytest.mark.parametrize("target", [None, EachClass(), Ordinal(), Steps()], ids=str)
def test_a_missing_label_has_no_target_and_no_say(target) -> None:
    model = InfiniteSVM(target=target).resolve(X, HOLES)
    targets = model.targets(X, HOLES)
    assert torch.equal(targets.isnan().all(1), HOLES.isnan())
    assert torch.equal(targets.isnan().any(1), HOLES.isnan())
    assert model.loss.takes_missing
    scores = torch.full_like(targets, 0.4)  # within the margin of some threshold, or on the wrong side
    assert torch.equal(model.coding.log_density(scores, HOLES, model.loss) == 0, HOLES.isnan())


def test_the_loss_of_the_kernels_is_that_of_the_target() -> None:
    assert isinstance(InfiniteSVM().resolve(X, LEVELS).loss, OneVsRest)
    assert isinstance(InfiniteSVM(target=EachClass()).resolve(X, LEVELS % 2).loss, OneVsRest)
    assert isinstance(InfiniteSVM(target=Ordinal()).resolve(X, LEVELS).loss, AllThresholds)
    again = InfiniteSVM(target=Ordinal()).resolve(X, LEVELS).resolve(X, LEVELS)
    assert repr(again.loss) == repr(AllThresholds(Hinge(), (-2.0, 0.0, 2.0)))


@pytest.mark.parametrize("loss", [Hinge(1.5, 0.4), SquaredHinge(), Logistic()], ids=str)
def test_ordinal_counts_the_thresholds_below_the_score(loss) -> None:
    target = Ordinal(torch.tensor([2, 5, 7]), (-0.4, 1.1))
    scores = torch.linspace(-3, 3, 61, dtype=torch.float64).unsqueeze(1)
    found = target.decode(scores, target.factor(loss))
    expected = target.labels[(scores > torch.tensor([-0.4, 1.1])).sum(1)]
    assert torch.equal(found, expected)


def test_a_level_of_minus_one_below_more_than_two_is_told() -> None:
    """It may be what others write for a missing label; levels that are given say that it is none."""
    X, y = torch.arange(4.0).double().unsqueeze(1), torch.tensor([-1, 0, 1, 2])
    with pytest.warns(MissingLabelWarning, match=r"reads -1 as the lowest.*Ordinal\(classes=\[-1, 0, 1, 2\]\) says so"):
        InfiniteSVM(target=Ordinal()).resolve(X, y)
    assert InfiniteSVM(target=Ordinal(classes=[-1, 0, 1, 2])).resolve(X, y).classes.tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize("levels", [[-1, 0, 1], [-2, -1, 2], [-1, 3]])
def test_a_rating_of_minus_one_is_a_level(levels) -> None:
    y = torch.tensor([levels[0], levels[-1], torch.nan, levels[1], -1.0, levels[0]], dtype=torch.float64)
    model = InfiniteSVM(target=Ordinal()).resolve(X, y)
    assert model.classes.tolist() == levels
    assert torch.equal(model.targets(X, y).isnan().squeeze(1), y.isnan())


def test_thresholds_lie_twice_the_margin_apart_around_zero() -> None:
    target = Ordinal(torch.arange(4))
    assert target.factor(Hinge(margin=0.5)).thresholds == (-1.0, 0.0, 1.0)
    assert target.factor(Logistic()).thresholds == (-2.0, 0.0, 2.0)
    assert Ordinal(torch.arange(2)).factor(Hinge(margin=7.0)).thresholds == (0.0,)
    assert Ordinal(torch.arange(3)).factor(Masked(Hinge(margin=3.0))).thresholds == (-3.0, 3.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": Ordinal(thresholds=(0.0, 1.0))}, r"target__thresholds is \(0.0, 1.0\); expected 3"),
        ({"target": Ordinal(thresholds=(1.0, 0.0, 2.0))}, r"target__thresholds is .*larger than the one before"),
        ({"target": Ordinal(), "loss": CrammerSinger()}, r"loss is CrammerSinger.*Ordinal\(\) needs a binary one"),
        ({"target": Ordinal(), "loss": EpsilonInsensitive()}, r"loss is EpsilonInsensitive.*needs a binary one"),
        (
            {"target": Steps(), "loss": EpsilonInsensitive()},
            r"loss is EpsilonInsensitive.*Steps\(\) needs one of signs",
        ),
        ({"loss": AllThresholds()}, r"loss is AllThresholds.*of 3 levels; y has the classes \[0, 1, 2, 3\]"),
        ({"loss": AllThresholds(EpsilonInsensitive())}, r"loss__loss is EpsilonInsensitive.*must be a binary one"),
        ({"loss": AllThresholds(), "target": EachClass()}, r"loss is AllThresholds.*needs one of signs"),
        (
            {"loss": AllThresholds(Hinge(), (-1.0, 0.0, 1.0)), "target": Ordinal(thresholds=(-2.0, 0.0, 1.0))},
            r"target__thresholds is \(-2.0, 0.0, 1.0\), but the loss has thresholds of its own, \(-1.0, 0.0, 1.0\)",
        ),
        ({"target": LabelSet()}, r"target is LabelSet.*BNMC\(\) takes sets of labels"),
        ({"target": Tasks()}, r"target is Tasks.*MultiTaskInfiniteLatentSVM\(\) many tasks"),
        ({"target": Binary()}, r"y has the classes \[0, 1, 2, 3\]; the target Binary\(\) is of two"),
        ({"target": Real()}, r"loss is Hinge.*Real\(\) needs a regression loss"),
        ({"target": Ordinal}, r"target is .*expected an object of class Target"),
    ],
    ids=str,
)
def test_targets_that_do_not_go_with_the_rest_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        SmallVariance().fit(InfiniteSVM(**options), X, LEVELS)


# -- ordered classes are exact -----------------------------------------------------------------------------------------


def test_two_ordered_classes_are_a_binary_problem() -> None:
    """Each reading of one threshold at 0 is that of the binary loss: draws too."""
    score, y = 2 * torch.randn(40, 1, generator=GENERATOR, dtype=torch.float64), torch.arange(40).unsqueeze(1) % 2
    for loss in (Hinge(0.7, 1.3), Logistic()):
        one, level, sign = AllThresholds(loss, (0.0,)), y.double(), 2.0 * y.double() - 1
        variance = torch.full_like(score, 0.4)
        pairs = [
            (one.log_factor(score, level), loss.log_factor(score, sign)),
            (one.expected_log_factor(score, variance, level), loss.expected_log_factor(score, variance, sign)),
            *zip(one.expect(score, variance, level), loss.expect(score, variance, sign), strict=True),
            *zip(one.majorize(score, level), loss.majorize(score, sign), strict=True),
            *zip(
                *(
                    each.augment(score, target, torch.Generator().manual_seed(3))
                    for each, target in ((one, level), (loss, sign))
                ),
                strict=True,
            ),
        ]
        for found, expected in pairs:
            torch.testing.assert_close(found, expected.expand_as(found))
    fits = [SVI(num_steps=20).fit(InfiniteSVM(target=target), X, LEVELS % 2) for target in (None, Ordinal())]
    assert torch.equal(fits[0].trace.values, fits[1].trace.values)
    assert torch.equal(*(fit.predict_proba(X) for fit in fits))


# -- ordered classes are found -----------------------------------------------------------------------------------------

FITS = {
    "SVI": SVI(num_steps=100),
    "small variance": SmallVariance(num_components=1, num_restarts=1),
    "Gibbs": Gibbs(num_samples=15, num_warmup=15, scan="slice"),
}


@pytest.mark.parametrize("backend", FITS)
def test_ordered_classes_are_found_better_than_by_one_versus_rest(backend) -> None:
    wrong, off = errors(InfiniteSVM(target=Ordinal()), FITS[backend], 5)
    other_wrong, other_off = errors(InfiniteSVM(), FITS[backend], 5)
    assert wrong < 0.2
    assert wrong < other_wrong - 0.1
    assert off < other_off - 0.1


@pytest.mark.real_data("school")
def test_exam_marks_in_five_bands_are_nearer_than_by_one_versus_rest() -> None:
    """Marks of 1,500 pupils, bands of equal size; the mean absolute error in bands of 1,500 others."""
    data = load("school")
    chosen = np.random.default_rng(0).permutation(len(data.y))[:3000]
    rows, marks = data.X[chosen].astype(float), data.y[chosen]
    bands = np.digitize(marks, np.quantile(marks, [0.2, 0.4, 0.6, 0.8]))
    found = {}
    for name, target in (("ordinal", Ordinal()), ("one-versus-rest", None)):
        model = Classifier(InfiniteSVM(weight_scale=0.3, target=target)).fit(rows[:1500], bands[:1500])
        found[name] = np.abs(model.predict(rows[1500:]) - bands[1500:]).mean()
    assert found["ordinal"] < found["one-versus-rest"] - 0.1
    assert found["ordinal"] < 1.0


# -- what users do with it ---------------------------------------------------------------------------------------------


def test_an_estimator_takes_ordered_classes() -> None:
    rows, y = ordered(200)
    names = np.array(["1 poor", "2 fair", "3 good", "4 best"])[y.numpy()]
    model = Classifier(InfiniteSVM(target=Ordinal())).fit(rows.numpy(), names)
    assert model.score(rows.numpy(), names) > 0.8
    assert model.predict_proba(rows.numpy()).shape == model.decision_function(rows.numpy()).shape == (200, 4)
    other = clone(model).set_params(model__target__thresholds=(-1.0, 0.0, 1.0))
    assert other.fit(rows.numpy(), names).posterior_.model.loss.thresholds == (-1.0, 0.0, 1.0)
    assert "target=Ordinal(thresholds=(-1.0, 0.0, 1.0))" in repr(other.model)
    assert other.get_params()["model__target__thresholds"] == (-1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="order in the alphabet need not be that of the classes"):
        clone(model).fit(rows.numpy(), np.array(["poor", "fair", "good", "best"])[y.numpy()])


def test_a_component_for_many_levels_has_its_price() -> None:
    """The best merge may gain even at no price at all."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0].argsort().argsort() * 40 // 60
    posterior = SmallVariance(num_components=1, num_restarts=1).fit(InfiniteSVM(target=Ordinal()), X, y)
    assert (posterior.trace.values.diff(dim=1) <= 1e-9 * posterior.trace.best).all()


def test_a_search_takes_ordered_classes() -> None:
    """Without a dual each step of a path is a descent; the slope is that of the log densities."""
    rows, y = ordered(150)
    options = {"weight_scales": (0.3, 3.0), "num_components": (1,), "temperatures": (0.0,)}
    search = ClassifierCV(InfiniteSVM(target=Ordinal()), **options).fit(rows[:100].numpy(), y[:100].numpy())
    assert search.score(rows[100:].numpy(), y[100:].numpy()) > 0.75
    probabilities = search.predict_proba(rows.numpy())
    assert probabilities.shape == (150, 4)
    assert (probabilities.argmax(1) == search.predict(rows.numpy())).all()


def test_two_classes_have_one_decision_whatever_the_target() -> None:
    rows, y = ordered(40, 2)
    for model in (
        InfiniteSVM(),
        InfiniteSVM(loss=CrammerSinger()),
        InfiniteSVM(target=EachClass()),
        InfiniteSVM(target=Ordinal()),
        InfiniteSVM(loss=OneVsRest(Logistic())),
    ):
        posterior = SmallVariance(num_components=1, num_restarts=1).fit(model, rows, y + 5)
        decision = posterior.decision_function(rows)
        assert decision.shape == (40,)
        assert torch.equal(posterior.predict(rows), 5 + (decision > 0).long())


def test_the_slope_of_a_search_is_that_of_the_log_density() -> None:
    rows, y = ordered(60)
    posterior = SmallVariance(num_components=1).fit(InfiniteSVM(target=Ordinal()), rows, y)
    torch.testing.assert_close(posterior.with_slope(1.0).predict_proba(rows), posterior.predict_proba(rows))
    sharper = posterior.with_slope(3.0).predict_proba(rows)
    assert torch.equal(sharper.argmax(1), posterior.predict(rows))


def test_each_task_may_have_ordered_classes() -> None:
    rows, y = ordered(60)
    both = torch.stack([y, 3 - y], 1)
    posterior = SVI(num_steps=20).fit(MultiTaskInfiniteLatentSVM(target=Ordinal(), truncation=4), rows, both)
    assert posterior.predict_proba(rows).shape == (60, 2, 4)
    assert (posterior.predict(rows) == both).double().mean() > 0.7
    posterior = SmallVariance(max_steps=3, num_restarts=1).fit(MultiTaskInfiniteLatentSVM(target=Ordinal()), rows, both)
    assert (posterior.predict(rows) == both).double().mean() > 0.7
