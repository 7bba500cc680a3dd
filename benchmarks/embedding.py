"""The kernel mean embedding beside the theory, beside EM and SVI, and its solver beside SciPy's.

python benchmarks/embedding.py                 all three, one thread
python benchmarks/embedding.py truncation      expected squared truncation error against T: slope / derived slope
python benchmarks/embedding.py mmd             MMD^2 of weights by EM, SVI and the embedding, the same components
python benchmarks/embedding.py qp              CPU seconds of SLSQP / those of `HilbertEmbedding`, T = 500
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import warnings
from typing import Any

import numpy as np
import torch
from timing import choose, medians


def truncation() -> None:
    """E |sum_{k > T} pi_k mu_k|^2 over draws of sticks and atoms, against (alpha / (alpha + 2))^T."""
    from regbayes.inference import RBFKernel
    from regbayes.models import SphericalGaussian

    family = SphericalGaussian(loc=0.0, variance=0.2, prior_variance=4.0).resolve(torch.zeros(2, 2).double())
    rkhs, rng = RBFKernel(bandwidth=1.0).resolve(family, torch.zeros(2, 2).double()), np.random.default_rng(0)
    print("alpha   draws    T   log10 error at T = 0 and T   slope of log10   derived   slope / derived")
    for alpha, most, long, num_draws in ((0.5, 5, 30, 60_000), (1.0, 8, 40, 60_000), (3.0, 20, 90, 8000)):
        errors = np.zeros(most + 1)
        for _ in range(num_draws):
            v = rng.beta(1.0, alpha, long)
            pi = v * np.concatenate([[1.0], np.cumprod(1 - v)[:-1]])
            S = rkhs.inner(family, {"loc": torch.from_numpy(2 * rng.normal(size=(long, 2)))}).numpy()
            tails = np.tril(np.ones((long, most + 1)), 0) * pi[:, None]  # column t: sticks t, t + 1, ...
            errors += np.einsum("jt,jt->t", tails, S @ tails) / num_draws
        slope, derived = np.polyfit(np.arange(most + 1), np.log10(errors), 1)[0], np.log10(alpha / (alpha + 2))
        first, last = np.log10(errors[[0, -1]])
        print(
            f"{alpha:5g} {num_draws:7} {most:4}      {first:6.3f}  {last:6.3f}          "
            f"{slope:8.4f}     {derived:8.4f}   {slope / derived:10.3f}",
            flush=True,
        )


def em_weights(log_density: torch.Tensor, num_steps: int = 5000) -> torch.Tensor:
    """Weights [T] of highest likelihood for fixed components, from log densities [N, T]."""
    weights = torch.full_like(log_density[0], 1 / log_density.shape[1])
    for _ in range(num_steps):
        weights = (log_density + weights.log()).softmax(1).mean(0)
    return weights


def data_sets() -> dict[str, torch.Tensor]:
    from regbayes.datasets import load, make_dp_mixture

    real = {name: torch.from_numpy(np.asarray(load(name).X, float)) for name in ("galaxy", "faithful")}
    return real | {"made up": make_dp_mixture(600, num_features=5, seed=0).X.double()}


def mmd() -> None:
    """On the rows of the fit, half of the data, and on the other half."""
    from sklearn.mixture import GaussianMixture

    from regbayes.inference import SVI, HilbertEmbedding, RBFKernel
    from regbayes.inference.hilbert_embedding.mmd import squared_mmd
    from regbayes.models import DPM, FullGaussian

    print("data       components of       T    weights by        MMD^2 of the fit   / embedding   MMD^2 of other rows")
    for name, rows in data_sets().items():
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        X, others = rows[order[::2]], rows[order[1::2]]
        mixture = GaussianMixture(8, random_state=0, reg_covar=1e-3 * float(X.var(0).min())).fit(X.numpy())
        source = SVI(progress=False).fit(DPM(FullGaussian(), truncation=20), X)
        fits = {
            "GaussianMixture": {"loc": mixture.means_, "precision": mixture.precisions_},
            "SVI": source,
        }
        for label, components in fits.items():
            posterior = HilbertEmbedding(components=components, progress=False).fit(DPM(FullGaussian()), X)
            parameters = {part: posterior.samples[f"parameters.{part}"][0] for part in ("loc", "precision")}
            family, rkhs = posterior.model.likelihood, RBFKernel().resolve(posterior.model.likelihood, X)
            theirs: Any = torch.from_numpy(mixture.weights_)
            if label == "SVI":
                theirs = source.samples["log_mixture"][0, :-1].exp().sort(descending=True, stable=True).values
            weights = {
                "the embedding": posterior.samples["log_mixture"][0, :-1].exp(),
                label: theirs,
                "EM, fixed atoms": em_weights(family.log_density(X, parameters)),
                "all alike": torch.full_like(theirs, 1 / len(theirs)),
            }
            found = {by: squared_mmd(rkhs, family, parameters, w, X)[0] for by, w in weights.items()}
            new = {by: squared_mmd(rkhs, family, parameters, w, others)[0] for by, w in weights.items()}
            for by, value in found.items():
                ratio = value / found["the embedding"]
                print(
                    f"{name:10} {label:16} {len(theirs):4}    {by:16} {value:14.3e} {ratio:14.2f} {new[by]:19.3e}",
                    flush=True,
                )


def qp(T: int = 500) -> None:
    """The program of T components drawn from the prior for Old Faithful, to a gap of 1e-8."""
    from scipy.optimize import minimize

    from regbayes.inference import HilbertEmbedding, RBFKernel
    from regbayes.inference.hilbert_embedding.atoms import from_prior
    from regbayes.inference.hilbert_embedding.backend import Embedding, embed, sweep
    from regbayes.inference.hilbert_embedding.simplex_qp import gap, objective
    from regbayes.models import DPM, DiagonalGaussian

    X = data_sets()["faithful"]
    model, data = DPM(DiagonalGaussian()).prepare(X)
    atoms = from_prior(model.likelihood, T, torch.Generator().manual_seed(0))
    for ridge in (1e-4, 0.0):
        rkhs = RBFKernel().resolve(model.likelihood, X)
        state = embed(HilbertEmbedding(ridge=ridge), rkhs, atoms, model, data)
        Q, r = state.quadratic.numpy(), state.linear.numpy()

        def slsqp(Q: np.ndarray = Q, r: np.ndarray = r) -> Any:
            return minimize(
                lambda p: p @ Q @ p / 2 - r @ p,
                np.full(T, 1 / T),
                jac=lambda p: Q @ p - r,
                bounds=[(0, 1)] * T,
                constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
                method="SLSQP",
                options={"ftol": 1e-12, "maxiter": 1000},
            )

        def ours(state: Embedding = state) -> Embedding:
            while state.gap > 1e-8:
                state = sweep(state)
            return state

        found, reference = ours(), slsqp()
        quick, slow = medians(ours, slsqp, repeats=3)
        value = float(objective(state.quadratic, state.linear, found.weights))
        their_gap = gap(state.quadratic, state.linear, torch.from_numpy(reference.x))
        print(
            f"T = {T}, ridge {ridge:g}: solve {quick:.4f} s (gap {found.gap:.1e}), SLSQP {slow:.2f} s (gap "
            f"{their_gap:.1e}), SLSQP / solve {slow / quick:.0f}; objective {value:.12f} and "
            f"{reference.fun:.12f}; {int((found.weights > 0).sum())} weights positive",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    jobs = {"truncation": truncation, "mmd": mmd, "qp": qp}
    if len(sys.argv) == 1:
        for job in jobs.values():
            job()
    else:
        choose(__doc__, **jobs)
