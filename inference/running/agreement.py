"""Checks whether chains agree: several chains of a fit are compared, a single one with a short chain from elsewhere.

A single chain looks certain in any mode. If the number of chains is left open, a short chain therefore starts from
another place, and its draws are compared with as many, evenly spaced draws of the fit's chain. It is then dropped, and
a warning says if it ended elsewhere, unless its log joint is lower: it may still be warming up, or be in a lesser mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...models.warning import warn
from ..posterior.diagnosis import FEWEST_DRAWS, ChainsDisagree
from ..structures import structure_of
from .chains import Chain
from .engine import run
from .sweeps import Sweeps


def warn_of_chains(posterior: Any) -> None:
    """Warn if several chains disagree and have enough draws to tell."""
    if len(posterior.num_draws) < 2 or min(posterior.num_draws) < FEWEST_DRAWS:
        return
    found = posterior.diagnose()
    if found.disagrees:
        message = (
            f"The {len(posterior.num_draws)} chains disagree ({found.verdict}), so that their draws together are not "
            f"those of the posterior: {found.advice} `diagnose()` of the posterior tells more."
        )
        warn(message, ChainsDisagree)


def warn_of_elsewhere(posterior: Any, chain: Chain, sweeps: Sweeps, short: Sweeps) -> None:
    """Run a short chain, and warn if it ends elsewhere than the chain of a fit, at no lower log joint.

    Parameters
    ----------
    posterior, chain, sweeps : the fit's posterior, its only chain, and the `Sweeps` that made it
    short : the `Sweeps` of the other chain; Ctrl-C is raised
    """
    try:
        (other,) = run(short)
    except KeyboardInterrupt:
        if sweeps.schedule.on_interrupt == "raise":
            raise
        return  # the fit's own chain is complete
    number = len(other.draws)
    places = torch.linspace(0, len(chain.draws) - 1, number).round().int().tolist()
    samples = structure_of(posterior.model).stack([*(chain.draws[place] for place in places), *other.draws])
    found = posterior.replace(samples=samples, num_draws=[number, number]).diagnose()
    values, others = _kept(chain, sweeps), _kept(other, short)
    below = (values.mean() - others.mean()) / values.std()
    if found.disagrees and found.ratio >= _LARGE_RATIO and below < _FAR_BELOW:
        message = (
            f"A second, short chain from another start ended elsewhere: its draws are {found.ratio:.2g} times as far "
            f"from those of the chain that is returned as draws of one chain are from each other, and their mean "
            f"log joint is {'lower' if below > 0 else 'higher'} by {abs(below):.1f} standard deviations. One chain "
            "does not show the whole posterior here. Take num_chains=4, which run side by side, and read `diagnose()` "
            "of their posterior; num_chains=1 leaves this check out."
        )
        warn(message, ChainsDisagree)


def _kept(chain: Chain, sweeps: Sweeps) -> Tensor:
    """The values [S] of the sweeps whose draws were kept."""
    kept = [value for step, value in enumerate(chain.values) if sweeps.schedule.keep(step)]
    return torch.tensor(kept, dtype=torch.float64)


_LARGE_RATIO, _FAR_BELOW = 1.5, 1.0  # few draws seem closer to each other than they are
