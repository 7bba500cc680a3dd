"""Blocked Gibbs sampling of the multi-label joints in which components and classifiers share the labels y.

    target(z, h, psi, w) = p(z | h) p(h) prod_k m(X_k) p(psi_k) prod_c N(w_c; 0, nu^2 I) prod_n p(y_n | psi_{z_n}, f_n)

z is drawn by the blocked scan of partitions, with log p(y_n | psi_k, f_n) as the factor of the labels and all
augmentation variables integrated out. Then the augmentation variables are drawn anew, then psi given them, then w: this
order is part of the correctness.

    "and"           bits y = a b; psi_k | a has a Beta law, and w | b is a logistic regression
    "multinomial"   psi_k = g_k / sum g_k; u_n ~ Gamma makes the normalizer a product over c, counts m_nc augment the
    sigmoids

In the state, `weights` [T, 1, C] hold psi, or g.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....models.bnmc import BNMC
from ....models.data import Data
from ....models.distributions.polya_gamma import polya_gamma
from ....models.distributions.sampling import uniforms
from ....models.dpm import DPM
from ....models.label_data import LabelData
from ....models.label_joints import log_label_factor
from ....models.likelihoods import MaskedBernoulli
from ....models.losses import PseudoObservation
from ....models.priors.laws import Truncated
from ....models.sparse import group_sums
from ...classifiers.scored import Scored, log_prior
from ...distributed.collectives import Later, all_sum, own_stream
from ...posterior.label_draws import finished_draw
from ...running.engine import Draw, Kernel
from ...truncation import warn_if_full
from .. import partition
from ..backend import Gibbs
from ..scans import blocked as blocked_scan
from ..state import PartitionState
from .start import first


@dataclass(frozen=True, kw_only=True)
class LabelState(PartitionState):
    """One draw: a partition, and one classifier for each label.

    Components have no classifiers of their own: `weights` are [K, 0, 0], or psi or g [T, 1, C] in a coupled joint.
    """

    classifiers: Tensor  # [1, P, C]


def scored(data: LabelData, model: BNMC) -> Scored:
    """The rows that the classifiers score: every classifier scores all rows."""
    return Scored(data.features, data.targets, model.loss, model.weight_scale)


@dataclass(eq=False)
class CoupledMixture(DPM):
    """The mixture of x for the blocked scan; targets are labels and scores [..., 2 C], and psi are the classifiers."""

    joint: str = "and"

    def log_margin(self, scores: Tensor, targets: Tensor) -> Tensor:
        """log p(y | psi, f) [...] for psi [..., C] (`scores`)."""
        labels, f = targets.chunk(2, -1)
        return log_label_factor(self.joint, scores, f, labels)


def kernel(backend: Gibbs) -> Kernel:
    """The kernel of a coupled joint with the options of `backend`."""
    start = partial(init, backend=backend)
    return Kernel(LabelState, start, sweep, log_joint, draw, warn=warn_if_full, value_in="log_joint")


def init(model: BNMC, data: LabelData, generator: torch.Generator, *, backend: Gibbs) -> LabelState:
    """A first state: a partition after `num_generative` sweeps of the joint "product", classifiers 0, and psi drawn.

    The joint "product" is used because it has split-merge proposals.
    """
    backend.require_labels(data, model.truncation, other="slice")
    mixture = model.mixture
    law, labels = Truncated(model.prior, model.truncation), first(backend, model, data, generator)
    start = partition.init(mixture, data.points, generator, start=labels, law=law)
    options: dict[str, Any] = {"scan": "blocked", "num_split_merge": backend.split_merge}
    for step in range(backend.num_generative):
        start = partition.sweep(start, data.points, mixture, generator, step, **options)
    shape = (1, data.features.shape[1], data.targets.shape[1])
    weights = data.features.new_full((model.truncation, 1, shape[2]), 0.5)
    zeros = data.features.new_zeros(shape)
    state = LabelState(start.assignments, weights, start.hyper, classifiers=zeros)
    return _AUGMENTED[model.joint](state, data, model, generator)[0]


def sweep(state: LabelState, data: LabelData, model: BNMC, generator: torch.Generator, step: int = 0) -> LabelState:
    """Draw sticks, parameters of x and z; the augmentation variables and psi; omega and w; then swap components."""
    points, mixture = view(state, data, model)
    moved: Any = blocked_scan.scan(state, points, mixture, generator)
    counts = Later(torch.bincount(moved.assignments, minlength=model.truncation))
    drawn = draw_labels(moved, data, model, generator)
    swapped: Any = blocked_scan.relabel(drawn, counts().double(), model.prior, generator)
    return swapped


def draw_labels(state: LabelState, data: LabelData, model: BNMC, generator: torch.Generator) -> LabelState:
    """Draw the label part given z: augmentation variables, psi, omega and w, in this order."""
    state, observed = _AUGMENTED[model.joint](state, data, model, generator)
    return replace(state, classifiers=scored(data, model).drawn(observed, generator))


def view(state: LabelState, data: LabelData, model: BNMC) -> tuple[Data, CoupledMixture]:
    """The rows of x with labels and scores as targets, and the mixture that reads them."""
    targets = torch.cat([data.labels, data.features @ state.classifiers.squeeze(0)], 1)
    mixture = CoupledMixture(model.likelihood, model.prior, model.truncation, model.num_features, joint=model.joint)
    return Data(data.inputs.X, data.features.new_ones(data.num_data, 1), targets), mixture


# -- augmentation of each joint, and psi given it: returns the new state and the classifiers' pseudo-observations ------


def draw_bits(
    state: LabelState, data: LabelData, model: BNMC, generator: torch.Generator
) -> tuple[LabelState, PseudoObservation]:
    """Draw bits (a, b) with y = a b, then psi_kc ~ Beta(l1 + sum a, l0 + sum (1 - a)), then omega given b.

    Both bits are 1 where y is 1; else (0, 0), (0, 1), (1, 0) have weights (1 - psi)(1 - sigma), (1 - psi) sigma, psi (1
    - sigma).
    """
    labels, scores = data.labels, data.features @ state.classifiers.squeeze(0)
    level = uniforms(tuple(labels.shape), own_stream(generator)).to(scores)
    only_a, only_b = either_bit(state.weights[state.assignments].squeeze(1), scores)
    present, missing = labels > 0, labels.isnan()
    a = (present | (level < only_a)).to(scores).masked_fill(missing, torch.nan)
    b = (present | (level > 1 - only_b)).to(scores).masked_fill(missing, torch.nan)
    prior: Any = model.label_likelihood
    family = MaskedBernoulli(prior.a, prior.b)
    chi = family.prior() + family.summed_statistics(a, state.assignments, len(state.weights))
    psi = family.draw(chi, generator)["probs"].unsqueeze(1)
    observed = scored(replace(data, targets=2 * b - 1), model).observe(state.classifiers, slice(None), generator)
    return replace(state, weights=psi), observed


def either_bit(psi: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities [...] of (a, b) = (1, 0) and of (0, 1) where y = 0."""
    present, absent = torch.sigmoid(scores), torch.sigmoid(-scores)
    neither = (1 - psi) * absent
    none = (neither + (1 - psi) * present + psi * absent).clamp(min=torch.finfo(psi.dtype).tiny)
    return psi * absent / none, (1 - psi) * present / none


