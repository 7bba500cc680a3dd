"""Multi-label models: the program, data at the door, posteriors and what they predict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.metrics import f1_score, label_ranking_loss, log_loss
from torch import Tensor
from torch.nn.functional import logsigmoid

from regbayes.datasets import load
from regbayes.estimators import MultiLabelClassifier, MultiTaskRegressor
from regbayes.inference import SVI, Gibbs, Posterior, SmallVariance
from regbayes.inference.posterior.label_calibration import best_thresholds, fit_calibration, largest
from regbayes.models import (
    BNMC,
    BernoulliBeta,
    Hinge,
    Logistic,
    Loss,
    MaskedBernoulli,
    MultinomialDirichlet,
    PoissonGamma,
    PrincipalDirections,
    SparseRows,
)

pytestmark = pytest.mark.usefixtures("few_restarts")

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn((30, 3), generator=GENERATOR, dtype=torch.float64) * torch.tensor([1.0, 4.0, 0.3]) + 1
Y = (X @ torch.tensor([[1.0, -1.0], [0.5, 0.0], [2.0, 3.0]], dtype=torch.float64) > 1.5).double()
HOLES = Y.clone()
HOLES[0, 1] = HOLES[3, 0] = HOLES[4] = torch.nan
COUNTS = torch.poisson(torch.full((30, 2), 1.2, dtype=torch.float64), generator=GENERATOR)
BACKENDS = {"svi": SVI(num_steps=15), "gibbs": Gibbs(4, 6), "small variance": SmallVariance(num_components=2)}


def test_the_family_of_the_labels_follows_the_joint() -> None:
    for joint, kind in (("product", BernoulliBeta), ("and", BernoulliBeta), ("multinomial", MultinomialDirichlet)):
        model, _ = BNMC(joint=joint).prepare(X, Y)
        assert isinstance(model.label_likelihood, kind)


@pytest.mark.parametrize("name", ["svi", "small variance"])
def test_a_weight_stands_for_copies(name: str) -> None:
    weights = torch.ones(30)
    weights[:4], weights[5] = 2.0, 0.0
    copies = torch.arange(30).repeat_interleave(weights.long())
    weighted = BACKENDS[name].fit(BNMC(), X, HOLES, sample_weight=weights)
    copied = BACKENDS[name].fit(BNMC(), X[copies], HOLES[copies])
    assert weighted.trace.best == pytest.approx(copied.trace.best, rel=0.02)
    assert weighted.samples["assignments"].shape[1] == 30


# -- the model ---------------------------------------------------------------------------------------------------------


def test_defaults_come_from_the_data() -> None:
    model, data = BNMC().prepare(X, HOLES)
    assert isinstance(model.label_likelihood, MaskedBernoulli)
    assert (model.num_features, model.num_labels) == (3, 2)
    known = ~HOLES.isnan()
    torch.testing.assert_close(model.label_rates, (HOLES.nansum(0) + 0.5) / (known.sum(0) + 1))
    torch.testing.assert_close(data.targets, torch.where(known, 2 * HOLES - 1, torch.nan), equal_nan=True)
    torch.testing.assert_close(data.X, torch.cat([X, HOLES], 1), equal_nan=True)
    again, _ = model.prepare(X, Y)
    assert torch.equal(again.label_rates, model.label_rates)
    assert torch.equal(model.label_likelihood.a, model.label_rates)
    assert torch.equal(model.label_likelihood.b, 1 - model.label_rates)
    assert torch.equal(again.label_likelihood.a, model.label_rates)
    weighted = BNMC().resolve(X, Y, weights=torch.arange(30.0))
    torch.testing.assert_close(weighted.label_likelihood.prior()[:2], weighted.label_rates)
    torch.testing.assert_close(weighted.label_rates, (torch.arange(30.0).double() @ Y + 0.5) / (435 + 1))


def test_the_prior_of_labels_can_be_given() -> None:
    for given in (BernoulliBeta(a=0.2), BernoulliBeta(b=3.0), BernoulliBeta(1.5, 2.5)):
        model = BNMC(label_likelihood=given).resolve(X, HOLES)
        torch.testing.assert_close(model.label_likelihood.prior(), given.resolve(Y).prior())
    rare = BNMC(label_rates=0.1).resolve(X, HOLES)
    torch.testing.assert_close(rare.label_likelihood.prior(), torch.tensor([0.1, 0.1, 0.9, 0.9]).double())


def test_minus_one_is_missing() -> None:
    labels = HOLES.nan_to_num(-1.0)
    for same in (labels.long(), SparseRows.of(labels), scipy.sparse.csr_array(labels.numpy())):
        _, data = BNMC().prepare(X, same)
        torch.testing.assert_close(data.X, torch.cat([X, HOLES], 1), equal_nan=True)


@pytest.mark.parametrize("backend", [SVI(num_steps=8), Gibbs(2, 2), SmallVariance(num_components=2)], ids=BACKENDS)
def test_sparse_and_dense_data_are_one(backend) -> None:
    counts = torch.poisson(torch.full((30, 6), 1.5, dtype=torch.float64), generator=torch.Generator().manual_seed(0))
    seen = PrincipalDirections(loc=counts.mean(0), axes=torch.eye(6, dtype=torch.float64)[:, :4])
    model = BNMC(MultinomialDirichlet(), feature_map=seen)
    dense = backend.fit(model, counts, HOLES)
    sparse = backend.fit(model, scipy.sparse.csr_array(counts), SparseRows.of(HOLES))
    assert np.array_equal(dense.samples["assignments"], sparse.samples["assignments"])
    np.testing.assert_allclose(dense.predict_proba(counts), sparse.predict_proba(scipy.sparse.csr_array(counts)), 1e-9)


@pytest.mark.parametrize(
    ("model", "y", "match"),
    [
        (BNMC(), None, "needs targets"),
        (BNMC(), Y[:-1], "Y has shape"),
        (BNMC(), 2 * Y, "Y has a value that is neither 0 nor 1"),
        (BNMC(num_labels=3), Y, "3"),
        (BNMC(), scipy.sparse.csr_array(Y[:-1].numpy()), "Y has shape"),
        (BNMC(label_likelihood=MultinomialDirichlet()), HOLES, "some counts missing"),
        (BNMC(label_likelihood=PoissonGamma()), Y, "label_likelihood"),
        (BNMC(joint="sum"), Y, "joint"),
    ],
)
def test_wrong_labels_are_refused(model: BNMC, y: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        model.prepare(X, y)


# -- prediction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=repr)
def test_round_trip_and_shapes(name: str, loss, tmp_path) -> None:
    posterior = BACKENDS[name].fit(BNMC(loss=loss), X, HOLES)
    probabilities = posterior.predict_proba(X)
    assert probabilities.shape == (30, 2)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    torch.testing.assert_close(posterior.decision_function(X).sigmoid(), probabilities)
    assert torch.equal(posterior.predict(X), (probabilities > 0.5).long())
    assert (posterior.predict(X, top_k=1).sum(1) == 1).all()
    assert ((probabilities > 0.5) == (Y > 0)).double().mean() > 0.8
    better = posterior.calibrated(X, HOLES)
    better.save(tmp_path / "fit")
    again = Posterior.load(tmp_path / "fit")
    assert torch.equal(again.predict_proba(X), better.predict_proba(X))
    assert not torch.equal(better.predict_proba(X), probabilities)
    moved = posterior.over_rows(torch.arange(29, -1, -1))
    assert torch.equal(moved.samples["assignments"], posterior.samples["assignments"].flip(1))
    more = posterior.over_rows(torch.tensor([0, -1]), X[5:6])
    assert more.samples["assignments"].shape[1] == 2
    assert "components" in repr(posterior)


@pytest.mark.parametrize("name", BACKENDS)
def test_counts_of_labels(name: str) -> None:
    posterior = BACKENDS[name].fit(BNMC(label_likelihood=MultinomialDirichlet()), X, COUNTS)
    mixture = posterior.views(X).mixture
    assert ((mixture > 0) & (mixture < 1)).all()
    # of a single component it is the share of rows with a label, if counts are Poisson
    assert (mixture.mean(0) - (COUNTS > 0).double().mean(0)).abs().max() < 0.2
    with pytest.raises(ValueError, match="one by one"):
        posterior.predict_proba(X, known=HOLES)


def test_mixture_view_is_bayes_rule() -> None:
    """psi(x) against the predictive of whole rows: p(x, y_c = 1) / p(x), with known labels among the rows."""
    posterior = Gibbs(3, 5, scan="slice").fit(BNMC(), X, HOLES)
    known = torch.full_like(Y[:4], torch.nan)
    known[:2, 1] = torch.tensor([1.0, 0.0])
    exact = []
    for ones in (1.0, 0.0):
        total = X.new_zeros(4)
        for draw in range(3):
            chi = torch.cat([posterior.samples[name][draw] for name in ("hyperparameters", "label_hyperparameters")], 1)
            rows = torch.cat([X[:4], known], 1)
            rows[:, 3] = ones
            family = posterior.model.family
            seen = family.log_predictive(rows, torch.cat([chi, family.prior().unsqueeze(0)]))
            total += (seen + posterior.samples["log_mixture"][draw]).logsumexp(1).exp()
        exact.append(total)
    expected = exact[0] / (exact[0] + exact[1])
    torch.testing.assert_close(posterior.views(X[:4], known).mixture[:, 0], expected)
    found = posterior.predict_proba(X[:4], known=known)
    assert found[0, 1] == 1
    assert found[1, 1] == 0
    assert posterior.assign(X[:4], known=known).shape == (4,)


def test_classifier_view_averages_probabilities() -> None:
    posterior = Gibbs(3, 5).fit(BNMC(), X, Y)
    scores = posterior.model.features(X) @ posterior.samples["classifiers"]
    torch.testing.assert_close(posterior.views(X).classifiers.sigmoid(), scores.sigmoid().mean(0))
    hinge = Gibbs(3, 5).fit(BNMC(loss=Hinge()), X, Y)
    score = (hinge.model.features(X) @ hinge.samples["classifiers"]).mean(0)
    odds = 2 * (1 + score).relu() - 2 * (1 - score).relu()
    torch.testing.assert_close(hinge.views(X).classifiers, odds)


def test_odds_do_not_count_the_rate_twice() -> None:
    """If both views say what is true of independent evidence, the joined odds are those of Bayes' rule."""
    posterior = SVI(num_steps=5).fit(BNMC(label_rates=0.2), X, Y)
    views = posterior.views(X)
    prior = torch.tensor(0.2 / 0.8, dtype=torch.float64).log()
    expected = (views.mixture.logit() - prior) + (views.classifiers - prior) + prior
    torch.testing.assert_close(posterior.decision_function(X), expected)


