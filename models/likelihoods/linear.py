"""The interface of a likelihood whose columns are linear in binary features: x_nd given m_nd = sum_k z_nk w_kd.

    p(x_nd | m_nd),    w_kd ~ N(0, 1 / loading_precision)

Backends use it like a margin loss: each replaces the factor of an entry by exp(-precision m^2 / 2 + shift m), at a draw
of an augmentation variable (Gibbs), at its expectation (SVI), or as a quadratic lower bound (small variance). The
loadings are then a Gaussian regression on the features in every family. A precision [1, D] means that the entries are
Gaussian: the precision is the same in all rows, for every m, so that sums over the rows are sufficient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Gamma

from ..config import Config
from ..losses.base import PseudoObservation
from ..priors.hyper import Hyper
from ..sparse import Rows, SparseRows


class LinearLikelihood(Config, ABC):
    """A family of entries given a linear predictor [N, D]; its hyperparameters h by name are [] float64 each.

    Entries that were not observed are arbitrary finite numbers in X. Sums over entries multiply by `observed` [N, D] of
    0 and 1; None: all entries are observed.
    """

    @abstractmethod
    def resolve(self, X: Tensor, weights: Tensor | None = None, observed: Tensor | None = None) -> Self:
        """A copy in which every None is set from X [N, D], whose rows count `weights` [N] times."""

    def check(self, X: Tensor, observed: Tensor | None = None) -> None:
        """Raise ValueError, naming the value found, if an observed entry of X [N, D] is outside the support."""

    def admit(self, X: Rows, observed: Tensor | None = None) -> None:
        """Raise ValueError if the family cannot take X [N, D]."""
        if isinstance(X, SparseRows):
            raise ValueError(f"X is sparse; {type(self).__name__} needs dense rows: pass X.toarray().")
        self.check(X, observed)

    # -- hyperparameters -----------------------------------------------------------------------------------------------

    @abstractmethod
    def hyperpriors(self, like: Tensor) -> dict[str, Gamma | None]:
        """The gamma prior of each precision, None if it is fixed, in the dtype of `like` [...]."""

    @abstractmethod
    def start(self, like: Tensor) -> Hyper:
        """Starting values, or fixed values, each [] float64 on the device of `like` [...]."""

    @abstractmethod
    def evidence(
        self, X: Tensor, mean: Tensor, square: Tensor, loadings: Tensor, counted: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The increments of (shape, rate) of the gamma distribution of each hyperparameter that has one.

        Parameters
        ----------
        X, mean, square : [N, D] entries, the linear predictor and its expected square
        loadings : [D + 1]: for each column the (expected) sum of squared loadings, then the number of features
        counted : [N, D] or [N, 1], the weight of each entry; 0 if it was not observed
        """

    @abstractmethod
    def loading_precision(self, h: Hyper, num_columns: int) -> Tensor:
        """Prior precision [D] float64 of the loadings of each column."""

    # -- entries -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def distribution(self, mean: Tensor, h: Hyper) -> dist.TorchDistribution:
        """p(x | m) of independent entries [N, D], in the Pyro program."""

    @abstractmethod
    def log_density(self, X: Tensor, mean: Tensor, h: Hyper) -> Tensor:
        """log p(x_nd | m_nd) [N, D]."""

    @abstractmethod
    def augment(self, X: Tensor, mean: Tensor, h: Hyper, generator: torch.Generator) -> PseudoObservation:
        """Gibbs: precision [1, D] or [N, D] and shift [N, D] at a draw of the augmentation variable given m [N, D]."""

    @abstractmethod
    def expect(self, X: Tensor, square: Tensor, h: Hyper, mean: Tensor) -> PseudoObservation:
        """SVI: the same at the optimal q of the augmentation variable, from E m^2 and E m [N, D] and expected h."""

    @abstractmethod
    def expected_log_density(self, X: Tensor, mean: Tensor, square: Tensor, h: Hyper) -> Tensor:
        """SVI: the lower bound of E log p(x_nd | m_nd) [N, D] that `expect` attains.

        For a hyperparameter `name` with a prior, h has its mean, and the mean of its logarithm as `log_name`.
        """

    # -- small variance ------------------------------------------------------------------------------------------------

    @abstractmethod
    def divergence(self, X: Tensor, mean: Tensor) -> Tensor:
        """-log p(x_nd | m_nd) [N, D] minus its least value, at the starting values of h."""

    @abstractmethod
    def majorize(self, X: Tensor, mean: Tensor) -> PseudoObservation:
        """Small variance: the quadratic that touches -`divergence` at m [N, D] and lies below it elsewhere."""
