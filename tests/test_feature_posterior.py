"""The posterior of latent features: what a prediction depends on, and draws of different numbers of features."""

from __future__ import annotations

import pytest
import torch

from regbayes.datasets import make_bars
from regbayes.inference import FeaturePosterior, Gibbs, Posterior
from regbayes.models import InfiniteLatentSVM, LatentFeatureModel, LinearGaussian

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


def test_without_labels_there_is_nothing_to_predict(tmp_path) -> None:
    posterior = Gibbs(num_samples=2, num_warmup=2).fit(LatentFeatureModel(truncation=4), BARS.X)
    with pytest.raises(ValueError, match=r"has no labels to predict; use transform\(X\)"):
        posterior.predict(NEW)
    posterior.save(tmp_path / "file.pt")
    again = Posterior.load(tmp_path / "file.pt")
    assert torch.equal(again.transform(NEW), posterior.transform(NEW))
