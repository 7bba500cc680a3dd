"""MedLDA by Gibbs sampling on the newsgroups: tokens in a CPU second, and accuracy against topics found first.

    python benchmarks/topics.py speed          2,000 documents, two classes, K = 20 and 100, beside tomotopy
    python benchmarks/topics.py classes        20 classes, K = 40, 50 sweeps: MedLDA, LDA + SVM, tf-idf + SVM
    python benchmarks/topics.py validate       the settings of `classes`, on a fifth of the training documents
    python benchmarks/topics.py pair           two classes that are hard to tell apart, K = 5, 10, 20

The groups are read from newsgroups20.npz in the folder that REGBAYES_DATA names; where there is none, scikit-learn
downloads them, and tokenizes them in its own way. Figures are of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.svm import LinearSVC
from timing import choose, medians

from regbayes.datasets import load
from regbayes.inference import Gibbs
from regbayes.inference.gibbs import topics
from regbayes.models import LDA, CrammerSinger, DirichletTopics, Hinge, Logistic, MedLDA, OneVsRest

Split = tuple[Any, Any, Any, Any]  # counts and classes to fit, counts and classes to predict


def speed() -> None:
    """A sweep of ours and one of tomotopy in turn, after 20 of each that let the topics settle: medians of 15."""
    news = load("newsgroups20")
    counts = news.X.tocsr()[:2000]
    counts = counts[:, np.asarray(counts.sum(0)).ravel() > 0].astype(np.float32)
    y = (news.y[:2000] > np.median(news.y[:2000])).astype(int)
    for num_topics in (20, 100):
        for model in (MedLDA(num_topics=num_topics), LDA(num_topics=num_topics)):
            labels = y if isinstance(model, MedLDA) else None
            num_tokens, ours = sweeper(model, counts, labels)
            theirs = peer(num_topics, counts, labels)
            for _ in range(20):
                ours()
                theirs()
            own, other = (num_tokens / spent for spent in medians(ours, theirs, repeats=15))
            print(
                f"{type(model).__name__}, K = {num_topics}, {num_tokens} tokens: {own:.2e} tokens/s, tomotopy "
                f"{other:.2e} = {own / other:.2f}",
                flush=True,
            )


def sweeper(model: LDA, counts: Any, y: Any) -> tuple[int, Callable[[], None]]:
    """How many tokens there are, and one sweep of all parts of the state, which goes on from the one before."""
    resolved, data = model.prepare(counts, y)
    generator = torch.Generator().manual_seed(0)
    states = [topics.init(resolved, data, generator)]

    def sweep() -> None:
        states[0] = topics.sweep(states[0], data, resolved, generator, 0)

    return len(data.words), sweep


def peer(num_topics: int, counts: Any, y: Any) -> Callable[[], None]:
    """One sweep of tomotopy by one worker: `LDAModel`, or `SLDAModel` of a binary response."""
    import tomotopy

    supervised = {"vars": "b"} if y is not None else {}
    model = (tomotopy.LDAModel if y is None else tomotopy.SLDAModel)(k=num_topics, seed=0, **supervised)
    for n, row in enumerate(counts):
        words = np.repeat(row.indices, row.data.astype(int))
        model.add_doc([str(word) for word in words], *([] if y is None else [[float(y[n])]]))
    return lambda: model.train(1, workers=1)


def frequent(train: Any, *others: Any) -> list[Any]:
    """The columns of words that are in at least 5 and at most a tenth of the training documents."""
    documents = np.asarray((train > 0).sum(0)).ravel()
    kept = (documents >= 5) & (documents <= train.shape[0] / 10)
    return [counts[:, kept].astype(np.float32) for counts in (train, *others)]


def newsgroups() -> Split:
    """The split by date."""
    news = load("newsgroups20")
    train, test = frequent(news.X.tocsr(), news.X_test.tocsr())
    return train, news.y, test, news.y_test


def fit_and_score(model: MedLDA, split: Split, num_seeds: int = 1) -> None:
    """Accuracy after 50 sweeps, the scores averaged over the last ten."""
    train, y, test, y_test = split
    accuracies, spent = [], []
    for seed in range(num_seeds):
        backend = Gibbs(num_samples=10, num_warmup=40, num_generative=0, seed=seed, progress=False)
        start = time.process_time()
        posterior = backend.fit(model, train, y)
        fitted = time.process_time()
        accuracies.append((posterior.predict(test) == y_test).mean())
        spent.append((fitted - start, time.process_time() - fitted))
    fitting, predicting = np.mean(spent, 0)
    print(
        f"{describe(model)}: accuracy {np.mean(accuracies):.4f} ({' '.join(f'{a:.4f}' for a in accuracies)}), "
        f"{50 * train.sum() / fitting:.2e} tokens/s, {fitting:.0f} s to fit, {predicting:.0f} s to predict",
        flush=True,
    )


def describe(model: MedLDA) -> str:
    """The settings that are chosen."""
    loss, alpha = getattr(model.loss, "loss", model.loss), model.prior.document_concentration
    if isinstance(loss, Logistic):
        return f"supervised LDA, K = {model.num_topics}, nu = {model.weight_scale:g}, alpha = {alpha:g}"
    name = type(model.loss).__name__
    return f"MedLDA, K = {model.num_topics}, {name}, c = {loss.strength:g}, l = {loss.margin:g}, alpha = {alpha:g}"


def baselines(split: Split, num_topics: int, alpha: float, num_sweeps: int = 50) -> None:
    """A linear SVM on the topic proportions of LDA, and on tf-idf: its constant by cross-validation over a grid."""
    train, y, test, y_test = split
    backend = Gibbs(num_samples=1, num_warmup=num_sweeps - 1, num_generative=0, progress=False)
    lda = backend.fit(LDA(DirichletTopics(alpha, 0.01), num_topics), train)
    words = TfidfTransformer(sublinear_tf=True).fit(train)
    cases = {
        f"LDA, K = {num_topics}, alpha = {alpha:g}, + SVM": (lda.transform(train), lda.transform(test), (1, 10, 100)),
        "tf-idf + SVM": (words.transform(train), words.transform(test), (0.1, 1.0)),
    }
    fold = np.random.default_rng(0).random(len(y)) < 0.2
    for name, (features, new, constants) in cases.items():
        scores = [
            LinearSVC(C=c, random_state=0).fit(features[~fold], y[~fold]).score(features[fold], y[fold])
            for c in constants
        ]
        best = constants[int(np.argmax(scores))]
        print(
            f"{name}: accuracy {LinearSVC(C=best, random_state=0).fit(features, y).score(new, y_test):.4f}, C = {best}",
            flush=True,
        )


def settings(alpha: float, strength: float = 1.0, margin: float = 64.0, num_topics: int = 40) -> MedLDA:
    """One-versus-rest hinges with unit weights."""
    return MedLDA(DirichletTopics(alpha, 0.01), OneVsRest(Hinge(strength, margin)), num_topics=num_topics)


def classes() -> None:
    """20 classes with the settings that `validate` found."""
    split = newsgroups()
    fit_and_score(settings(CHOSEN), split, num_seeds=3)
    baselines(split, 40, 0.1)


def validate() -> None:
    """What `classes` is fitted with: the best on a fifth of the training documents."""
    train, y, _, _ = newsgroups()
    order = np.random.default_rng(0).permutation(len(y))
    held, kept = np.split(order, [len(y) // 5])
    split = train[kept], y[kept], train[held], y[held]
    for alpha in (0.1, 0.5, 1.0, 2.0):
        fit_and_score(settings(alpha), split)
    for strength, margin in ((1.0, 16.0), (4.0, 16.0), (1.0, 128.0)):
        fit_and_score(settings(0.1, strength, margin), split)
    for margin in (16.0, 64.0):
        fit_and_score(MedLDA(DirichletTopics(0.1, 0.01), CrammerSinger(1.0, margin), num_topics=40), split)


def pair() -> None:
    """PC hardware against Mac hardware, the split by date."""
    news = load("newsgroups20")
    rows, new = (np.isin(y, [3, 4]) for y in (news.y, news.y_test))
    train, test = frequent(news.X.tocsr()[rows], news.X_test.tocsr()[new])
    split = train, news.y[rows], test, news.y_test[new]
    print(f"{train.shape[0]} and {test.shape[0]} documents, {train.shape[1]} words, {train.sum():.0f} tokens")
    for num_topics in (5, 10, 20):
        model = MedLDA(DirichletTopics(CHOSEN, 0.01), Hinge(1.0, 64.0), num_topics=num_topics)
        fit_and_score(model, split, num_seeds=3)
        for scale in (1.0, 10.0):  # the likelihood of supervised LDA, in place of a margin
            fit_and_score(MedLDA(model.prior, Logistic(), scale, num_topics=num_topics), split, num_seeds=3)
        baselines(split, num_topics, 0.1)


CHOSEN = 1.0  # alpha, by `validate`

if __name__ == "__main__":
    torch.set_num_threads(1)
    choose(__doc__, speed=speed, classes=classes, validate=validate, pair=pair)
