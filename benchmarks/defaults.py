"""What estimators do as they come, beside rivals; a change of a default is judged by it. One thread.

python benchmarks/defaults.py classifiers [SET ...]      `Classifier()` beside LinearSVC() and `ClassifierCV()`
python benchmarks/defaults.py features [SET ...]         `Classifier(InfiniteLatentSVM())` beside a tuned LinearSVC
python benchmarks/defaults.py scales [SET ...]           the same model under small variance, by `scale`, beside SVI
python benchmarks/defaults.py bits [SEEDS]               `LatentFeatureModel` where bits are known, by backend
python benchmarks/defaults.py cubes [SETS]               shares of the Bayes accuracy of Setting II, by backend
python benchmarks/defaults.py clusters [SEEDS] [ROWS] [SET]       priors of `FullGaussian`: of all sets, or of one
python benchmarks/defaults.py families [SET ...]         covariances of `Clusterer`: diagonal, full, as it comes
python benchmarks/defaults.py repelling [SEEDS] [ROWS] [SET]      strengths of `DDPM` beside `DPM`, diagonal and full
python benchmarks/defaults.py sequences [SEEDS]          states of an infinite HMM on the sequences of `clustering.py`
python benchmarks/defaults.py walks [SEEDS]              strengths of `DIH` beside `IHMM`, under Gibbs and SVI

Of rows with targets three folds of at most 600 rows of a set (REGBAYES_DATA) are taken, standardised: accuracy, log
loss and CPU seconds of a fit, of each contestant in turn.

Clusters: which prior of `FullGaussian` can be believed, on ten labelled sets, five seeds each. Each run takes ROWS
(200) rows of a set at most, and 16 principal components at most. Chains are collapsed Gibbs, 40 sweeps of warm-up and
20 draws; the partition is the representative one. Clusters of three rows or fewer are tiny; held out is the mean log
predictive density of up to 200 other rows, where a set has at least 20. Sequences are taken whole, by direct
assignment.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from clustering import sequences
from defaults_classifiers import MADE, STRENGTHS, tuned
from defaults_classifiers import rows_of as labelled_rows
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, log_loss, normalized_mutual_info_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from timing import choose

from regbayes.datasets import load, make_chained_gaussians, make_dp_mixture, make_setting_two
from regbayes.estimators import Classifier, ClassifierCV, Clusterer
from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import (
    DDPM,
    DIH,
    DPM,
    IHMM,
    DiagonalGaussian,
    FullGaussian,
    Hinge,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    Logistic,
)

Contestants = dict[str, Callable[[], Any]]

SETS = ("iris", "wine", "breast_cancer", "parkinsons", "wireless", "digits", "letter", "mnist", "mixture", "grid")
_MADE = list(MADE)[:4]
# degrees of freedom beyond D: at least, and a column; the expected variance within, in shares of that of the data
PRIORS = {
    "D + 2, 0.5": (2, 0.0, 0.5),
    "D + 2, 0.25": (2, 0.0, 0.25),
    "D + max(2, D / 2), 0.5 (default)": (2, 0.5, 0.5),
    "D + 8, 0.5": (8, 0.0, 0.5),
    "D + 15, 0.5": (15, 0.0, 0.5),
}
TABLES = ("iris", "wine", "breast_cancer", "digits", "parkinsons", "wireless", "letter", "skin", "bee_dance")


# -- rows with targets -------------------------------------------------------------------------------------------------


def rows_with_classes(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, D] of a set, 600 at most, and their classes."""
    return labelled_rows(name, 600)


def beside(
    sets: Sequence[str], contestants: Contestants, rows: Callable[[str], Any] = rows_with_classes, scales: bool = True
) -> np.ndarray:
    """Prints and gives accuracy, log loss (NaN: no probabilities) and CPU seconds [sets, contestants, 3]."""
    print(f"{'accuracy, log loss, CPU s':26}" + "".join(f"{name:>28}" for name in contestants))
    table = []
    for name in sets:
        X, y = rows(name)
        folds = StratifiedKFold(3, shuffle=True, random_state=0).split(X, y)
        table.append(np.mean([one_fold(X, y, train, test, contestants, scales) for train, test in folds], 0))
        show_cells(name, table[-1])
    show_cells("mean", np.mean(table, 0))
    return np.array(table)


