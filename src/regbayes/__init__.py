"""Max-margin Bayesian nonparametric models with interchangeable inference, on torch and Pyro.

A model states a joint density, a backend computes its posterior; most backends serve most models:

    from regbayes.models import InfiniteSVM, DiagonalGaussian, Hinge
    from regbayes.inference import Gibbs, SVI, SmallVariance

    model = InfiniteSVM(likelihood=DiagonalGaussian(), loss=Hinge(strength=0.5))
    posterior = SmallVariance().fit(model, X, y)
    posterior.predict(X_new)

The subpackages, each imported when it is first used:

    models        DPM, InfiniteSVM, DDPM, IHMM, DIH, InfiniteLatentSVM, BNMC, MedLDA and others, and their parts
    inference     Gibbs, SVI, SmallVariance, HilbertEmbedding, NUTS, Autoguide, and the posteriors that they return
    estimators    Classifier, Regressor, Clusterer, their searches and others, for scikit-learn
    datasets      synthetic experiments and the public data sets of the papers
    plots         pictures of posteriors
    testing       checks of a prior, likelihood, loss, kernel or model of your own
    cli           the command `regbayes`

`help(regbayes.models)` and so on list the contents of each.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import cli, datasets, estimators, inference, models, plots, testing

__all__ = ["cli", "datasets", "estimators", "inference", "models", "plots", "testing"]
__version__ = version("regbayes")


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}. Models and their parts are in "
        "`models`, backends and posteriors in `inference`."
    )


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
