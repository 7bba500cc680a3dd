"""Our blocked Gibbs sweeps inside `pyro.infer.MCMC`, for programs that call our models, possibly with other sites.

    program       u ~ p(u);  a model of ours on data(u), with sites s and assignments z;  other sites that depend on u
    transition    (z, s) by sweeps given data(u), then u by HMC or NUTS given (z, s)

Each half leaves p(u, z, s | observations) invariant. Sweeps have sticks and parameters integrated out, so these are
drawn afterwards, given all else: that order is part of the correctness. u is moved with the density of the whole
program, since the data of a model, and with them all its terms, may depend on u.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from pyro import infer, poutine
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to

from ...models.domains import SEED, Whole, read, shown
from ..gibbs import Gibbs
from ..structures import lookup
from .backend import seeded
from .calls import Arguments, Call, run_program
from .partition import Latents
from .parts import GibbsSites, Part


class PyroGibbs(MCMCKernel):
    """A kernel for `pyro.infer.MCMC`: blocked Gibbs for the regbayes models that a program calls, NUTS for other sites.

    The program may be a model itself. Its other sites may transform the rows and targets that a model is called on, or
    be parameters of its likelihood; two models need a `pyro.contrib.autoname.scope` each. Assignments [N] are kept as
    whole numbers in the dtype of the rows; of state sequences the paths are summed out. Exact in the limit.

    Parameters
    ----------
    program : callable, called on the arguments of `MCMC.run`
    rest : makes the kernel of the other sites from a program: `NUTS`, `HMC`, or `functools.partial` of one with options
    num_sweeps : of Gibbs in each transition, which cost little beside a step of NUTS
    split_merge : as in `Gibbs`
    seed : of the sweeps, which do not use Pyro's global random stream. The stream of a chain depends on this seed, on
        the seed of the global stream (`MCMC` sets a different one in each process), and on the number of earlier chains

    Raises
    ------
    ValueError             on bad options, and when it runs: if the program calls no model, if a call in it does not
                           have the density of the model (scaled, masked, in part observed, in a plate), if other sites
                           read what a model drew, are discrete, or share a name with one.
    NotImplementedError    when it runs: if the blocked scan does not serve a model.

    Examples
    --------
    >>> from pyro.infer import MCMC
    >>> from regbayes.models import DPM
    >>> mcmc = MCMC(PyroGibbs(DPM(truncation=3)), num_samples=5, warmup_steps=5, disable_progbar=True)
    >>> mcmc.run(torch.randn(10, 2, generator=torch.Generator().manual_seed(0)))
    >>> mcmc.get_samples()["sticks"].shape
    torch.Size([5, 2])
    """

    modules: ClassVar[dict[type[Any], GibbsSites[Any, Any, Any]]] = {}  # by data type

    def __init__(
        self,
        program: Callable[..., Any],
        *,
        rest: Callable[[Callable[..., Any]], infer.HMC] = infer.NUTS,
        num_sweeps: int = 1,
        split_merge: int = 2,
        seed: int = 0,
    ) -> None:
        if not callable(program):
            raise ValueError(f"program is {shown(program)}; expected a Pyro program, such as DPM() or a function.")
        self.model, self.rest = program, rest  # `MCMC` reads a kernel's `model`
        self.num_sweeps, self.seed = read("num_sweeps", num_sweeps, Whole(1)), read("seed", seed, SEED)
        self.backend = Gibbs(scan="blocked", split_merge=read("split_merge", split_merge, Whole()))
        self.transforms: dict[str, Any] | None = None  # to unconstrained space, for the other sites; `MCMC` reads it
        self._into: dict[str, Any] = {}  # another name of `transforms`
        self._given: Latents = {}
        self._num_chains = 0

    @classmethod
    def register(cls, data_type: type[Any], module: GibbsSites[Any, Any, Any]) -> None:
        """Use the module of a structure for models with this `data_type`."""
        cls.modules[data_type] = module

    # -- the interface of kernels for MCMC -----------------------------------------------------------------------------

    @property
    def initial_params(self) -> Latents:
        """The start of a chain: values of the models' sites, and of all others in unconstrained space."""
        return self._given

    @initial_params.setter
    def initial_params(self, params: Latents) -> None:
        self._given = params

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Find the models in the program, check that sweeps are valid for them, and start a chain."""
        self._arguments: Arguments = args, kwargs
        self._generator = self._stream()
        with torch.no_grad():
            values = self._start()
            self._require_exact(values)
        self._nuts: infer.HMC | None = None
        if self._into:
            self._nuts = _hmc(self.rest(self._given_models))
            self._nuts.initial_params = {name: into(values[name]) for name, into in self._into.items()}
            self._fixed = self._of_models(values)
            self._nuts.setup(warmup_steps, *args, **kwargs)
        self._given = self._as_params(values)

    def sample(self, params: Latents) -> Latents:
        """Make one transition: sweeps for each model, then a step of the kernel of all other sites."""
        with torch.no_grad():
            values = self._sweep(self._as_values(params))
            moved = self._as_params(values)
        if self._nuts is None:
            return moved
        self._fixed = self._of_models(values)
        self._nuts.clear_cache()  # the density has changed
        free = self._nuts.sample({name: params[name] for name in self._into})
        return moved | {name: value.detach() for name, value in free.items()}

    def logging(self) -> Any:
        """The text for the progress bar, from the kernel of the other sites."""
        return self._nuts.logging() if self._nuts else {}

    def diagnostics(self) -> Any:
        """The diagnostics of the other sites' kernel; without one no divergences, an entry that ArviZ requires."""
        return {"divergences": []} | (self._nuts.diagnostics() if self._nuts else {})

    def cleanup(self) -> None:
        """Forget the chain."""
        self._given = {}

    # -- a transition --------------------------------------------------------------------------------------------------

    def _sweep(self, values: Latents) -> Latents:
        """Move the models' sites, each model's given the arguments of its call."""
        if self._into:
            self._calls = run_program(self.model, self._arguments, values)[1]
        for part, call in zip(self._parts, self._calls, strict=True):
            values = values | part.move(values, call, self._generator, self.num_sweeps)
        return values

    def _given_models(self, *args: Any, **kwargs: Any) -> Any:
        """The program given the values of the models' sites, for the other kernel."""
        return poutine.condition(self.model, data=self._fixed)(*args, **kwargs)

    def _of_models(self, values: Latents) -> Latents:
        return {name: values[name] for part in self._parts for name in part.latent.values()}

    def _as_values(self, params: Latents) -> Latents:
        """Values of sites from `MCMC`'s parameters: other sites are in unconstrained space, assignments floats."""
        into = self._into
        values = {name: into[name].inv(value) if name in into else value for name, value in params.items()}
        return self._empty | values | {name: values[name].long() for name in self._labels & values.keys()}

    def _as_params(self, values: Latents) -> Latents:
        """The inverse of `_as_values`, without empty sites, which `MCMC` cannot keep."""
        into, dtype = self._into, next(v.dtype for v in values.values() if v.is_floating_point())
        params = {name: into[name](value) if name in into else value for name, value in values.items()}
        params |= {name: params[name].to(dtype) for name in self._labels}
        return {name: value for name, value in params.items() if name not in self._empty}

    # -- the start of a chain ------------------------------------------------------------------------------------------

    def _stream(self) -> torch.Generator:
        """The generator of a chain, on the device of the first tensor that the program is called on."""
        args, kwargs = self._arguments
        found = [value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        entropy = self.seed, torch.initial_seed() % 2**64, self._num_chains
        self._num_chains += 1
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        return torch.Generator(found[0] if found else "cpu").manual_seed(seed)

    def _start(self) -> Latents:
        """Values of all sites: given ones, starts of the blocked scan, and `init_to_uniform` for all others."""
        with seeded(self._generator):
            trace, calls = run_program(self.model, self._arguments, {})
            self._parts = [Part.of(call, self.backend, lookup(self.modules, call.model)) for call in calls]
            values = {name: node["value"] for name, node in trace.nodes.items() if _is_latent(node)}
            others = {name: trace.nodes[name] for name in sorted(values.keys() - self._of_models(values).keys())}
            values |= {name: init_to_uniform(node) for name, node in others.items() if not _support(node).is_discrete}
        self._label(values, others)
        given = self._as_values(self._given)
        if unknown := sorted(given.keys() - values.keys()):
            raise ValueError(f"initial_params has the sites {unknown}; the program has {sorted(values)}.")
        values |= given
        self._calls = run_program(self.model, self._arguments, values)[1]
        for part, call in zip(self._parts, self._calls, strict=True):
            values |= part.start(call, self._generator) | given
        return values

    def _label(self, values: Latents, others: dict[str, Any]) -> None:
        """Find the sites that are assignments, empty, or in unconstrained space; check them."""
        if not self._parts:
            raise ValueError(
                "The program calls no model of ours. Call one in it, such as DPM()(X), or use Pyro's NUTS."
            )
        if discrete := [name for name, node in others.items() if _support(node).is_discrete]:
            raise ValueError(f"Site {discrete[0]!r} of the program is discrete, which HMC does not move. Sum it out.")
        self._labels = {part.latent["assignments"] for part in self._parts if "assignments" in part.latent}
        self._empty = {name: value for name, value in values.items() if not value.numel()}
        self.transforms = self._into = {name: biject_to(_support(node)).inv for name, node in others.items()}

    def _require_exact(self, values: Latents) -> None:
        """Raise unless each call has the density of its model and no other site depends on what a model draws."""
        trace, calls = self._trace(values)
        if not torch.isfinite(trace.log_prob_sum()):
            raise ValueError("The program has no density where the chain starts. Give initial_params to MCMC.")
        for part, call in zip(self._parts, calls, strict=True):
            part.require_density(trace, values, call)
            part.require_unread(trace, self._trace(values | part.move(values, call, self._generator))[0])

    def _trace(self, values: Latents) -> tuple[poutine.Trace, list[Call]]:
        """The trace of the program with log densities at the values of all sites, and the calls in it."""
        trace, calls = run_program(self.model, self._arguments, values)
        trace.compute_log_prob()
        return trace, calls


def _hmc(kernel: Any) -> infer.HMC:
    """The kernel of the other sites; ValueError unless its density may change between steps."""
    if not isinstance(kernel, infer.HMC) or kernel._jit_compile:
        raise ValueError(f"rest gave {shown(kernel)}; expected a kernel HMC or NUTS of Pyro without jit_compile.")
    return kernel


def _is_latent(node: Any) -> bool:
    return node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)


def _support(node: Any) -> Any:
    return node["fn"].support