def one_fold(X: Any, y: Any, train: Any, test: Any, contestants: Contestants, scales: bool) -> np.ndarray:
    seen, new = X[train], X[test]
    if scales:
        scaler = StandardScaler().fit(seen)
        seen, new = scaler.transform(seen), scaler.transform(new)
    found = []
    for make in contestants.values():
        started = time.process_time()
        fitted = make().fit(seen, y[train])
        spent = time.process_time() - started
        has = hasattr(fitted, "predict_proba")
        loss = log_loss(y[test], fitted.predict_proba(new), labels=fitted.classes_) if has else np.nan
        found.append((fitted.score(new, y[test]), loss, spent))
    return np.array(found)


def show_cells(name: str, cells: Any) -> None:
    print(f"{name:26}" + "".join(f"{a:13.3f}{loss:7.3f}{spent:8.2f}" for a, loss, spent in cells), flush=True)


def classifiers(*names: str) -> None:
    contestants = {"LinearSVC()": LinearSVC, "Classifier()": Classifier, "ClassifierCV()": ClassifierCV}
    found = beside(names or (*TABLES, *_MADE), contestants)
    plain, ours, searched = found.transpose(1, 0, 2)
    print(f"Classifier() above LinearSVC() by {100 * (ours - plain)[:, 0].mean():.2f} points on average (must: over 0)")
    print(f"its mean log loss / that of ClassifierCV() {ours[:, 1].mean() / searched[:, 1].mean():.2f} (must: 1.2)")


def features(*names: str) -> None:
    within(
        beside(
            names or ("iris", "wine", "breast_cancer", "parkinsons", "digits", "wireless"),
            {"LinearSVC, tuned": tuned_machine, "latent features": lambda: Classifier(InfiniteLatentSVM())},
        )
    )


def scales(*names: str) -> None:
    """Of tables, and of rows of four bits whose classes have odds, so that labels are wrong for a fifth of the rows."""
    contestants: Contestants = {"SVI": lambda: Classifier(InfiniteLatentSVM(), SVI())}
    for scale in (1.0, 3.0, 10.0, 30.0):
        backend = SmallVariance(num_restarts=1, scale=scale)
        contestants[f"small variance, {scale:g}"] = lambda backend=backend: Classifier(InfiniteLatentSVM(), backend)
    sets = names or ("iris", "wine", "breast_cancer", "parkinsons", "wireless", *(f"odds {seed}" for seed in range(4)))
    beside(sets, contestants, lambda name: odds_of_bits(int(name[5:])) if "odds" in name else labelled_rows(name, 450))


def bits(num_seeds: str = "4") -> None:
    """Rows are sums of loadings and noise; how often a bit of 100 new rows, or its complement, is a feature."""
    backends: dict[str, Any] = {"SVI": SVI(progress=False), "small variance": SmallVariance(progress=False)}
    backends |= {"SVI, four starts": SVI(num_restarts=4, progress=False), "Gibbs": Gibbs(num_samples=60, num_warmup=60)}
    print(f"{'':40}{'K':>7}{'agree':>7}{'value':>11}{'CPU s':>7}")
    for num_rows, width, number, noise, size in (
        (200, 20, 4, 0.5, 2.0),
        (1000, 30, 8, 0.5, 1.0),
        (300, 10, 3, 1.0, 2.0),
    ):
        for label, backend in backends.items():
            found = []
            for seed in range(int(num_seeds)):
                rng = np.random.default_rng(seed)
                truth = rng.random((num_rows + 100, number)) < 0.4
                loadings = size * rng.normal(size=(number, width))
                X = truth @ loadings + noise * rng.normal(size=(len(truth), width))
                started = time.process_time()
                posterior = backend.fit(LatentFeatureModel(), X[:-100])
                spent, value = time.process_time() - started, float(posterior.trace.values[..., -1].max())
                seen = np.asarray(posterior.transform(X[-100:])) > 0.5
                agree = (seen[:, :, None] == truth[-100:, None]).mean(0)
                same = np.maximum(agree, 1 - agree).max(0).mean()
                found.append((float(posterior.num_latent_features), same, value, spent))
            number_found, agree, value, spent = np.mean(found, 0)
            title = f"{num_rows} x {width}, {number} bits: {label}"
            print(f"{title:40}{number_found:7.1f}{agree:7.3f}{value:11.1f}{spent:7.2f}", flush=True)


