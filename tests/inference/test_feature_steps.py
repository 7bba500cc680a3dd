"""Steps of latent features by themselves: parts of scans, minibatches that stand for more rows, births of features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from regbayes.inference.compiled.decorators import entry_of
from regbayes.inference.gibbs.features import _numba_collapsed as compiled
from regbayes.inference.gibbs.features import collapsed, columns
from regbayes.inference.gibbs.features import start as starts
from regbayes.inference.gibbs.features.parameters import observe_entries
from regbayes.inference.gibbs.features.state import FeatureState, Given, keep_columns
from regbayes.inference.small_variance.features import penalty as feature_penalty
from regbayes.inference.small_variance.features.births import open_feature
from regbayes.inference.small_variance.features.problem import FeatureProblem
from regbayes.inference.svi.features import kernel as features
from regbayes.inference.svi.features import margins
from regbayes.inference.svi.features.factors import move_globals
from regbayes.inference.svi.partition.kernel import minibatch
from regbayes.inference.svi.rules import RULES
from regbayes.models import (
    BetaBernoulli,
    Blocks,
    Hinge,
    IndianBuffetProcess,
    InfiniteLatentSVM,
    LatentFeatureModel,
    LinearBernoulli,
    LinearGaussian,
    LinearLikelihood,
)
from regbayes.models.latent_features import FeatureData
from regbayes.models.losses import PseudoObservation

GAUSSIANS = Blocks([(LinearGaussian(), 2), (LinearGaussian(), 1)])
LIKELIHOODS = {"gaussian": LinearGaussian(), "gaussians": GAUSSIANS, "binary": LinearBernoulli()}


def problem(
    likelihood: LinearLikelihood, num_rows: int = 6, missing: bool = False
) -> tuple[InfiniteLatentSVM, FeatureData]:
    """The resolved model and rows of 3 columns and 2 classes."""
    generator = torch.Generator().manual_seed(0)
    X = 2 * torch.randn(num_rows, 3, generator=generator, dtype=torch.float64)
    X = (X > 0).double() if isinstance(likelihood, LinearBernoulli) else X
    X[0, 1] = torch.nan if missing else X[0, 1]
    prior = BetaBernoulli(1.5, (2.0, 1.0)) if missing else IndianBuffetProcess(8.0)
    model = InfiniteLatentSVM(likelihood, Hinge(0.7), prior, truncation=3, weight_scale=1.3, feature_map=None)
    return model.prepare(X, torch.arange(num_rows) % 2)


def some_state(
    model: InfiniteLatentSVM, data: FeatureData, alpha: float, num_features: int | None = None
) -> FeatureState:
    """A state of the infinite model with some of its features, or all; bits at random."""
    state = starts.in_use(starts.start_bits(model, data, torch.Generator().manual_seed(0), start="random"))
    state = replace(state, hyper={"concentration": torch.tensor(alpha).double()})
    return state if num_features is None else keep_columns(state, torch.arange(num_features))


def test_columns_are_visited_by_their_probabilities_whether_or_not_a_row_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An order that depends on the bits would leave another law invariant."""
    model, data = problem(LinearGaussian())
    state, visited = some_state(model, data, 50.0), list[float]()
    state.features[1:, 1:] = 0  # one feature of all rows, two of a single one
    state.features[0], state.features[:, 0] = 1, 1
    given = observe_entries(state, data, model, torch.Generator())
    _, pi = columns.open_features(state, given, torch.Generator().manual_seed(1))
    used = torch.arange(len(pi)) < len(state.loadings)
    assert pi[~used].max() > pi[used].min()
    assert pi[used].max() > pi[~used].min()

    def spy(log_odds: torch.Tensor, own: torch.Tensor, *others: object) -> tuple[torch.Tensor, torch.Tensor]:
        visited.append(float(own))
        return log_odds > 0, (log_odds > 0).any()

    monkeypatch.setattr(columns, "draw_column", spy)
    columns.scan_slice(state, given, torch.Generator().manual_seed(1))
    assert visited == sorted(pi.tolist(), reverse=True)