# -- from probabilities to label sets ----------------------------------------------------------------------------------


def test_largest() -> None:
    p = torch.tensor([[0.9, 0.2, 0.8], [0.1, 0.3, 0.2]])
    assert largest(p, 2).tolist() == [[1, 0, 1], [0, 1, 1]]
    assert largest(p, 0).tolist() == [[1, 0, 1], [0, 1, 0]]
    assert largest(p, 9).sum() == 6


def test_thresholds_maximize_f1() -> None:
    p = torch.rand((40, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    signs = torch.where(torch.rand((40, 3), generator=torch.Generator().manual_seed(2)) < 0.3 + 0.5 * p, 1.0, -1.0)
    signs[:4, 0], signs[:, 2] = torch.nan, -1.0
    found = best_thresholds(p, signs)
    assert found[2] == 0.5
    for c in range(2):
        known, present = ~signs[:, c].isnan(), signs[:, c] == 1

        def f1(threshold: Tensor, c: int = c, known: Tensor = known, present: Tensor = present) -> float:
            chosen = (p[:, c] > threshold) & known
            return float(2 * (chosen & present).sum() / (chosen.sum() + present.sum()))

        assert f1(found[c]) == pytest.approx(max(f1(level) for level in [*p[:, c], p.new_zeros(())]))


def test_calibration_is_the_optimum() -> None:
    """Also of views off 0, where slopes and offsets must move together to be there in so few steps."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn((2, 200, 3), generator=generator, dtype=torch.float64)
    for one, other in (noise - 2.0, noise):
        truth = 0.7 * one + 1.5 * other - 0.5
        signs = torch.where(torch.rand(truth.shape, generator=generator) < truth.sigmoid(), 1.0, -1.0).double()
        signs[:20, 0] = torch.nan
        offset = one.new_tensor([0.0, 1.0, 2.0])
        found = fit_calibration(one, other, signs, offset).requires_grad_()
        score = found[0] * one + found[1] * other + found[2:]
        loss = -torch.where(signs.isnan(), 0.0, logsigmoid(signs.nan_to_num() * score)).sum()
        own = found[2:] - (found[:2].sum() - 1) * offset
        loss = loss + ((found[:2] - 1).square().sum() + own.square().sum()) / 2
        (slope,) = torch.autograd.grad(loss, found)
        assert slope.abs().max() < 1e-6
    assert (found[:2] - found.new_tensor([0.7, 1.5])).abs().max() < 0.4


@pytest.mark.parametrize("place", [0, 1])
def test_a_view_that_speaks_against_itself_has_no_say(place: int) -> None:
    """The other is as it would be alone, at the optimum of what is left."""
    generator = torch.Generator().manual_seed(3)
    views = torch.randn((2, 200, 3), generator=generator, dtype=torch.float64)
    truth = 1.5 * views[1 - place] - views[place] - 0.5
    signs = torch.where(torch.rand(truth.shape, generator=generator) < truth.sigmoid(), 1.0, -1.0).double()
    found = fit_calibration(*views, signs, views.new_zeros(3))
    assert found[place] == 0 < found[1 - place]
    views[place] = 0
    alone = fit_calibration(*views, signs, views.new_zeros(3))
    torch.testing.assert_close(found[1 - place], alone[1 - place])
    torch.testing.assert_close(found[2:], alone[2:])


def test_without_views_that_say_anything_labels_are_as_frequent_as_they_are() -> None:
    generator = torch.Generator().manual_seed(3)
    views = torch.randn((2, 200, 3), generator=generator, dtype=torch.float64)
    signs = torch.where(torch.rand((200, 3), generator=generator) < (-views.sum(0)).sigmoid(), 1.0, -1.0).double()
    found = fit_calibration(*views, signs, views.new_zeros(3))
    assert not found[:2].any()
    residual = 200 * found[2:].sigmoid() - (signs == 1).sum(0) + found[2:]  # one observation draws it to 0
    assert residual.abs().max() < 1e-6


def test_views_that_tell_nothing_leave_rare_labels_rare() -> None:
    generator = torch.Generator().manual_seed(5)
    rates = torch.tensor([0.5, 0.05, 0.004], dtype=torch.float64)
    odds = rates.logit()
    mixture, classifiers = odds + 3 * torch.randn((2, 250, 3), generator=generator, dtype=torch.float64)
    signs = torch.where(torch.rand((250, 3), generator=generator) < rates, 1.0, -1.0).double()
    a, b, shift = fit_calibration(mixture, classifiers, signs, -odds).tensor_split([1, 2])
    assert max(abs(a), abs(b)) < 0.15
    p = (a * mixture + b * classifiers + shift).sigmoid().mean(0)
    assert (p / ((signs == 1).sum(0) + 1) * 250 < 1.2).all()


@pytest.mark.real_data("emotions")
def test_both_views_together_rank_emotions_better() -> None:
    data = load("emotions")
    loc, scale = data.X.mean(0), data.X.std(0)
    inputs, others = (data.X - loc) / scale, (data.X_test - loc) / scale
    posterior = SVI(num_steps=40).fit(BNMC(weight_scale=0.3), inputs, data.y)
    views = posterior.views(torch.as_tensor(others))
    both = label_ranking_loss(data.y_test, posterior.predict_proba(others))
    apart = [label_ranking_loss(data.y_test, view) for view in views]
    assert both < min(apart)
    assert both < 0.17
    plain = log_loss(data.y_test.ravel(), posterior.predict_proba(others).ravel())
    halves = posterior.calibrated(others[:100], data.y_test[:100]).predict_proba(others[100:])
    assert log_loss(data.y_test[100:].ravel(), halves.ravel()) < plain
    sets = posterior.predict(others, thresholds=posterior.thresholds(inputs, data.y))
    assert f1_score(data.y_test, sets, average="macro") > 0.6


# -- the estimator -----------------------------------------------------------------------------------------------------


def test_label_sets_by_the_estimator() -> None:
    classifier = MultiLabelClassifier(BNMC(), SVI(num_steps=15)).fit(X.numpy(), Y.numpy())
    assert classifier.score(X.numpy(), Y.numpy()) > 0.7
    assert classifier.predict_proba(X.numpy()).shape == (30, 2)
    assert classifier.n_components_ == classifier.posterior_.num_components
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    again = MultiLabelClassifier(BNMC(), SVI(num_steps=15)).fit(X[order].numpy(), Y[order].numpy())
    found = classifier.posterior_.samples["assignments"][0][order]
    assert torch.equal(found, again.posterior_.samples["assignments"][0])
    with pytest.raises(ValueError, match="needs a model of many tasks such as"):
        MultiTaskRegressor(BNMC()).fit(X.numpy(), Y.numpy())


# -- coupled joints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [SVI(num_steps=15), Gibbs(4, 6, scan="blocked")], ids=["svi", "gibbs"])
@pytest.mark.parametrize("joint", ["and", "multinomial"])
def test_coupled_joints_predict(joint: str, backend, tmp_path) -> None:
    counts = joint == "multinomial"
    family = MultinomialDirichlet() if counts else BernoulliBeta()
    posterior = backend.fit(BNMC(label_likelihood=family, joint=joint), X, COUNTS if counts else HOLES)
    probabilities = posterior.predict_proba(X)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    posterior.save(tmp_path / "fit")
    assert torch.equal(Posterior.load(tmp_path / "fit").predict_proba(X), probabilities)
    if not counts:
        assert ((probabilities > 0.5) == (Y > 0)).double().mean() > 0.8
        known = torch.where(torch.arange(2) == 0, Y, torch.nan)
        assert torch.equal(posterior.predict(X, known=known)[:, 0], Y[:, 0].long())


def test_coupled_probabilities_are_bayes_rule() -> None:
    """Of "and": averages of psi sigma with weights W of x and of the known labels; of counts the share of the mass."""
    posterior = Gibbs(3, 4, scan="blocked").fit(BNMC(joint="and", truncation=12), X, Y)
    known = torch.stack([Y[:, 0], torch.full((30,), torch.nan, dtype=torch.float64)], 1)
    top = bottom = 0.0
    for draw in range(3):
        samples = {name: values[draw] for name, values in posterior.samples.items()}
        sigma = (posterior.model.features(X) @ samples["classifiers"]).sigmoid()
        weight = posterior.model.likelihood.log_predictive(X, samples["hyperparameters"]) + samples["log_mixture"][:-1]
        first = samples["label_means"][:, 0] * sigma[:, :1]
        weight = weight.exp() * torch.where(Y[:, :1] == 1, first, 1 - first)
        top = top + (weight * samples["label_means"][:, 1]).sum(1) * sigma[:, 1]
        bottom = bottom + weight.sum(1)
    torch.testing.assert_close(posterior.predict_proba(X, known=known)[:, 1], top / bottom)

    counted = SVI(num_steps=5).fit(BNMC(label_likelihood=MultinomialDirichlet(), joint="multinomial"), X, COUNTS)
    samples = {name: values[0] for name, values in counted.samples.items()}
    features = counted.model.features(X)
    variance = (torch.linalg.solve_triangular(samples["classifier_tril"], features.T, upper=False)).square().sum(1).T
    mean = features @ samples["classifiers"]
    sigma = (mean / (1 + torch.pi / 8 * variance).sqrt()).sigmoid()
    weight = counted.model.likelihood.log_predictive(X, samples["hyperparameters"]) + samples["log_mixture"][:-1]
    share = samples["label_means"] * sigma.unsqueeze(1)
    share = (weight.softmax(1).unsqueeze(2) * share / share.sum(2, keepdim=True)).sum(1)
    total = weight.softmax(1) @ samples["label_totals"][:-1]
    torch.testing.assert_close(counted.predict_proba(X), 1 - (-total.unsqueeze(1) * share).exp())


@dataclass
class Steep(Loss):
    """phi(y | f) = sigmoid(3 y f): a likelihood, but not the one that the updates of coupled joints assume."""

    is_likelihood = True

    def log_factor(self, score, y):
        return torch.nn.functional.logsigmoid(3 * y * score)


@pytest.mark.parametrize(
    ("model", "backend", "match"),
    [
        (BNMC(joint="and", loss=Hinge()), SVI(), "needs loss=Logistic"),
        (BNMC(joint="and", loss=Steep()), Gibbs(), "needs loss=Logistic"),
        (BNMC(joint="multinomial", loss=Steep()), Gibbs(), "needs loss=Logistic"),
        (
            BNMC(label_likelihood=BernoulliBeta(), joint="multinomial"),
            SVI(),
            "needs label_likelihood=MultinomialDirichlet",
        ),
    ],
)
def test_what_coupled_joints_do_not_have(model: BNMC, backend, match: str) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=match):
        backend.fit(model, X, Y)


def test_partial_fit_of_vectors_and_matrices() -> None:
    inputs, labels = X.numpy(), Y.numpy()
    classifier = MultiLabelClassifier(BNMC(truncation=9), SVI(num_steps=10))
    for start in range(0, 30, 10):
        classifier.partial_fit(inputs[start : start + 10], labels[start : start + 10])
    assert float(classifier.posterior_.samples["num_seen"]) == 30
    assert classifier.predict(inputs).shape == (30, 2)
    words = np.array(["red", "green", "blue"])[np.arange(30) % 3]
    classifier = MultiLabelClassifier(BNMC(truncation=9), SVI(num_steps=10))
    classifier.partial_fit(inputs[:2], words[:2], classes=["blue", "green", "red"]).partial_fit(inputs[2:], words[2:])
    assert set(classifier.predict(inputs)) <= set(words)
    with pytest.raises(ValueError, match="not among the classes"):
        classifier.partial_fit(inputs, np.full(30, "white"))
    assert not hasattr(MultiLabelClassifier(BNMC(), SmallVariance()), "partial_fit")
