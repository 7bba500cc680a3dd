"""The posterior of a latent feature model: features of rows, their loadings, and prediction from both."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.arrays import as_incomplete, like
from ...models.base import Model
from ...models.domains import Number, read
from ...models.latent_features import FeatureData
from ...models.losses import Loss
from ..bits.rows import BinaryRows, LoadingMoments, best_features
from ..classifiers.duals import solve
from ..structures import Draw, Structure, register_structure
from .base import Posterior
from .draws import FeatureDraw
from .pairs import shared_features
from .scores import ScoreMixture, ScorePrediction, chunks


class FeaturePosterior(ScorePrediction, Posterior):
    """A fitted model of latent binary features.

    `samples` holds `features` [S, N, K] (bits, int8; of SVI probabilities), `log_odds` [S, K] of the features of a new
    row, `loadings` [S, K, D], `weights` [S, K, C] and `input_weights` [S, P, C] of the scores, and the hyperparameters
    of prior and likelihood, such as `concentration` and `noise_precision` [S]; of SVI also `loading_covariance`
    [S, U, K, K] of the U kinds of columns and `kind` [S, D], and with rule="averaging" the `duality_gap` [S] of the
    weights. Features beyond a draw's own have log odds -inf.

    The features of a new row come from its entries alone, under each draw: independent ones of the largest bound that
    coordinate ascent finds (of small variance: bits of the least objective) from four starts, which are the prior, none
    of the features, all, and those of the training row that suits it best of some different ones. Its scores are
    averaged over the draws. To predict rows transductively fit with their targets missing.
    """

    instead = "transform(X)"
    record = FeatureDraw

    def transform(self, X: Any) -> Any:
        """Probabilities [N, K] of the features of rows [N, D] under the representative draw; NaN is missing.

        Of small variance bits. They are the best of a few local optima, from the entries alone: also of rows of the
        fit, whose own `features` labels may have shaped, or a sampler drawn.
        """
        rows = self.checked(X)
        draw = self._draw(self.representative)
        return like(torch.cat([self._features(part, draw) for part in chunks(rows)]), X)

    @property
    def num_latent_features(self) -> int:
        """Features that some training row has (with probability above one half) in the representative draw."""
        return int((self.features > 0.5).any(0).sum())

    @property
    def features(self) -> Tensor:
        """Features [N, K] of the training rows in the representative draw."""
        return self.samples["features"][self.representative]

    @property
    def loadings(self) -> Tensor:
        """Loadings [K, D] of the representative draw."""
        return self.samples["loadings"][self.representative]

    @cached_property
    def representative(self) -> int:
        """The draw whose numbers of features shared by pairs of rows are nearest to their posterior means.

        Of many rows some 2,000 pairs are looked at, the same in each draw.
        """
        features = self.samples["features"]
        if len(features) == 1:
            return 0
        generator = torch.Generator(features.device).manual_seed(0)
        pairs = torch.randint(features.shape[1], (2, _NUM_PAIRS), generator=generator, device=features.device)
        shared = torch.stack([(draw[pairs[0]] * draw[pairs[1]]).sum(1, dtype=torch.float64) for draw in features])
        return int((shared - shared.mean(0)).square().sum(1).argmin())

    def facts(self) -> list[str]:
        """What `repr` says of the structure."""
        return [f"{self.num_latent_features} features"]

    def over_rows(self, place: Tensor, left_out: Any = None) -> Self:
        """The same posterior with other rows for its training rows: row n is the row place[n] [N] of this one, or the
        next of those left out [M, D] where that is -1, whose features come from their entries."""
        samples = dict(self.samples)
        samples["features"] = samples["features"][:, place.clamp(min=0)]
        if left_out is not None and len(left_out):
            found = [self._features(left_out, self._draw(index)) for index in range(len(samples["features"]))]
            bits = not samples["features"].is_floating_point()
            joined = torch.stack([(psi > 0.5) if bits else psi for psi in found]).to(samples["features"])
            samples["features"][:, place < 0] = joined
        return type(self)(self.model, self.backend, samples, self.num_draws, self.trace, self.metadata)

    def refit(
        self, X: Any, y: Any, *, loss: Loss | None = None, weight_scale: float | None = None, tolerance: float = 1e-3
    ) -> Self:
        """The posterior with other classifiers: SVMs on the features that rows have without their labels.

        In a fit labels shape the features of their rows, and a new row has none; where that is much, classifiers that
        are trained on features inferred as those of a new row predict better. Loadings stay as they are. Under each
        draw eta is the minimum of |eta|^2 / (2 nu^2) - sum_n log phi(y_n | eta^T [E z_n; b_n]), by duals.

        Parameters
        ----------
        X, y : rows [N, D] and labels, or targets [N], those of the fit or others; missing as in a fit
        loss : in place of the model's
        weight_scale : nu > 0 in place of the model's
        tolerance : the relative duality gap at which to stop

        Raises
        ------
        NotImplementedError    if the loss has no known conjugate.
        """
        if self.model.coding is None:
            raise ValueError(f"{type(self.model).__name__} has no labels to predict: fit InfiniteLatentSVM().")
        rows, tolerance = self.checked(X), read("tolerance", tolerance, Number(least=0.0))
        changes = {"loss": loss, "weight_scale": weight_scale}
        model = self.model.replace(**{name: value for name, value in changes.items() if value is not None})
        model, data = model.prepare(rows, y)
        rows = data.X if data.observed is None else data.X.masked_fill(data.observed == 0, torch.nan)
        found = []
        for index in range(sum(self.num_draws)):
            seen = torch.cat([self._features(rows, self._draw(index)), data.inputs], 1)
            options: dict[str, Any] = {"tolerance": tolerance, "max_passes": _MOST_PASSES}
            found.append(solve(seen, data.targets, model.loss, model.weight_scale, **options).weights)
        K = self.samples["weights"].shape[1]
        samples = dict(self.samples)
        samples["weights"], samples["input_weights"] = torch.stack(found).split([K, len(found[0]) - K], dim=1)
        return type(self)(model, self.backend, samples, self.num_draws, self.trace, self.metadata)

    def rehearse(self) -> None:
        rows = self.samples["loadings"].new_zeros(1, self.model.num_features)  # of no rows nothing is inferred
        self._features(rows, self._draw(0))
        self._require_classes(rows)

    # -- prediction ----------------------------------------------------------------------------------------------------

    def checked(self, X: Any) -> Tensor:
        """The rows [N, D] of what a user passes, NaN where an entry is missing."""
        rows, observed = as_incomplete(X, num_features=self.model.num_features, like=self.samples["loadings"])
        self.model.likelihood.admit(rows, observed)
        if observed is None:
            return rows
        if self.model.feature_map is not None:
            raise ValueError("X has missing entries (NaN), and feature_map needs them all: impute them.")
        return rows.masked_fill(observed == 0, torch.nan)

    def score_mixtures(self, X: Tensor) -> Iterator[ScoreMixture]:
        inputs = self.model.features(X.nan_to_num())
        for index in range(sum(self.num_draws)):
            draw = self._draw(index)
            scores = self._features(X, draw) @ draw["weights"] + inputs @ draw["input_weights"]
            yield ScoreMixture(scores.new_zeros(len(scores), 1), scores.unsqueeze(1), None)

    def _features(self, X: Tensor, draw: Draw) -> Tensor:
        """Probabilities [N, K] of the features of rows [N, D], NaN where an entry is missing."""
        missing = X.isnan()
        counted = (~missing).to(X) if missing.any() else None
        loadings = LoadingMoments(draw["loadings"], draw.get("loading_covariance"), draw.get("kind"))
        h = {name: draw[name] for name in self.model.likelihood.start(X)}
        hard = self.backend.kind == "objective"
        candidates = different_rows(draw["features"] > 0.5, _NUM_CANDIDATES)
        rows = BinaryRows(X.nan_to_num(), counted, self.model.likelihood, h, draw["log_odds"].to(X), loadings)
        return best_features(rows, candidates=candidates, hard=hard)

    def _draw(self, index: int) -> Draw:
        return {name: value[index] for name, value in self.samples.items()}


def different_rows(bits: Tensor, most: int) -> Tensor:
    """Some different rows [U, K] of bits [N, K], at most so many: the same ones whatever order the rows are in, and
    however often they occur."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator).to(bits.device)
    keys, order = (bits * factors).sum(1).sort(stable=True)  # as if at random
    first = torch.ones_like(keys, dtype=torch.bool)
    first[1:] = keys[1:] != keys[:-1]
    return bits[order[first][:most]]


