"""Rows that posteriors draw have the law that the same posteriors state: densities, components and labels."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from regbayes.inference import SmallVariance
from regbayes.models import (
    DDPM,
    DPM,
    DiagonalGaussian,
    EpsilonInsensitive,
    FullGaussian,
    Hinge,
    InfiniteSVM,
    Logistic,
    MultinomialDirichlet,
    Product,
    StudentT,
)

from .test_posterior import LaplaceRows, X, Y, made

NUM = 20_000


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def require_centered(gaps: Tensor) -> None:
    """Columns of independent rows [n, ...] have mean 0, within 5 standard errors."""
    gaps = gaps.flatten(1)
    assert (gaps.mean(0).abs() <= 5 * gaps.std(0) / len(gaps) ** 0.5 + 1e-12).all(), gaps.mean(0)


def weighed(gaps: Tensor, rows: Tensor) -> Tensor:
    """Gaps [n, L] times some functions of the rows [n, D], whose means are then 0 as well."""
    functions = torch.cat([torch.ones(len(rows), 1), rows, rows.square(), rows.sin()], 1).to(gaps)
    return gaps.unsqueeze(2) * functions.unsqueeze(1)


# -- mixtures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [DiagonalGaussian(), FullGaussian()], ids=lambda own: type(own).__name__)
def test_rows_of_a_mixture_have_its_density(family) -> None:
    """Chi-square of 40 cells of one column, whose masses come from the density on a fine grid."""
    posterior = made(DPM(family), X[:, :1])
    rows = posterior.sample(NUM, generator=seeded()).X.squeeze(1)
    grid = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    mass = posterior.log_predictive_density(grid.unsqueeze(1)).exp() * (grid[1] - grid[0])
    assert float(mass.sum()) > 0.99  # t densities have tails
    levels = mass.cumsum(0) + (1 - mass.sum()) / 2
    ends = grid[torch.searchsorted(levels, torch.linspace(0, 1, 41, dtype=torch.float64)[1:-1])]
    found = torch.bincount(torch.searchsorted(ends, rows), minlength=40)
    assert chisquare(found.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("model", [DPM(), DDPM()], ids=lambda own: type(own).__name__)
def test_components_of_rows_are_those_that_a_row_of_their_x_has(model) -> None:
    posterior = made(model, X)
    rows, y, labels = posterior.sample(NUM, generator=seeded())
    assert y is None
    assert labels.dtype == torch.int64
    shares = posterior.assign_proba(rows, **({"discriminative": False} if model.repels else {}))
    require_centered(weighed(torch.nn.functional.one_hot(labels, shares.shape[1]) - shares, rows))


@pytest.mark.parametrize("kind", ["logistic", "variational", "three classes", "three, variational", "Laplace"])
def test_labels_of_rows_have_their_probabilities(kind: str) -> None:
    likelihood, labels = LaplaceRows() if kind == "Laplace" else DiagonalGaussian(), torch.arange(60) % 3 - 1
    labels = 5 * labels if "three" in kind else Y
    model = InfiniteSVM(likelihood, loss=Logistic())
    posterior = made(model, X, labels, variational="variational" in kind, truncated=kind == "Laplace")
    rows, y, _ = posterior.sample(NUM, generator=seeded())
    chosen = (y.unsqueeze(1) == posterior.model.classes).double()
    require_centered(weighed(chosen - posterior.predict_proba(rows), rows))


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=["hinge", "logistic"])
@pytest.mark.parametrize("slope", [None, 0.4])
def test_labels_of_one_component_are_read_as_predictions_are(loss, slope) -> None:
    """A hinge has one score for a row where there is one component, and so has a posterior with a slope."""
    posterior = made(InfiniteSVM(loss=loss), X, Y, sizes=(1,), truncated=True)
    posterior = posterior if slope is None else posterior.with_slope(slope)
    rows, y, _ = posterior.sample(NUM, generator=seeded())
    chosen = (y.unsqueeze(1) == posterior.model.classes).double()
    require_centered(weighed(chosen - posterior.predict_proba(rows), rows))


@pytest.mark.parametrize("loss", [EpsilonInsensitive(0.7, 0.3), StudentT()], ids=lambda own: type(own).__name__)
@pytest.mark.parametrize("variational", [False, True])
def test_real_targets_have_the_mean_of_predictions(loss, variational: bool) -> None:
    posterior = made(InfiniteSVM(loss=loss), X, X[:, 0], variational=variational)
    rows, y, _ = posterior.sample(NUM, generator=seeded())
    require_centered(weighed((y - posterior.predict(rows)).unsqueeze(1), rows))


def test_variational_classifiers_spread_real_targets() -> None:
    """The second moment of y - f is that of the loss, and of q(eta) beside it."""
    loss = EpsilonInsensitive(0.7, 0.3)
    posterior = made(InfiniteSVM(loss=loss), X, X[:, 0], variational=True, sizes=(1,), truncated=True)
    rows, y, _ = posterior.sample(NUM, generator=seeded())
    nodes = torch.linspace(-30, 30, 100_001, dtype=torch.float64)
    density = loss.log_factor(nodes, torch.zeros_like(nodes)).softmax(0)
    tril = posterior.samples["precision_tril"][0, 0, 0]
    spread = (posterior.model.features(rows) / tril.diagonal()).square().sum(1)
    require_centered(((y - posterior.predict(rows)).square() - density @ nodes.square() - spread).unsqueeze(1))


def test_counts_have_the_totals_given_and_their_law() -> None:
    """All [n_1, n_2, n_3] of two words, beside a column of its own family."""
    counts = torch.cat([torch.eye(3).repeat(8, 1) + torch.eye(3)[[0] * 24], torch.arange(24).view(-1, 1) % 3], 1)
    family = Product([(MultinomialDirichlet(), 3), (DiagonalGaussian(), 1)])
    posterior = made(DPM(family), counts.double())
    rows = posterior.sample(NUM, totals=2, generator=seeded()).X
    cells = [cell for cell in itertools.product(range(3), repeat=3) if sum(cell) == 2]
    table = torch.tensor(cells, dtype=torch.float64)
    grid = torch.linspace(-60, 60, 4001, dtype=torch.float64)
    pairs = torch.cat([table.repeat_interleave(len(grid), 0), grid.repeat(len(cells)).unsqueeze(1)], 1)
    mass = posterior.log_predictive_density(pairs).exp().view(len(cells), -1).sum(1) * (grid[1] - grid[0])
    found = (rows[:, None, :3] == table).all(2).sum(0)
    assert int(found.sum()) == NUM
    assert chisquare(found.numpy(), (mass / mass.sum() * NUM).numpy()).pvalue > 1e-4
    each = posterior.sample(3, totals=[1, 0, 4], generator=seeded()).X
    assert each[:, :3].sum(1).tolist() == [1.0, 0.0, 4.0]


# -- what all share ----------------------------------------------------------------------------------------------------


def test_a_generator_says_it_all() -> None:
    posterior = made(InfiniteSVM(loss=Logistic()), X, Y)
    one, same, other = (posterior.sample(50, generator=seeded(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(*pair) for pair in zip(one, same, strict=True))
    assert not torch.equal(one.X, other.X)
    assert torch.equal(posterior.sample(5).X, posterior.sample(5).X)
    single = made(DPM(), X.float())
    assert single.sample(3).X.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rows": 0}, "num_rows is 0; it must be an integer of at least 1"),
        ({"num_rows": 2**31 - 1}, "memory"),
        ({"num_rows": 2, "generator": 5}, "generator is 5; expected a torch.Generator"),
        ({"num_rows": 2, "totals": 3}, "leave it out"),
    ],
)
def test_bad_arguments_are_refused(options, message: str) -> None:
    wide = X.repeat(1, 20)
    with pytest.raises(ValueError, match=message):
        made(DPM(), wide).sample(**options)


@pytest.mark.parametrize("totals", [None, -1, 1.5, [1, 2, 3], "x"])
def test_totals_are_counts(totals) -> None:
    posterior = made(DPM(MultinomialDirichlet()), torch.ones(12, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="totals"):
        posterior.sample(2, totals=totals)


def test_centres_have_no_density_to_draw_from() -> None:
    with pytest.raises(NotImplementedError, match="no density"):
        SmallVariance().fit(DPM(), X).sample(2)
