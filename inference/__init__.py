"""How posteriors are computed: one backend a class, one result type."""

from importlib.metadata import PackageNotFoundError, version

from .engine import FitInterrupted, TruncationWarning
from .gibbs import Gibbs
from .posterior import Posterior, Trace
from .pyro_engines import NUTS, Autoguide
from .sequence_posterior import SequencePosterior
from .small_variance import SmallVariance
from .svi import SVI

try:
    __version__ = version("regbayes")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "NUTS",
    "SVI",
    "Autoguide",
    "FitInterrupted",
    "Gibbs",
    "Posterior",
    "SequencePosterior",
    "SmallVariance",
    "Trace",
    "TruncationWarning",
]