def test_features_without_rows_have_loadings_and_weights_of_their_priors() -> None:
    """Mean squares of some hundred features, as seldom off by five standard errors."""
    model, data = problem(LinearGaussian(loading_variance=4.0, learn=False))
    state = some_state(model, data, 2000.0)
    K, given = len(state.loadings), observe_entries(state, data, model, torch.Generator())
    wider, pi = columns.open_features(state, given, torch.Generator().manual_seed(2))
    assert wider.features[:, K:].sum() == 0
    assert len(wider.loadings) == len(pi) > K + 200
    for values, variance in ((wider.loadings[K:], 4.0), (wider.weights[K : len(pi)], model.weight_scale**2)):
        assert abs(float(values.square().mean()) / variance - 1) < 5 * (2 / values.numel()) ** 0.5
    assert torch.equal(wider.loadings[:K], state.loadings)
    assert torch.equal(torch.cat([wider.weights[:K], wider.weights[len(pi) :]]), state.weights)


def scan_rows(given: Given, state: FeatureState, levels: np.ndarray, normals: np.ndarray) -> tuple[Any, np.ndarray]:
    """Arrays, and the place, after the compiled scan of a state without features with these random numbers."""
    arrays, place = collapsed._arrays(state, given, 90), np.zeros(4, np.int64)
    entry_of(compiled.scan, arrays.loss)(arrays, compiled.Scratch.of(arrays), levels, normals, place)
    return arrays, place


def test_each_row_weighs_features_of_its_own_by_its_own_precisions() -> None:
    """A row of precise entries, then one that says nothing: its number is Poisson, here 2 at a level of 0.55."""
    model, data = problem(LinearGaussian(), num_rows=2)
    state, levels = some_state(model, data, 4.0, 0), np.zeros(100)
    data = replace(data, targets=torch.full_like(data.targets, torch.nan))
    precision = torch.tensor([[1000.0], [0.0]]).double().expand_as(data.X)
    given = Given(data, model, PseudoObservation(precision, torch.zeros_like(data.X)))
    levels[4:7] = 0.55, 0.0, 0.5  # of the second row; at a last level of 0 the Poisson proposal is refused
    arrays, place = scan_rows(given, state, levels, np.zeros(3000))
    assert place.tolist()[:3] == [2, 2, 8]
    assert arrays.bits[:2].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("level", "expected"), [(0.3, 0.8), (0.4, 0.5)])
def test_the_second_proposal_for_a_row_alone_meets_the_margin_after_the_first(level: float, expected: float) -> None:
    """Of scores 0, 0.8 and 0.5 the last is taken from the second with probability exp(-1.4 (0.8 - 0.5)) = 0.657."""
    model, data = problem(LinearGaussian(), num_rows=2)
    state = some_state(model, data, 1.0, 0)
    state = replace(state, features=state.features[:1], weights=torch.zeros_like(state.weights))
    data = replace(data.rows(slice(0, 1)), targets=torch.ones(1, 1, dtype=torch.float64))
    silent = PseudoObservation(torch.zeros_like(data.X), torch.zeros_like(data.X))
    normals, levels = np.zeros(3000), np.array([0.5, 0.5, 0.5, level])  # one feature by either law
    normals[:2] = np.array([0.8, 0.5]) / model.weight_scale
    arrays, place = scan_rows(Given(data, model, silent), state, levels, normals)
    assert place[1] == 1
    assert arrays.weights[0, 0] == pytest.approx(expected)


def test_the_evidence_of_features_of_a_row_alone_sees_every_column() -> None:
    """log N(0; b / a, 1 / a + K / p) - log N(0; b / a, 1 / a), summed over 19 columns."""
    generator = torch.Generator().manual_seed(0)
    a, b, p = (torch.rand(19, generator=generator, dtype=torch.float64) + 0.1 for _ in range(3))
    prior = torch.distributions.Normal(0.0, (1 / a + 3 / p).sqrt())
    expected = prior.log_prob(b / a) - torch.distributions.Normal(0.0, (1 / a).sqrt()).log_prob(b / a)
    found = compiled._log_evidence(p.numpy(), a.view(1, -1).numpy(), 0, b.numpy(), 3, np.empty((6, 19)))
    assert found == pytest.approx(float(expected.sum()))


