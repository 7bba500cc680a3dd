"""Mean field of topic models: an objective written as loops, exact documents, evidence by enumeration, minibatches."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch
from scipy.special import digamma, gammaln
from setups import name_of
from sklearn.svm import LinearSVC
from torch.distributions import Dirichlet, MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

from regbayes.datasets import load
from regbayes.inference import SVI, Gibbs
from regbayes.inference.classifiers.duals import solve
from regbayes.inference.classifiers.ridge import Ridge
from regbayes.inference.svi.rules import AVERAGING as AVERAGED
from regbayes.inference.svi.rules import NATURAL
from regbayes.inference.svi.steps import Minibatch
from regbayes.inference.svi.topics import factors, start
from regbayes.inference.svi.topics import kernel as topics
from regbayes.inference.svi.topics.documents import Globals, fit_documents
from regbayes.inference.svi.topics.tokens import mean_topics, own_grams, score_moments, visit_tokens
from regbayes.models import LDA, DirichletTopics, MedLDA, SparseRows
from regbayes.models.losses import CrammerSinger, EpsilonInsensitive, Hinge, Logistic, OneVsRest, SquaredHinge, StudentT

PRIOR = DirichletTopics(document_concentration=0.4, topic_concentration=0.3)
AVERAGING = [Hinge(1.5, 1.2), EpsilonInsensitive(1.5, 0.1), CrammerSinger(1.5, 1.2), SquaredHinge()]
AUGMENTED = [Hinge(1.5, 1.2), EpsilonInsensitive(1.5, 0.1), Logistic()]


def corpus(seed: int = 0, N: int = 12, V: int = 7, length: int = 8) -> np.ndarray:
    """Counts [N, V] of words from three topics; the last document is empty, the one before has a single word."""
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.full(V, 0.4), 3)
    X = np.stack([rng.multinomial(rng.integers(3, length), share @ law) for share in rng.dirichlet([0.4] * 3, N)])
    X[-1] = 0
    X[-2] = 0
    X[-2, 2] = 5
    return X.astype(float)


def targets_of(loss, X: np.ndarray, num_classes: int = 2) -> np.ndarray:
    score = X @ np.linspace(-1, 1, X.shape[1]) / X.sum(1).clip(1)
    if loss.target == "real":
        return 2 * score
    cuts = np.quantile(score, np.arange(1, num_classes) / num_classes)
    return np.searchsorted(cuts, score)


def problem(loss, num_classes: int = 2, missing: int = 0, device="cpu", seed: int = 0, **options):
    """(model, data), resolved, of the corpus."""
    X = corpus(seed)
    options = {"num_topics": 3, "prior": PRIOR, "weight_scale": 1.5} | options
    X_on = torch.as_tensor(X, device=device)
    if loss is None:
        return LDA(num_topics=options["num_topics"], prior=options["prior"]).prepare(X_on)
    y = torch.as_tensor(targets_of(loss, X, num_classes), device=device)
    if missing:
        y = y.clone()
        y[:missing] = torch.nan if loss.target == "real" else -1
    return MedLDA(loss=loss, **options).prepare(X_on, y)


def swept(model, data, num_sweeps: int, *, augmented: bool = False):
    state = topics.init(model, data, torch.Generator(data.X.device).manual_seed(0))
    for _ in range(num_sweeps):
        state = topics.sweep(state, data, model, rule=NATURAL if augmented else AVERAGED)
    return state


# -- the objective, written again as loops over tokens -----------------------------------------------------------------


def objective(model, data, phi, g, lam, mean, tril=None) -> torch.Tensor:
    """J as loops over tokens, with a gradient: phi [nnz, K] of the entries, g [N, K], lam [K, V], mean [K, C].

    tril [C, K, K] is that of V_c^-1; without it the classifiers are averaged.
    """
    prior, K = model.prior, mean.shape[0]
    total = torch.zeros((), dtype=torch.float64)
    for rows, a in ((g, prior.document_concentration), (lam, prior.topic_concentration)):
        for row in rows:
            total = total + kl_divergence(Dirichlet(row), Dirichlet(torch.full_like(row, a)))
    log_topics = torch.digamma(lam) - torch.digamma(lam.sum(1, keepdim=True))
    share = torch.digamma(g) - torch.digamma(g.sum(1, keepdim=True))
    cov, entries = None if tril is None else torch.linalg.inv(tril @ tril.mT), iter(phi)
    for n in range(data.num_data):
        tokens = []
        for e in range(int(data.X.starts[n]), int(data.X.starts[n + 1])):
            own, word = next(entries), int(data.X.columns[e])
            tokens += [own] * int(data.X.values[e])
            divergence = (own * (own.clamp(min=1e-300).log() - share[n] - log_topics[:, word])).sum()
            total = total + int(data.X.values[e]) * divergence
        zbar = sum(tokens) / len(tokens) if tokens else torch.zeros(K, dtype=torch.float64)
        if cov is None:
            total = total + (averaged_cost(unwrapped(model.loss), zbar @ mean, data.targets[n]) if mean.shape[1] else 0)
            continue
        second = torch.zeros(K, K, dtype=torch.float64)
        for i, j in itertools.product(range(len(tokens)), repeat=2):
            pair = torch.diag(tokens[i]) if i == j else torch.outer(tokens[i], tokens[j])
            second = second + pair / len(tokens) ** 2
        for eta, own, y in zip(mean.T, cov, data.targets[n], strict=True):
            f, square = eta @ zbar, ((torch.outer(eta, eta) + own) * second).sum()
            total = total + augmented_cost(unwrapped(model.loss), f, square - f**2, y)
    return total + classifiers_cost(model, mean, cov)


def classifiers_cost(model, mean: torch.Tensor, cov: torch.Tensor | None) -> torch.Tensor | float:
    """KL(q(eta) || p(eta)), or |mu|^2 / (2 nu^2)."""
    if cov is None:
        return mean.square().sum() / (2 * model.weight_scale**2) if mean.shape[1] else 0.0
    eye = torch.eye(mean.shape[0], dtype=torch.float64)
    prior = MultivariateNormal(torch.zeros_like(eye[0]), model.weight_scale**2 * eye)
    laws = (MultivariateNormal(eta, own, validate_args=False) for eta, own in zip(mean.T, cov, strict=True))
    return sum(kl_divergence(law, prior) for law in laws)


def unwrapped(loss):
    while hasattr(loss, "loss"):
        loss = loss.loss
    return loss


def averaged_cost(loss, f, y):
    """g(f) of scores [C] of a document, each loss by its definition."""
    if (y != y).any():
        return 0.0
    if isinstance(loss, EpsilonInsensitive):
        return 2 * loss.strength * max(0.0, abs(y[0] - f[0]) - loss.epsilon)
    if isinstance(loss, CrammerSinger):
        own = int(y.argmax())
        return 2 * loss.strength * max(f[m] - f[own] + (m != own) * loss.margin for m in range(len(f)))
    power = 2 if isinstance(loss, SquaredHinge) else 1
    return sum(2 * loss.strength * max(0.0, loss.margin - y[c] * f[c]) ** power for c in range(len(f)))


def augmented_cost(loss, f, variance, y):
    """c (E zeta + sqrt(E zeta^2)) of each hinge; other losses by their own bound."""
    if torch.isnan(y):
        return 0.0
    if isinstance(loss, Hinge):
        slacks = [loss.margin - y * f]
    elif isinstance(loss, EpsilonInsensitive):
        slacks = [y - f - loss.epsilon, f - y - loss.epsilon]
    else:
        return -loss.expected_log_factor(f, variance, y)
    return sum(loss.strength * (slack + (slack**2 + variance).sqrt()) for slack in slacks)


def phi_of(state, before, data, model) -> torch.Tensor:
    """q(z) [nnz, K] of one document step that started from `before` and led to `state`."""
    share = torch.digamma(before.counts + model.prior.document_concentration)
    lengths = data.lengths.clamp(min=1).unsqueeze(1)
    share = share + state.tilt @ before.mean.T / lengths
    return (factors.log_topics(before, model)[data.X.columns] + share[data.X.row_index]).softmax(1)


CASES = [
    (None, 2, 0),
    (AVERAGING[0], 2, 4),
    (AVERAGING[1], 2, 0),
    (AVERAGING[2], 2, 4),
    (AVERAGING[3], 2, 0),
    (Hinge(), 3, 4),
    (AVERAGING[2], 3, 0),
]


@pytest.mark.parametrize(("loss", "num_classes", "missing"), CASES)
def test_the_bound_is_the_objective(loss, num_classes, missing) -> None:
    model, data = problem(loss, num_classes, missing)
    state = before = swept(model, data, 3)
    state = factors.update_documents(state, data, model, 1)
    phi = phi_of(state, before, data, model)
    totals = data.X.entry_sums(data.X.values.unsqueeze(1) * phi)
    torch.testing.assert_close(state.counts, totals, rtol=1e-10, atol=1e-10)
    found = factors.with_bound(state, model, factors.cost(state, data, model, AVERAGED)).bound
    assert -float(found) == pytest.approx(float(objective(model, data, phi, *laws_of(state), state.mean)), rel=1e-10)


def laws_of(state) -> tuple[torch.Tensor, torch.Tensor]:
    """g [N, K] and lam [K, V] of q(theta) and q(topic)."""
    return state.counts + PRIOR.document_concentration, state.word_counts.T + PRIOR.topic_concentration


@pytest.mark.parametrize(("loss", "num_classes"), [*((loss, 2) for loss in AVERAGING), (Hinge(), 3), (AVERAGING[2], 3)])
def test_a_document_step_is_the_numeric_optimum(loss, num_classes) -> None:
    """All of a document's phi at once by sequential quadratic programming with slacks for the loss."""
    model, data = problem(loss, num_classes, weight_scale=4.0)
    before = swept(model, data, 4)
    state = factors.update_documents(before, data, model, 1)
    X, logs, mean = data.X.to_dense().numpy(), factors.log_topics(before, model).numpy(), before.mean.numpy()
    share = digamma(before.counts.numpy() + model.prior.document_concentration)
    tilted = 0
    for n in range(0, 9, 2):
        words, y, inner = np.flatnonzero(X[n]), data.targets[n].numpy(), loss
        numbers = X[n, words]

        def cost(flat, n=n, words=words, numbers=numbers, y=y):
            phi = flat.reshape(len(words), 3)
            divergence = numbers @ (phi * (np.log(phi.clip(1e-300)) - share[n] - logs[words])).sum(1)
            return divergence, numbers @ phi / numbers.sum() @ mean

        ours = phi_of(state, before, data, model)[data.X.row_index == n].numpy()
        value, scores = cost(ours.ravel())
        value += averaged_cost(inner, scores, y)
        numeric = numeric_minimum(cost, inner, y, len(words))
        assert value <= numeric + 1e-6
        assert value == pytest.approx(numeric, abs=1e-4)
        tilted += int(abs(state.tilt[n]).max() > 1e-3)
    assert tilted