def draw_counts(
    state: LabelState, data: LabelData, model: BNMC, generator: torch.Generator
) -> tuple[LabelState, PseudoObservation]:
    """Draw u_n ~ Gamma(n_n, sum_c g_c sigma_c), g_kc ~ Gamma(lam_c + sum y_c, 1 + sum u sigma_c), then m and omega.

    The counts are m_nc ~ Poisson(u_n g_c (1 - sigma_c)); the precision is PG(y + m, f) and the shift (y - m) / 2.
    """
    labels, scores = data.labels, data.features @ state.classifiers.squeeze(0)
    sigma, z, stream = torch.sigmoid(scores), state.assignments, own_stream(generator)
    rate = (state.weights[z].squeeze(1) * sigma).sum(1)
    u = torch._standard_gamma(labels.sum(1), generator=stream) / rate
    sums = group_sums(torch.cat([labels, u.unsqueeze(1) * sigma], 1), z, len(state.weights))
    shape, pull = all_sum(sums).to(scores).chunk(2, 1)
    prior: Any = model.label_likelihood
    g = torch._standard_gamma(prior.concentration + shape, generator=generator) / (1 + pull)
    g = g.clamp(min=torch.finfo(g.dtype).tiny)
    negatives = torch.poisson(u.unsqueeze(1) * g[z] * torch.sigmoid(-scores), generator=stream)
    precision = draw_polya_gammas(labels + negatives, scores, stream)
    return replace(state, weights=g.unsqueeze(1)), PseudoObservation(precision, (labels - negatives) / 2)


