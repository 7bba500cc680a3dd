"""The posterior of latent features: what a prediction depends on, and draws of different numbers of features."""

from __future__ import annotations

import pytest
import torch
from sklearn.svm import LinearSVC

from regbayes.datasets import make_bars
from regbayes.inference import SVI, FeaturePosterior, Gibbs, Posterior, SmallVariance
from regbayes.inference.bits.rows import BinaryRows, LoadingMoments, best_features, infer_features, row_bounds
from regbayes.inference.posterior.features import different_rows
from regbayes.models import Hinge, InfiniteLatentSVM, LatentFeatureModel, LinearGaussian, Logistic, Ordinal, StudentT

BARS = make_bars(40, noise=0.3)
NEW = make_bars(12, noise=0.6, seed=1).X


@pytest.fixture(scope="module")
def posterior() -> FeaturePosterior:
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), truncation=6, feature_map=None)
    return Gibbs(num_samples=4, num_warmup=6).fit(model, BARS.X, BARS.y)


def test_rows_do_not_depend_on_those_beside_them(posterior: FeaturePosterior) -> None:
    rows = NEW.clone()
    rows[::3, :9] = torch.nan
    for ask in (posterior.transform, posterior.decision_function):
        alone = torch.cat([ask(row) for row in rows.split(1)])
        torch.testing.assert_close(alone, ask(rows), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_probabilities_are_averages_over_the_draws(num_classes: int) -> None:
    """Each draw is a posterior of one, whose features of new rows are what `transform` gives."""
    labels = BARS.features[:, :2].sum(1).clamp(max=num_classes - 1)
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), loss=Logistic(), truncation=6, feature_map=None)
    posterior = Gibbs(num_samples=3, num_warmup=3, num_chains=2).fit(model, BARS.X, labels)
    posterior.samples["weights"] *= torch.tensor([0.3, 1, 3, -1, 1, 2]).view(6, 1, 1)  # that do not agree
    means = []
    for draw in range(6):
        samples = {name: value[draw : draw + 1] for name, value in posterior.samples.items()}
        features = FeaturePosterior(posterior.model, posterior.backend, samples, [1], posterior.trace).transform(NEW)
        scores = features @ samples["weights"][0] + samples["input_weights"][0, 0]  # the input is an intercept
        means.append(scores.softmax(1) if num_classes == 3 else torch.cat([-scores, scores], 1).sigmoid())
    found = posterior.predict_proba(NEW)
    torch.testing.assert_close(found, torch.stack(means).mean(0))
    assert torch.equal(posterior.predict(NEW), found.argmax(1))


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
@pytest.mark.parametrize("name", ["gibbs", "svi", "small variance"])
def test_rows_of_the_fit_are_explained_as_well_as_in_it(name: str) -> None:
    """Overlapping features have many local optima; of a row it is not to be worse than the fit's own."""
    generator = torch.Generator().manual_seed(1)
    bits = (torch.rand(150, 8, generator=generator) < 0.5).double()
    rows = bits @ torch.randn(8, 30, generator=generator, dtype=torch.float64)
    rows = rows + 0.5 * torch.randn(150, 30, generator=generator, dtype=torch.float64)
    backend = {
        "gibbs": Gibbs(num_samples=1, num_warmup=20),
        "svi": SVI(num_steps=30),
        "small variance": SmallVariance(num_components=8, num_restarts=1, max_steps=15),
    }[name]
    posterior = backend.fit(LatentFeatureModel(truncation=16), rows)
    own, found = posterior.features.double(), posterior.transform(rows)
    offset = posterior.model.likelihood.offset
    fitted, new = ((rows - offset - psi @ posterior.loadings).square().mean() for psi in (own, found))
    assert new < 1.03 * fitted


def test_the_best_optimum_of_a_row_is_found_where_all_bits_can_be_tried() -> None:
    """Of bits, by enumeration: never worse than one start, and nearly always the best of 2^6."""
    generator = torch.Generator().manual_seed(0)
    loadings = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    every = torch.cartesian_prod(*6 * [torch.tensor([0.0, 1.0], dtype=torch.float64)])
    rows = every[torch.randint(64, (200,), generator=generator)] @ loadings
    rows = rows + 0.3 * torch.randn(200, 8, generator=generator, dtype=torch.float64)
    likelihood = LinearGaussian(offset=0.0, noise_variance=0.1).resolve(rows)
    h, odds = likelihood.start(rows), torch.zeros(6, dtype=torch.float64)
    known = BinaryRows(rows, None, likelihood, h, odds, LoadingMoments(loadings))
    most = torch.stack([row_bounds(known, bits.expand(200, 6), hard=True) for bits in every]).amax(0)
    one = row_bounds(known, infer_features(known, hard=True), hard=True)
    best = row_bounds(known, best_features(known, candidates=every[::4], hard=True), hard=True)
    assert (best >= one - 1e-9).all()
    assert (best > most - 1e-6).double().mean() > 0.95 > (one > most - 1e-6).double().mean()


