"""Whether chains of components that repel find their clusters, and keep the posterior: models DDPM and DIH.

python benchmarks/mixing.py overlap [GAP] [SEEDS] [CASE]    three blobs of 150 points, their means GAP (2) apart: log
    joints of chains that start in one cluster, less those of chains that start from the truth, for SEEDS (10) data sets
python benchmarks/mixing.py exact [NUMBER] [CASE]    chi-squares of labels after a move from NUMBER (20,000) independent
    exact draws of the posterior of the tiny data of tests/
python benchmarks/mixing.py long [SWEEPS] [CASE]    600 steps in four states: what chains from one state and from the
    truth have after SWEEPS (10), and after four times as many

A CASE is part of what a line begins with.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import sys
import time
from itertools import product
from pathlib import Path

import torch
from timing import choose
from torch import Tensor

from regbayes.inference import Gibbs, Posterior
from regbayes.inference.classifiers.scored import RepellingHyperplanes, classifiers_of
from regbayes.inference.gibbs.moves import block_classifiers, union
from regbayes.inference.gibbs.moves.block_classifiers import BlockClassifiers
from regbayes.models import DDPM, DIH, Hinge, Logistic, SphericalGaussian
from regbayes.models.likelihoods import LinearRegression, MultinomialDirichlet, PoissonGamma
from regbayes.models.scores import own_scores

SCANS = {DDPM: ("collapsed", "blocked", "slice"), DIH: ("direct", "blocked", "beam")}


def blobs(labels: Tensor, gap: float, seed: int) -> Tensor:
    """Points [N, 2] of three normal clusters, their means `gap` apart."""
    angles = 2 * math.pi / 3 * labels.double()
    noise = torch.randn((len(labels), 2), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return gap / 3**0.5 * torch.stack([angles.cos(), angles.sin()], 1) + noise


class Values:
    """Log joints of draws with the hyperplanes integrated out, by importance samples: log g(S) in place of each.

    The log joint of an infinite model is relative to hyperplanes without points and says nothing of C0; that of a
    truncated one counts the T - K empty hyperplanes, whose noise is the same for all partitions.
    """

    def __init__(self, posterior: Posterior, data, *, truncated: bool) -> None:
        self.model, self.data, self.truncated, self.known = posterior.model, data, truncated, {}
        self.generator = torch.Generator().manual_seed(0)
        self.samples, self.points = posterior.samples, getattr(data, "points", data)

    def log_integral(self, members: Tensor) -> float:
        """log g(S) for S [N]."""
        key = members.numpy().tobytes()
        if key not in self.known:
            scored = classifiers_of(self.model, self.points, members.long(), 2)
            block = BlockClassifiers(members.unsqueeze(1), scored).refined()
            ratios = block.log_ratio(block.draw(400, self.generator))
            self.known[key] = float(ratios.logsumexp(1)) - math.log(400)
        return self.known[key]

    def of(self, draw: int) -> float:
        labels, planes = self.samples["assignments"][draw].long(), self.samples["weights"][draw]
        features, scale = self.points.features, self.model.weight_scale
        value = float(self.samples["log_joint"][draw])
        value -= float(self.model.log_margin(own_scores(features, planes, labels), self.points.targets).sum())
        if self.truncated:
            value -= float(self.model.log_rejection(features @ planes.squeeze(-1).T).sum())
            value += float((planes / scale).square().sum() + planes.numel() * math.log(2 * math.pi * scale**2)) / 2
        rejected = self.log_integral(labels < 0)
        return value + sum(self.log_integral(labels == k) - rejected for k in labels.unique())


def overlap(gap: str = "2", num_seeds: str = "10", only: str = "") -> None:
    for kind, loss, which in product(SCANS, (Hinge(), Logistic()), range(3)):
        scan, rows, spent = SCANS[kind][which], [], 0.0
        if only not in f"{kind.__name__} {type(loss).__name__} {scan}":
            continue
        labels = torch.arange(150) // (10 if kind is DIH else 1) % 3
        options = {"lengths": [80, 70]} if kind is DIH else {}
        model = kind(SphericalGaussian(), loss, weight_scale=2.0, truncation=8)
        for seed in range(int(num_seeds)):
            X, found = blobs(labels, float(gap), seed), []
            for start, num_generative in (("one", 10), (labels, 0)):
                backend = Gibbs(init=start, num_generative=num_generative, scan=scan, seed=seed, progress=False)
                began = time.process_time()
                posterior = backend.replace(num_warmup=60, num_samples=40).fit(model, X, **options)
                spent += time.process_time() - began
                data = model.prepare(X, None, **options)[1]
                integrated = Values(posterior, data, truncated=scan == "blocked")
                values = [integrated.of(draw) for draw in range(20, 40, 2)]
                sizes = sorted(posterior.samples["assignments"][-1].long().bincount().tolist(), reverse=True)
                found.append((sum(values) / len(values), [size for size in sizes if size]))
            rows.append((found[0][0] - found[1][0], found[0][1], found[1][1]))
            print(f"  seed {seed}: {rows[-1][0]:.1f} nats, sizes {rows[-1][1]}, truth {rows[-1][2]}", flush=True)
        gaps, name = torch.tensor([row[0] for row in rows]), f"{kind.__name__} {type(loss).__name__} {scan}"
        within = f"{int((gaps > -10).sum())} of {len(gaps)} within 10 nats"
        spread = f"median {gaps.median():.1f}, worst {gaps.min():.1f}"
        print(f"{name:25} {within}, {spread}; {spent / 2 / len(gaps):.1f} s a chain", flush=True)


def exact(number: str = "20000", only: str = "") -> None:
    """With poor fits, as exact as good ones."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    import test_split_merge as partitions
    import test_split_merge_sequences as sequences

    union.NUM_ROUNDS = RepellingHyperplanes.num_rough = block_classifiers._NUM_FINE = 1
    block_classifiers._NUM_CANDIDATES = 2
    for kind, truncated, loss in product(("DDPM", "DIH"), (False, True), ("hinge", "logistic")):
        name = f"{kind} {'truncated' if truncated else 'infinite'} {loss}"
        if only not in name:
            continue
        tests, model = (partitions, partitions.tiny(loss)) if kind == "DDPM" else (sequences, sequences.MODELS[loss])
        p, z = (tests.starts if kind == "DDPM" else tests.Starts)(model, truncated=truncated).after(int(number), 1)
        print(f"{name}: p {p:.3f}, largest of {len(z)} z-scores {z.abs().max():.2f}", flush=True)


