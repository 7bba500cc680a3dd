"""An infinite SVM with missing labels: such rows shape the components through x alone (docs/derivations/priors,
"Missing labels")."""

from __future__ import annotations

import pytest
import torch
from setups import by_day

from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import (
    DPM,
    Hinge,
    InfiniteSVM,
    Masked,
    OneVsRest,
    SphericalGaussian,
)
from regbayes.testing import check_model, partition_posterior
from regbayes.testing.enumeration import log_evidence

from .test_kernels import FAMILY, HOLES, PROBLEMS, SAMPLER, X

SETTINGS = {name.removeprefix("missing, "): PROBLEMS[name] for name in PROBLEMS if name.startswith("missing")}


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_program_is_its_parts(setting: str) -> None:
    model, y = SETTINGS[setting]
    check_model(model, X, y)
    assert isinstance(model.resolve(X, y).loss, Masked)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_missing_label_is_nan_or_minus_one(dtype) -> None:
    model = SETTINGS["hinge"][0]
    as_nan = torch.where(HOLES >= 0, HOLES.to(dtype), torch.nan)
    found = [model.resolve(X.to(dtype), y).targets(X.to(dtype), y).squeeze(1) for y in (HOLES, as_nan, as_nan.numpy())]
    for targets in found:
        assert targets.isnan().tolist() == [False, False, False, True, False]
        assert targets[~targets.isnan()].tolist() == [-1, -1, 1, 1]


def test_signs_are_labels_all_of_them() -> None:
    signs = torch.tensor([-1, -1, 1, -1, 1])
    resolved = SETTINGS["hinge"][0].resolve(X, signs)
    assert resolved.classes.tolist() == [-1, 1]
    assert not isinstance(resolved.loss, Masked)
    assert resolved.targets(X, signs).squeeze(1).tolist() == [-1, -1, 1, -1, 1]


def test_a_row_without_a_label_has_the_factor_one() -> None:
    """One labelled row: the evidence is that of the mixture times the marginal factor of that row alone."""
    model = SETTINGS["hinge"][0].replace(classes=torch.tensor([0, 1]))
    alone = torch.tensor([-1, -1, 1, -1, -1])
    mixture = DPM(FAMILY, model.prior)
    resolved = model.resolve(X, alone)
    data = resolved.data(X, alone)
    log_factor = model.loss.log_marginal(data.features[2].norm(), torch.ones((), dtype=X.dtype))
    found = log_evidence(model, X, alone) - log_evidence(mixture, X)
    assert found == pytest.approx(float(log_factor), abs=1e-5)
    # so its label says nothing of the partition
    one, other = partition_posterior(model, X, alone), partition_posterior(mixture, X)
    assert one == pytest.approx(other, abs=1e-6)


def test_logistic_labels_summed_out_are_labels_missing() -> None:
    """sum_y phi(y | f) = 1: the evidence without the label is the sum of those with it."""
    model = SETTINGS["logistic"][0]
    both = [log_evidence(model, X, HOLES.clone().index_fill(0, torch.tensor([3]), label)) for label in (0, 1)]
    total = torch.tensor(both, dtype=torch.float64).logsumexp(0)
    assert log_evidence(model, X, HOLES) == pytest.approx(float(total), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["collapsed", "slice"])
def test_scores_of_rows_in_the_fit_are_their_own_components(scan: str) -> None:
    """The exact posterior mean score of the row without a label, by quadrature for each partition."""
    model, y = SETTINGS["hinge"]
    resolved = model.resolve(X, y)
    data = resolved.data(X, y)
    exact = 0.0
    eta = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    for labels, weight in partition_posterior(model, X, y).items():
        members = [n for n in range(5) if labels[n] == labels[3] and n != 3]
        scores = data.features[members, 0].unsqueeze(1) * eta
        log_weights = model.loss.log_factor(scores, data.targets[members]).sum(0) - eta.square() / 2
        exact += weight * float(log_weights.softmax(0) @ eta) * float(data.features[3, 0])
    posterior = SAMPLER(scan=scan, num_samples=by_day(1000, 2)).fit(model, X, y)
    own = torch.stack(
        [
            weights[labels[3], 0, 0] * data.features[3, 0]
            for weights, labels in zip(posterior.samples["weights"], posterior.samples["assignments"], strict=True)
        ]
    )
    means = torch.stack([part.mean() for part in own.chunk(30)])
    assert abs(means.mean() - exact) < 5 * means.std() / 30**0.5


@pytest.mark.slow
def test_unlabelled_rows_sharpen_a_classifier_of_few_labels() -> None:
    """Two clusters with a boundary each, two labels a cluster side: rows without labels find the clusters."""
    generator = torch.Generator().manual_seed(0)
    cluster = torch.arange(120) % 2
    noise = torch.randn(120, 2, generator=generator, dtype=torch.float64)
    rows = noise + torch.stack([8.0 * cluster, torch.zeros(120)], 1)
    labels = ((noise[:, 1] > 0) ^ (cluster == 1)).long()
    missing = labels.clone()
    missing[16:] = -1
    model = InfiniteSVM(SphericalGaussian(), Hinge(2.0), weight_scale=3.0, truncation=6)
    for backend in (
        SVI(num_steps=40),
        Gibbs(num_samples=40, num_warmup=20, split_merge=1),
        SmallVariance(num_components=2),
    ):
        posterior = backend.fit(model, rows, missing)
        accuracy = (posterior.predict(rows[16:]) == labels[16:]).double().mean()
        assert accuracy > 0.85, type(backend).__name__


def test_no_label_known_is_named() -> None:
    with pytest.raises(ValueError, match="class"):
        InfiniteSVM().resolve(X, torch.full((5,), -1))


def test_one_versus_rest_masks_all_classes_of_a_row() -> None:
    model, y = SETTINGS["three classes"]
    resolved = model.resolve(X, y)
    assert isinstance(resolved.loss.loss, OneVsRest)
    assert resolved.targets(X, y).isnan().all(1).tolist() == [False, False, False, True, False]