def test_candidates_do_not_depend_on_the_order_of_rows_or_on_how_often_they_occur() -> None:
    bits = torch.rand(300, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    some = different_rows(bits, 20)
    assert len(some.unique(dim=0)) == 20
    assert torch.equal(different_rows(bits.flip(0).repeat(2, 1), 20), some)
    assert len(different_rows(bits, 1000)) == len(bits.unique(dim=0))


def test_missing_pixels_are_not_looked_at(posterior: FeaturePosterior) -> None:
    rows, other = NEW.clone(), NEW.clone() + 5.0
    rows[:, 20:] = other[:, 20:] = torch.nan
    other[:, :20] = rows[:, :20]
    torch.testing.assert_close(posterior.transform(rows), posterior.transform(other), equal_nan=True)
    assert not torch.allclose(posterior.transform(rows), posterior.transform(NEW), atol=1e-3)


def test_draws_are_padded_by_features_that_no_row_has(posterior: FeaturePosterior) -> None:
    samples = posterior.samples
    absent = samples["log_odds"] == -torch.inf
    assert not samples["features"].movedim(2, 1)[absent].any()
    assert not samples["loadings"][absent].any()
    assert not samples["weights"][absent].any()
    used = (samples["features"] > 0).any(1).sum(1)
    assert posterior.num_latent_features == int(used[posterior.representative])


@pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")
@pytest.mark.parametrize("num_classes", [2, 3])
def test_refitted_classifiers_are_svms_on_features_without_labels(num_classes: int) -> None:
    X, y = BARS.X.clone(), BARS.features[:, :2].sum(1).clamp(max=num_classes - 1)
    X[::5, :6] = torch.nan
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), truncation=6, feature_map=None)
    fitted = SVI(rule="averaging", num_steps=10).fit(model, X, y)
    labels = y.clone()
    labels[:4] = -1  # not known
    found = fitted.refit(X, labels, loss=Hinge(0.05), weight_scale=2.0, tolerance=1e-9)
    seen = torch.cat([fitted.transform(X), torch.ones(len(X), 1)], 1)[4:].numpy()
    machine = LinearSVC(
        C=2 * 0.05 * 2.0**2, loss="hinge", fit_intercept=False, tol=1e-9, max_iter=1_000_000, random_state=0
    )
    expected = torch.from_numpy(machine.fit(seen, y[4:]).coef_.T)
    weights = torch.cat([found.samples["weights"][0], found.samples["input_weights"][0]])
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.transform(NEW), fitted.transform(NEW))
    assert found.predict(NEW).shape == (12,)


def test_a_refit_of_what_cannot_be(posterior: FeaturePosterior) -> None:
    with pytest.raises(NotImplementedError, match="conjugate"):
        posterior.refit(BARS.X, BARS.y, loss=StudentT())
    ordered = posterior.replace(model=posterior.model.replace(target=Ordinal()))
    with pytest.raises(NotImplementedError, match="no loss of ordered classes"):
        ordered.refit(BARS.X, BARS.y, loss=Hinge())
    with pytest.raises(ValueError, match="weight_scale is -1"):
        posterior.refit(BARS.X, BARS.y, weight_scale=-1.0)
    with pytest.raises(ValueError, match=r"has 35 features, but the model was fitted with 36"):
        posterior.refit(BARS.X[:, 1:], BARS.y)
    without = Gibbs(num_samples=1, num_warmup=1).fit(LatentFeatureModel(truncation=4), BARS.X)
    with pytest.raises(ValueError, match="LatentFeatureModel has no labels"):
        without.refit(BARS.X, BARS.y)


def test_without_labels_there_is_nothing_to_predict(tmp_path) -> None:
    posterior = Gibbs(num_samples=2, num_warmup=2).fit(LatentFeatureModel(truncation=4), BARS.X)
    with pytest.raises(ValueError, match=r"has no labels to predict; use transform\(X\)"):
        posterior.predict(NEW)
    posterior.save(tmp_path / "file.pt")
    again = Posterior.load(tmp_path / "file.pt")
    assert torch.equal(again.transform(NEW), posterior.transform(NEW))
