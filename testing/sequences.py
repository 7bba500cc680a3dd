"""Exact posteriors of tiny sequences: the weight of every partition of the steps into states, or of every labelling.

    p(z, X) = p(z) prod_k m(X_k) g(S_k)

m is in closed form from the family, and g (if states repel) is by quadrature, both from `enumeration`. p(z) is a sum
over the tables of the Chinese restaurant franchise, with rows and base weights integrated out:

    p(z) = prod_j Gamma(alpha) / Gamma(alpha + n_j.)
           sum_m prod_jk s(n_jk, m_jk) alpha^m_jk p(states chosen for the tables)

with the unsigned Stirling numbers s of the first kind. A table of row j serves j by stickiness with probability rho,
else a state chosen from beta, whose integral is the EPPF of these choices (or their labelled prior, truncated). Each
term is a function of alpha times one of gamma, and their laws are independent: two quadratures integrate them out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..models.priors import DirichletProcess, Hyper
from ..models.priors.laws import PathLaw, law_of
from ..models.sequence import Sequences, StateSpace
from .enumeration import Labels, log_blocks, partitions
from .hyperparameters import log_mean, log_structure_prior
from .programs import check_state_space
from .references import Reference, register_reference


def state_posterior(
    model: StateSpace, X: Any, lengths: Any = None, *, truncation: int | None = None
) -> dict[Labels, float]:
    """Exact probability of every partition of N <= 6 steps; with `truncation`, of every labelling 0..T-1.

    Partitions are written with labels in order of first appearance.
    """
    log_weights = state_log_weights(model, X, lengths, truncation=truncation)
    probabilities = torch.tensor(list(log_weights.values()), dtype=torch.float64).softmax(0).tolist()
    return dict(zip(log_weights, probabilities, strict=True))


def log_state_evidence(model: StateSpace, X: Any, lengths: Any = None, *, truncation: int) -> float:
    """log p(X) of the truncated model, with states summed out: the upper bound of an ELBO."""
    log_weights = state_log_weights(model, X, lengths, truncation=truncation)
    return float(torch.tensor(list(log_weights.values()), dtype=torch.float64).logsumexp(0))


def state_log_weights(
    model: StateSpace, X: Any, lengths: Any = None, *, truncation: int | None = None
) -> dict[Labels, float]:
    """log p(z, X) of every partition of the steps, or of every labelling of the truncated model."""
    resolved, data = model.prepare(X, None, lengths)
    if data.num_data > 6:
        raise ValueError(f"{data.num_data} steps have too many states. Use at most 6.")
    log_block = log_blocks(data.points, resolved)
    labellings: Iterator[Labels] = partitions(data.num_data)
    if truncation:
        labellings = itertools.product(range(truncation), repeat=data.num_data)
    else:
        log_block = [value - log_block[0] for value in log_block]
    observed, starts = data.steps.tolist(), data.starts.tolist()
    log_weights = {}
    for labels in labellings:
        num_states = truncation or max(labels) + 1
        blocks = [sum(1 << m for m, t in enumerate(observed) if labels[t] == k) for k in range(num_states)]
        counts = _count(labels, starts, num_states)
        log_prior = log_path_prior(counts, law_of(resolved.prior, truncation))
        log_weights[labels] = log_prior + sum(log_block[block] for block in blocks)
    return log_weights


def log_path_prior(counts: tuple[Labels, ...], law: PathLaw) -> float:
    """log p(z) from the transition counts n [K + 1][K] out of every state and of the start (last)."""
    prior, num_states = law.prior, len(counts[0])
    rho = prior.stickiness
    rows = DirichletProcess(prior.concentration, prior.concentration_prior)
    chosen_by = DirichletProcess(prior.top_concentration, prior.top_concentration_prior)
    top = law_of(chosen_by, None if law.alike else num_states)
    totals = torch.tensor([sum(row) for row in counts], dtype=torch.float64)

    @cache
    def log_tables(num_tables: int) -> float:  # alpha^m.. prod_j Gamma(alpha) / Gamma(alpha + n_j.)
        def log_value(h: Hyper) -> Tensor:
            alpha = h["concentration"]
            return num_tables * alpha.log() + (torch.lgamma(alpha) - torch.lgamma(alpha + totals)).sum()

        return float(log_mean(rows, log_value))

    @cache
    def log_chosen(sizes: Labels) -> float:
        return log_structure_prior(top, sizes)

    cells = [(j, k) for j in range(num_states + 1) for k in range(num_states) if counts[j][k]]
    log_terms = []
    for tables in itertools.product(*(range(1, counts[j][k] + 1) for j, k in cells)):
        log_weight = sum(math.log(_stirling(counts[j][k], m)) for (j, k), m in zip(cells, tables, strict=True))
        log_weight += log_tables(sum(tables))
        own = [m for (j, k), m in zip(cells, tables, strict=True) if j == k]
        chosen = [0] * num_states
        for (j, k), m in zip(cells, tables, strict=True):
            if j != k:
                chosen[k] += m
                log_weight += m * math.log1p(-rho) * (j < num_states)
        itself = [k for j, k in cells if j == k]
        for sticky in itertools.product(*(range(m + 1 if rho else 1) for m in own)):
            more, log_split = list(chosen), 0.0
            for k, m, w in zip(itself, own, sticky, strict=True):
                more[k] += m - w
                log_split += math.log(math.comb(m, w)) + (m - w) * math.log1p(-rho) + (w * math.log(rho) if w else 0.0)
            if not law.alike or 0 not in more:  # a state must have been chosen before it can stick
                log_terms.append(log_weight + log_split + log_chosen(tuple(more)))
    return float(torch.tensor(log_terms, dtype=torch.float64).logsumexp(0))


def _count(labels: Labels, starts: list[bool], num_states: int) -> tuple[Labels, ...]:
    counts = [[0] * num_states for _ in range(num_states + 1)]
    for t, label in enumerate(labels):
        counts[num_states if starts[t] else labels[t - 1]][label] += 1
    return tuple(map(tuple, counts))


@cache
def _stirling(n: int, m: int) -> int:
    """Unsigned Stirling number of the first kind."""
    if n == m:
        return 1
    if m == 0 or m > n:
        return 0
    return _stirling(n - 1, m - 1) + (n - 1) * _stirling(n - 1, m)


register_reference(
    Sequences,
    Reference(
        posterior=lambda model, X, y, lengths, truncation: state_posterior(model, X, lengths, truncation=truncation),
        log_evidence=lambda model, X, y, lengths, truncation: log_state_evidence(
            model, X, lengths, truncation=truncation
        ),
        program=check_state_space,
    ),
)
