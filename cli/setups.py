"""What the command line's names of models and backends stand for."""

from __future__ import annotations

from ..inference import SVI, Gibbs, SmallVariance
from ..inference.backend import Backend
from ..models import DPM, InfiniteSVM, Mixture

__all__ = ["backend_of", "model_of"]


def model_of(name: str) -> Mixture:
    """The model of this name, with its defaults."""
    return {"InfiniteSVM": InfiniteSVM, "DPM": DPM}[name]()


def backend_of(name: str, seed: int, progress: bool | None = None) -> Backend:
    """The backend of this name, at a length that suits a few thousand rows."""
    backends: dict[str, Backend] = {
        "small_variance": SmallVariance(seed=seed, progress=progress),
        "svi": SVI(seed=seed, progress=progress),
        "gibbs": Gibbs(num_samples=150, num_warmup=100, seed=seed, progress=progress),
    }
    return backends[name]