def numeric_minimum(cost, loss, y: np.ndarray, num_words: int) -> float:
    """The least divergence + loss over phi [W, K] and slacks >= 0, one for each linear piece of a loss."""
    pieces = {"EpsilonInsensitive": 1, "CrammerSinger": 1}.get(type(loss).__name__, len(y))

    def gaps(v):  # each >= 0
        _, f = cost(v[: 3 * num_words])
        slack = v[3 * num_words :]
        if isinstance(loss, EpsilonInsensitive):
            return np.array([slack[0] - (y[0] - f[0] - loss.epsilon), slack[0] - (f[0] - y[0] - loss.epsilon)])
        if isinstance(loss, CrammerSinger):
            own = int(np.argmax(y))
            return np.array([slack[0] - (f[m] - f[own] + (m != own) * loss.margin) for m in range(len(f))])
        return slack - (loss.margin - y * f)

    power = 2 if isinstance(loss, SquaredHinge) else 1

    def total(v):
        return cost(v[: 3 * num_words])[0] + 2 * loss.strength * (v[3 * num_words :] ** power).sum()

    constraints = [
        {"type": "eq", "fun": lambda v: v[: 3 * num_words].reshape(num_words, 3).sum(1) - 1},
        {"type": "ineq", "fun": gaps},
    ]
    start = np.concatenate([np.full(3 * num_words, 1 / 3), np.full(pieces, 5.0)])
    bounds = [(1e-12, 1)] * (3 * num_words) + [(0, None)] * pieces
    found = scipy.optimize.minimize(
        total, start, bounds=bounds, constraints=constraints, method="SLSQP", options={"maxiter": 500, "ftol": 1e-12}
    )
    value, f = cost(found.x[: 3 * num_words])
    return value + averaged_cost(loss, f, y)


