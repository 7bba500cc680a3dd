"""What is drawn of a latent feature model given its bits: loadings, weights and the precisions of the likelihood."""

from __future__ import annotations

import torch
from torch import Tensor

from ....models.ilsvm import InfiniteLatentSVM
from ....models.latent_features import FeatureData
from ....models.losses import PseudoObservation
from ....models.priors import Hyper
from ...bits.loadings import Loadings, regress
from ...classifiers.ridge import Ridge, soft_ridge
from ...distributed.collectives import all_sum, own_stream
from ..classifiers import observe_scores
from ..moves.elliptical_slice import elliptical_slice
from .state import FeatureState


def observe_entries(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> PseudoObservation:
    """Pseudo-observations of the linear predictors [N, D] of the entries, at a draw of their augmentation variables."""
    mean = state.features.to(state.loadings) @ state.loadings
    return model.likelihood.augment(data.X, mean, state.entries, own_stream(generator))


def loadings_posterior(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, observed: PseudoObservation
) -> Loadings:
    """Gaussians of the loadings [K, D] given the bits and the observed entries."""
    precision = model.likelihood.loading_precision(state.entries, data.X.shape[1])
    return regress(state.features.to(state.loadings), data, observed, precision)


def draw_weights(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> Tensor:
    """Weights [K + P, C]: for each block of scores a fresh omega, then eta | omega; without omega by slice steps."""
    if not model.loss.is_augmented:
        return slide_weights(state, data, model, generator)
    weights, design = state.weights.clone(), _design(state, data)
    for columns in model.loss.blocks(weights.shape[1]):
        observed = observe_scores(design @ weights, data.targets, model.loss, columns, generator)
        weights[:, columns] = weights_posterior(design, observed, model).draw(generator)[0]
    return weights


def weights_posterior(design: Tensor, observed: PseudoObservation, model: InfiniteLatentSVM) -> Ridge:
    """The Gaussian of weights [1, K + P, C'] given what they see [N, K + P] and pseudo-observations [N, C']."""
    precision, shift = (part.unsqueeze(1) for part in observed)
    return soft_ridge(design, precision, shift, design.new_ones(len(design), 1), weight_scale=model.weight_scale)


def slide_weights(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> Tensor:
    """Weights [K + P, C] after elliptical slice steps, all in one piece."""
    design = _design(state, data)

    def log_likelihood(weights: Tensor, which: Tensor) -> Tensor:
        log_factors = [model.log_margin(design @ one, data.targets).double().sum() for one in weights]
        total: Tensor = all_sum(torch.stack(log_factors))
        return total

    scale, steps = model.weight_scale, _NUM_STEPS
    return elliptical_slice(state.weights.unsqueeze(0), scale, log_likelihood, generator, num_steps=steps)[0]


def precision_laws(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM
) -> dict[str, tuple[Tensor, Tensor]]:
    """(shape, rate) of the gamma law that each precision of the likelihood has given all else, [] float64."""
    laws = model.likelihood.hyperpriors(state.loadings.new_zeros((), dtype=torch.float64))
    if not any(laws.values()):
        return {}
    W, mean = state.loadings, state.features.to(state.loadings) @ state.loadings
    squares = torch.cat([W.square().sum(0), W.new_tensor([float(len(W))])])
    seen = model.likelihood.evidence(data.X, mean, mean.square(), squares, data.counted)
    return {
        name: (law.concentration + seen[name][0], law.rate + seen[name][1])
        for name, law in laws.items()
        if law is not None
    }


def draw_precisions(
    state: FeatureState, data: FeatureData, model: InfiniteLatentSVM, generator: torch.Generator
) -> Hyper:
    """Hyperparameters of the likelihood given all else."""
    drawn = {
        name: torch._standard_gamma(shape, generator=generator) / rate
        for name, (shape, rate) in precision_laws(state, data, model).items()
    }
    return state.entries | drawn


def _design(state: FeatureState, data: FeatureData) -> Tensor:
    """What the classifiers see, [N, K + P]."""
    return torch.cat([state.features.to(state.weights), data.inputs], 1)


_NUM_STEPS = 3  # an ellipse step moves less than a draw given omega
