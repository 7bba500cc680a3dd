"""Exact answers for multi-label models on tiny data: the exact weight of every partition, or of every labelling.

    p(z, X, Y, s) = p(z) prod_k m(X_k, Y_k) prod_c I_c,   I_c = integral of N(w; 0, nu^2 I) prod_n phi(s_nc | w^T a_n)

is the joint "product", in which the classifiers' integrals do not depend on z. m is in closed form from the families,
and I_c by quadrature (`enumeration`). In a coupled joint the labels have one integral for each z,

    integral of prod_c N(w_c; 0, nu^2) prod_k p(psi_k) prod_{z_n = k} p(y_n | psi_k, f_n)

over a grid of w (one feature) and Gauss-Jacobi nodes of psi: label by label for "and", of two labels for "multinomial".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer import TraceEnum_ELBO
from scipy.special import roots_jacobi
from torch import Tensor

from ..models.bnmc import BNMC
from ..models.dpm import DPM
from ..models.label_data import LabelData
from ..models.label_joints import log_label_factor
from ..models.priors.laws import law_of
from ..models.priors.sticks import log_stick_weights
from .enumeration import Labels, log_blocks, log_classifier_integrals, partitions
from .hyperparameters import log_structure_prior
from .programs import (
    compare,
    compare_family,
    compare_prior,
    laws_of,
    log_total,
    require_no_others,
    require_sites,
    sites_of,
)
from .references import Reference, register_reference


def label_posterior(model: BNMC, X: Any, y: Any, *, truncation: int | None = None) -> dict[Labels, float]:
    """Exact posterior probability of every partition of N <= 8 points; with `truncation`, of every labelling 0..T-1."""
    log_weights = label_log_weights(model, X, y, truncation=truncation)
    probabilities = torch.tensor(list(log_weights.values()), dtype=torch.float64).softmax(0).tolist()
    return dict(zip(log_weights, probabilities, strict=True))


def log_evidence(model: BNMC, X: Any, y: Any, *, truncation: int | None = None) -> float:
    """log p(X, Y, s) = log sum_z p(z, X, Y, s): the upper bound of an ELBO."""
    log_weights = label_log_weights(model, X, y, truncation=truncation)
    return float(torch.tensor(list(log_weights.values()), dtype=torch.float64).logsumexp(0))


def label_log_weights(model: BNMC, X: Any, y: Any, *, truncation: int | None = None) -> dict[Labels, float]:
    """log p(z, X, Y, s) of every partition of the infinite model, or of every labelling of the truncated one."""
    model, data = model.prepare(X, y)
    if data.num_data > 8 or (truncation or 1) ** data.num_data > 10**5:
        raise ValueError(f"{data.num_data} points have too many partitions. Use at most 8, and 10^5 labellings.")
    log_labels: Callable[[list[int]], float]
    if model.is_coupled:
        plain = DPM(model.likelihood, model.prior, model.truncation, model.num_features)
        blocks, log_labels = log_blocks(data.inputs, plain), _Tables.of(data, model).log_labels
    else:
        everyone = data.features.new_ones(1, data.num_data)
        margins = float(log_classifier_integrals(data.margins, model, everyone))
        blocks, log_labels = log_blocks(data.points, model.mixture), lambda codes: margins
    blocks = blocks if truncation else [value - blocks[0] for value in blocks]
    labellings: Iterator[Labels] = partitions(data.num_data)
    if truncation:
        labellings = itertools.product(range(truncation), repeat=data.num_data)
    found = {}
    for labels in labellings:
        num_blocks = truncation or max(labels) + 1
        sizes, codes = tuple(labels.count(k) for k in range(num_blocks)), _codes(labels, num_blocks)
        log_prior = log_structure_prior(law_of(model.prior, truncation), sizes)
        found[labels] = log_prior + sum(blocks[code] for code in codes) + log_labels(codes)
    return found


def expected_weights(model: BNMC, X: Any, y: Any, *, truncation: int) -> Tensor:
    """Exact posterior means [C] of the classifiers of a coupled joint, with one feature each."""
    posterior = label_posterior(model, X, y, truncation=truncation)
    resolved, data = model.prepare(X, y)
    tables = _Tables.of(data, resolved)
    means = [share * tables.mean_weights(_codes(labels, truncation)) for labels, share in posterior.items()]
    return torch.stack(means).sum(0)


@dataclass(frozen=True)
class _Tables:
    """Integrals of the labels over psi, at G nodes of w, for every set of points, by groups of independent labels."""

    weights: list[Tensor]  # [G, C'] of each group
    log_mass: list[Tensor]  # [G] under the prior
    blocks: list[Tensor]  # [G, 2^N]
    constant: float

    @classmethod
    def of(cls, data: LabelData, model: BNMC) -> Self:
        C, labels, constant = data.targets.shape[1], data.labels.double(), 0.0
        groups = [[c] for c in range(C)] if model.joint == "and" else [list(range(C))]
        if data.features.shape[1] != 1 or (model.joint != "and" and C != 2):
            raise ValueError("Quadrature takes one feature and, of counts, two labels.")
        if model.joint == "multinomial":
            constant = float(torch.lgamma(1 + labels.sum(1)).sum() - torch.lgamma(1 + labels).sum())
        codes = torch.arange(1 << data.num_data)
        members = (codes.unsqueeze(1) >> torch.arange(data.num_data) & 1).double()
        weights, log_mass, blocks = list[Tensor](), list[Tensor](), list[Tensor]()
        for group in groups:
            axis = torch.linspace(-8, 8, 401 if len(group) == 1 else 81, dtype=torch.float64)
            w = torch.cartesian_prod(*[axis] * len(group)).view(-1, len(group))
            psi, log_share = _nodes(model, group)
            f = model.weight_scale * data.features.double().view(1, 1, -1, 1) * w[:, None, None]
            factors = log_label_factor(model.joint, psi[None, :, None], f, labels[:, group])
            blocks.append((factors @ members.T + log_share.view(1, -1, 1)).logsumexp(1))
            weights.append(model.weight_scale * w)
            log_mass.append((-w.square().sum(1) / 2).log_softmax(0))
        return cls(weights, log_mass, blocks, constant)

    def log_labels(self, codes: list[int]) -> float:
        """log p(labels | z) of the blocks of z, given by the codes of their points."""
        return sum(float(values.logsumexp(0)) for values in self._log_terms(codes)) + self.constant

    def mean_weights(self, codes: list[int]) -> Tensor:
        """E[w | z, labels] [C]."""
        terms = zip(self._log_terms(codes), self.weights, strict=True)
        return torch.cat([values.softmax(0) @ weights for values, weights in terms])

    def _log_terms(self, codes: list[int]) -> list[Tensor]:
        pairs = zip(self.log_mass, self.blocks, strict=True)
        return [log_mass + blocks[:, codes].sum(1) for log_mass, blocks in pairs]


def _codes(labels: Labels, num_blocks: int) -> list[int]:
    """For each block a number whose bits mark its points."""
    return [sum(1 << n for n, label in enumerate(labels) if label == k) for k in range(num_blocks)]


def _nodes(model: BNMC, group: list[int]) -> tuple[Tensor, Tensor]:
    """Nodes psi [J, C'] for a group of labels, and their log masses [J] under the prior."""
    labels: Any = model.label_likelihood
    a, b = (labels.a[group], labels.b[group]) if model.joint == "and" else labels.concentration.view(2, 1)
    nodes, masses = roots_jacobi(_NUM_NODES, float(b) - 1, float(a) - 1)
    x = (torch.as_tensor(nodes) + 1) / 2
    psi = x.unsqueeze(1) if model.joint == "and" else torch.stack([x, 1 - x], 1)
    return psi, torch.as_tensor(masses / masses.sum()).log()


def check_labels(model: BNMC, X: Any, y: Any, lengths: Any = None, seed: int = 0) -> None:
    """`check_model` of a multi-label model, on rows X [N, D] and labels y [N, C]."""
    model, data = model.prepare(X, y)
    again = model.resolve(X, y)
    sites = sites_of(model, (X, y), seed)
    h = compare_prior(again, sites, ["sticks"])
    a, b = again.prior.sticks(h, again.truncation)
    log_prior = again.prior.log_density(h) + dist.Beta(a, b).log_prob(sites["sticks"]["value"]).sum()
    compare(log_total(sites, [*laws_of(again), "sticks"]), log_prior, "the prior's part of the program")
    parameters, names = compare_family(again.family, sites)
    points = ["assignments", "X", "Y" if model.is_coupled else "margin"]
    require_sites(sites, ["weights", *points])
    weights = sites["weights"]["value"]
    log_weights = dist.Normal(torch.zeros_like(weights), float(again.weight_scale)).log_prob(weights).sum()
    compare(log_total(sites, ["weights"]), log_weights, "the weights' part of the program")
    known = [*laws_of(again), "sticks", *names, "weights", *points]
    require_no_others(sites, known)
    table = log_stick_weights(sites["sticks"]["value"]) + _emission(again, data, parameters, weights)
    own = table.gather(1, sites["assignments"]["value"].unsqueeze(1)).sum()
    compare(log_total(sites, points), own, "the points' part of the program")
    rest = {name: sites[name]["value"] for name in known if name not in points}
    program = poutine.enum(poutine.condition(model, data=rest), first_available_dim=-2)
    with torch.random.fork_rng():
        summed = -TraceEnum_ELBO(max_plate_nesting=1).loss(program, _empty_guide, X, y)
    expected = log_total(sites, list(rest)) + table.logsumexp(1).sum()
    compare(summed, expected, "the program with assignments summed out")


def _emission(model: BNMC, data: LabelData, parameters: dict[str, Tensor], weights: Tensor) -> Tensor:
    """log p(x_n, y_n | component k) and the classifiers' factors [N, T], from the parts of the model."""
    scores = data.features @ weights
    if not model.is_coupled:
        return model.family.log_density(data.X, parameters) + model.log_margin(scores, data.targets).unsqueeze(1)
    of_rows = {name.removesuffix("_0"): value for name, value in parameters.items() if name.endswith("_0")}
    labels = data.labels
    found = log_label_factor(model.joint, parameters["probs_1"], scores.unsqueeze(1), labels.unsqueeze(1))
    if model.joint == "multinomial":
        ways = torch.lgamma(1 + labels.sum(1)) - torch.lgamma(1 + labels).sum(1)
        found = found + ways.unsqueeze(1)
    return model.likelihood.log_density(data.inputs.X, of_rows) + found


def _empty_guide(*args: Any) -> None:
    """A guide without sites: every continuous site is conditioned on, and the assignments are summed out."""


_NUM_NODES = 48

register_reference(
    LabelData,
    Reference(
        posterior=lambda model, X, y, lengths, truncation: label_posterior(model, X, y, truncation=truncation),
        log_evidence=lambda model, X, y, lengths, truncation: log_evidence(model, X, y, truncation=truncation),
        program=check_labels,
    ),
)
