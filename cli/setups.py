"""The models and backends behind the names on the command line."""

from __future__ import annotations

from ..inference import SVI, Backend, Gibbs, SmallVariance
from ..models import (
    BNMC,
    DDPM,
    DIH,
    DPM,
    IHMM,
    DiagonalGaussian,
    EpsilonInsensitive,
    FullGaussian,
    Hinge,
    InfiniteLatentSVM,
    InfiniteSVM,
    Logistic,
    MedLDA,
    Mixture,
    Model,
    MultinomialDirichlet,
    SphericalGaussian,
    StateSpace,
)
from .errors import CommandError

BACKENDS = ("small_variance", "svi", "gibbs")
LIKELIHOODS = {"full": FullGaussian, "diagonal": DiagonalGaussian, "spherical": SphericalGaussian}
TABLE_MODELS = ("DPM", "DDPM-S", "DDPM-L")
STATE_MODELS = ("IHMM", "DIH-S", "DIH-L")
LABEL_MODELS = ("BNMC product", "BNMC and")


def model_of(name: str, likelihood: str | None, num_features: int, real_target: bool = False) -> Model:
    """The model of this name; a mixture has the Gaussian components named `likelihood` (see `LIKELIHOODS`).

    The default is a full covariance, which needs fewer components than a diagonal one, as long as it is affordable. A
    real target gets the loss of support vector regression. The names `LABEL_MODELS` stand for the joints of a BNMC,
    whose inputs are diagonal by default.

    Raises
    ------
    CommandError    if a likelihood is given for a model that is not a mixture.
    """
    if name in LABEL_MODELS:
        return BNMC(LIKELIHOODS[likelihood or "diagonal"](), joint=name.removeprefix("BNMC "))
    models: dict[str, type[Model]] = {
        "InfiniteSVM": InfiniteSVM,
        "DPM": DPM,
        "InfiniteLatentSVM": InfiniteLatentSVM,
        "MedLDA": MedLDA,
    }
    model: Model = models[name]()
    if isinstance(model, Mixture):
        default = "full" if num_features <= _MOST_FOR_FULL else "diagonal"
        model.set_params(likelihood=LIKELIHOODS[likelihood or default]())
    elif likelihood is not None:
        raise CommandError(f"--likelihood is for components of mixtures, and {name} has none. Leave it out.")
    return model.set_params(loss=EpsilonInsensitive()) if real_target else model


def backends_for(name: str) -> tuple[str, ...]:
    """The names of the backends of a model, the default one first."""
    if name in LABEL_MODELS:
        return ("svi", "small_variance", "gibbs")
    return BACKENDS[1:] if name == "MedLDA" else BACKENDS


def clustering_model(name: str, likelihood: str | None, num_features: int) -> Mixture | StateSpace:
    """One of `TABLE_MODELS` or `STATE_MODELS`; S stands for the hinge, L for the logistic loss.

    Likelihoods are those of `model_of` and "multinomial", for counts. A concentration has the prior Gamma(1, 1).
    """
    default = "full" if num_features <= _MOST_FOR_FULL else "diagonal"
    counts = likelihood == "multinomial"
    family = MultinomialDirichlet() if counts else LIKELIHOODS[likelihood or default]()
    kind, _, variant = name.partition("-")
    plain: dict[str, type[Mixture | StateSpace]] = {"DPM": DPM, "DDPM": DDPM, "IHMM": IHMM, "DIH": DIH}
    model = plain[kind]().set_params(likelihood=family, prior__concentration_prior=(1.0, 1.0))
    if variant:
        model.set_params(loss=Hinge() if variant == "S" else Logistic(), feature_map__proportions=counts)
    return model


def backend_of(name: str, seed: int, progress: bool | None = None) -> Backend:
    """The backend of this name with the command line's settings."""
    backends: dict[str, Backend] = {
        "small_variance": SmallVariance(seed=seed, progress=progress),
        "svi": SVI(seed=seed, progress=progress),
        "gibbs": Gibbs(num_samples=60, num_warmup=40, split_merge=1, seed=seed, progress=progress),
    }
    return backends[name]


_MOST_FOR_FULL = 50
