"""The labels' terms in updates of the bits of a projection that tasks share, under either rule.

rule="averaging": the score of a row is that of the expected classifiers, and each bit goes to its exact optimum. With
fixed tilts (dual variables), all dimensions can move at once.

rule="gibbs": the margins are expected. With B_m = E eta_m eta_m^T, u = Z^T x and pseudo-observations (p, s) of the
scores of the known pairs of a row and a task, as `Evidence.expected` gives them,

    log odds of z_dk  +=  sum_m sum_n s mu_k x_d - p B_kk x_d^2 / 2 - p x_d B_k . [E u; b]   without its own share

The last sums depend on the rows through R_m = sum_n p x x^T [D, D] alone, whatever N is. The bits of a column k are
updated one after another with the matrix sum_m B_mkk R_m.

Source: docs/derivations/latent-features, "Mean field" and "Tasks"; docs/derivations/regbayes, "Averaging and Gibbs
classifiers".
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from ....models import host
from ....models.losses import PseudoObservation
from ....models.mt_ilsvm import MultiTaskInfiniteLatentSVM
from ....models.multi_task import TaskData
from ...bits.shared_projection import Margins
from ...distributed.collectives import all_sum
from ..rules import AVERAGING, NATURAL
from .factors import MeanFieldProjection, evidence, generative


def averaged_bits(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """Set each psi_dk [D, K] to its exact optimum given all others, in turn; outer [D, D] is that of `scatter`."""
    margins = Margins(data, model.loss, state.weights[: model.truncation])
    scores = data.pair_scores(data.X @ state.features, state.weights)
    psi = margins.fit_probabilities(state.features, generative(state, model, outer), scores)
    return replace(state, features=psi)


def freeze(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """Set psi [D, K] to the optimum for fixed tilts, which add sum_n t_nm mu_mk x_nd to the log odds, by column."""
    odds, linear, gram = generative(state, model, outer)
    tilts = data.by_task(state.tilt.to(data.X))
    pull = all_sum(data.X.T @ (tilts @ state.weights[: model.truncation].T)).double()
    psi = state.features.double().clone()
    for k in range(psi.shape[1]):
        others = psi @ gram[:, k] - psi[:, k] * gram[k, k]
        psi[:, k] = (odds[k] + linear[:, k] + pull[:, k] - gram[k, k] / 2 - others).sigmoid()
    return replace(state, features=psi.to(state.features))


def expected_bits(
    state: MeanFieldProjection, data: TaskData, model: MultiTaskInfiniteLatentSVM, outer: Tensor
) -> MeanFieldProjection:
    """Update psi [D, K] for pseudo-observations at the present factors."""
    said = evidence(state, data, model)
    observed = said.expected(said.moments(state.learned.q))
    pairs = PseudoObservation(*(part.flatten() for part in observed))
    return bits_given(state, data, model, outer, pairs)


def bits_given(
    state: MeanFieldProjection,
    data: TaskData,
    model: MultiTaskInfiniteLatentSVM,
    outer: Tensor,
    observed: PseudoObservation,
) -> MeanFieldProjection:
    """Update psi [D, K] for pseudo-observations [A], column by column and, within a column, dimension by dimension."""
    odds, linear, gram = generative(state, model, outer)
    own, among = _margin_sums(state, data, observed)  # [D, K], [M, D, D]
    B = _covariances(state) + torch.einsum("jm,km->mjk", *[state.weights.double()] * 2)
    psi, K = state.features.double().clone(), model.truncation
    seen = among @ psi  # [M, D, K]
    for k in range(K):
        others = psi @ gram[:, k] - psi[:, k] * gram[k, k] + torch.einsum("mdj,mj->d", seen, B[:, k, :K])
        others = others - seen[:, :, k].T @ B[:, k, k]
        matrix = torch.einsum("m,mde->de", B[:, k, k], among)
        base = odds[k] + linear[:, k] - gram[k, k] / 2 + own[:, k] - others - matrix.diagonal() / 2
        psi[:, k] = column = _updated(base, matrix, psi[:, k].clone())
        seen[:, :, k] = among @ column
    return replace(state, features=psi.to(state.features))


def _updated(base: Tensor, matrix: Tensor, column: Tensor) -> Tensor:
    """Probabilities [D], each set in turn given the others: log odds base_d - sum_{e != d} matrix_de column_e."""
    if host.on_cpu(column):
        from . import _numba_bits  # compiles or loads machine code: only where it is needed

        _numba_bits.update_column(base.numpy(), matrix.contiguous().numpy(), column.numpy())
        return column
    for d in range(len(column)):
        column[d] = (base[d] - matrix[d] @ column + matrix[d, d] * column[d]).sigmoid()
    return column


def _margin_sums(state: MeanFieldProjection, data: TaskData, observed: PseudoObservation) -> tuple[Tensor, Tensor]:
    """sum_m sum_n x_d (s mu_k - p B_k,inputs . b) [D, K], and R_m [M, D, D]."""
    X, inputs, K = data.X.double(), data.inputs.double(), state.features.shape[1]
    linear, among = X.new_zeros(X.shape[1], K), []
    covariances = _covariances(state)
    for task, (first, last) in enumerate(pairwise(data.starts)):
        rows, mu = data.rows[first:last], state.weights[:, task].double()
        own, precision = X[rows], observed.precision[first:last]
        cross = covariances[task][K:, :K] + mu[K:, None] * mu[:K]
        pull = observed.shift[first:last, None] * mu[:K] - precision[:, None] * (inputs[rows] @ cross)
        linear = linear + own.T @ pull
        among.append(own.T @ (precision[:, None] * own))
    return all_sum(linear), all_sum(torch.stack(among))


def _covariances(state: MeanFieldProjection) -> Tensor:
    """V_m [M, K + P, K + P]."""
    return torch.cholesky_inverse(state.precision_tril.squeeze(1))


UPDATES = {AVERAGING: averaged_bits, NATURAL: expected_bits}
