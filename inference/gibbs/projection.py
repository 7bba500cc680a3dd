"""Gibbs sampling of tasks that share a binary projection, truncated at K features.

    target(Z, pi, eta, h) = p(Z | pi) p(pi | h) p(h) N(eta; 0, nu^2 I) prod_nm phi(y_nm | f_nm) prod_n p(x_n | Z)

The loadings w_n are integrated out of p(x_n | Z), which is absent without a likelihood. The log odds of a bit given all
else are

    logit pi_k + noise precision sum_n (w_nk r_nd - w_nk^2 / 2) + sum_nm log phi(y_nm | f_nm, z_dk = 1) - log phi(. | 0)

with r_nd the residual without the bit. Loadings are drawn given Z, used for the bits and the precisions, and dropped.
omega is drawn given Z, used for eta, and dropped. `sweep` draws w, Z, h, pi, eta in this order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Gamma

from ...models.distributions.sampling import normals, uniforms
from ...models.likelihoods import LinearGaussian
from ...models.linalg import safe_cholesky
from ...models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ...models.multi_task import TaskData
from ...models.priors import Hyper
from ..bits.loadings import draw_precisions, log_bits, precision_posterior
from ..bits.shared_projection import Generative, Margins, prior_alone, task_margins
from ..distributed.collectives import all_sum, own_stream
from ..posterior.draws import ProjectionDraw, drawn
from ..running.engine import Draw, Kernel
from .backend import Gibbs


@dataclass(frozen=True)
class ProjectionState:
    """One draw: D dimensions, K features, M tasks, P additional inputs."""

    features: Tensor  # [D, K] of 0 and 1 in the dtype of X
    probabilities: Tensor  # [K] float64
    weights: Tensor  # [K + P, M]
    hyper: Hyper  # of the prior, each [] float64
    precisions: Hyper  # of the likelihood, each [] float64; empty without one


def check(backend: Gibbs, model: MultiTaskInfiniteLatentSVM) -> None:
    """Raise ValueError on a scan, or an `init`, that projections do not support."""
    backend.require_scan(model, "auto", "blocked")
    if isinstance(backend.init, Tensor):
        raise ValueError(f"init has labels of points, but {type(model).__name__} has no components: leave it out.")


def alone(backend: Gibbs, model: MultiTaskInfiniteLatentSVM) -> str:
    """What to change so that ranks can share the rows; "" if nothing."""
    return "leave init out" if isinstance(backend.init, Tensor) else ""


def holds_all(backend: Gibbs, model: MultiTaskInfiniteLatentSVM) -> bool:
    """Whether states hold all components of the model from the start, in use or not."""
    return True


def kernel(backend: Gibbs, model: MultiTaskInfiniteLatentSVM) -> Kernel:
    """The kernel of projections."""
    return Kernel(state=ProjectionState, init=init, sweep=sweep, value=log_joint, draw=draw)


def init(model: MultiTaskInfiniteLatentSVM, data: TaskData, generator: torch.Generator) -> ProjectionState:
    """A first state: bits drawn from the prior's initial probabilities, then weights."""
    hyper, K = model.prior.start(data.X), model.truncation
    pi = model.prior.start_probabilities(hyper, K)
    bits = (uniforms((data.X.shape[1], K), generator) < pi).to(data.X)
    weights = data.X.new_zeros(K + data.inputs.shape[1], data.num_tasks)
    precisions = {} if model.likelihood is None else model.likelihood.start(data.X)
    state = ProjectionState(bits, pi, weights, hyper, precisions)
    return replace(state, weights=draw_weights(state, data, model, generator))


def sweep(
    state: ProjectionState,
    data: TaskData,
    model: MultiTaskInfiniteLatentSVM,
    generator: torch.Generator,
    step: int = 0,
) -> ProjectionState:
    """One sweep; each update leaves the joint law of the target and the loadings invariant."""
    loadings = draw_loadings(state, data, model, generator)
    state = replace(state, features=draw_bits(state, data, model, loadings, generator))
    if model.likelihood is not None and loadings is not None:
        laws = precision_laws(state, data, model.likelihood, loadings)
        state = replace(state, precisions=state.precisions | draw_precisions(laws, generator))
    counts, num_dimensions = state.features.sum(0), len(state.features)
    pi = model.prior.draw_probabilities(state.probabilities, counts, num_dimensions, state.hyper, generator)
    state = replace(state, probabilities=pi, hyper=model.prior.draw_truncated(state.hyper, pi, generator))
    return replace(state, weights=draw_weights(state, data, model, generator))


# -- the bits of the projection ----------------------------------------------------------------------------------------


def draw_bits(
    state: ProjectionState,
    data: TaskData,
    model: MultiTaskInfiniteLatentSVM,
    loadings: Tensor | None,
    generator: torch.Generator,
) -> Tensor:
    """Draw the features [D, K] bit by bit, each given all else."""
    levels = torch.logit(uniforms(tuple(state.features.shape), generator))
    margins = Margins(data, model.loss, state.weights[: model.truncation])
    scores = data.pair_scores(data.X @ state.features, state.weights)
    return margins.set_bits(state.features, levels, generative(state, data, model, loadings), scores)