def draw_polya_gammas(count: Tensor, tilt: Tensor, generator: torch.Generator) -> Tensor:
    """Draw PG(b, f) [N, C] for whole numbers b >= 0, as sums of b draws of PG(1, f)."""
    times = count.flatten().long()
    draws = polya_gamma(tilt.flatten().repeat_interleave(times), generator)
    place = torch.arange(len(times), device=times.device).repeat_interleave(times)
    return torch.zeros_like(tilt).flatten().index_add(0, place, draws).view(tilt.shape)


# -- log density and draws for the posterior ---------------------------------------------------------------------------


def log_joint(state: LabelState, data: LabelData, model: BNMC) -> Tensor:
    """log density [] of (z, h, psi, w) and the data; for "multinomial" that of (z, h, g, w)."""
    plain, law = _plain(state, data, model), Truncated(model.prior, model.truncation)
    sums = partition.sums_over_rows(*plain, law=law, beside=_own_labels(state, data, model))
    return partition.log_joint(*plain, law=law, sums=sums) + log_labels(state, sums.beside, model)


def log_labels(state: LabelState, told: Tensor, model: BNMC) -> Tensor:
    """log density [] of (psi, w) and the labels; `told` [] is the log density of the labels of all ranks given z."""
    log_weights = log_prior(state.classifiers, model.weight_scale).sum()
    return told + log_weights + log_psi_prior(state.weights.squeeze(1).double(), model)


def log_psi_prior(psi: Tensor, model: BNMC) -> Tensor:
    """log density [] of psi [T, C], or of g [T, C] for the joint "multinomial"."""
    labels: Any = model.label_likelihood
    if model.joint == "and":
        return torch.distributions.Beta(labels.a.double(), labels.b.double(), validate_args=False).log_prob(psi).sum()
    return torch.distributions.Gamma(labels.concentration.double(), 1.0, validate_args=False).log_prob(psi).sum()


def draw(state: LabelState, data: LabelData, model: BNMC) -> Draw:
    """The draw that the posterior keeps of a state."""
    plain, law = _plain(state, data, model), Truncated(model.prior, model.truncation)
    sums = partition.sums_over_rows(*plain, law=law, beside=_own_labels(state, data, model))
    kept = partition.draw(*plain, law=law, sums=sums)
    kept["log_joint"] = kept["log_joint"] + log_labels(state, sums.beside, model)
    psi = state.weights.squeeze(1)
    kept["label_means"] = psi if model.joint == "and" else psi / psi.sum(1, keepdim=True)
    return finished_draw(kept, state.classifiers.squeeze(0), data, model)


def _own_labels(state: LabelState, data: LabelData, model: BNMC) -> Tensor:
    """log density [] of this rank's labels given z."""
    psi, scores = state.weights.squeeze(1), data.features @ state.classifiers.squeeze(0)
    return log_label_factor(model.joint, psi[state.assignments], scores, data.labels).double().sum()


def _plain(state: LabelState, data: LabelData, model: BNMC) -> tuple[PartitionState, Data, DPM]:
    """State, data and model of the mixture of x alone, without labels."""
    bare = PartitionState(state.assignments, state.weights[:, :0, :0], state.hyper)
    return bare, data.inputs, DPM(model.likelihood, model.prior, model.truncation, model.num_features)


_AUGMENTED: dict[str, Any] = {"and": draw_bits, "multinomial": draw_counts}
