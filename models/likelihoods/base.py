"""The interface of an observation family: p(x | theta) and a prior over theta as a program.

That is all that the Pyro program and Pyro's own engines (`NUTS`, `Autoguide`) need. Gibbs, SVI and SmallVariance need a
conjugate prior: see `ExponentialFamily`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..config import Config
from ..distributions.sampling import draw
from ..sparse import Rows, SparseRows
from ..sums import row_chunks

Parameters = dict[str, Tensor]
"""The parameters of K components in common form, each [K, ...]; for instance {"loc": [K, D], "precision": [K, D]}."""

Sample = Callable[[str, Any], Tensor]
"""What gives a parameter its value: (name, distribution) -> value, such as `pyro.sample`."""


class Likelihood(Config, ABC):
    """A family for the rows of X [N, D]; S is the length of its hyperparameters, 0 where they are all its own fields.

    What a new family must define is abstract here. `testing.check_likelihood` checks it on a data set.
    """

    accepts_sparse: ClassVar[bool] = False
    """Whether X may be `SparseRows`."""

    @property
    def takes_missing(self) -> bool:
        """Whether entries of X may be NaN, missing: a mixture without classifiers then takes such rows."""
        return False

    @property
    def given_totals(self) -> bool:
        """Whether rows, or some of their columns, are counts whose total is given and not modelled."""
        return False

    def resolve(self, X: Rows, weights: Tensor | None = None) -> Self:
        """A copy in which every hyperparameter left as None is set from X [N, D]; tensors take X's dtype, device.

        A row counts `weights` [N] times, None: once. A family that is not to be fitted with weights may leave them out.
        """
        return self

    def check(self, X: Rows) -> None:
        """Raise ValueError, naming the value found, if a row of X [N, D] is outside the support."""

    def admit(self, X: Rows) -> None:
        """Raise ValueError if the family cannot take X [N, D]: rows outside its support, or sparse ones unless it
        `accepts_sparse`."""
        if isinstance(X, SparseRows) and not self.accepts_sparse:
            raise ValueError(
                f"X is sparse; {type(self).__name__} needs dense rows: pass X.toarray(), or use a family of counts, "
                "MultinomialDirichlet, PoissonGamma or BernoulliBeta."
            )
        self.check(X)

    def given_first(self, num_columns: int) -> Self:
        """The same family for rows whose first columns are given, so that it is a law of the others alone.

        Raises
        ------
        ValueError    unless the family is one of some columns given others.
        """
        raise ValueError(
            f"likelihood is {type(self).__name__}, a law of whole rows; lags need one of a row given those before it, "
            "such as LinearRegression()."
        )

    def prior(self) -> Tensor:
        """Hyperparameters chi0 [S] of a resolved family, which `parameters` takes; [0] where it needs none."""
        return torch.empty(0)

    @abstractmethod
    def parameters(self, chi: Tensor, sample: Sample) -> Parameters:
        """The density of theta under hyperparameters [..., S] as a program: `sample(name, distribution)` gives each
        parameter. With `pyro.sample` it is the prior in a model; `draw` below uses it for draws of shape [...]."""

    @abstractmethod
    def distribution(self, parameters: Parameters) -> Distribution:
        """p(x | theta): batch shape [...] of the parameters, event shape [D]."""

    def draw(self, chi: Tensor, generator: torch.Generator) -> Parameters:
        """Parameters of K components from hyperparameters [K, S]."""
        return self.parameters(chi, lambda name, distribution: draw(distribution, generator))

    def draw_rows(self, parameters: Parameters, generator: torch.Generator, totals: Tensor | None = None) -> Tensor:
        """A row [M, D] from each of M components; with `given_totals`, of counts that add up to `totals` [M]."""
        return draw(self.distribution(parameters), generator)

    def log_density(self, X: Rows, parameters: Parameters) -> Tensor:
        """log p(x_n | theta_k) [N, K]."""
        if not X.shape[0]:  # of no rows torch's sums over columns fail
            first = next(iter(parameters.values()))
            return first.new_zeros(0, len(first))
        distribution = self.distribution(parameters)
        width = sum(value.numel() for value in parameters.values())
        return torch.cat([distribution.log_prob(X[rows].unsqueeze(1)) for rows in row_chunks(X, width)])
