"""One of our models in a Pyro program, whose sites are moved by sweeps of the blocked Gibbs scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pyro import poutine
from torch import Tensor

from ..gibbs import Gibbs
from ..protocol import D_contra, M_contra, S
from ..running.engine import Kernel
from .calls import Call
from .partition import Latents


class GibbsSites(Protocol[M_contra, D_contra, S]):
    """The functions of a structure's module that convert sites of programs to states of the blocked scan, and back."""

    def to_gibbs(self, latents: Latents, model: M_contra, data: D_contra, generator: torch.Generator) -> S:
        """A state from the values of all sites; variables without a site are drawn."""

    def from_gibbs(self, state: S, model: M_contra, data: D_contra, generator: torch.Generator) -> Latents:
        """Values of all sites from a state; variables that the state lacks are drawn."""


@dataclass(frozen=True)
class Part:
    """A model in a program."""

    name: str  # of its class
    kernel: Kernel
    module: GibbsSites[Any, Any, Any]
    latent: dict[str, str]  # its latent sites: name in the model -> name in the program
    sites: frozenset[str]  # all of its sites, by their names in the program

    @classmethod
    def of(cls, call: Call, backend: Gibbs, module: GibbsSites[Any, Any, Any] | None) -> Part:
        """The part of a call in a program.

        Raises
        ------
        NotImplementedError    if the blocked scan does not serve the model.
        """
        name = type(call.model).__name__
        if module is None:
            raise NotImplementedError(f"{name} has no blocked scan that moves its sites. Use Pyro's NUTS.")
        backend.admit(call.model)
        latent = {own: place for own, place in call.names.items() if own in call.latent}
        return cls(name, backend.kernel(call.model), module, latent, frozenset(call.names.values()))

    def start(self, call: Call, generator: torch.Generator) -> Latents:
        """Values of the sites at the start of the blocked scan, by their names in the program.

        Raises
        ------
        ValueError    if the program draws other sites than the model has.
        """
        state = self.kernel.init(call.model, self.kernel.prepare(call.model, call.data), generator)
        found = self.module.from_gibbs(state, call.model, call.data, generator)
        if differing := sorted(found.keys() ^ self.latent.keys()):
            raise ValueError(
                f"The program draws other sites than {self.name} has: {', '.join(differing)}. Observe none of the "
                "model's, and add none in a subclass."
            )
        return {self.latent[own]: value for own, value in found.items()}

    def move(self, values: Latents, call: Call, generator: torch.Generator, num_sweeps: int = 1) -> Latents:
        """New values of the sites after sweeps on a call's data, which leave their conditional law invariant."""
        state = self.module.to_gibbs(self._own(values), call.model, call.data, generator)
        data = self.kernel.prepare(call.model, call.data)
        for step in range(num_sweeps):
            state = self.kernel.sweep(state, data, call.model, generator, step)
        found = self.module.from_gibbs(state, call.model, call.data, generator)
        return {self.latent[own]: value for own, value in found.items()}

    def require_density(self, trace: poutine.Trace, values: Latents, call: Call) -> None:
        """Raise ValueError unless the sites have the model's density in the trace of the program."""
        found = torch.stack([trace.nodes[name]["log_prob_sum"] for name in self.sites]).sum()
        with poutine.block():
            own = poutine.trace(poutine.condition(call.program, data=self._own(values))).get_trace()
        if not torch.allclose(found, own.log_prob_sum(), rtol=1e-4):
            raise ValueError(
                f"The program changes the density of {self.name}. Call the model under no handler that does, such as "
                "scale or mask."
            )

    def require_unread(self, trace: poutine.Trace, moved: poutine.Trace) -> None:
        """Raise ValueError if another site's density changed in the trace after the part's sites moved."""
        for name, node in trace.nodes.items():
            if node["type"] != "sample" or name in self.sites:
                continue
            if not torch.allclose(node["log_prob_sum"], moved.nodes[name]["log_prob_sum"]):
                raise ValueError(
                    f"Site {name!r} of the program reads what {self.name} draws, and {self.name} is updated without "
                    "that site. Other sites may only come before the model: in its rows, its targets or its likelihood."
                )

    def _own(self, values: Latents) -> dict[str, Tensor]:
        return {own: values[place] for own, place in self.latent.items()}
