"""Mean field of tasks that share a binary projection, with expected margins (rule="gibbs"): the augmented bound.

q(eta_m) = N(mu_m, V_m), B_m = mu_m mu_m^T + V_m. With u = Z^T x, v_k = Var u_k = sum_d psi (1 - psi) x_d^2,

    E f = mu^T [E u; b],   Var f = [E u; b]^T V [E u; b] + sum_k B_kk v_k

and pseudo-observations (p, s) = `loss.expect`(E f, Var f) of each known pair of a row and a task,

    V_m^-1 = I / nu^2 + sum p ([E u; b][E u; b]^T + diag(v)),   mu_m = V_m sum s [E u; b]
    log odds of z_dk  +=  sum_m sum_n s mu_k x_d - p B_kk x_d^2 / 2 - p x_d B_k . [E u; b]   without its own share

The last sums need the matrices R_m = sum_n p x x^T [D, D] alone, whatever N is: a column k of bits is visited one
after another with sum_m B_mkk R_m. Nothing lowers the bound.

Source: math/latent-features, sections 2 and 6; math/regbayes, section 3.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from ....models.losses import PseudoObservation
from ....models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ....models.multi_task import TaskData
from ...classifiers.natural import Apart, Evidence, Seen, prior
from ...classifiers.ridge import Ridge
from ...distributed.collectives import all_sum
from .factors import MeanFieldProjection, bound_without_margins, generative, scatter, update_loadings, update_prior


def init(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> MeanFieldProjection:
    """Classifiers at their prior."""
    q = prior(data.num_tasks, len(state.weights), 1, model.weight_scale, state.weights.double())
    return replace(state, precision_tril=q.precision_tril[:, 0].clone(), tilt=state.tilt[:0])


def sweep(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> MeanFieldProjection:
    """Classifiers, prior, loadings, precisions, bits; pseudo-observations are at their optimum for each use."""
    outer = scatter(data, model.likelihood)
    state = update_loadings(update_prior(update_weights(state, data, model), model), model, outer)
    state = update_bits(state, data, model, outer, expect(state, data, model))
    return observe(state, data, model, outer)


def observe(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """The same factors with their bound []; `outer` as `scatter` gives it, [D, D]."""
    margins = evidence(state, data, model).bound(classifiers(state))
    return replace(state, bound=bound_without_margins(state, model, outer) + margins)


def expect(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> PseudoObservation:
    """Pseudo-observations [A] of the scores of the pairs."""
    said = evidence(state, data, model)
    return PseudoObservation(*(part.flatten() for part in said.observe(said.design.moments(classifiers(state)))))


def classifiers(state: MeanFieldProjection) -> Ridge:
    """q(eta), of each task."""
    return Ridge(state.weights.double().T.unsqueeze(2), state.precision_tril.unsqueeze(1))


def evidence(state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM) -> Evidence:
    """What the pairs [A], which see [E u; b], say of the classifiers of their tasks."""
    psi, X = state.features.double(), data.X.double()
    features, variances = torch.cat([X @ psi, data.inputs.double()], 1), X.square() @ (psi * (1 - psi))
    rows = data.rows.tensor_split(data.starts[1:-1])
    design = Apart([Seen(features[own], variances[own]) for own in rows], [len(own) for own in rows])
    known = data.known.double().unsqueeze(1)
    return Evidence(design, known, model.loss, model.weight_scale, torch.ones_like(known))


def update_weights(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM
) -> MeanFieldProjection:
    """q(eta)."""
    q = evidence(state, data, model).step(classifiers(state))
    return replace(
        state, weights=q.mean.squeeze(2).T.to(state.weights).contiguous(), precision_tril=q.precision_tril[:, 0]
    )


def update_bits(
    state: MeanFieldProjection,
    data: TaskData,
    model: MultiTaskInfiniteLatentSVM,
    outer: Tensor,
    observed: PseudoObservation,
) -> MeanFieldProjection:
    """psi [D, K], column after column, and in it dimension after dimension."""
    odds, linear, gram = generative(state, model, outer)
    own, among = _margin_sums(state, data, observed)  # [D, K], [M, D, D]
    B = torch.cholesky_inverse(state.precision_tril) + torch.einsum("jm,km->mjk", *[state.weights.double()] * 2)
    psi, K = state.features.double().clone(), model.truncation
    seen = among @ psi  # [M, D, K]
    for k in range(K):
        others = psi @ gram[:, k] - psi[:, k] * gram[k, k] + torch.einsum("mdj,mj->d", seen, B[:, k, :K])
        others = others - seen[:, :, k].T @ B[:, k, k]
        matrix = torch.einsum("m,mde->de", B[:, k, k], among)
        base = odds[k] + linear[:, k] - gram[k, k] / 2 + own[:, k] - others - matrix.diagonal() / 2
        column = psi[:, k].clone()
        for d in range(len(column)):
            column[d] = (base[d] - matrix[d] @ column + matrix[d, d] * column[d]).sigmoid()
        psi[:, k] = column
        seen[:, :, k] = among @ column
    return replace(state, features=psi.to(state.features))


def _margin_sums(state: MeanFieldProjection, data: TaskData, observed: PseudoObservation) -> tuple[Tensor, Tensor]:
    """sum_m sum_n x_d (s mu_k - p B_k,inputs . b) [D, K], and R_m [M, D, D]."""
    X, inputs, K = data.X.double(), data.inputs.double(), state.features.shape[1]
    linear, among = X.new_zeros(X.shape[1], K), []
    covariances = torch.cholesky_inverse(state.precision_tril)
    for task, (first, last) in enumerate(pairwise(data.starts)):
        rows, mu = data.rows[first:last], state.weights[:, task].double()
        own, precision = X[rows], observed.precision[first:last]
        cross = covariances[task][K:, :K] + mu[K:, None] * mu[:K]
        pull = observed.shift[first:last, None] * mu[:K] - precision[:, None] * (inputs[rows] @ cross)
        linear = linear + own.T @ pull
        among.append(own.T @ (precision[:, None] * own))
    return all_sum(linear), all_sum(torch.stack(among))
