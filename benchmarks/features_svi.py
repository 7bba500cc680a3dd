"""Variational inference of latent features: a mean-field sweep against the matrix products that it cannot do without.

    OMP_NUM_THREADS=1 python benchmarks/features_svi.py sweep [float64|float32]

Made-up data of the size of the Flickr animals of Zhu, Chen & Xing (2014): N = 3411, D = 634, K = 300, 13 classes. The
four products are X^T Psi, Psi^T Psi, X Phi and Psi A. The sweep is sticks, loadings, precisions, features with their
margin, and the bound; the whole one has the SVM's dual as well, whose gap is that of the last sweep.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from timing import choose
from torch import Tensor

from regbayes.inference.svi.features import kernel as features
from regbayes.inference.svi.features.factors import update_features
from regbayes.inference.svi.features.margins import MARGINS
from regbayes.inference.svi.rules import RULES
from regbayes.models import CrammerSinger, Hinge, InfiniteLatentSVM, LinearGaussian

N, D, K, L, REPEATS = 3411, 634, 300, 13, 5


def made_up(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows with 40 features each of some 100, and labels that are linear in them."""
    generator = torch.Generator().manual_seed(0)
    like = {"generator": generator, "dtype": torch.float64}
    Z = (torch.rand(N, 100, **like) < 0.4).double()
    X = Z @ torch.randn(100, D, **like) + 3 * torch.randn(N, D, **like)
    scores = Z @ torch.randn(100, L, **like) + torch.randn(N, L, **like)
    return X.to(dtype), scores.argmax(1)


def sweep(name: str = "float64") -> None:
    """CPU seconds of the sweep and of its products, in turn; and that the bound does not fall."""
    X, y = made_up(getattr(torch, name))
    rule = RULES["averaging"]
    for loss in (Hinge(), CrammerSinger()):
        model, data = InfiniteLatentSVM(LinearGaussian(), loss, feature_map=None, truncation=K).prepare(X, y)
        state = features.init(model, data, torch.Generator().manual_seed(0), rule=rule)
        products, mean_field, plain, dual, bounds = [], [], [], [], [float(state.bound)]
        for _ in range(REPEATS):
            products.append(timed(four_products, data.X, state))
            plain.append(timed(one_sweep, state, data, model, False))
            mean_field.append(timed(one_sweep, state, data, model, True))
            dual.append(timed(features.update_classifiers, state, data, model, rule))
            state = features.sweep(state, data, model, rule=rule)
            bounds.append(float(state.bound))
        base, *others = (sorted(seconds)[REPEATS // 2] for seconds in (products, plain, mean_field, dual))
        falls = max(max(a - b, 0.0) for a, b in itertools.pairwise(bounds)) / abs(bounds[-1])
        print(
            f"{name}, {type(model.loss).__name__}: products {base:.3f} s; / products: sweep without labels "
            f"{others[0] / base:.2f}, with them {others[1] / base:.2f}, SVM dual {others[2] / base:.2f}; "
            f"the bound fell by at most {falls:.1e} of its size, gap {float(state.duality_gap):.1e}; "
            f"whole sweep / products = {(others[1] + others[2]) / base:.2f}",
            flush=True,
        )


def four_products(X: Tensor, state: features.VariationalFeatures) -> None:
    """X^T Psi, Psi^T Psi, X Phi and Psi A."""
    gram = state.features.T @ state.features
    _ = X.T @ state.features, X @ state.loadings.T, state.features @ gram


def one_sweep(state: features.VariationalFeatures, data: features.FeatureData, model: object, labels: bool) -> None:
    """A sweep without the SVM."""
    rule = RULES["averaging"]
    margin = partial(MARGINS[rule], state, data, model) if labels else None
    state = update_features(replace(state), data, model, margin)
    state, sums = features.update_globals(state, data, model)
    features.with_bound(state, data, model, sums, rule)


def timed(function: Callable[..., object], *arguments: object) -> float:
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    choose(__doc__, sweep=sweep)