def long(num_sweeps: str = "10", only: str = "") -> None:
    labels = torch.arange(600) // 25 % 4
    generator = torch.Generator().manual_seed(0)
    rates = 6 * torch.rand((4, 6), generator=generator, dtype=torch.float64).exp().square()
    counts = torch.poisson(rates[labels], generator=generator)
    paths = torch.randn((600, 2), generator=generator, dtype=torch.float64)
    turns = [angle * torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double() for angle in (0.2, -0.2, 1.0, -1.0)]
    for t in range(1, 600):
        paths[t] += torch.linalg.matrix_exp(turns[labels[t]]) @ paths[t - 1] * 0.95
    cases = ((PoissonGamma(), counts, 0), (MultinomialDirichlet(), counts, 0), (LinearRegression(), paths, 1))
    for (family, X, lags), num, start in product(cases, (int(num_sweeps), 4 * int(num_sweeps)), (0 * labels, labels)):
        if only not in type(family).__name__:
            continue
        backend = Gibbs(init=start, num_warmup=num - 1, num_samples=1, progress=False)
        began = time.process_time()
        found = backend.fit(DIH(family, truncation=10, lags=lags), X).samples["assignments"][0].long()
        spent = 1e3 * (time.process_time() - began) / num
        purity = sum(labels[found == k].bincount().max().item() for k in found.unique()) / 600
        name = f"{type(family).__name__}, {num} sweeps from {'the truth' if start.any() else 'one state'}"
        print(f"{name:50} sizes {found.bincount().tolist()}, purity {purity:.2f}; {spent:.0f} ms a sweep", flush=True)


if __name__ == "__main__":
    choose(__doc__, overlap=overlap, exact=exact, long=long)
