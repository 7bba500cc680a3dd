"""What a posterior of label sets makes of its views: how much each has to say, and probabilities fitted to new rows."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from regbayes.inference import SVI, Posterior, SmallVariance
from regbayes.models import BNMC, DiagonalGaussian

pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")


def label_sets(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows around three centres, and noisy labels that go with the centre and with a direction."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((num_rows, 2), generator=generator, dtype=torch.float64)
    centre = torch.arange(num_rows) % 3
    X = noise + torch.tensor([[-4.0, 0.0], [0.0, 4.0], [4.0, 0.0]], dtype=torch.float64)[centre]
    base = torch.tensor([[0.9, 0.2, 0.6], [0.2, 0.9, 0.6], [0.5, 0.5, 0.1]], dtype=torch.float64)[centre]
    slope = 0.25 + 0.5 * (noise[:, :1] > 0)
    return X, (torch.rand(base.shape, generator=generator) < base * slope * 1.3).double()


X, Y = label_sets(90, 0)
BACKENDS = [SVI(num_steps=15), SmallVariance(max_steps=5, num_restarts=1)]
OTHERS, TRUTH = label_sets(300, 1)


def log_loss(posterior: Posterior, rows: Tensor, labels: Tensor) -> float:
    return float(binary_cross_entropy(posterior.predict_proba(rows), labels))


@pytest.mark.parametrize("backend", BACKENDS, ids=["svi", "small variance"])
def test_the_say_of_the_mixture(backend, tmp_path) -> None:
    posterior = backend.fit(BNMC(truncation=6), X, Y)
    views, base = posterior.views(X), posterior.model.label_rates.logit()
    gain = views.mixture.logit() - base
    for share in (0.0, 0.3, 1.0):
        weighed = posterior.weighing(share)
        torch.testing.assert_close(weighed.decision_function(X), share * gain + views.classifiers)
    torch.testing.assert_close(posterior.weighing(1).predict_proba(X), posterior.predict_proba(X))
    posterior.weighing(0.3).save(tmp_path / "fit")
    assert torch.equal(Posterior.load(tmp_path / "fit").predict_proba(X), posterior.weighing(0.3).predict_proba(X))
    with pytest.raises(ValueError, match="mixture is -1; it must be a number of at least 0"):
        posterior.weighing(-1)


@pytest.mark.parametrize("backend", BACKENDS, ids=["svi", "small variance"])
def test_probabilities_of_a_coupled_joint_are_calibrated(backend, tmp_path) -> None:
    posterior = backend.fit(BNMC(DiagonalGaussian(), joint="and", truncation=6), X, Y)
    better = posterior.calibrated(OTHERS[:150], TRUTH[:150])
    slope, offset = better.metadata["calibration"][1], better.metadata["calibration"][2:]
    torch.testing.assert_close(better.decision_function(X), slope * posterior.decision_function(X) + offset)
    rest = OTHERS[150:], TRUTH[150:]
    assert log_loss(better, *rest) < log_loss(posterior, *rest) - 0.005
    assert (better.predict_proba(OTHERS[:150]).mean(0) - TRUTH[:150].mean(0)).abs().max() < 0.02
    better.save(tmp_path / "fit")
    assert torch.equal(Posterior.load(tmp_path / "fit").predict_proba(X), better.predict_proba(X))
    with pytest.raises(ValueError, match="one probability for each label, and no two views to weigh"):
        posterior.weighing(0.5)


def test_known_labels_are_named_where_they_are_refused() -> None:
    posterior = BACKENDS[1].fit(BNMC(truncation=3), X, Y)
    for known, words in (
        (Y[:3], "known has shape (3, 3); expected [90, 3], a row for each row of X and a column for each of 3 labels"),
        (Y[:, 0], "known has shape (90,); expected [90, 3], a row for each row of X and a column for each of 3 labels"),
        (Y[:, :2], "known has 2 columns, but the model has 3 labels (num_labels)."),
        (Y / 2, "known has a value that is "),
        ("x", "known cannot be read as an array of numbers"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            posterior.predict_proba(X, known=known)
        assert "by_task" not in str(caught.value)
