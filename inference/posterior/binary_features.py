"""Results that posteriors over binary features share, whether rows or dimensions have the features."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

from torch import Tensor

from ..structures import Draw
from .pairs import numbers_of, shared_features, weight_norms


class BinaryFeatures:
    """A mixin for posteriors with `features` [S, N, K] (bits, or probabilities) among their samples."""

    samples: Draw

    @property
    def features(self) -> Tensor:
        """The features [N, K] of the representative draw."""
        return self.samples["features"][self.representative]

    @property
    def num_latent_features(self) -> int:
        """Features that any has (with probability above one half) in the representative draw."""
        return int((self.features > 0.5).any(0).sum())

    @cached_property
    def representative(self) -> int:
        """The draw whose numbers of features shared by pairs are closest to their posterior means.

        Of many pairs a thousand are used, the same in each draw.
        """
        if len(self.samples["features"]) == 1:
            return 0
        shared = shared_features(self.samples["features"] > 0.5).double()
        return int((shared - shared.mean(0)).square().sum(1).argmin())

    def facts(self) -> list[str]:
        """Facts about the structure for `repr`."""
        return [f"{self.num_latent_features} features"]


def summaries_per(each: str) -> Callable[[BinaryFeatures], Draw]:
    """The summaries of posteriors in which each `each` has features, such as "row"."""
    return partial(feature_summaries, each=each)


def feature_summaries(posterior: BinaryFeatures, each: str) -> Draw:
    """Numbers of features, per row (or other `each`) and shared by pairs [S, P], length of the weights, scalars."""
    features = posterior.samples["features"] > 0.5
    return {
        "num_latent_features": features.any(1).sum(1),
        f"features_per_{each}": features.sum((1, 2)).double() / max(1, features.shape[1]),
        "shared": shared_features(features),
        "weight_norm": weight_norms(posterior.samples),
        **numbers_of(posterior.samples),
    }
