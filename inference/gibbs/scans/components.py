"""The draw of assignments given components, for scans of all points at once, and statistics of the components."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ....models.data import Data
from ....models.distributions.sampling import draw_categorical
from ....models.likelihoods import ExponentialFamily
from ....models.likelihoods.base import Parameters
from ....models.mixture import Mixture
from ....models.scores import scores
from ....models.sequence import Sequences, StateSpace
from ....models.sums import among, row_chunks
from ...distributed.collectives import all_sum, all_sums
from ..prepared import Prepared
from ..state import PartitionState


class Components(NamedTuple):
    """The components that a point chooses from."""

    log_mixture: Tensor  # [K] float64
    parameters: Parameters  # of the likelihood, each [K, ...]
    weights: Tensor  # [K, P, C]

    def join(self, other: Components) -> Components:
        """These components followed by others."""
        parameters = {name: torch.cat([value, other.parameters[name]]) for name, value in self.parameters.items()}
        log_mixture = torch.cat([self.log_mixture, other.log_mixture])
        return Components(log_mixture, parameters, torch.cat([self.weights, other.weights]))


def assignment_logits(data: Data, parameters: Parameters, weights: Tensor, model: Mixture | StateSpace) -> Tensor:
    """log p(x_n | theta_k) + log phi(y_n | eta_k^T a_n) [N, K] with weights [K, P, C], up to a constant for each row.

    Scans add log mixture weights, or apply slices.
    """
    if isinstance(data, Prepared):
        log_density = data.log_densities(parameters)
    else:
        log_density = model.likelihood.log_density(data.X, parameters)
    if not weights.shape[2]:  # no classifiers
        return log_density
    return log_density + model.log_margin(scores(data.features, weights), data.targets.unsqueeze(1))


def draw_assignments(
    data: Data, components: Components, model: Mixture, uniforms: Tensor, log_slices: Tensor | None = None
) -> Tensor:
    """Draw a component [N] for each point by inverse CDF, with weight pi_k p(x_n | theta_k) phi(y_n | eta_k).

    With slices log u_n [N], pi_k enters only through the indicator of u_n <= pi_k.
    """
    chosen = torch.empty(data.num_data, dtype=torch.long, device=data.X.device)
    for rows in row_chunks(data.X, len(components.weights) * (1 + data.targets.shape[1])):
        logits = assignment_logits(data.rows(rows), components.parameters, components.weights, model)
        if log_slices is None:
            logits += components.log_mixture.to(logits)
        else:
            logits.masked_fill_(components.log_mixture < log_slices[rows, None], -torch.inf)
        chosen[rows] = draw_categorical(logits, uniforms[rows])
    return chosen


def count_members(state: PartitionState) -> Tensor:
    """The number of points [K] in each component, float64."""
    return all_sum(torch.bincount(state.assignments, minlength=len(state.weights))).double()


def members(state: PartitionState, data: Data | Sequences, model: Mixture | StateSpace) -> tuple[Tensor, Tensor]:
    """`count_members` [K] and `hyperparameters` [K, S], in one exchange of ranks."""
    own = torch.bincount(state.assignments, minlength=len(state.weights))
    counts, chi = with_hyperparameters(own, state, data, model)
    return counts.double(), chi


def with_hyperparameters(
    own: Tensor, state: PartitionState, data: Data | Sequences, model: Mixture | StateSpace
) -> tuple[Tensor, Tensor]:
    """The sum over ranks of `own` [...], and `hyperparameters` [K, S], in one exchange."""
    with among(None):
        statistics = summed_statistics(state, data, model)
    total, statistics = all_sums(own, statistics)
    return total, Prepared.of(data.points, model.likelihood).prior + statistics


def hyperparameters(state: PartitionState, data: Data | Sequences, model: Mixture | StateSpace) -> Tensor:
    """Posterior hyperparameters [K, S] of every component's likelihood, given its points."""
    return Prepared.of(data.points, model.likelihood).prior + summed_statistics(state, data, model)


def summed_statistics(state: PartitionState, data: Data | Sequences, model: Mixture | StateSpace) -> Tensor:
    """Sums [K, S] of the sufficient statistics of each component's points."""
    points, labels = Prepared.of(data.points, model.likelihood), data.observed(state.assignments)
    return points.summed(labels, len(state.weights))


def log_evidence(chi: Tensor, data: Data, family: ExponentialFamily) -> Tensor:
    """log of the integral of prod_n p(x_n | theta_{z_n}) p(theta) [] float64, from hyperparameters chi [K, S]."""
    log_normalizer, log_base_measure = Prepared.of(data, family).log_constants
    return family.log_partition(chi.double()).sum() - (len(chi) * log_normalizer - log_base_measure)


def draw_parameters(
    state: PartitionState, data: Data | Sequences, model: Mixture | StateSpace, generator: torch.Generator
) -> Parameters:
    """Draw the likelihood's parameters, each [K, ...], given the assignments."""
    return model.likelihood.draw(hyperparameters(state, data, model), generator)
