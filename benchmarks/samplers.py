"""How fast the samplers of the mixture variables are: CPU seconds of one thread per draw, beside compiled rivals.

    python benchmarks/samplers.py [--draws 200000]

PG(1, z) / `polyagamma` (C, its own choice of method) and the inverse Gaussian / numpy's `wald`, in double precision.
"""

from __future__ import annotations

import argparse
import importlib.util
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable

import numpy as np
import torch
from timing import seconds

from regbayes.models.distributions import inverse_gaussian, polya_gamma


def compare(name: str, ours: Callable[[], object], rival: Callable[[], object], num_draws: int) -> None:
    """Medians, measured in turn so that both see the same machine."""
    ours(), rival()
    own, other = np.median([[seconds(ours), seconds(rival)] for _ in range(15)], 0) / num_draws * 1e9
    print(f"{name:34} {own:7.1f} ns  rival {other:7.1f} ns  ratio {own / other:.2f}")


def main(num_draws: int) -> None:
    torch.set_num_threads(1)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    # 1 / omega has mean 1 / |c slack|: slacks about 1, very close to the margin, and far from it
    for center in (0.01, 1.0, 30.0):
        mean = 1 / (center * np.abs(rng.normal(size=num_draws)) + 1e-6)
        tensor = torch.from_numpy(mean)
        compare(
            f"inverse Gaussian, |slack| ~ {center:g}",
            lambda tensor=tensor: inverse_gaussian(tensor, generator),
            lambda mean=mean: rng.wald(mean, 1.0),
            num_draws,
        )
    if importlib.util.find_spec("polyagamma") is None:
        print("Polya-Gamma: skipped, the package polyagamma is not installed")
        return
    from polyagamma import random_polyagamma

    for spread in (0.0, 1.0, 4.0, 20.0):
        tilt = spread * rng.normal(size=num_draws)
        tensor = torch.from_numpy(tilt)
        compare(
            f"Polya-Gamma, z ~ N(0, {spread:g}^2)",
            lambda tensor=tensor: polya_gamma(tensor, generator),
            lambda tilt=tilt: random_polyagamma(1.0, tilt, random_state=rng),
            num_draws,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200_000)
    main(parser.parse_args().draws)
