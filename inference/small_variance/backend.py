"""The options of the small-variance limit; kernels are in the files of their structures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, cast

import torch
from torch import Tensor

from ...models.base import coding_of
from ...models.data import Data
from ...models.domains import POSITIVE, Auto, Count, Labels, NonNegative, OneOf, Positive, Seed, Whole
from ..backend import Backend
from ..distributed.collectives import all_count
from ..distributed.rows import streamed
from ..protocol import KernelData, Model
from ..running.engine import Chain, Draw, Kernel, Schedule, Sweeps


@dataclass(eq=False)
class SmallVariance(Backend):
    """Point estimates in the limit of vanishing variances: one partition or feature matrix, and its classifiers.

        L = penalty K + sum_k |eta_k|^2 / (2 nu^2)
            + sum_n [scale D(x_n, mu_{z_n}) - log phi(y_n | eta_{z_n} . a_n)]

    is lowered in every step (Wang & Zhu 2014, equation (35); without classifiers it is DP-means). The Bregman
    divergence D is that of the likelihood, in units of its prior's expected covariance for a Gaussian. States of its
    kernels have `objective` [] and `converged`.

    For latent features K is their number, and in place of a centre a row has the sum of the loadings of its features:
    BP-means (Broderick, Kulis & Jordan 2013) with a margin. Read "features" for "components" below.

    Parameters
    ----------
    penalty : cost of one more component; None: from `num_components`, or from the components of `init`
    transition_penalty : for sequences, cost of one more kind of transition; None: the mean cost of a step
    transition_weight : for sequences, weight of the log probabilities of transitions. 0: how often a transition is
        used does not matter, the plain limit; 1: as much as in the likelihood (Roychowdhury, Jiang & Kulis 2013)
    scale : weight of the divergence relative to the margin loss; the smaller, the more the labels decide the
        components. "auto": 3 if components have classifiers of classes and 30 if features have classifiers, since only
        the divergence assigns a new row; else 1
    num_components : number of components for which the penalty is chosen if it is None; the fit may find a different
        number. "auto": 8; if components have classifiers of classes, N / (15 P) for N rows and P features of
        the classifiers, at least 8 and at most 16
    tolerance : stop once a sweep lowers L by no more than this fraction (the paper's rule), moves no more than this
        fraction of the points, and no split or merge helps
    max_steps : largest number of sweeps of a restart
    num_restarts : number of descents; the posterior has the lowest one and its trace. The first descent starts from one
        component, or from `num_components` if the penalty is chosen for these and they cost less (if components repel,
        and for sequences, from the components of DP-means); the others start from any number of components around
        points far apart. "auto": 10^5 / (N (10 + D + P)) for N rows of D columns and P features of classifiers, half of
        that for tasks, a quarter for label sets with the joint "and", a sixteenth for latent features, at least 1 and
        at most 16: many if they cost little, one for 10^4 rows or more, and one if `init` has labels. The `backend` of
        the posterior has the number
    init : "auto", or for mixtures whose components do not repel a Tensor [N] of labels, whose components the first
        descent starts from. If the penalty is None, it is then chosen so that no further components open
    merge : whether to try to merge components when further sweeps change little
    creation : "joint": a component opens where that pays for all points that would join it, so that L gets low; a
        sensible penalty then grows with the number of points. "single": a component opens only where that pays for one
        point alone, as in DP-means as published, where the penalty is a squared distance times scale / 2; L stays
        higher, but it finds small components beside large ones
    seed : of all randomness
    num_jobs : processes that the restarts run in, as in `Gibbs`; None: one for each core, if that saves time
    progress : whether to show a bar; None: on a terminal only

    For `DPM` and `InfiniteSVM`, X may also be a source of rows (`rows_of`). It is read in passes, and the fit finds
    what it finds with the rows as a tensor. A sweep takes 3 passes, or 5 with classifiers; a sweep that looks for new
    components takes 7 to 25, with classifiers some 50 to 60 once it has settled. The rows must come in the same order
    in each pass. Memory grows by 4 bytes a row, and by 4 more while the penalty is chosen. Defaults that come from the
    data use the first 100,000 rows, the penalty uses 20,000 rows at random, and `assignments` of the posterior has the
    first rows alone. Each rank of a `group` may have a source of its own: a pass ends in one sum over all of them.

    References
    ----------
    Kulis & Jordan (2012); Broderick, Kulis & Jordan (2013); Wang & Zhu (2014).

    Examples
    --------
    >>> import torch
    >>> from regbayes.models import DPM
    >>> X = torch.cat([torch.zeros(5, 1), torch.ones(5, 1)])
    >>> SmallVariance(penalty=1.0).fit(DPM(), X).num_components
    2
    """

    penalty: Positive | None = None
    transition_penalty: Positive | None = None
    transition_weight: NonNegative = 0.0
    scale: Annotated[Any, Auto(POSITIVE)] = "auto"
    num_components: Annotated[Any, Auto(Whole(1))] = "auto"
    tolerance: NonNegative = 1e-3
    max_steps: Count = 100
    num_restarts: Annotated[int | str, Auto(Whole(1))] = "auto"
    init: Annotated[str | Tensor, Labels("auto")] = "auto"
    merge: bool = True
    creation: Annotated[str, OneOf("joint", "single")] = "joint"
    seed: Seed = 0
    num_jobs: Count | None = None
    progress: bool | None = None

    value_name: ClassVar[str] = "objective"
    kind: ClassVar[str] = "objective"
    weighs: ClassVar[bool] = True

    def truncation_of(self, model: Model) -> str:
        return ""

    def may_grow(self) -> tuple[str, ...]:
        return "max_steps", "num_restarts"

    def admit(self, model: Model) -> Model:
        model = super().admit(model)
        if isinstance(self.init, Tensor) and not self.takes_labels(model):
            raise ValueError(
                f"init has labels, but {type(model).__name__} has a start of its own. Leave init out; labels are for "
                "DPM and InfiniteSVM."
            )
        return model

    def prepare(
        self, model: Model, X: Any, y: Any, lengths: Any, **weights: Tensor
    ) -> tuple[Kernel, Model, KernelData, Schedule]:
        """As `Backend.prepare`; X [N, D] of a mixture may also be a source of rows."""
        source, begin = streamed(X), getattr(self.module_of(model), "stream", None)
        if source is None or begin is None:
            return super().prepare(model, X, y, lengths, **weights)
        if y is not None or lengths is not None:
            raise ValueError("y and lengths come with the blocks of a source of rows: leave them out.")
        kernel, model, data = begin(self, model, source)
        schedule = self.resolve(model, data).schedule()
        return kernel, model, data, dataclasses.replace(schedule, num_jobs=1)

    def takes_labels(self, model: Model) -> bool:
        """Whether a descent of the model may start from labels."""
        takes = getattr(self.module_of(model), "takes_labels", None)
        return takes is not None and takes(model)

    def is_first(self, generator: torch.Generator) -> bool:
        """Whether the generator is that of the first restart, whose seed is the fit's own."""
        return generator.initial_seed() == self.seed

    def resolve(self, model: Model, data: KernelData) -> Self:
        """A copy with the scale and the numbers of components and restarts."""
        own = self.takes_labels(model) and (coding := coding_of(model)) is not None and coding.has_classes
        module = self.module_of(model)
        row_cost = module.row_cost(model) if hasattr(module, "row_cost") else 1
        restarts = 1 if isinstance(self.init, Tensor) else _cheap_restarts(data, row_cost)
        auto = {
            "scale": module.auto_scale(model) if hasattr(module, "auto_scale") else 1.0,
            "num_components": _told(data) if own else _COMPONENTS,
            "num_restarts": restarts,
        }
        return self.replace(**{name: value for name, value in auto.items() if getattr(self, name) == "auto"})

    def schedule(self) -> Schedule:
        return Schedule(
            self.max_steps,
            int(self.num_restarts),
            self.num_jobs,
            stop=lambda chain: chain.state.converged,
        )

    def results(self, sweeps: Sweeps, chains: list[Chain]) -> list[list[Draw]]:
        return [[sweeps.drawn(_lowest(chains).state)]]

    def traced(self, chains: list[Chain]) -> list[Chain]:
        return [_lowest(chains)]


def _lowest(chains: list[Chain]) -> Chain:
    """The chain of lowest objective, the first among equals up to rounding; chains without a step come last."""
    moved = [chain for chain in chains if chain.step] or chains
    values = [float(chain.state.objective) for chain in moved]
    return next(
        chain for chain, value in zip(moved, values, strict=True) if value <= min(values) + _ROUNDING * abs(value)
    )


def _cheap_restarts(data: KernelData, row_cost: int) -> int:
    """How many descents together cost about as much as one descent of a mixture with many rows.

    A row of another structure costs `row_cost` times as much as one of a mixture.
    """
    seen = getattr(data, "features", None)  # latent features and tasks add a few columns at most
    width = data.X.shape[1] + (0 if seen is None else seen.shape[1])
    num_rows = all_count(getattr(data, "num_own", data.num_data))  # a source has the number of all ranks
    return max(1, min(_MOST_RESTARTS, _NUMBERS // (num_rows * (_OVERHEAD + width) * row_cost)))


def _told(data: KernelData) -> int:
    """The number of components whose classifiers these rows determine, within bounds."""
    first = cast(Data, getattr(data, "first", data))  # a source's rows have no weights
    told = int(first.total_weight if first is data else data.num_data) // (_ROWS * first.features.shape[1])
    return max(_COMPONENTS, min(_MOST_COMPONENTS, told))


_COMPONENTS, _MOST_COMPONENTS = 8, 16
_ROWS = 15  # rows per weight of a component's classifier
_MOST_RESTARTS = 16
_NUMBERS = 10**5
_ROUNDING = 1e-10
_OVERHEAD = 10  # the fixed cost of a row, in columns
