"""The kernel mean embedding of a Dirichlet process mixture: weights of fixed components match the mean of the data.

    minimize |mu_hat - sum_j pi_j mu_j|^2 / 2 + ridge |pi - pi0|^2 / 2    over the simplex,
    mu_hat = sum_n k(x_n, .) / N,   mu_j = E k(x, .) for x ~ p(. | theta_j),   j = 1..T

is a quadratic program in pi, with S_ij = <mu_i, mu_j> and R_j = <mu_hat, mu_j>. It has one optimum: there are no
chains, local optima or latent variables. Assignments follow afterwards: P(z_n = j) is proportional to pi_j p(x_n |
theta_j).

Sources: Muandet (2012), with the corrections of docs/derivations/hilbert-embedding, "The quadratic program";
docs/derivations/mixtures, "What the papers print".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor

from ...models.data import Data
from ...models.domains import Count, Labels, NonNegative, OneOf, Positive, Seed
from ...models.dpm import DPM
from ...models.host import require_room
from ...models.likelihoods import ExponentialFamily, Parameters
from ...models.mixture import Mixture
from ..backend import Backend
from ..posterior import PartitionPosterior
from ..posterior.draws import PartitionDraw, drawn
from ..protocol import Model
from ..running.engine import Chain, Draw, Kernel, Schedule, Sweeps
from . import atoms, simplex_qp
from .mean_kernels import MeanKernel, mean_over
from .mmd import resolved_kernel
from .truncation_error import expected_weights, least_truncation


class _Components(Labels):
    """The domain of the argument `components`."""

    @property
    def words(self) -> str:
        return "'data', 'prior', a posterior over partitions, labels [N] of the rows, or a dict of parameters [T, ...]"

    def read(self, value: Any) -> Any:
        """A word, labels or parameters; for a posterior its components, or its partition if these are centres."""
        if isinstance(value, PartitionPosterior):
            if "centers" in value.samples:
                return value.partition()
            draw = {name: samples[value.representative] for name, samples in value.samples.items()}
            return atoms.posterior_components(value.model, draw)
        if not isinstance(value, dict):
            return super().read(value)
        sizes = {len(part) for part in value.values()}
        if len(sizes) != 1 or not all(torch.as_tensor(part).isfinite().all() for part in value.values()):
            raise ValueError
        return value


@dataclass(eq=False)
class HilbertEmbedding(Backend):
    """The mixture of fixed components that is nearest to the data in the space of a kernel: a point estimate.

    Its `samples` hold the parameters of the components as `parameters.<name>` [1, T, ...], their log weights,
    `responsibilities` [1, N, T], the `gap` [1] of the optimum (see `simplex_qp`), and the `bandwidth` [1, D] of the
    kernel, if it has one. The trace is the objective less |mu_hat|^2 / 2, which never rises.

    Parameters
    ----------
    rkhs : the kernel; None: `RBFKernel()` of Gaussians, Bernoulli and Poisson columns, `QuadraticKernel()` of
        multinomial counts, `FourierKernel()` of any other family
    components : "data": fitted to groups of rows around T seeds that are far apart; "prior": draws from the prior, as
        in the theory, of which many are needed with more than a few columns; a posterior of the same family: the
        components of its representative draw at their expected parameters, or, if it only has centres, components
        fitted to its groups of rows; labels [N] of groups of rows; or parameters by name, [T, ...] each
    truncation : T; None: all components that are given, else the least T for which the expected squared error of the
        truncation is at most `truncation_error` (see `truncation_error.expected_error`)
    truncation_error : in units of the largest k(x, x); used if `truncation` is None
    ridge : weight of |pi - pi0|^2 / 2, in units of the largest S_jj
    shrink_to : pi0; "uniform": the same for all, as in the paper, or "prior": the expected weights of sticks 1..T under
        the prior, which depend on the concentration. Components that have sizes are then sorted, largest first
    tolerance : the gap at which to stop, in units of the largest S_jj; the objective is then at most this far above the
        optimum
    max_steps : largest number of sweeps of the solver
    seed : of the draws from the prior, or of the seeds
    progress : whether to show a bar; None: on a terminal only

    Examples
    --------
    >>> import torch
    >>> X = torch.cat([torch.zeros(30, 1), torch.ones(10, 1)])
    >>> given = {"loc": torch.tensor([[0.0], [1.0], [2.0]])}
    >>> from regbayes.models import SphericalGaussian
    >>> posterior = HilbertEmbedding(components=given, ridge=0.0).fit(DPM(SphericalGaussian(variance=0.01)), X)
    >>> posterior.samples["log_mixture"][0, :3].exp().round(decimals=2)
    tensor([0.7500, 0.2500, 0.0000])
    """

    rkhs: MeanKernel | None = None
    components: Annotated[Any, _Components("data", "prior")] = "data"
    truncation: Count | None = None
    truncation_error: Positive = 1e-6
    ridge: NonNegative = 1e-4
    shrink_to: Annotated[str, OneOf("uniform", "prior")] = "uniform"
    tolerance: NonNegative = 1e-10
    max_steps: Count = 200
    seed: Seed = 0
    progress: bool | None = None

    value_name: ClassVar[str] = "objective"
    kind: ClassVar[str] = "objective"
    needs: ClassVar[str] = "sticks"
    weighs: ClassVar[bool] = True

    def truncation_of(self, model: Model) -> str:
        return ""

    def may_grow(self) -> tuple[str, ...]:
        return ("max_steps",)

    def schedule(self) -> Schedule:
        return Schedule(self.max_steps, stop=_is_settled)

    def results(self, sweeps: Sweeps, chains: list[Chain]) -> list[list[Draw]]:
        (chain,) = chains
        return [[sweeps.drawn(chain.state)]]


@dataclass(frozen=True)
class Embedding:
    """Weights of T fixed components, and their quadratic program."""

    parameters: Parameters  # of the family, each [T, ...]
    quadratic: Tensor  # [T, T] S + ridge I
    linear: Tensor  # [T] R + ridge pi0
    weights: Tensor  # [T] pi
    gap: float  # of the optimality conditions; see `simplex_qp`
    enough: float  # the gap at which to stop


def why_not(model: Mixture) -> str:
    """Return "" for mixtures without hyperplanes, the only ones that it serves."""
    return ", which is for mixtures without hyperplanes" if getattr(model, "feature_map", None) is not None else ""


def check(backend: HilbertEmbedding, model: Mixture) -> None:
    """Raise NotImplementedError if kernel or components do not suit the likelihood."""
    if backend.rkhs is not None:
        backend.rkhs.admit(model.likelihood)
    grouped = isinstance(backend.components, Tensor) or backend.components == "data"
    if grouped and not isinstance(model.likelihood, ExponentialFamily):
        raise NotImplementedError(
            f"{type(model.likelihood).__name__} has no conjugate prior by which rows make components: pass "
            "components='prior', or a dict of parameters."
        )


@dataclass(frozen=True, eq=False)
class Prepared:
    """The data, and the kernel with defaults computed from them."""

    data: Data
    rkhs: MeanKernel


def kernel(backend: HilbertEmbedding, model: DPM) -> Kernel:
    """The kernel for a resolved model, with the options of `backend`."""

    def prepare(model: DPM, data: Data) -> Prepared:
        return Prepared(data, resolved_kernel(backend.rkhs, model.likelihood, data.X, data.weights))

    def init(model: DPM, prepared: Prepared, generator: torch.Generator) -> Embedding:
        data, rkhs = prepared.data, prepared.rkhs
        return embed(backend, rkhs, components(backend, rkhs, model, data, generator), model, data)

    return Kernel(
        state=Embedding,
        init=init,
        sweep=lambda state, prepared, model, generator, step: sweep(state),
        value=lambda state, prepared, model: simplex_qp.objective(state.quadratic, state.linear, state.weights),
        draw=lambda state, prepared, model: {**draw(state, prepared.data, model), **_bandwidth(prepared.rkhs)},
        prepare=prepare,
    )


def components(
    backend: HilbertEmbedding, rkhs: MeanKernel, model: DPM, data: Data, generator: torch.Generator
) -> Parameters:
    """Parameters of the T components, each [T, ...]."""
    source, family, T = backend.components, cast(ExponentialFamily, model.likelihood), backend.truncation
    if isinstance(source, dict):
        given = _fitting(family, source, data.features)
        return {name: value[:T] for name, value in given.items()}
    if isinstance(source, Tensor):
        if len(source) != data.num_data:
            raise ValueError(
                f"components has labels of {len(source)} rows, but X has {data.num_data}. Fit both to the same rows."
            )
        groups = atoms.from_labels(family, data.X, data.weights, source, generator)
        return {name: value[:T] for name, value in groups.items()}
    if T is None:
        like = torch.zeros((), dtype=torch.float64)
        T = least_truncation(model.prior, backend.truncation_error, like, nonnegative=rkhs.nonnegative)
    T = T if source == "prior" else min(T, data.num_data)
    require_room("truncation", T, 16 * T**2, data.X.device)  # for its quadratic program
    if source == "prior":
        return atoms.from_prior(family, T, generator)
    return atoms.from_rows(family, data.X, data.weights, T, generator)


def embed(backend: HilbertEmbedding, rkhs: MeanKernel, parameters: Parameters, model: DPM, data: Data) -> Embedding:
    """The quadratic program of fixed components, parameters [T, ...], at uniform weights."""
    family = model.likelihood
    S = rkhs.inner(family, parameters)
    R = mean_over(rkhs.cross(family, parameters, data.X), data.weights)
    uniform, unit = torch.full_like(R, 1 / len(R)), simplex_qp.scale(S)
    target = uniform if backend.shrink_to == "uniform" else expected_weights(model.prior, len(R), R)
    ridge = backend.ridge * unit
    quadratic, linear = S + ridge * torch.eye(len(R), dtype=R.dtype, device=R.device), R + ridge * target
    found = simplex_qp.gap(quadratic, linear, uniform)
    return Embedding(parameters, quadratic, linear, uniform, found, backend.tolerance * unit)


def sweep(state: Embedding) -> Embedding:
    """Take accelerated gradient steps, then pivots; neither raises the objective."""
    weights = simplex_qp.sweep(state.quadratic, state.linear, state.weights, state.enough)
    return replace(state, weights=weights, gap=simplex_qp.gap(state.quadratic, state.linear, weights))


def draw(state: Embedding, data: Data, model: DPM) -> Draw:
    """The draw that the posterior keeps: P(z_n = j) prop. to pi_j p(x_n | theta_j), and the mixture itself."""
    log_weights = state.weights.log().to(data.X.dtype)
    joint = model.likelihood.log_density(data.X, state.parameters) + log_weights
    return drawn(
        PartitionDraw(
            assignments=joint.argmax(1),
            responsibilities=joint.softmax(1),
            log_mixture=torch.cat([log_weights, log_weights.new_tensor([-torch.inf])]),
            weights=data.features.new_zeros(len(log_weights), data.features.shape[1], data.targets.shape[1]),
            gap=state.linear.new_tensor(state.gap),
        ),
        {f"parameters.{name}": value for name, value in state.parameters.items()},
        model.prior.start(data.features),
    )


def _fitting(family: Any, given: dict[str, Any], like: Tensor) -> Parameters:
    """Parameters [T, ...] as tensors like `like` [...], checked against the likelihood's prior."""
    found = {name: torch.as_tensor(value).detach().to(like) for name, value in given.items()}
    num_components = len(next(iter(found.values())))

    def require(name: str, distribution: Any) -> Tensor:
        wanted = [num_components, *distribution.event_shape]
        if name not in found:
            raise ValueError(f"components has {', '.join(found)}, but no {name!r}: pass its values {wanted}.")
        if list(found[name].shape) != wanted:
            raise ValueError(f"components has {name!r} of shape {list(found[name].shape)}; expected {wanted}.")
        if not distribution.support.check(found[name]).all():
            raise ValueError(f"components has values of {name!r} outside {distribution.support}.")
        return found[name]

    read: Parameters = family.parameters(family.prior().to(like.device).expand(num_components, -1), require)
    if others := sorted(found.keys() - read.keys()):
        raise ValueError(f"components has {', '.join(others)}, which {type(family).__name__} does not: leave it out.")
    return read


def _is_settled(chain: Chain) -> bool:
    """Whether the tolerance is reached, or rounding stops the objective from falling."""
    settled: bool = chain.state.gap <= chain.state.enough
    return settled or (len(chain.values) > 1 and chain.values[-1] >= chain.values[-2])


def _bandwidth(rkhs: Any) -> Draw:
    return {"bandwidth": rkhs.bandwidth} if hasattr(rkhs, "bandwidth") else {}


HilbertEmbedding.register(Data, SimpleNamespace(kernel=kernel, check=check, why_not=why_not))