# -- stochastic steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "missing"), [("gaussian", False), ("gaussians", True), ("binary", False)])
@pytest.mark.parametrize("rule_name", RULES)
def test_steps_start_as_if_rows_were_three_times_as_many(rule_name: str, name: str, missing: bool) -> None:
    """Every factor is that of three copies of the rows."""
    rule, (model, data) = RULES[rule_name], problem(LIKELIHOODS[name], missing=missing)
    start = features.init(model, data, torch.Generator().manual_seed(1), rule=rule)
    # off their optimum given the sticks and the loadings
    start = replace(start, concentration=2 * start.concentration, precisions=1.5 * start.precisions)
    copies = data.rows(torch.arange(3 * data.num_data) % data.num_data)
    tall = replace(start, features=start.features.repeat(3, 1), tilt=start.tilt[:0])
    one = features.extrapolate(replace(start, tilt=start.tilt[:0]), data, model, 18, 18.0, rule=rule)
    three = features.extrapolate(tall, copies, model, 18, 18.0, rule=rule)
    for name in ["a", "b", "concentration", "loadings", "loading_tril", "precisions", "weights", "weights_tril"]:
        rough = 0.1 if name == "weights" and rule_name == "averaging" else 1e-8  # an SVM is solved up to a gap
        torch.testing.assert_close(getattr(one, name), getattr(three, name), rtol=1e-8, atol=rough)
        if getattr(one, name).numel() and (name != "concentration" or missing):
            assert not torch.equal(getattr(one, name), getattr(start, name))


def test_rows_of_a_batch_count_once_and_stand_for_all_weights() -> None:
    """They are drawn as often as they count."""
    weights = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 9.0])
    data = replace(problem(LinearGaussian())[1], weights=weights)
    batch = minibatch(data, 400, torch.Generator().manual_seed(0))
    assert batch.data.weights is None
    assert batch.scale == 12 / 400
    found = torch.stack([(row == batch.data.X).all(1).sum() for row in data.X])
    expected = 400 * weights / 12
    assert ((found - expected).abs() <= 5 * (expected * (1 - weights / 12)).sqrt()).all()


def test_steps_between_columns_of_other_kinds_are_steps_of_natural_parameters() -> None:
    """A and A Phi of every column lie between those of the two states; so do all parameters of gammas and betas."""
    rule = RULES["gibbs"]
    model, data = problem(GAUSSIANS)
    start = features.init(model, data, torch.Generator().manual_seed(1), rule=rule)
    state = replace(start, loadings=start.loadings + 1.0, loading_tril=start.loading_tril[:1] / 2, kind=0 * start.kind)
    target = replace(start, precisions=2 * start.precisions, a=3 * start.a, b=2 * start.b)
    found = move_globals(state, target, 0.3)
    natural = []
    for one in (state, target, found):
        matrices = (one.loading_tril @ one.loading_tril.mT)[one.kind]
        natural.append((matrices, (matrices @ one.loadings.T.unsqueeze(-1)).squeeze(-1)))
    for before, after, between in zip(*natural, strict=True):
        torch.testing.assert_close(between, 0.7 * before + 0.3 * after)
    torch.testing.assert_close(found.precisions, 1.3 * start.precisions)
    torch.testing.assert_close(found.a, 1.6 * start.a)
    torch.testing.assert_close(found.b, 1.3 * start.b)


def test_the_averaging_step_is_the_natural_gradient_of_the_bound() -> None:
    """Of a Gaussian whose covariance stays nu^2 I: mu + rho nu^2 d bound / d mu."""
    rule, (model, data) = RULES["averaging"], problem(LinearGaussian())
    start = features.init(model, data, torch.Generator().manual_seed(1), rule=rule)
    leaf = (start.weights + 0.1).requires_grad_()
    said = margins.evidence(start, data, model, 3.0)
    (slope,) = torch.autograd.grad(rule.bound(said, replace(start, weights=leaf).learned), leaf)
    found = rule.step(said, replace(start, weights=leaf.detach()).learned, 0.3).mean[0]
    torch.testing.assert_close(found, leaf.detach() + 0.3 * model.weight_scale**2 * slope)


