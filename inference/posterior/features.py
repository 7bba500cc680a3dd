"""The posterior of a latent feature model: features of rows, their loadings, and prediction from both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from ...models.arrays import as_incomplete, like
from ...models.base import Model
from ...models.distributions.sampling import draw as drawn_from
from ...models.distributions.sampling import normals, uniforms
from ...models.domains import Number, read
from ...models.latent_features import FeatureData
from ...models.losses import Loss
from ..bits.rows import BinaryRows, LoadingMoments, best_features
from ..classifiers.duals import solve
from ..structures import Draw, Structure, register_structure
from .base import Posterior
from .binary_features import BinaryFeatures, summaries_per
from .draws import FeatureDraw
from .new_data import NewData, by_draw, in_place, number_of_rows, stream
from .scores import ScoreMixture, ScorePrediction, chunks
from .stacking import stacks


class FeaturePosterior(BinaryFeatures, ScorePrediction, Posterior):
    """A fitted model of latent binary features.

    `samples` holds S draws: `features` [S, N, K] (bits; by SVI probabilities), their `loadings` [S, K, D], `log_odds`
    [S, K] of having them (-inf beyond the features of a draw), `weights` [S, K, C] and `input_weights` [S, P, C] of the
    classifiers, and hyperparameters such as `noise_precision` [S]. `FeatureDraw` has all names.

    The features of a new row come from its entries alone. Under each draw, coordinate ascent finds independent features
    with the largest bound (after small variance: bits with the least objective) from four starts: the prior, no
    features, all features, and the features of the best of some different training rows. The scores are averaged over
    the draws. For transductive prediction, include the rows in the fit, without targets.
    """

    instead = "transform(X)"
    record = FeatureDraw

    def transform(self, X: Any) -> Any:
        """Probabilities [N, K] of the features of rows [N, D] under the representative draw; NaN is missing.

        After small variance they are bits. They are the best of a few local optima, from the entries alone, also for
        rows of the fit; the `features` of these rows, in contrast, may depend on labels or be draws of a sampler.
        """
        rows = self.checked(X)
        draw = self.draw(self.representative)
        return like(torch.cat([self._features(part, draw) for part in chunks(rows)]), X)

    def sample(self, num_rows: int, *, generator: torch.Generator | None = None) -> NewData:
        """Independent new rows of the predictive distribution, with targets where the model has them.

        A row has a draw g at random, bits z_k ~ Bernoulli(sigmoid(log_odds_k)) of the draw's own features, none that no
        row of the fit has, and x ~ p(x | W^T z), with loadings of SVI drawn from their q. Its scores are those of its
        bits and of what the classifiers see of x. Margin factors do not count for x, and there are no `assignments`.

        Raises
        ------
        NotImplementedError    of small variance, whose bits and loadings have no density.
        """
        if self.backend.kind == "objective":
            raise NotImplementedError("Features of small variance have no density. Fit with Gibbs or SVI.")
        model, loadings = self.model, self.samples["loadings"]
        number = number_of_rows("num_rows", num_rows, loadings.shape[2], loadings)
        own_stream = stream(generator, loadings)
        draws = torch.randint(len(loadings), (number,), generator=own_stream, device=loadings.device)
        X, targets = loadings.new_empty(number, loadings.shape[2]), list[tuple[Tensor, Tensor]]()
        for g, rows in by_draw(draws):
            draw = self.draw(g)
            odds = draw["log_odds"].sigmoid().expand(len(rows), -1)
            bits = (uniforms(odds.shape, own_stream) < odds).to(loadings)
            X[rows] = drawn_from(model.likelihood.distribution(*self._linear(bits, draw, own_stream)), own_stream)
            scores = bits @ draw["weights"] + model.features(X[rows]) @ draw["input_weights"]
            y = self.draw_targets(scores, None, own_stream)
            if y is not None:
                targets.append((rows, y))
        return NewData(X, in_place(targets), None)

    @property
    def loadings(self) -> Tensor:
        """Loadings [K, D] of the representative draw."""
        return self.samples["loadings"][self.representative]

    def over_rows(self, place: Tensor, left_out: Any = None) -> Self:
        """The same posterior with other training rows: row n is row place[n] [N] of this one.

        Where place[n] is -1 it is the next row left out [M, D], whose features come from its entries.
        """
        samples = dict(self.samples)
        samples["features"] = samples["features"][:, place.clamp(min=0)]
        if left_out is not None and len(left_out):
            found = [self._features(left_out, self.draw(index)) for index in range(len(samples["features"]))]
            bits = not samples["features"].is_floating_point()
            joined = torch.stack([(psi > 0.5) if bits else psi for psi in found]).to(samples["features"])
            samples["features"][:, place < 0] = joined
        return self.replace(samples=samples)

    def refit(
        self, X: Any, y: Any, *, loss: Loss | None = None, weight_scale: float | None = None, tolerance: float = 1e-3
    ) -> Self:
        """The posterior with other classifiers: SVMs on features that are inferred without labels.

        In a fit labels shape the features of their rows, and a new row has no label. If they shape them much,
        classifiers that are trained on features inferred as for a new row predict better. Loadings stay as they are.
        Under each draw eta is the minimum of |eta|^2 / (2 nu^2) - sum_n log phi(y_n | eta^T [E z_n; b_n]), by duals.

        Parameters
        ----------
        X, y : rows [N, D] and labels, or targets [N], those of the fit or others; missing as in a fit
        loss : in place of the model's
        weight_scale : nu > 0 in place of the model's
        tolerance : the relative duality gap at which to stop

        Raises
        ------
        NotImplementedError    if the loss has no known conjugate, as with any loss of ordered classes.
        """
        if self.model.coding is None:
            raise ValueError(f"{type(self.model).__name__} has no labels to predict: fit InfiniteLatentSVM().")
        rows, tolerance = self.checked(X), read("tolerance", tolerance, Number(least=0.0))
        changes = {"loss": loss, "weight_scale": weight_scale}
        model = self.model.replace(**{name: value for name, value in changes.items() if value is not None})
        model, data = model.prepare(rows, y)
        if model.loss.target == "level":
            raise NotImplementedError("refit solves duals, which no loss of ordered classes has: keep the fit's own.")
        rows = data.X if data.observed is None else data.X.masked_fill(data.observed == 0, torch.nan)
        found = []
        for index in range(sum(self.num_draws)):
            seen = torch.cat([self._features(rows, self.draw(index)), data.inputs], 1)
            options: dict[str, Any] = {"tolerance": tolerance, "max_passes": _MOST_PASSES}
            found.append(solve(seen, data.targets, model.loss, model.weight_scale, **options).weights)
        K = self.samples["weights"].shape[1]
        samples = dict(self.samples)
        samples["weights"], samples["input_weights"] = torch.stack(found).split([K, len(found[0]) - K], dim=1)
        return self.replace(model=model, samples=samples)

    def rehearse(self) -> None:
        width = self.model.num_features
        # more rows than columns, so that a map that confuses the two fails
        rows = self.samples["loadings"].new_zeros(width + 1, width)
        self._features(rows, self.draw(0))
        self._require_classes(rows)

    # -- prediction ----------------------------------------------------------------------------------------------------

    def checked(self, X: Any) -> Tensor:
        """The rows [N, D] of X as a user passes it, with NaN where an entry is missing."""
        rows, observed = as_incomplete(X, num_features=self.model.num_features, like=self.samples["loadings"])
        self.model.likelihood.admit(rows, observed)
        if observed is None:
            return rows
        self.model.require_missing()
        return rows.masked_fill(observed == 0, torch.nan)

    def score_mixtures(self, X: Tensor, *, spread: bool = False) -> Iterator[ScoreMixture]:
        inputs = self.model.features(X)
        for index in range(sum(self.num_draws)):
            draw = self.draw(index)
            scores = self._features(X, draw) @ draw["weights"] + inputs @ draw["input_weights"]
            yield ScoreMixture(scores.new_zeros(len(scores), 1), scores.unsqueeze(1), None)

    def _linear(self, bits: Tensor, draw: Draw, generator: torch.Generator) -> tuple[Tensor, Draw]:
        """W^T z [N, D] of bits [N, K], with loadings drawn where only their law is known; and hyperparameters."""
        mean = bits @ draw["loadings"]
        if "loading_covariance" in draw:
            variance = torch.einsum("nk,ukl,nl->nu", bits, draw["loading_covariance"], bits)[:, draw["kind"]]
            mean = mean + variance.sqrt() * normals(mean.shape, generator, mean)
        return mean, self._hyperparameters(draw, mean)

    def _hyperparameters(self, draw: Draw, like: Tensor) -> Draw:
        """The hyperparameters of the likelihood in a draw."""
        return {name: draw[name] for name in self.model.likelihood.start(like)}

    def _features(self, X: Tensor, draw: Draw) -> Tensor:
        """Probabilities [N, K] of the features of rows [N, D], NaN where an entry is missing."""
        missing = X.isnan()
        counted = (~missing).to(X) if missing.any() else None
        loadings = LoadingMoments(draw["loadings"], draw.get("loading_covariance"), draw.get("kind"))
        h = self._hyperparameters(draw, X)
        hard = self.backend.kind == "objective"
        candidates = different_rows(draw["features"] > 0.5, _NUM_CANDIDATES)
        rows = BinaryRows(X.nan_to_num(), counted, self.model.likelihood, h, draw["log_odds"].to(X), loadings)
        return best_features(rows, candidates=candidates, hard=hard)


def different_rows(bits: Tensor, most: int) -> Tensor:
    """At most `most` different rows [U, K] of bits [N, K], independent of the order of the rows and of repetitions."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator, device="cpu").to(bits.device)
    keys, order = (bits * factors).sum(1).sort(stable=True)  # a pseudo-random order
    first = torch.ones_like(keys, dtype=torch.bool)
    first[1:] = keys[1:] != keys[:-1]
    return bits[order[first][:most]]


_NUM_CANDIDATES = 64
_MOST_PASSES = 10_000  # of an SVM: few bits in many combinations need many


def _state_size(model: Model, data: FeatureData, number: int) -> int:
    """The numbers of loadings, and of bits or their probabilities."""
    return number * (data.X.shape[1] + data.num_data)


register_structure(
    Structure("features", FeatureData, FeaturePosterior, stacks(FeatureDraw), summaries_per("row"), _state_size)
)
