"""Problems of the tests of variational inference: mixtures under any part, and sequences with missing steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from setups import mixture_rows
from torch import Tensor

from regbayes.inference.svi import factors
from regbayes.inference.svi.sums import Sums
from regbayes.models import DPM, InfiniteSVM
from regbayes.models.likelihoods import Likelihood
from regbayes.models.losses import CrammerSinger, Loss, OneVsRest
from regbayes.models.sequence import Sequences

CENTERS = 5 * torch.eye(3, 2, dtype=torch.float64)


def blobs(N: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three groups of rows [N, 2], each with its own linear rule for the class [N]."""
    group = torch.randint(3, (N,), generator=generator)
    noise = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    return CENTERS[group] + noise, (noise[:, 0] * (1 - 2 * (group == 1).double()) > 0).long()


def targets_of(loss: Loss, X: Tensor, generator: torch.Generator) -> Tensor:
    """y [N] about a line: real targets, two classes, or three where the loss takes so many."""
    like: dict[str, Any] = {"generator": generator, "device": X.device, "dtype": X.dtype}
    score = X @ torch.randn(X.shape[1], **like)
    score = (score - score.mean()) / score.std() + 0.5 * torch.randn(len(X), **like)
    if loss.target == "real":
        return score
    if isinstance(loss, OneVsRest | CrammerSinger):
        return (score > -0.4).long() + (score > 0.4).long()
    return (score > 0).long()


def mixture_problem(
    likelihood: Likelihood, loss: Loss | None, generator: torch.Generator, N: int = 40, D: int = 2, **options: Any
) -> tuple[Any, Any, Tensor, Tensor | None]:
    """(resolved model, data, X [N, D], y [N]) of a DPM or, with a loss, of an InfiniteSVM."""
    X = mixture_rows(type(likelihood), N, D)[0].to(generator.device)
    y = None if loss is None else targets_of(loss, X, generator)
    options = {"truncation": 5} | options
    model: Any = DPM(likelihood, **options) if loss is None else InfiniteSVM(likelihood, loss, **options)
    model = model.resolve(X, y)
    return model, model.data(X, y), X, y


def elbo(state: Any, data: Any, model: Any) -> Tensor:
    """The bound of any state of a mixture or chain, [] float64; q(z) need not be optimal."""
    points, r = data.points, state.of_points(data, slice(None))
    seen = factors.see(state.classifiers, points, model)
    rows = (r * (factors.log_density(state, points, model) + seen.gain)).sum(1) + seen.rejection
    if isinstance(data, Sequences):
        places = (state.transitions * state.expected_log_rows).sum() + state.entropy
    else:
        places = points.counted((r * state.expected_log_mixture + torch.special.entr(r)).sum(1)).sum()
    return points.counted(rows).sum() + places - factors.kl(state, model)


def retold(state: Any, data: Any, model: Any) -> Any:
    """The state with the sums of the pseudo-observations at its classifiers and responsibilities."""
    sums = Sums(model.likelihood, data.points, model.truncation, keep=True)
    seen = factors.see(state.classifiers, data.points, model)
    sums.add(slice(None), data.points, state.of_points(data, slice(None)), seen)
    return replace(state, gram=sums.gram, linear=sums.linear)


def states_of(N: int, generator: torch.Generator, stay: float = 0.9) -> Tensor:
    """States [N] of three that last."""
    like: dict[str, Any] = {"generator": generator, "device": generator.device}
    moves, drawn = torch.rand(N, **like) > stay, torch.randint(3, (N,), **like)
    return drawn[torch.where(moves, torch.arange(N, device=generator.device), 0).cummax(0).values]


def sequence_rows(N: int, generator: torch.Generator, spread: float = 3.0) -> Tensor:
    """Rows [N, 2] of three states that last; some are missing."""
    like: dict[str, Any] = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    X = spread * torch.randn(3, 2, **like)[states_of(N, generator)] + torch.randn(N, 2, **like)
    X[N // 3 : N // 3 + 3], X[N - 1] = torch.nan, torch.nan
    return X


def sequence_problem(
    model: Any, generator: torch.Generator, lengths: Any = (25, 30, 5), spread: float = 3.0, **options: Any
) -> tuple[Any, Any]:
    """(resolved model, data)."""
    X = sequence_rows(sum(lengths), generator, spread)
    return model.replace(**{"truncation": 5} | options).prepare(X, None, list(lengths))


def walk(lengths: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows [N, 2] of three states that are far apart, and these [N]; some rows are missing."""
    states = states_of(sum(lengths), generator)
    centers = torch.tensor([[0.0, 6.0], [5.0, -3.0], [-5.0, -3.0]], dtype=torch.float64)
    X = centers[states] + torch.randn(len(states), 2, generator=generator, dtype=torch.float64)
    X[7:10] = torch.nan
    return X, states


def purity(found: Tensor, states: Tensor) -> float:
    """Share of the steps in the commonest true state of their own state."""
    table = torch.zeros(50, 3).index_put_((found, states), torch.ones(len(found)), accumulate=True)
    return float(table.max(1).values.sum() / len(found))
