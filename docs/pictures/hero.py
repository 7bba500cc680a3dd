"""The picture of README: one infinite SVM under three backends, its components with their hyperplanes.

`python docs/pictures/hero.py` writes hero.png beside itself.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from regbayes.inference import SVI, Gibbs, SmallVariance
from regbayes.models import FullGaussian, Hinge, InfiniteSVM
from regbayes.plots import plot_components

HERE = Path(__file__).parent
CENTRES = np.array([[-4.0, 0.0], [0.0, 3.5], [4.0, 0.0], [0.0, -3.5]])


def make_rows(rows: int = 90, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Four groups in the plane, each parted by a line of its own: X [4 rows, 2] and y [4 rows] of 0 and 1."""
    stream = np.random.default_rng(seed)
    X, y = [], []
    for index, centre in enumerate(CENTRES):
        own = stream.normal(size=(rows, 2)) * [1.0, 0.8]
        normal = np.array([np.cos(index * np.pi / 4), np.sin(index * np.pi / 4)])
        X.append(centre + own)
        y.append(own @ normal > 0)
    return np.concatenate(X), np.concatenate(y).astype(int)


def draw() -> None:
    """One panel for each backend, with its number of components and the accuracy on fresh rows."""
    X, y = make_rows()
    others, theirs = make_rows(rows=500, seed=4)
    model = InfiniteSVM(FullGaussian(), Hinge(strength=0.5), weight_scale=5.0)
    backends = [SmallVariance(num_components=4), SVI(), Gibbs(num_samples=100, num_warmup=100)]
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), sharex=True, sharey=True, layout="constrained")
    for ax, backend in zip(axes, backends, strict=True):
        posterior = backend.fit(model, X, y)
        plot_components(posterior, X, y, ax=ax)
        right = float(np.mean(posterior.predict(others) == theirs))
        ax.set_title(f"{type(backend).__name__}: accuracy {right:.2f} on new rows")
        ax.set(xlabel="", ylabel="")
        if ax.get_legend():
            ax.get_legend().remove()
    figure.savefig(HERE / "hero.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw()