@pytest.mark.parametrize("loss", [None, *AVERAGING], ids=name_of)
def test_each_update_of_averaging_is_stationary(loss) -> None:
    """Theta and topics by the gradient of J, eta by its dual (phi is in the test above)."""
    model, data = problem(loss)
    before = swept(model, data, 5)
    state = factors.update_documents(before, data, model, 1)
    phi, laws = phi_of(state, before, data, model), laws_of(state)
    for share in (1.0, 1.1):
        leaves = [(share * law).requires_grad_() for law in laws]
        slopes = torch.autograd.grad(objective(model, data, phi, *leaves, state.mean), leaves)
        largest = [float((slope * leaf.detach()).abs().max()) for slope, leaf in zip(slopes, leaves, strict=True)]
        assert max(largest) < 1e-8 if share == 1.0 else min(largest) > 1e-2
    if loss is not None:
        features = mean_topics(state.counts, data.X)
        dual = solve(features, data.targets, model.loss, model.weight_scale, tolerance=1e-10, max_passes=20_000)
        least = factors.cost(replace(state, mean=dual.weights), data, model, AVERAGED)
        state = factors.update_classifiers(state, data, model, AVERAGED)
        excess = factors.cost(state, data, model, AVERAGED) - least
        assert -(1e-9 + dual.gap) * least <= excess <= 2e-3 * least


