"""Log joint, ELBO or objective against elapsed time."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from ..inference import Posterior
from ..models.domains import shown
from .axes import axes_or_new, color_of, require_posterior


def plot_trace(posteriors: Mapping[str, Posterior], ax: Axes | None = None) -> Axes:
    """Value of every step against elapsed seconds (logarithmic), one line for each chain.

    A single posterior is drawn in its own units; if it has only one value, this is written out. Values of several
    backends are not comparable, so each chain is then drawn as the fraction of the way from its first value (0) to its
    last (1).
    """
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise ValueError(f"posteriors is {shown(posteriors)}; expected a dict of posteriors by their names.")
    for posterior in posteriors.values():
        require_posterior(posterior, Posterior)
    ax = axes_or_new(ax)
    alone = len(posteriors) == 1
    for index, (name, posterior) in enumerate(posteriors.items()):
        trace = posterior.trace
        for chain, (values, seconds) in enumerate(zip(trace.values.cpu(), trace.seconds.cpu(), strict=True)):
            done = ~values.isnan()
            values, seconds = values[done].numpy(), seconds[done].numpy()
            if not alone and len(values):  # a chain may have none yet
                way = values[-1] - values[0]
                values = (values - values[0]) / way if way != 0 else values * 0 + 1
            label = (f"{name} ({trace.name})" if not alone else trace.name) if chain == 0 else None
            color = color_of(index if not alone else 0)
            ax.plot(seconds, values, color=color, linewidth=1.2, marker="." if len(values) < 40 else None, label=label)
            if alone and len(values) == 1:
                ax.axhline(values[0], color=color, linewidth=0.8, alpha=0.5)
                said = f"{values[0]:.6g} from the first step on"
                ax.annotate(said, (seconds[0], values[0]), (0, 6), textcoords="offset points", ha="center")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("seconds")
    ax.set_ylabel(next(iter(posteriors.values())).trace.name if alone else "share of the way from first to last value")
    ax.grid(alpha=0.25, linewidth=0.6)
    if not alone:
        ax.legend(frameon=False)
    return ax
