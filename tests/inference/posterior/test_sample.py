"""Rows that posteriors draw have the law that the same posteriors state: densities, components and labels."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pyro.distributions as dist
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.nn.functional import logsigmoid

from regbayes.datasets import make_bars
from regbayes.inference import SVI, FeaturePosterior, Gibbs, SmallVariance
from regbayes.models import (
    BNMC,
    DDPM,
    DPM,
    LDA,
    DiagonalGaussian,
    DirichletTopics,
    EpsilonInsensitive,
    ExponentialFamily,
    FullGaussian,
    Hinge,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    LinearBernoulli,
    LinearGaussian,
    Logistic,
    MedLDA,
    MultinomialDirichlet,
    Product,
    StudentT,
)
from regbayes.models.domains import PositiveNumbers

from .test_posterior import LAPLACE, X, Y, made

pytestmark = pytest.mark.usefixtures("few_restarts")

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


@dataclass(eq=False)
class Codes(ExponentialFamily):
    """A code 0, 1 or 2 in one column, whose distribution draws whole numbers."""

    alpha: PositiveNumbers = 1.0

    def resolve(self, X, weights=None):
        return self.replace(alpha=X.new_full((3,), float(self.alpha)))

    def prior(self):
        return self.alpha

    def statistics(self, X):
        return torch.nn.functional.one_hot(X[:, 0].long(), 3).to(X)

    def log_base_measure(self, X):
        return X.new_zeros(len(X))

    def log_partition(self, chi):
        return torch.lgamma(chi).sum(-1) - torch.lgamma(chi.sum(-1))

    def parameters(self, chi, sample):
        return {"probs": sample("probs", dist.Dirichlet(chi))}

    def distribution(self, parameters):
        return dist.Categorical(parameters["probs"][..., None, :]).to_event(1)


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


def test_rows_of_whole_numbers_have_the_precision_of_the_data() -> None:
    rows = (torch.arange(20.0, dtype=torch.float64) % 3)[:, None]
    for model, y in ((DPM(Codes()), None), (InfiniteSVM(Codes()), (rows[:, 0] > 0).long())):
        drawn = Gibbs(2, 2).fit(model, rows, y).sample(5, generator=seeded()).X
        assert drawn.dtype == torch.float64
        assert set(drawn.flatten().tolist()) <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize("kind", ["logistic", "variational", "three classes", "three, variational", "Laplace"])
def test_labels_of_rows_have_their_probabilities(kind: str) -> None:
    likelihood, labels = LAPLACE if kind == "Laplace" else DiagonalGaussian(), torch.arange(60) % 3 - 1
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


def test_the_classifier_of_a_new_component_has_its_prior() -> None:
    """Far from all rows, where every component but the new one has no density: score ~ N(0, nu^2 |a|^2)."""
    loss, far = EpsilonInsensitive(0.7, 0.3), torch.tensor([[40.0, -3.0]], dtype=X.dtype)
    posterior = made(InfiniteSVM(loss=loss, weight_scale=0.3), X, X[:, 0])
    variance = 0.3**2 * posterior.model.features(far).square().sum()
    assert posterior.assign_proba(far)[0, -1] > 1 - 1e-6
    assert posterior.predict(far).abs() < 1e-4
    assert posterior.score_std(far).item() == pytest.approx(variance.item() ** 0.5, rel=1e-5)

    rows, y, labels = posterior.sample(NUM, generator=seeded())
    new = labels == labels.max()
    nodes = torch.linspace(-30, 30, 100_001, dtype=torch.float64)
    noise = loss.log_factor(nodes, torch.zeros_like(nodes)).softmax(0) @ nodes.square()
    spread = 0.3**2 * posterior.model.features(rows[new]).square().sum(1)
    require_centered((y[new].square() - noise - spread).unsqueeze(1))


@pytest.mark.parametrize("num_classes", [2, 3])
def test_probabilities_of_a_new_component_are_means_over_its_prior(num_classes: int) -> None:
    far = torch.tensor([[40.0, -3.0]], dtype=X.dtype)
    posterior = made(InfiniteSVM(loss=Logistic(), weight_scale=0.3), X, torch.arange(60) % num_classes)
    features = posterior.model.features(far)
    eta = 0.3 * torch.randn(NUM, features.shape[1], posterior.coding.num_scores, generator=seeded(), dtype=X.dtype)
    each = posterior.coding.probabilities(torch.einsum("np,spc->snc", features, eta), posterior.model.loss)[:, 0]
    assert posterior.assign_proba(far)[0, -1] > 1 - 1e-6
    require_centered(each - posterior.predict_proba(far))
    joint = posterior.log_likelihood(far, torch.tensor([0])) - posterior.log_likelihood(far)
    require_centered(each[:, :1] - joint.exp().mean())


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
    each = posterior.sample(3, totals=[1, 0, 10**12], generator=seeded()).X  # no token costs memory
    assert each[:, :3].sum(1).tolist() == [1.0, 0.0, 1e12]


# -- features, topics, label sets --------------------------------------------------------------------------------------


def all_bits(K: int) -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=K)), dtype=torch.float64)


def linear_spread(posterior: FeaturePosterior, bits: Tensor) -> tuple[Tensor, Tensor]:
    """Means [B, D] of the linear predictor of sets of bits [B, K], and variances [B, D] of loadings with a law."""
    draw = posterior.draw(0)
    mean = bits @ draw["loadings"]
    if "loading_covariance" not in draw:
        return mean, torch.zeros_like(mean)
    spread = [(bits * (bits @ covariance)).sum(1) for covariance in draw["loading_covariance"][draw["kind"]]]
    return mean, torch.stack(spread, 1)


@pytest.mark.filterwarnings("ignore")  # of short fits
@pytest.mark.parametrize("backend", [Gibbs(num_samples=1, num_warmup=4), SVI(num_steps=4)], ids=["gibbs", "svi"])
@pytest.mark.parametrize("loss", [Logistic(), EpsilonInsensitive(0.7, 0.3)], ids=lambda own: type(own).__name__)
def test_rows_of_features_and_their_targets_have_their_law(backend, loss) -> None:
    """Given x the bits of a row have a posterior over all sets of them, and the target follows from each."""
    bars = make_bars(40, noise=0.4)
    model = InfiniteLatentSVM(LinearGaussian(offset=0.0), loss=loss, truncation=3, feature_map=None)
    labels = bars.y if isinstance(loss, Logistic) else bars.X[:, 0]
    posterior = backend.fit(model, bars.X[:, :4], labels)
    draw = posterior.draw(0)
    if "loading_covariance" in draw:
        draw["loading_covariance"] *= 40  # so that it is seen
    rows, y, assignments = posterior.sample(NUM, generator=seeded())
    assert assignments is None
    bits, odds = all_bits(len(draw["loadings"])), draw["log_odds"]
    log_prior = bits @ logsigmoid(odds) + (1 - bits) @ logsigmoid(-odds)
    mean, variance = linear_spread(posterior, bits)
    variance = variance + 1 / draw["noise_precision"]
    require_centered(rows - log_prior.exp() @ mean)
    second = rows.unsqueeze(2) * rows.unsqueeze(1)
    expected = torch.einsum("b,bi,bj->ij", log_prior.exp(), mean, mean)
    require_centered(second - expected - (log_prior.exp() @ variance).diag())
    normal = torch.distributions.Normal(mean, variance.sqrt())
    shares = (log_prior + normal.log_prob(rows.unsqueeze(1)).sum(2)).softmax(1)
    scores = bits @ draw["weights"] + draw["input_weights"][0]
    if isinstance(loss, Logistic):
        chosen = (y.unsqueeze(1) == posterior.model.classes).double()
        own = posterior.coding.probabilities(scores, posterior.model.loss)
    else:
        chosen, own = y.unsqueeze(1), scores
    require_centered(weighed(chosen - shares @ own, rows))


def test_rows_of_binary_columns_have_their_law() -> None:
    """Chi-square of all rows of three columns."""
    bits = (make_bars(60, noise=0.1).X[:, :3] > 0.5).double()
    posterior = Gibbs(num_samples=2, num_warmup=3).fit(LatentFeatureModel(LinearBernoulli(), truncation=3), bits)
    rows, y, _ = posterior.sample(NUM, generator=seeded())
    assert y is None
    mass = torch.zeros(8, dtype=torch.float64)
    for draw in posterior.draws():
        sets, odds = all_bits(len(draw["loadings"])), draw["log_odds"]
        prior = (sets @ logsigmoid(odds.clamp(min=-1e9)) + (1 - sets) @ logsigmoid(-odds)).exp()
        one = (sets @ draw["loadings"] + posterior.model.likelihood.offset).sigmoid().unsqueeze(1)
        mass += prior @ torch.where(all_bits(3) > 0, one, 1 - one).prod(2) / 2
    found = torch.bincount((rows @ torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).long(), minlength=8)
    assert chisquare(found.numpy(), (mass * NUM).numpy()).pvalue > 1e-4


@pytest.mark.filterwarnings("ignore")  # of short fits
@pytest.mark.parametrize("backend", [Gibbs(num_samples=2, num_warmup=3), SVI(num_steps=3)], ids=["gibbs", "svi"])
def test_documents_have_the_law_of_their_topics(backend) -> None:
    """Of two tokens: all pairs of words, theta integrated out, and the mean score of each pair."""
    counts = torch.randint(0, 4, (12, 3), generator=seeded()).double()
    model = MedLDA(DirichletTopics(document_concentration=0.7), loss=EpsilonInsensitive(0.7, 0.3), num_topics=2)
    posterior = backend.fit(model, counts, counts[:, 0])
    posterior.samples["weights"] *= torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    rows, y, assignments = posterior.sample(NUM, totals=2, generator=seeded())
    assert assignments is None
    assert posterior.sample(3, totals=[0, 5, 10**12]).X.sum(1).tolist() == [0.0, 5.0, 1e12]  # no token costs memory
    mass, scores = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    each = len(posterior.samples["topics"])
    for draw in posterior.draws():
        alpha, topics, eta = draw["document_concentration"], draw["topics"], draw["weights"].squeeze(1)
        for one, other in itertools.product(range(2), repeat=2):
            share = (alpha + (one == other)) / (2 * (2 * alpha + 1)) / each
            words = share * topics[one].unsqueeze(1) * topics[other]
            mass, scores = mass + words, scores + words * (eta[one] + eta[other]) / 2
    cells = [(i, j) for i in range(3) for j in range(i, 3)]
    for total, sums in ((mass, None), (scores, y)):
        expected = torch.stack([(total + total.T)[i, j] / (1 + (i == j)) for i, j in cells])
        here = torch.stack([(rows == torch.eye(3)[i] + torch.eye(3)[j]).all(1) for i, j in cells], 1).double()
        require_centered((here if sums is None else here * sums.unsqueeze(1)) - expected)


@pytest.mark.filterwarnings("ignore")  # of short fits
@pytest.mark.parametrize("joint", ["and", "product"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_label_sets_go_with_the_component_of_their_row(joint: str, calibrated: bool) -> None:
    """The coupled joint states p(y | x), which averages over components; "product" has that of the row's component."""
    sets = torch.stack([Y, (X[:, 1] > 0).long()], 1)
    posterior = Gibbs(num_samples=1, num_warmup=2).fit(BNMC(joint=joint, truncation=3), X, sets)
    posterior = posterior.calibrated(X, sets) if calibrated else posterior
    rows, y, labels = posterior.sample(NUM, generator=seeded())
    assert y.dtype == torch.int64
    draw = posterior.draw(0)
    chi = draw.get("label_hyperparameters")
    psi = draw["label_means"] if chi is None else chi[:, :2] / chi.view(-1, 2, 2).sum(1)
    psi = torch.cat([psi, posterior.model.label_likelihood.a.unsqueeze(0)])[labels]  # a + b = 1
    if joint == "and":
        views = (0.0, (psi * (posterior.model.features(rows) @ draw["classifiers"]).sigmoid()).logit())
    else:
        views = (psi.logit(), posterior.views(rows).classifiers)
    rate = posterior.model.label_rates.logit() * (joint == "product")
    a, b, offset = posterior.metadata["calibration"].tensor_split([1, 2]) if calibrated else (1.0, 1.0, -rate)
    require_centered(weighed(y - (a * views[0] + b * views[1] + offset).sigmoid(), rows))
    shares = torch.nn.functional.pad(posterior.assign(rows).unsqueeze(1) == torch.arange(len(psi) - 1), (0, 1))
    assert shares[torch.arange(NUM), labels].double().mean() > 0.6  # most rows are in the component that x tells
    if joint == "and" and not calibrated:
        require_centered(weighed(y - posterior.predict_proba(rows), rows))


@pytest.mark.filterwarnings("ignore")  # of short fits
def test_what_has_no_density_is_not_drawn() -> None:
    bars = make_bars(20)
    with pytest.raises(NotImplementedError, match="no density"):
        SmallVariance(max_steps=2, num_restarts=1).fit(LatentFeatureModel(truncation=3), bars.X).sample(2)
    counted = SVI(num_steps=2).fit(BNMC(joint="multinomial", truncation=2), X, torch.ones(len(X), 2))
    with pytest.raises(NotImplementedError, match="totals of labels that are counts are not modelled"):
        counted.sample(2)
    with pytest.raises(ValueError, match="totals is None"):
        SVI(num_steps=2).fit(LDA(num_topics=2), torch.ones(4, 3)).sample(2, totals=None)


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


@pytest.mark.parametrize("totals", [None, -1, 1.5, [1, 2, 3], "x", 1e16])
def test_totals_are_counts(totals) -> None:
    posterior = made(DPM(MultinomialDirichlet()), torch.ones(12, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="totals"):
        posterior.sample(2, totals=totals)


def test_centres_have_no_density_to_draw_from() -> None:
    with pytest.raises(NotImplementedError, match="no density"):
        SmallVariance().fit(DPM(), X).sample(2)