def _stack(draws: list[Draw]) -> Draw:
    """Draws with different numbers of features: missing ones have log odds -inf and loadings and weights 0."""
    most = max(len(draw["log_odds"]) for draw in draws)
    padded = [_pad(draw, most - len(draw["log_odds"])) for draw in draws]
    samples = {name: torch.stack([draw[name] for draw in padded]) for name in padded[0]}
    features = draws[0]["features"]  # large: no padded copy of each draw
    samples["features"] = features.new_zeros(len(draws), len(features), most)
    for row, draw in zip(samples["features"], draws, strict=True):
        row[:, : draw["features"].shape[1]] = draw["features"]
    return samples


def _pad(draw: Draw, missing: int) -> Draw:
    more = {
        "log_odds": pad(draw["log_odds"], (0, missing), value=-torch.inf),
        "loadings": pad(draw["loadings"], (0, 0, 0, missing)),
        "weights": pad(draw["weights"], (0, 0, 0, missing)),
    }
    if "loading_covariance" in draw:
        more["loading_covariance"] = pad(draw["loading_covariance"], (0, missing, 0, missing))
    return {name: value for name, value in draw.items() if name != "features"} | more


def _summaries(posterior: FeaturePosterior) -> Draw:
    """Numbers of features used, of features a row has and of those that pairs of rows share [S, P], the length of the
    weights, and what is one number a draw."""
    features = posterior.samples["features"] > 0.5
    return {
        "num_latent_features": features.any(1).sum(1),
        "features_per_row": features.sum((1, 2)).double() / max(1, features.shape[1]),
        "shared": shared_features(features),
        "weight_norm": posterior.samples["weights"].double().square().sum((1, 2)).sqrt(),
        **{name: value for name, value in posterior.samples.items() if value.ndim == 1},
    }


_NUM_PAIRS = 2000
_NUM_CANDIDATES = 64
_MOST_PASSES = 10_000  # of an SVM: few bits in many combinations take many


def _state_size(model: Model, data: FeatureData, number: int) -> int:
    """Loadings, and bits or their probabilities."""
    return number * (data.X.shape[1] + data.num_data)


register_structure(Structure("features", FeatureData, FeaturePosterior, _stack, _summaries, _state_size))