def generative(
    state: ProjectionState, data: TaskData, model: MultiTaskInfiniteLatentSVM, loadings: Tensor | None
) -> Generative:
    """The terms of the log odds of the bits from prior and likelihood, given loadings [N, K]."""
    odds = torch.logit(state.probabilities)
    if model.likelihood is None or loadings is None:
        return prior_alone(odds, len(state.features))
    precision, residual = state.precisions["noise_precision"], (data.X - model.likelihood.offset).double()
    seen = loadings.double()
    return Generative(odds, precision * all_sum(residual.T @ seen), precision * all_sum(seen.T @ seen))


# -- loadings and precisions, with a likelihood ------------------------------------------------------------------------


def loadings_posterior(state: ProjectionState, data: TaskData, likelihood: LinearGaussian) -> tuple[Tensor, Tensor]:
    """N(mean_n, A^-1) of the loadings: mean [N, K] and the Cholesky factor [K, K] of A = loading I + noise Z^T Z."""
    Z = state.features.double()
    noise, prior = state.precisions["noise_precision"], state.precisions["loading_precision"]
    matrix = noise * (Z.T @ Z)
    matrix.diagonal().add_(prior)
    tril = safe_cholesky(matrix)
    linear = noise * ((data.X - likelihood.offset).double() @ Z)
    return torch.cholesky_solve(linear.T, tril).T, tril


def draw_loadings(
    state: ProjectionState, data: TaskData, model: MultiTaskInfiniteLatentSVM, generator: torch.Generator
) -> Tensor | None:
    """Draw loadings [N, K] given the projection; None without a likelihood."""
    if model.likelihood is None:
        return None
    mean, tril = loadings_posterior(state, data, model.likelihood)
    noise = normals(tuple(mean.shape), own_stream(generator), mean)
    return mean + torch.linalg.solve_triangular(tril.T, noise.T, upper=True).T


def precision_laws(
    state: ProjectionState, data: TaskData, likelihood: LinearGaussian, loadings: Tensor
) -> dict[str, Gamma]:
    """The gamma law of each learned precision, given the projection and the loadings [N, K]."""
    mean = loadings @ state.features.double().T
    squares = torch.cat([loadings.square().sum(1), loadings.new_tensor([loadings.shape[1]])])
    seen = likelihood.evidence(data.X.double(), mean, mean.square(), squares, loadings.new_ones(len(loadings), 1))
    total = {name: (all_sum(number), all_sum(square)) for name, (number, square) in seen.items()}
    return precision_posterior(likelihood, total, loadings)


# -- the classifiers ---------------------------------------------------------------------------------------------------


def draw_weights(
    state: ProjectionState, data: TaskData, model: MultiTaskInfiniteLatentSVM, generator: torch.Generator
) -> Tensor:
    """Draw weights [K + P, M] given the projection; each task is a component whose rows are its known pairs."""
    scored = task_margins(data, model, state.features)
    return scored.draw(state.weights.T.unsqueeze(-1).contiguous(), generator).squeeze(-1).T.contiguous()


# -- log density and draws for the posterior ---------------------------------------------------------------------------


def log_joint(state: ProjectionState, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> Tensor:
    """log density [] of (Z, pi, eta, h), the inputs and the margin factors; loadings and omega are integrated out."""
    pi, counts = state.probabilities, state.features.sum(0)
    total = model.prior.log_density(state.hyper) + model.prior.log_probabilities(pi, state.hyper)
    total = total + log_bits(counts, len(state.features), pi)
    total = total + task_margins(data, model, state.features).log_density(state.weights.T.unsqueeze(-1))
    return total if model.likelihood is None else total + log_inputs(state, data, model.likelihood)


def log_inputs(state: ProjectionState, data: TaskData, likelihood: LinearGaussian) -> Tensor:
    """log density [] of the precisions and of x_n ~ N(offset, Z Z^T / loading precision + I / noise precision)."""
    mean, tril = loadings_posterior(state, data, likelihood)
    noise, prior = state.precisions["noise_precision"], state.precisions["loading_precision"]
    D, K = state.features.shape
    log_det = 2 * tril.diagonal().log().sum() - K * prior.log() - D * (noise / (2 * math.pi)).log()
    square = noise * (data.X - likelihood.offset).double().square().sum() - (mean @ tril).square().sum()
    total = -all_sum(data.num_data * log_det + square) / 2
    for name, law in likelihood.hyperpriors(mean).items():
        total = total if law is None else total + law.log_prob(state.precisions[name])
    return total


def draw(state: ProjectionState, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> Draw:
    """The draw that the posterior keeps of a state."""
    K, dtype = model.truncation, data.X.dtype
    return drawn(
        ProjectionDraw(
            features=state.features.to(torch.int8),
            log_odds=torch.logit(state.probabilities).to(dtype),
            weights=state.weights[:K].contiguous(),
            input_weights=state.weights[K:].contiguous(),
            log_joint=log_joint(state, data, model),
        ),
        {name: value.to(dtype) for name, value in (state.hyper | state.precisions).items()},
    )
