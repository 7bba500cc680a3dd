"""The trace of a fit: the value and the time after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..running.chains import Chain
from ..running.files import require_entries


@dataclass(frozen=True)
class Trace:
    """Log joint, ELBO or objective (`values`) after every step, and the seconds until then, [chains, steps] each."""

    name: str
    values: Tensor  # [chains, steps] float64, NaN after a chain's last step
    seconds: Tensor  # [chains, steps] float64
    kind: str = "draws"  # of the backend: "draws", "bound", "objective" or "estimate"

    @classmethod
    def of(cls, name: str, kind: str, chains: list[Chain]) -> Trace:
        """The trace of some chains."""
        length = max((len(chain.values) for chain in chains), default=0)

        def padded(rows: list[list[float]]) -> Tensor:
            return torch.tensor([row + [float("nan")] * (length - len(row)) for row in rows], dtype=torch.float64)

        values, seconds = ([chain.values for chain in chains], [chain.times for chain in chains])
        return cls(name, padded(values), padded(seconds), kind)

    @classmethod
    def read(cls, content: Any) -> Trace:
        """The trace in a file; ValueError unless it is one."""
        require_entries(content, "trace", {"name": str, "values": Tensor, "seconds": Tensor, "kind": str})
        values, seconds = content["values"], content["seconds"]
        if values.ndim != 2 or values.shape != seconds.shape or not len(values):
            shapes = f"{list(values.shape)} and {list(seconds.shape)}"
            raise ValueError(f"The file has values and seconds of shapes {shapes}. It was not written by regbayes.")
        if not (values.is_floating_point() and seconds.is_floating_point()):
            kinds = f"{values.dtype} and {seconds.dtype}"
            raise ValueError(f"The file has values and seconds of types {kinds}. It was not written by regbayes.")
        return cls(content["name"], values, seconds, content["kind"])

    def require_chains(self, number: int) -> None:
        """Raise ValueError unless the trace fits `number` chains with draws; one may be the best of several."""
        chains, steps = self.values.shape
        if chains != number and (number > 1 or not steps):
            raise ValueError(
                f"The file has a trace of {chains} chains of {steps} steps for {number} with draws. "
                "It was not written by regbayes."
            )

    @property
    def final(self) -> Tensor:
        """The last value [chains] of every chain; NaN for one that was stopped before its first step."""
        values = torch.cat([self.values, self.values.new_full((len(self.values), 1), torch.nan)], 1)
        last = (~self.values.isnan()).sum(1) - 1
        return values.gather(1, (last % values.shape[1]).unsqueeze(1)).squeeze(1)

    @property
    def best(self) -> float:
        """The final value of the best chain: the lowest objective, the highest value of any other kind."""
        final = self.final[~self.final.isnan()]
        return float((final.min() if self.kind == "objective" else final.max()) if len(final) else torch.nan)