# -- small variance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["rows", "weights"])
def test_a_feature_opens_where_what_it_saves_exceeds_its_ridge_and_its_price(weighted: bool) -> None:
    """Of ten rows x = 1, with noise 1 and loadings of precision 20: w = 1 / 3 saves 10 (w - w^2 / 2) - 10 w^2 = 5 / 3.

    Alone each of them would save 1 / 42, beyond which price none founds a feature as in BP-means as published.
    """
    X, weights = torch.ones(5 if weighted else 10, 1, dtype=torch.float64), torch.full((5,), 2.0) if weighted else None
    likelihood = LinearGaussian(0.0, noise_variance=1.0, loading_variance=1 / 20, learn=False)
    model, data = InfiniteLatentSVM(likelihood, Hinge(1.0), feature_map=None).prepare(
        X, torch.arange(len(X)) % 2, weights=weights
    )
    problem = FeatureProblem.of(model, data, 0.5)

    def opened(price: float, single: bool = False) -> float | None:
        before = problem.start(price / 2)
        after = open_feature(before, problem, torch.Generator().manual_seed(0), single=single)
        assert after.grows == bool(after.num_features)
        return float(before.objective - after.objective) if after.grows else None

    assert opened(1.6) == pytest.approx((5 / 3 - 1.6) / 2)
    assert opened(1.7) is None
    assert opened(1 / 41, single=True) is None
    assert opened(1 / 43, single=True) == pytest.approx((5 / 3 - 1 / 43) / 2)


def test_a_penalty_from_some_of_the_rows_is_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are alike and ridges light: what features save is in proportion to the rows."""
    likelihood = LinearGaussian(0.0, noise_variance=1.0, loading_variance=1e8, learn=False)
    model, data = LatentFeatureModel(likelihood).prepare(torch.ones(40, 2, dtype=torch.float64))
    problem, found = FeatureProblem.of(model, data, 1.0), list[float]()
    for most in (40, 10):
        monkeypatch.setattr(feature_penalty, "_MOST_ROWS", most)
        found.append(feature_penalty.natural_penalty(problem, 1, torch.Generator().manual_seed(0)))
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_features_that_are_not_open_yet_have_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their loadings are draws from the prior, which some rows would take up."""
    model, data = problem(LinearGaussian(), num_rows=100)
    scan, opened, highest = starts.scan_blocked, list[int](), list[int]()
    opening = starts._open

    def watched_opening(k, *others):
        opened.append(k)
        return opening(k, *others)

    def watched(*given):
        found = scan(*given)
        used = found.features.any(0).nonzero()
        highest.append(int(used.max()) - opened[-1] if len(used) else -1)
        return found

    monkeypatch.setattr(starts, "_open", watched_opening)
    monkeypatch.setattr(starts, "scan_blocked", watched)
    starts.start_bits(model, data, torch.Generator().manual_seed(0), start="one")
    assert opened == [0, 1, 2]
    assert max(highest) == 0


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rows_settle_each_on_its_own(rule: Any) -> None:
    """Features of rows with labels are those of each row alone, and another sweep does not move them."""
    model, data = problem(LinearGaussian(), num_rows=60)
    state = features.init(model, data, torch.Generator().manual_seed(0), rule=rule)
    found = features.complete(state.without_rows(), data, model, rule=rule)
    rows = [data.rows(torch.tensor([n])) for n in range(60)]
    alone = [features.complete(state.without_rows(), row, model, rule=rule).features for row in rows]
    torch.testing.assert_close(found.features, torch.cat(alone), rtol=0.0, atol=1e-8)
    again = features.update_features(found, data, model, lambda psi: margins.MARGINS[rule](found, data, model, psi))
    assert (again.features - found.features).abs().max() < 1e-4