# -- sweeps under both rules -------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("rule", "loss", "num_classes", "missing"),
    [
        *((AVERAGED, *case) for case in [*CASES, (OneVsRest(Hinge()), 3, 0)]),
        *((NATURAL, loss, 2, 0) for loss in AUGMENTED),
        (NATURAL, Hinge(), 3, 3),
    ],
)
def test_sweeps_climb(rule, loss, num_classes, missing, device) -> None:
    """Documents settle after some thirty sweeps; from then on what is left of the gaps of their duals would show."""
    model, data = problem(loss, num_classes, missing, device)
    state = topics.init(model, data, torch.Generator(device).manual_seed(0))
    bounds = []
    for _ in range(60 if rule.has_dual else 12):
        state = topics.sweep(state, data, model, rule=rule)
        bounds.append(float(state.bound))
    assert (np.diff(bounds) >= -(1e-12 if rule.has_dual else 1e-9) * abs(bounds[-1])).all()
    assert bounds[-1] > bounds[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("loss", "num_classes", "missing"), [*((loss, 2, 0) for loss in AUGMENTED), (Hinge(), 3, 3)])
def test_augmented_bound_and_stationary_point(loss, num_classes, missing) -> None:
    model, data = problem(loss, num_classes, missing)
    state = swept(model, data, 2, augmented=True)
    for converged in (False, True):
        if converged:
            for _ in range(250):
                state = topics.sweep(state, data, model, rule=NATURAL)
        leaves = [
            state.phi.clamp(min=1e-300).log(),
            (state.counts + PRIOR.document_concentration).log(),
            (state.word_counts.T + PRIOR.topic_concentration).log(),
            state.mean,
            state.precision_tril,
        ]
        leaves = [leaf.clone().requires_grad_() for leaf in leaves]
        value = objective(model, data, leaves[0].softmax(1), leaves[1].exp(), leaves[2].exp(), *leaves[3:])
        assert -float(state.bound) == pytest.approx(value.item(), rel=1e-10)
    value.backward()
    for leaf in leaves:
        gradient = leaf.grad.tril() if leaf is leaves[4] else leaf.grad
        assert gradient.abs().max() < 2e-4


# -- both kinds of code ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "num_classes", "missing"), CASES)
def test_compiled_documents_are_the_tensors(loss, num_classes, missing, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[fit_documents.__module__], "_CHANGE", 1e-10)  # both go on to the optimum
    model, data = problem(loss, num_classes, missing, weight_scale=4.0)
    state = swept(model, data, 4)
    given = Globals(factors.log_topics(state, model), 0.4, state.mean, factors.loss_of(model))
    compiled, plain = (
        fit_documents(data.X, data.targets, given, state.counts, state.tilt, num_steps=200, compiled=choice)
        for choice in (True, False)
    )
    values = [
        found.divergence + factors.cost(replace(state, counts=found.counts), data, model, AVERAGED)
        for found in (compiled, plain)
    ]
    assert float(values[0] - values[1]) == pytest.approx(0.0, abs=1e-6)
    for name in ("counts", "word_counts"):  # where the values agree to a gap, these do to its root
        torch.testing.assert_close(getattr(compiled, name), getattr(plain, name), rtol=0, atol=1e-3)


