"""The posterior of latent features: what a prediction depends on, and draws of different numbers of features."""

from __future__ import annotations

import pytest
import torch
from sklearn.svm import LinearSVC

from regbayes.datasets import make_bars
from regbayes.inference import SVI, FeaturePosterior, Gibbs, Posterior
from regbayes.models import Hinge, InfiniteLatentSVM, LatentFeatureModel, LinearGaussian, StudentT

BARS = make_bars(40, noise=0.3)
NEW = make_bars(12, noise=0.6, seed=1).X


@pytest.fixture(scope="module")
def posterior() -> FeaturePosterior:
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), truncation=6)
    return Gibbs(num_samples=4, num_warmup=6).fit(model, BARS.X, BARS.y)


def test_rows_do_not_depend_on_those_beside_them(posterior: FeaturePosterior) -> None:
    rows = NEW.clone()
    rows[::3, :9] = torch.nan
    for ask in (posterior.transform, posterior.decision_function):
        alone = torch.cat([ask(row) for row in rows.split(1)])
        torch.testing.assert_close(alone, ask(rows), rtol=1e-9, atol=1e-9)


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
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), truncation=6)
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
