"""What the command line's names of models and backends stand for."""

from __future__ import annotations

from ..inference import SVI, Gibbs, SmallVariance
from ..inference.backend import Backend
from ..models import DPM, DiagonalGaussian, FullGaussian, InfiniteSVM, Mixture, SphericalGaussian

__all__ = ["BACKENDS", "LIKELIHOODS", "backend_of", "model_of"]

BACKENDS = ("small_variance", "svi", "gibbs")
LIKELIHOODS = {"full": FullGaussian, "diagonal": DiagonalGaussian, "spherical": SphericalGaussian}


def model_of(name: str, likelihood: str | None, num_features: int) -> Mixture:
    """The model of this name, its components with the Gaussian of this name (see `LIKELIHOODS`).

    By default a full covariance, which takes fewer components than a diagonal one, as long as it is affordable.
    """
    models: dict[str, type[Mixture]] = {"InfiniteSVM": InfiniteSVM, "DPM": DPM}
    default = "full" if num_features <= _MOST_FOR_FULL else "diagonal"
    return models[name]().set_params(likelihood=LIKELIHOODS[likelihood or default]())


def backend_of(name: str, seed: int, progress: bool | None = None) -> Backend:
    """The backend of this name, as the command line sets it up."""
    backends: dict[str, Backend] = {
        "small_variance": SmallVariance(seed=seed, progress=progress),
        "svi": SVI(seed=seed, progress=progress),
        "gibbs": Gibbs(num_samples=60, num_warmup=40, split_merge=1, seed=seed, progress=progress),
    }
    return backends[name]


_MOST_FOR_FULL = 50