def odds_of_bits(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [300, 12] of four bits with loadings and noise, and classes whose log odds are linear in the bits."""
    stream = np.random.default_rng(seed)
    loadings, bits = 2 * stream.normal(size=(4, 12)), stream.random((300, 4)) < 0.5
    odds = bits @ np.array([4.0, -4.0, 3.0, -3.0])
    return bits @ loadings + 0.5 * stream.normal(size=(300, 12)), stream.random(300) < 1 / (1 + np.exp(-odds))


def tuned_machine() -> Any:
    return tuned(LinearSVC(random_state=0), 0, C=STRENGTHS)


def within(found: np.ndarray) -> None:
    """What is said of the second contestant beside the first."""
    below, ratios = 100 * (found[:, 0] - found[:, 1])[:, 0], found[:, 1, 2] / found[:, 0, 2]
    print(f"within 2 points on {(below <= 2).sum()} of {len(found)} sets (must: most), {below.max():.1f} at worst")
    print(f"CPU {np.median(ratios):.1f}x in the median, {ratios.max():.1f}x at most (must: 10x)")


def cubes(num_sets: str = "3") -> None:
    """Labels of the test rows are taken in expectation, as in `settings.py`."""
    contestants = {
        "Classifier()": Classifier,
        "Classifier(inference=SVI())": lambda: Classifier(inference=SVI()),
        "Classifier(InfiniteSVM(), SVI())": lambda: Classifier(InfiniteSVM(), SVI()),
        "Classifier(InfiniteSVM(), SmallVariance())": lambda: Classifier(InfiniteSVM(), SmallVariance()),
    }
    for name, make in contestants.items():
        shares = []
        for seed in range(1000, 1000 + int(num_sets)):
            data = make_setting_two(4000, seed=seed)
            X, y, positive = data.X.numpy(), data.y.numpy(), data.probabilities.numpy()[3000:]
            predicted = make().fit(X[:3000], y[:3000]).predict(X[3000:])
            right = np.where(predicted == 1, positive, 1 - positive)
            shares.append(right.mean() / np.maximum(positive, 1 - positive).mean())
        print(f"{name:45} {np.mean(shares):.4f} of the Bayes accuracy (must: .94)", flush=True)


# -- clusters ----------------------------------------------------------------------------------------------------------


def labelled(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A set and its classes; "grid": nine clusters of twenty rows in the plane; "inside": one inside a wide one."""
    if name == "inside":
        y = np.arange(300) % 2
        return np.random.default_rng(seed).normal(size=(300, 6)) * (1 + 2 * y)[:, None], y
    if name == "chains":
        chains = make_chained_gaussians(seed=seed)
        return chains.X.numpy(), chains.y.numpy()
    if name == "mixture":
        mixture = make_dp_mixture(400, seed=seed)
        return mixture.X.numpy(), mixture.assignments.numpy()
    if name == "grid":
        y = np.repeat(np.arange(9), 20)
        return np.column_stack([y // 3, y % 3]) + 0.12 * np.random.default_rng(seed).normal(size=(len(y), 2)), y
    data = load(name)
    return np.asarray(data.X, dtype=float), np.asarray(data.y)


def rows_of(name: str, seed: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [n, D], their classes [n], and other rows [m, D]."""
    X, y = labelled(name, seed)
    order = np.random.default_rng(seed).permutation(len(X))
    chosen, others = order[:most], order[most : most + 200]
    columns = make_pipeline(StandardScaler(), *([PCA(16, random_state=0)] if X.shape[1] > 16 else [])).fit(X[chosen])
    return columns.transform(X[chosen]), y[chosen], columns.transform(X[others]) if len(others) else X[:0]


def family_of(name: str, X: np.ndarray) -> FullGaussian:
    """The prior of this name for these rows."""
    least, slope, share = PRIORS[name]
    spare = max(least, slope * X.shape[1])
    return FullGaussian(degrees_of_freedom=X.shape[1] + spare, scale=(spare - 1) * share * X.var(0))


def run(name: str, prior: str, seed: int, most: int) -> tuple[float, ...]:
    """What `believed` says of a prior of `PRIORS`."""
    X, y, others = rows_of(name, seed, most)
    return believed(DPM(family_of(prior, X)), X, y, others, seed)


def believed(model: Any, X: np.ndarray, y: np.ndarray, others: np.ndarray, seed: int) -> tuple[float, ...]:
    """K, tiny clusters, ARI, NMI, held-out density (NaN of few rows) and CPU seconds of one chain."""
    posterior, (*found, spent) = chain(model, X, y, seed)
    density = float(posterior.log_predictive_density(torch.from_numpy(others)).mean()) if len(others) >= 20 else np.nan
    return *found, density, spent


def chain(model: Any, X: np.ndarray, y: np.ndarray, seed: int, **options: Any) -> tuple[Any, tuple[float, ...]]:
    """A posterior; its K, tiny clusters, ARI, NMI and CPU seconds."""
    started = time.process_time()
    backend = Gibbs(num_warmup=40, num_samples=20, seed=seed, progress=False)
    posterior = backend.fit(model, torch.from_numpy(X), **options)
    spent = time.process_time() - started
    found = posterior.partition().numpy()
    tiny = (np.unique(found, return_counts=True)[1] <= 3).sum()
    quality = adjusted_rand_score(y, found), normalized_mutual_info_score(y, found)
    return posterior, (len(np.unique(found)), float(tiny), *quality, spent)


def clusters(num_seeds: str = "5", num_rows: str = "200", *names: str) -> None:
    seeds, most = int(num_seeds), int(num_rows)
    print(HEAD)
    total: dict[str, list[np.ndarray]] = {prior: [] for prior in PRIORS}
    for name in names or SETS:
        for prior in PRIORS:
            means = np.mean([run(name, prior, seed, most) for seed in range(seeds)], 0)
            total[prior].append(means)
            show(f"{name}: {prior}", means)
    for prior, each in total.items():
        show(f"all: {prior}", np.nanmean(each, 0))


def families(*names: str) -> None:
    models = {"diagonal": DPM(), "full": DPM(FullGaussian()), "as it comes": None}
    print(HEAD)
    total: dict[str, list[np.ndarray]] = {}
    for name in names or (*SETS, "skin", "inside"):
        X, y, _ = rows_of(name, 0, 600)
        for label, model in models.items():
            started = time.process_time()
            found = Clusterer(model).fit(X)
            spent, tiny = time.process_time() - started, (np.bincount(found.labels_) <= 3).sum()
            quality = adjusted_rand_score(y, found.labels_), normalized_mutual_info_score(y, found.labels_)
            total.setdefault(label, []).append(np.array([found.n_components_, tiny, *quality, np.nan, spent]))
            show(f"{name}: {label}", total[label][-1])
    for label, each in total.items():
        show(f"all: {label}", np.mean(each, 0))


def repelling(num_seeds: str = "2", num_rows: str = "300", *names: str) -> None:
    seeds, most = range(int(num_seeds)), int(num_rows)
    print(HEAD)
    total: dict[str, list[np.ndarray]] = {}
    for name in names or ("inside", "chains", "iris", "wine", "breast_cancer", "digits", "mixture", "grid"):
        for family in (DiagonalGaussian(), FullGaussian()):
            models = {"DPM": DPM(family), "DDPM": DDPM(family)}
            strengths = {"0.03": 0.03, "0.3": 0.3, "D / 40": min(0.4, rows_of(name, 0, most)[0].shape[1] / 40)}
            models |= {f"DDPM, strength {label}": DDPM(family, Hinge(c)) for label, c in strengths.items()}
            for label, model in models.items():
                means = np.mean([believed(model, *rows_of(name, seed, most), seed) for seed in seeds], 0)
                total.setdefault(label, []).append(means)
                show(f"{name}, {type(family).__name__}: {label}", means)
    for label, found in total.items():
        show(f"all: {label}", np.nanmean(found, 0))


def states(num_seeds: str = "3") -> None:
    seeds = int(num_seeds)
    print(HEAD)
    total: dict[str, list[np.ndarray]] = {prior: [] for prior in PRIORS}
    for name in ("bee_dance", "ble_rssi", "ujiindoorloc"):
        for title, rows, y, lengths in sequences(name):
            X = StandardScaler().fit_transform(rows)
            for prior in PRIORS:
                model = IHMM(family_of(prior, X))
                found = np.mean([chain(model, X, y, seed, lengths=lengths)[1] for seed in range(seeds)], 0)
                total[prior].append(np.insert(found, 4, np.nan))
                show(f"{title[:15]}: {prior}", total[prior][-1])
    for prior, each in total.items():
        show(f"all: {prior}", np.mean(each, 0))


def walks(num_seeds: str = "3") -> None:
    models = {"IHMM": IHMM(), "DIH, logistic": DIH(loss=Logistic())}
    models |= {f"DIH, strength {c:g}": DIH(loss=Hinge(c)) for c in (0.03, 0.1, 0.3, 1.0)}
    backends = {"Gibbs": Gibbs(num_warmup=40, num_samples=20, progress=False), "SVI": SVI(progress=False)}
    print(HEAD)
    total: dict[str, list[np.ndarray]] = {}
    for name in ("separate", "overlapping", "eight columns", "bee_dance", "ble_rssi"):
        for label, model in models.items():
            for kind, backend in backends.items():
                found = [
                    walked(backend.replace(seed=seed), model, *steps_of(name, seed)) for seed in range(int(num_seeds))
                ]
                total.setdefault(f"{label}, {kind}", []).append(np.mean(found, 0))
                show(f"{name}: {label}, {kind}", total[f"{label}, {kind}"][-1])
    for label, each in total.items():
        show(f"all: {label}", np.mean(each, 0))


def walked(backend: Any, model: Any, X: np.ndarray, y: np.ndarray, lengths: list[int]) -> tuple[float, ...]:
    """K, states of three steps or fewer, ARI, NMI and CPU seconds of a fit."""
    started = time.process_time()
    found = backend.fit(model, torch.from_numpy(X), lengths=lengths).partition().numpy()
    spent, tiny = time.process_time() - started, (np.unique(found, return_counts=True)[1] <= 3).sum()
    quality = adjusted_rand_score(y, found), normalized_mutual_info_score(y, found)
    return len(np.unique(found)), float(tiny), *quality, np.nan, spent


def steps_of(name: str, seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Steps [N, D], standardised, their true states and lengths: of a set, or of four made-up states of unit noise."""
    made = {"separate": (3.0, 3), "overlapping": (1.5, 3), "eight columns": (1.2, 8)}
    if name not in made:
        _, rows, y, lengths = next(iter(sequences(name)))
        return StandardScaler().fit_transform(rows), y, lengths
    rng, (spread, width) = np.random.default_rng(seed), made[name]
    stays = np.repeat(np.arange(100), rng.geometric(0.1, size=100))[:300]
    y = rng.integers(4, size=100)[stays]
    rows = spread * rng.normal(size=(4, width))[y] + rng.normal(size=(300, width))
    return StandardScaler().fit_transform(rows), y, [100] * 3


def show(name: str, means: np.ndarray) -> None:
    clusters, tiny, rand, information, density, spent = means
    print(f"{name:50}{clusters:7.1f}{tiny:7.1f}{rand:7.3f}{information:7.3f}{density:10.3f}{spent:7.2f}", flush=True)


HEAD = f"{'':50}{'K':>7}{'tiny':>7}{'ARI':>7}{'NMI':>7}{'held out':>10}{'CPU s':>7}"

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    choose(
        __doc__,
        classifiers=classifiers,
        features=features,
        scales=scales,
        bits=bits,
        cubes=cubes,
        clusters=clusters,
        families=families,
        repelling=repelling,
        sequences=states,
        walks=walks,
    )
