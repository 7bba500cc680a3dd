"""Effective samples per CPU second of our Gibbs sweeps beside Pyro's NUTS, on one program and one data set.

    python benchmarks/pyro_engines.py [NUM_NUTS] [NUM_DATA]

NUM_NUTS (100): NUTS steps that count; as many warm up (25 are too few). NUM_DATA (200): rows, in the plane.

Four quantities that do not change when labels are exchanged: log p(X | mixture), of the sticks and parameters as drawn;
log m(X | z), the number of occupied components and the sum of their squared shares, of the assignments. Warm-up and
the start count neither as samples nor as seconds. Samplers: the collapsed scan, whose infinite model agrees with the
program's truncated one to far below the errors; the blocked scan; its sweeps inside `pyro.infer.MCMC` (`PyroGibbs`);
and `NUTS`. No split-merge moves.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from pyro.ops.stats import effective_sample_size
from torch import Tensor

T, D = 20, 2


def rows(num_data: int) -> tuple[Tensor, Tensor]:
    """Three clusters in the plane, and labels that a line divides in each of them."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(3, (num_data,), generator=generator)
    centers = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    noise = torch.randn(num_data, D, generator=generator, dtype=torch.float64)
    return centers[z] + noise, (noise[:, 1] > 0).long()


def steps_of(backend: Any, model: Any, data: Any) -> Iterator[Any]:
    """The state after each step of a backend."""
    kernel, generator = backend.kernel(model), torch.Generator().manual_seed(0)
    state, step = kernel.init(model, data, generator), 0
    while True:
        state = kernel.sweep(state, data, model, generator, step)
        step += 1
        yield state


def steps_inside_pyro(model: Any, arguments: tuple[Any, ...]) -> Iterator[dict[str, Tensor]]:
    """The sites after each step."""
    from regbayes.inference import PyroGibbs

    kernel = PyroGibbs(model, split_merge=0)
    kernel.setup(0, *arguments)
    params = kernel.initial_params
    while True:
        params = kernel.sample(params)
        yield params


def read(state: Any, model: Any, data: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Assignments [N], and log p(X | mixture) [] of the sites; those that a state has integrated out are drawn."""
    from regbayes.inference.pyro_engines import partition
    from regbayes.models.priors.sticks import log_stick_weights

    state = getattr(state, "state", state)  # of a chain of NUTS
    if hasattr(state, "log_mixture"):
        z, log_mixture, sites = state.assignments, state.log_mixture, state.parameters
    else:
        sites = state if isinstance(state, dict) else partition.from_gibbs(state, model, data, generator)
        z, log_mixture = sites["assignments"].long(), log_stick_weights(sites["sticks"])
    log_density = model.likelihood.log_density(data.X, {name: sites[name] for name in ("loc", "precision")})
    return z, (log_mixture + log_density).logsumexp(1).sum()


def measure(steps: Iterator[Any], num_warmup: int, num_samples: int, model: Any, data: Any) -> dict[str, Tensor]:
    """The quantities [S] of each draw, and the CPU seconds of all of them."""
    for _ in range(num_warmup):
        next(steps)
    start = time.process_time()
    states = [next(steps) for _ in range(num_samples)]
    seconds = time.process_time() - start
    generator = torch.Generator().manual_seed(1)
    drawn, log_likelihood = map(torch.stack, zip(*(read(s, model, data, generator) for s in states), strict=True))
    chi = torch.stack([model.likelihood.summed_statistics(data.X, z, T) for z in drawn]) + model.likelihood.prior()
    counts = torch.nn.functional.one_hot(drawn, T).sum(1).double()
    return {
        "log p(X | mixture)": log_likelihood,
        "log m(X | z)": model.likelihood.log_marginal(chi).sum(1),
        "components": (counts > 0).sum(1).double(),
        "squared shares": (counts / len(data.X)).square().sum(1),
        "seconds": torch.tensor(seconds),
    }


def compare(model: Any, arguments: tuple[Any, ...], num_nuts: int) -> None:
    from regbayes.inference import NUTS, Gibbs

    model, data = model.prepare(*arguments)
    nuts = NUTS(num_nuts, num_nuts)
    runs: dict[str, Callable[[], dict[str, Tensor]]] = {
        "collapsed": lambda: measure(steps_of(Gibbs(split_merge=0), model, data), 500, 5000, model, data),
        "blocked": lambda: measure(steps_of(Gibbs(scan="blocked", split_merge=0), model, data), 500, 5000, model, data),
        "PyroGibbs": lambda: measure(steps_inside_pyro(model, arguments), 500, 3000, model, data),
        "NUTS": lambda: measure(steps_of(nuts, model, data), nuts.num_warmup, nuts.num_samples, model, data),
    }
    found = {name: run() for name, run in runs.items()}
    print(f"{type(model).__name__}, N = {len(data.X)}, T = {T}")
    for name, result in found.items():
        print(f"    {name:10} {1000 * float(result['seconds']) / len(result['components']):9.2f} CPU ms a step")
    for quantity in ("log p(X | mixture)", "log m(X | z)", "components", "squared shares"):
        rates = {}
        for name, result in found.items():
            series = result[quantity]
            size = float(effective_sample_size(series.unsqueeze(0), chain_dim=0, sample_dim=1).clamp(max=len(series)))
            rates[name] = size / float(result["seconds"])
            print(
                f"    {quantity:18} {name:10} mean {series.mean():10.4f} +- {series.std() / size**0.5:.4f}   effective "
                f"{size:7.1f} of {len(series):5}   per CPU second {rates[name]:9.3f}"
            )
        ratios = ", ".join(f"{name} / NUTS {rates[name] / rates['NUTS']:.0f}" for name in list(runs)[:-1])
        print(f"    {quantity:18} {ratios}", flush=True)


def main(num_nuts: str = "100", num_data: str = "200") -> None:
    from regbayes.models import DPM, DiagonalGaussian, InfiniteSVM

    X, y = rows(int(num_data))
    compare(DPM(DiagonalGaussian(), truncation=T), (X,), int(num_nuts))
    compare(InfiniteSVM(DiagonalGaussian(), truncation=T), (X, y), int(num_nuts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