def test_words_that_underflow_are_kept() -> None:
    """exp(E log theta) of a tiny concentration times a tiny topic weight is 0 in double precision."""
    X = np.array([[3.0, 0.0], [0.0, 4.0], [2.0, 2.0]])
    _, data = LDA(num_topics=2).prepare(X)
    logs = torch.tensor([[0.0, -800.0], [-800.0, 0.0]], dtype=torch.float64)
    counts = torch.tensor([[0.0, 3.0], [4.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    given, tilt = Globals(logs, 1e-4, torch.zeros(2, 0, dtype=torch.float64), None), torch.zeros(3, 0).double()
    found = [fit_documents(data.X, data.targets, given, counts, tilt, num_steps=1, compiled=c) for c in (True, False)]
    for name in ("counts", "word_counts", "divergence"):
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name))
        assert getattr(found[0], name).isfinite().all()
    torch.testing.assert_close(found[0].counts.sum(1), torch.tensor([3.0, 4.0, 4.0]).double())


@pytest.mark.parametrize(("loss", "num_classes"), [(Hinge(), 3), (EpsilonInsensitive(), 2)])
def test_compiled_tokens_are_the_tensors(loss, num_classes) -> None:
    model, data = problem(loss, num_classes)
    state = swept(model, data, 2, augmented=True)
    observed = factors.observe(state, data, model)
    logs, share = factors.log_topics(state, model) + 0.3, torch.digamma(state.counts + 0.4)
    shifted = Ridge(state.classifiers.mean + 1.0, state.classifiers.precision_tril)
    compiled, plain = (
        visit_tokens(data.X, logs, share, observed, shifted, state.phi, state.counts, compiled=choice)
        for choice in (True, False)
    )
    for one, other in zip(compiled, plain, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(compiled[1], data.X.entry_sums(data.X.values.unsqueeze(1) * compiled[0]))
    for choice in (True, False):
        places, grams = zip(*own_grams(data.X, compiled[0], compiled=choice), strict=True)
        outer = torch.einsum("e,ej,ek->ejk", data.X.values, compiled[0], compiled[0])
        assert [place.start for place in places] == [0]
        torch.testing.assert_close(
            grams[0], torch.stack([outer[data.X.row_index == n].sum(0) for n in range(len(data.X))])
        )


def test_tokens_of_one_word_never_overshoot() -> None:
    """Long runs of a word under a strong margin: each pass lowers the restricted objective."""
    X = np.array([[30.0, 10.0, 0.0], [5.0, 0.0, 20.0], [0.0, 25.0, 5.0]])
    model = MedLDA(loss=Hinge(50.0, 3.0), num_topics=3, weight_scale=10.0, prior=PRIOR)
    model, data = model.prepare(X, np.array([0, 1, 1]))
    state = swept(model, data, 1, augmented=True)
    state = replace(state, mean=torch.tensor([[30.0], [-20.0], [5.0]], dtype=torch.float64))
    observed = factors.observe(state, data, model)
    share, logs = torch.digamma(state.counts + 0.4), factors.log_topics(state, model)
    phi, counts = state.phi, state.counts

    def restricted(phi, counts) -> float:
        mean, variance = score_moments(data.X, phi, counts, state.classifiers)
        quadratic = (observed.precision * (mean.square() + variance) / 2 - observed.shift * mean).sum()
        tokens = phi * (phi.clamp(min=1e-300).log() - logs[data.X.columns] - share[data.X.row_index])
        return float((data.X.values.unsqueeze(1) * tokens).sum() + quadratic)

    values = [restricted(phi, counts)]
    for _ in range(20):
        phi, counts = visit_tokens(data.X, logs, share, observed, state.classifiers, phi, counts)
        values.append(restricted(phi, counts))
    assert (np.diff(values) <= 1e-8).all()
    assert values[0] - values[-1] > 0.1


# -- the evidence ------------------------------------------------------------------------------------------------------


def log_evidence(model, data) -> float:
    """Two topics: all assignments of all tokens, theta and topics integrated out, eta by a grid on the plane."""
    prior, V = model.prior, data.X.shape[1]
    words, documents = data.words.numpy(), data.documents.numpy()
    if data.targets.shape[1]:
        nodes, masses = np.polynomial.hermite_e.hermegauss(60)
        grid = model.weight_scale * np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
        mass = np.outer(masses, masses).ravel() / masses.sum() ** 2
    terms = []
    for z in itertools.product(range(2), repeat=len(words)):
        z = np.array(z)
        total = 0.0
        for rows, a in (
            ([np.bincount(z[documents == n], minlength=2) for n in range(data.num_data)], prior.document_concentration),
            ([np.bincount(words[z == k], minlength=V) for k in range(2)], prior.topic_concentration),
        ):
            for row in rows:
                width = len(row)
                total += gammaln(width * a) - gammaln(width * a + row.sum())
                total += (gammaln(a + row) - gammaln(a)).sum()
        if data.targets.shape[1]:
            zbar = np.stack(
                [np.bincount(z[documents == n], minlength=2) / max(1, (documents == n).sum()) for n in range(2)]
            )
            scores = torch.as_tensor((grid @ zbar.T)[:, :, None])
            factor = model.loss.log_factor(scores, data.targets).sum((1, 2)).exp().numpy()
            total += math.log(factor @ mass)
        terms.append(total)
    return float(torch.tensor(terms, dtype=torch.float64).logsumexp(0))


@pytest.mark.parametrize("loss", [None, Hinge(), EpsilonInsensitive(), Logistic()], ids=name_of)
def test_the_bound_is_below_the_evidence(loss) -> None:
    X = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    prior = DirichletTopics(0.7, 0.5)
    if loss is None:
        model, data = LDA(num_topics=2, prior=prior).prepare(X)
    else:
        y = np.array([0.2, 1.0]) if loss.target == "real" else np.array([0, 1])
        model, data = MedLDA(loss=loss, num_topics=2, prior=prior).prepare(X, y)
    exact = log_evidence(model, data)
    rule = AVERAGED if loss is None else NATURAL
    for seed in range(2):
        state = topics.init(model, data, torch.Generator().manual_seed(seed))
        for _ in range(40):
            state = topics.sweep(state, data, model, rule=rule)
        assert exact - 3.5 < float(state.bound) < exact


# -- the start of topics without labels --------------------------------------------------------------------------------


def known_topics(num_topics: int = 5, V: int = 100, N: int = 150, length: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Counts [N, V] of documents with few topics each, and these topics [K, V]."""
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.full(V, 0.05), num_topics)
    X = np.stack([rng.multinomial(length, share @ law) for share in rng.dirichlet(np.full(num_topics, 0.1), N)])
    return X.astype(float), law


def test_known_topics_are_found_from_every_seed() -> None:
    X, law = known_topics()
    for seed in range(4):
        found = SVI(seed=seed).fit(LDA(num_topics=5), X).topics.numpy()
        alike = np.sqrt(law) @ np.sqrt(found).T
        assert (alike[scipy.optimize.linear_sum_assignment(-alike)] > 0.96).all()


def test_the_bound_is_that_of_a_start_from_a_chain() -> None:
    """Coordinate ascent from the seed documents alone ends 3 to 8 % below it."""
    model, data = LDA(num_topics=5).prepare(known_topics()[0])
    z = Gibbs(num_samples=1, num_warmup=150).fit(model, known_topics()[0]).samples["assignments"][0].long()
    state = topics.init(model, data, torch.Generator().manual_seed(0))
    state = factors.with_rows(replace(state, word_counts=data.word_counts(z, 5).double()), data, model)
    for _ in range(10):
        state = topics.sweep(state, data, model, rule=AVERAGED)
    for seed in range(2):
        bound = float(SVI(seed=seed).fit(model, known_topics()[0]).trace.final)
        assert bound > float(state.bound) - 1e-3 * abs(float(state.bound))


def test_scans_start_at_the_topics_and_are_as_many_as_their_tokens_allow(monkeypatch) -> None:
    model, data = LDA(num_topics=5).prepare(known_topics()[0])
    state = topics.init(model, data, torch.Generator().manual_seed(0))
    fixed = replace(state, word_counts=torch.ones(100, 5).double())

    def counts(seed: int = 0) -> torch.Tensor:
        return start.scanned_counts(fixed, data, model, torch.Generator().manual_seed(seed), 30)

    found = counts()
    torch.testing.assert_close(found.sum(1), data.X.double().sum(0))  # of each word, all tokens
    assert torch.equal(found, counts())
    assert not torch.equal(found, counts(1))
    monkeypatch.setattr(start, "_MOST_VISITS", 29.5 * state.total_weight)
    assert counts() is fixed.word_counts
    logs = torch.tensor([[0.0, -50.0], [-50.0, 0.0], [0.0, -50.0]], dtype=torch.float64)
    rows = SparseRows.of(torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 3.0, 1.0]]))
    assert start._draw_topics(rows, logs, 0.1, torch.Generator().manual_seed(0), 5).tolist() == [0, 0, 1, 1, 1, 1, 0]


# -- minibatches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "num_classes"), [(Hinge(), 2), (AVERAGING[2], 3)])
def test_a_step_of_size_one_on_all_points_is_the_sweep(loss, num_classes) -> None:
    model, data = problem(loss, num_classes)
    state = swept(model, data, 3)
    local = factors.update_documents(*topics.started(topics.without_rows(state), data, model))
    moved = topics.stochastic_sweep(topics.without_rows(state), Minibatch(data, 1.0), model, 1.0, rule=AVERAGED)
    torch.testing.assert_close(moved.word_counts, local.word_counts)
    features = mean_topics(local.counts, data.X)
    best = solve(features, data.targets, model.loss, model.weight_scale, tolerance=1e-9, max_passes=10_000)
    cost = [factors.cost(replace(local, mean=mean), data, model, AVERAGED) for mean in (moved.mean, best.weights)]
    assert cost[0] <= cost[1] * 1.01


def test_the_implicit_step_minimizes_its_problem() -> None:
    generator = torch.Generator().manual_seed(0)
    features, mean = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in ((30, 4), (4, 1)))
    targets = (torch.rand(30, 1, generator=generator).double() > 0.5).double() * 2 - 1
    loss, variance = Hinge(), 0.7
    found = topics.implicit(features, targets, loss, mean, variance, torch.zeros_like(targets))

    def value(mu) -> float:
        return float((mu - mean).square().sum() / (2 * variance) - loss.log_factor(features @ mu, targets).sum())

    for _ in range(50):
        step = 0.05 * torch.randn(4, 1, generator=generator, dtype=torch.float64)
        assert value(found) <= value(found + step) + 1e-6
    assert value(found) < value(mean) - 0.1


@pytest.mark.parametrize("rule", ["averaging", pytest.param("gibbs", marks=pytest.mark.nightly)])
def test_a_minibatch_fit_comes_near_a_full_one(rule, monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.svi.steps.NUM_FIRST", 30)
    X, y = synthetic(0, 120)
    model = MedLDA(loss=Hinge(2.0), num_topics=4, prior=DirichletTopics(0.3, 0.1))
    full = SVI(num_steps=60, rule=rule, num_restarts=3).fit(model, X, y)
    part = SVI(num_steps=40, batch_size=30, rule=rule, num_restarts=3).fit(model, X, y)
    assert 41 < part.trace.values.shape[1] <= 50  # full sweeps at the end, until the bound has settled
    best = (float(fit.trace.final.max()) for fit in (part, full))  # each start has an optimum of its own
    assert next(best) == pytest.approx(next(best), rel=0.02)
    assert np.mean(part.predict(X) == y) > 0.8


def test_a_loader_serves_batches(monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.svi.steps.NUM_FIRST", 30)
    X, y = (torch.as_tensor(part) for part in synthetic(0, 120))
    loader = DataLoader(TensorDataset(X, y), batch_size=30, generator=torch.Generator())
    model = MedLDA(loss=Hinge(2.0), num_topics=4, prior=DirichletTopics(0.3, 0.1))
    posterior = SVI(num_steps=30).fit(model, loader)
    assert (posterior.predict(X) == y).double().mean() > 0.8


# -- as users meet it --------------------------------------------------------------------------------------------------


def synthetic(seed: int, N: int, V: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Counts of four topics and a label that two of them carry."""
    rng = np.random.default_rng(seed)
    law = np.random.default_rng(9).dirichlet(np.full(V, 0.1), 4)
    share = rng.dirichlet([0.3] * 4, N)
    X = np.stack([rng.multinomial(30, row @ law) for row in share]).astype(float)
    return X, (share[:, 0] + share[:, 1] > 0.5).astype(int)


@pytest.mark.parametrize("rule", ["averaging", "gibbs"])
def test_predictions_and_samples(rule) -> None:
    (X, y), (X_new, y_new) = synthetic(0, 150), synthetic(1, 100)
    model = MedLDA(loss=Hinge(2.0), num_topics=4, prior=DirichletTopics(0.3, 0.1))
    posterior = SVI(num_steps=20, tolerance=None, rule=rule).fit(model, scipy.sparse.csr_matrix(X), y)
    assert np.mean(posterior.predict(X_new) == y_new) > 0.85
    samples = posterior.samples
    torch.testing.assert_close(samples["topics"].sum(2), torch.ones(1, 4).double())
    torch.testing.assert_close(samples["topic_sizes"].sum(), torch.tensor(X.sum()))
    assert (samples["log_topics"] < samples["topics"].log()).all()  # Jensen


def test_regression_and_missing_targets() -> None:
    X, _ = synthetic(0, 150)
    y = X @ np.linspace(-1, 1, 40) / 30
    y[:50] = np.nan
    for rule in ("averaging", "gibbs"):
        model = MedLDA(loss=EpsilonInsensitive(5.0, 0.02), num_topics=4, prior=DirichletTopics(0.3, 0.1))
        posterior = SVI(num_steps=30, rule=rule).fit(model, X, y)
        error = np.nanmean((posterior.predict(X) - y) ** 2) / np.nanvar(y)
        assert error < 0.4


@pytest.mark.parametrize("rule", ["averaging", "gibbs"])
def test_single_precision(rule) -> None:
    X, y = synthetic(0, 80)
    model = MedLDA(loss=Hinge(2.0), num_topics=4, prior=DirichletTopics(0.3, 0.1))
    narrow, wide = (
        SVI(num_steps=5, rule=rule).fit(model, torch.as_tensor(X).to(kind), y)
        for kind in (torch.float32, torch.float64)
    )
    assert narrow.samples["topics"].dtype == torch.float32
    assert float(narrow.trace.final) == pytest.approx(float(wide.trace.final), rel=1e-6)
    torch.testing.assert_close(narrow.samples["weights"], wide.samples["weights"].float(), rtol=1e-3, atol=1e-3)


def test_the_gibbs_rule_needs_no_conjugate() -> None:
    model, _ = problem(StudentT())
    y = targets_of(StudentT(), corpus(0))
    trace = SVI(num_steps=5).fit(model, corpus(0), y).trace.values
    assert (trace.diff() > -1e-9 * trace.abs()[..., 1:]).all()


@pytest.mark.parametrize("backend", [SVI(num_steps=2), Gibbs(num_samples=2, num_warmup=1, num_chains=2)])
def test_documents_may_all_be_empty(backend) -> None:
    posterior = backend.fit(LDA(num_topics=2), np.zeros((3, 4)))
    torch.testing.assert_close(torch.as_tensor(posterior.transform(np.zeros((3, 4)))), torch.full((3, 2), 0.5).double())


def test_lda_is_the_same_under_both_rules() -> None:
    X, _ = synthetic(0, 60)
    fits = [SVI(num_steps=5, rule=rule).fit(LDA(num_topics=3), X) for rule in ("averaging", "gibbs")]
    assert torch.equal(fits[0].samples["topics"], fits[1].samples["topics"])
    assert fits[0].transform(X).shape == (60, 3)


def test_bad_input() -> None:
    X, y = synthetic(0, 20)
    learned = DirichletTopics(document_concentration_prior=(1.0, 1.0))
    with pytest.raises(NotImplementedError, match="document_concentration_prior"):
        SVI().fit(LDA(prior=learned), X)
    with pytest.raises(NotImplementedError, match='rule="averaging"'):
        SVI().fit(MedLDA(loss=CrammerSinger()), X, y)
    with pytest.raises(NotImplementedError, match="conjugate"):
        SVI(rule="averaging").fit(MedLDA(loss=StudentT()), X, y.astype(float))
    with pytest.raises(ValueError, match="not a whole number"):
        SVI().fit(MedLDA(), X + 0.5, y)
    with pytest.raises(ValueError, match="sample_weight"):
        SVI().fit(MedLDA(), X, y, sample_weight=np.full(20, 0.5))


@pytest.mark.real_data("newsgroups20")
def test_newsgroups_beat_topics_that_see_no_label() -> None:
    """Two groups on related matters, 300 documents each to train; LinearSVC on the proportions of LDA is the rival."""
    data = load("newsgroups20")
    parts = []
    for X, y, most in ((data.X, data.y, 300), (data.X_test, data.y_test, 200)):
        rows = np.concatenate([np.flatnonzero(y == group)[:most] for group in (7, 8)])
        parts.append((X.tocsr()[rows], (y[rows] == 8).astype(int)))
    (X, y), (X_test, y_test) = parts
    presence = np.asarray((X > 0).sum(0)).ravel()
    kept = np.flatnonzero((presence >= 5) & (presence <= 0.1 * len(y)))
    X, X_test = X[:, kept], X_test[:, kept]
    posterior = SVI(num_steps=15, rule="averaging").fit(MedLDA(loss=Hinge(16.0), num_topics=5), X, y)
    lda = SVI(num_steps=15).fit(LDA(num_topics=5), X)
    rival = LinearSVC(C=10.0, random_state=0).fit(lda.transform(X), y).score(lda.transform(X_test), y_test)
    accuracy = np.mean(posterior.predict(X_test) == y_test)
    assert accuracy > 0.8
    assert accuracy > rival + 0.1
