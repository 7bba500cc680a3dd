"""Every backend of mixtures against exact enumeration, under every prior, target and with missing labels, through the
public check; and the check against a backend that is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from setups import LaplaceLocation, misled

from regbayes.inference import NUTS, SVI, Gibbs, SmallVariance
from regbayes.inference.running.engine import Kernel
from regbayes.models import (
    DDPM,
    DPM,
    CrammerSinger,
    DirichletProcess,
    EpsilonInsensitive,
    Hinge,
    InfiniteSVM,
    LinearRegression,
    Logistic,
    Ordinal,
    PitmanYor,
    PrincipalDirections,
    SphericalGaussian,
    SquaredHinge,
    Standardized,
)
from regbayes.testing import check_kernel, partition_posterior
from regbayes.testing.enumeration import log_evidence

X = torch.tensor([[-1.2], [-0.9], [0.3], [1.0], [1.3]], dtype=torch.float64)
Y, LEVELS = torch.tensor([0, 0, 1, 0, 1]), torch.tensor([0, 0, 1, 2, 1])
HOLES, THREE = torch.tensor([0, 0, 1, -1, 1]), torch.tensor([0, 2, 1, -1, 2])  # the label of row 3 is missing
PAIRS = torch.cat([X, X.new_tensor([-1.1, 1.0, 0.9, 0.2, -1.2]).unsqueeze(1)], 1)
REAL = torch.tensor([-1.0, torch.nan, 0.5, torch.nan, 1.0], dtype=torch.float64)
FAMILY = SphericalGaussian(loc=0.0, variance=0.5, prior_variance=1.0)
FIXED = PitmanYor(0.4, 0.8)
FREE = PitmanYor(0.3, 1.0, discount_prior=(2.0, 3.0), concentration_prior=(2.0, 1.0))
LINES = LinearRegression(loc=0.0, coefficient_precision=0.5, degrees_of_freedom=4.0, scale=0.4)
MIXTURE = DPM(FAMILY, truncation=3)
SVM = InfiniteSVM(FAMILY, Hinge(0.8), feature_map=Standardized(intercept=0.0), truncation=3)
WITH_INTERCEPT = InfiniteSVM(FAMILY, Logistic(), truncation=3)
PROBLEMS = {
    "mixture": (MIXTURE, None),
    "hinge": (SVM, Y),
    "logistic": (WITH_INTERCEPT, Y),
    "squared hinge": (SVM.replace(loss=SquaredHinge(0.6)), Y),
    "regression": (SVM.replace(loss=EpsilonInsensitive()), X[:, 0]),
    "Pitman-Yor": (MIXTURE.replace(prior=FIXED), None),
    "Pitman-Yor, alpha < 0": (MIXTURE.replace(prior=PitmanYor(0.6, -0.3)), None),
    "Pitman-Yor, unknown": (MIXTURE.replace(prior=FREE), None),
    "Pitman-Yor, hinge": (SVM.replace(prior=FIXED), Y),
    "Pitman-Yor, repelling": (DDPM(FAMILY, Logistic(), FIXED, PrincipalDirections(intercept=0.0), truncation=3), None),
    "missing, hinge": (SVM, HOLES),
    "missing, logistic": (WITH_INTERCEPT.replace(prior=FIXED), HOLES),
    "missing, three classes": (SVM, THREE),
    "missing, Crammer-Singer": (SVM.replace(loss=CrammerSinger(0.7)), THREE),
    "missing, regression": (SVM.replace(loss=EpsilonInsensitive()), REAL),
    "ordinal, hinge": (SVM.replace(target=Ordinal()), LEVELS),
    "ordinal, logistic": (SVM.replace(loss=Logistic(), target=Ordinal()), LEVELS),
    "ordinal, squared hinge": (SVM.replace(loss=SquaredHinge(0.6), target=Ordinal()), LEVELS),
    "repelling, hinge": (DDPM(FAMILY, Hinge(0.8), weight_scale=2.0, truncation=3), None),
    "lines": (DPM(LINES, DirichletProcess(1.0, None), truncation=3), None),
}
SAMPLER = partial(Gibbs, num_samples=400, num_warmup=40, split_merge=0)
BACKENDS = {
    "slice": SAMPLER(scan="slice", num_samples=1000, seed=1),
    "collapsed": SAMPLER(scan="collapsed"),
    "blocked": SAMPLER(scan="blocked"),
    "SVI": SVI(num_steps=60),
    "small variance": SmallVariance(penalty=1.0),
}
WITHOUT = {
    # what the scans draw of these is compared partition by partition in test_gibbs
    *((name, scan) for name in ("mixture", "hinge", "squared hinge") for scan in ("slice", "collapsed", "blocked")),
    # their chains stick for a hundred sweeps: from exact states in test_ddpm
    *(("repelling, hinge", scan) for scan in ("slice", "collapsed", "blocked")),
    ("Pitman-Yor, repelling", "slice"),
    ("Pitman-Yor, unknown", "SVI"),  # whose bound is on a grid: below
    ("missing, Crammer-Singer", "SVI"),  # without an expectation, as the last
    ("ordinal, squared hinge", "SVI"),
}
QUICK = ("Pitman-Yor, alpha < 0", "missing, hinge", "missing, regression")
AT_NIGHT = ("missing, three classes", "missing, Crammer-Singer")
CELLS = [
    pytest.param(
        *cell,
        marks=pytest.mark.nightly if cell[0] in AT_NIGHT else () if cell[0] in QUICK else pytest.mark.slow,
    )
    for cell in ((name, backend) for name in PROBLEMS for backend in BACKENDS)
    if cell not in WITHOUT
]
pytestmark = pytest.mark.filterwarnings("ignore:All 3 components are occupied")


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "backend"), CELLS, ids=str)
def test_backend_agrees_with_enumeration(name: str, backend: str) -> None:
    model, y = PROBLEMS[name]
    check_kernel(BACKENDS[backend], model, PAIRS if name == "lines" else X, y)


@pytest.mark.parametrize(
    ("name", "prior"), [("mixture", DirichletProcess(4.0)), ("Pitman-Yor", DirichletProcess(0.8))], ids=str
)
def test_a_sampler_of_another_prior_is_noticed(name: str, prior) -> None:
    wrong = misled(Gibbs(num_samples=600, num_warmup=40, split_merge=0), prior=prior)
    with pytest.raises(AssertionError, match="co-assignment probabilities are off"):
        check_kernel(wrong, PROBLEMS[name][0], X)


def test_a_bound_that_falls_or_exceeds_the_evidence_is_noticed() -> None:
    def altered(sign: float, shift: float, **options: Any) -> SVI:
        class Wrong(SVI):
            def kernel(self, model) -> Kernel:
                return replace(super().kernel(model), value=lambda state, data, model: sign * state.bound + shift)

        return Wrong(num_steps=60, **options)

    with pytest.raises(AssertionError, match="above the log evidence"):
        check_kernel(altered(1.0, 50.0), SVM, X, Y)
    with pytest.raises(AssertionError, match="the ELBO fell"):
        check_kernel(altered(-1.0, 0.0, tolerance=None), SVM, X, Y)


def test_what_a_backend_says_of_itself_is_what_is_checked() -> None:
    class Descent(SmallVariance):
        kind = "draws"

    class Noisy(SVI):
        kind = "estimate"

    with pytest.raises(ValueError, match='Descent has kind = "draws" and 1 draws: too few'):
        check_kernel(Descent(penalty=1.0), MIXTURE, X)
    with pytest.raises(ValueError, match="Noisy records ELBO, which has no exact value"):
        check_kernel(Noisy(num_steps=5), MIXTURE, X)
    with pytest.raises(ValueError, match=r"LaplaceLocation\(\) has no conjugate prior, so that exact prob"):
        check_kernel(NUTS(num_samples=10**6), MIXTURE.replace(likelihood=LaplaceLocation()), X)


def test_an_objective_needs_nothing_that_is_known_exactly() -> None:
    class Mode(NUTS):
        kind = "objective"

        def fit(self, *given, **options):
            raise RuntimeError("the fit began")

    with pytest.raises(RuntimeError, match="the fit began"):
        check_kernel(Mode(), MIXTURE.replace(likelihood=LaplaceLocation()), X)


# -- the Pitman-Yor prior, which has no kernel of its own -----------------------------------------------------------


def test_the_bound_never_falls_with_unknown_hyperparameters() -> None:
    """It is of the prior on a grid of hyperparameters: near the evidence, but not below it for certain."""
    model = PROBLEMS["Pitman-Yor, unknown"][0]
    values = BACKENDS["SVI"].fit(model, X).trace.values
    assert (values[:, 1:] >= values[:, :-1] - 1e-9).all()
    assert values.max() < log_evidence(model, X, truncation=3) + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["slice", "collapsed"])
def test_splits_and_merges_on_both_infinite_scans(scan: str) -> None:
    model, _ = PROBLEMS["Pitman-Yor"]  # with classifiers: `test_split_merge`
    check_kernel(SAMPLER(scan=scan, split_merge=2), model, X)


def test_the_discount_matters_to_every_answer() -> None:
    """The exact posteriors with and without it differ by far more than the checks let pass."""
    model = MIXTURE
    one, other = (partition_posterior(model.replace(prior=p), X) for p in (FIXED, DirichletProcess(0.8)))
    assert sum(abs(one[z] - other[z]) for z in one) / 2 > 0.1


def test_hyperparameters_are_among_the_draws() -> None:
    posterior = SAMPLER(scan="slice", num_samples=100).fit(PROBLEMS["Pitman-Yor, unknown"][0], X)
    assert posterior.samples["discount"].shape == posterior.samples["concentration"].shape == (100,)
    assert posterior.samples["discount"].std() > 0.05


def test_a_falling_price_opens_more_components() -> None:
    many = 3 * torch.arange(12, dtype=torch.float64).unsqueeze(1) + torch.tensor([[0.0], [0.1]]).repeat(6, 1)
    model = DPM(SphericalGaussian(0.0, 0.5, 1.0), PitmanYor())
    steep = model.replace(prior=PitmanYor(price_exponent=6.0))
    backend = SmallVariance(penalty=20.0)
    one, other = (int(backend.fit(chosen, many).num_components) for chosen in (model, steep))
    assert one < other
