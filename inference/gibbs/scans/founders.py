"""Where the classifiers of new components come from in a scan that visits one point at a time, and what they weigh.

A new component of point n weighs I(x_n, y_n) times what prior and family say. `log_new` [N] is log I; `log_alone` [2]
is added to the log weights of n's own component and of a new one if n is alone in its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ....models.base import Model
from ....models.data import Data
from ....models.distributions.sampling import normals, uniforms
from ....models.scores import scores


class Founders:
    """No classifiers."""

    def __init__(self, data: Data, log_alone: tuple[float, float]) -> None:
        self.data = data
        self.log_new = data.features.new_zeros(len(data.features))
        self.log_alone = log_alone

    @property
    def reserved(self) -> Tensor | None:
        """Hyperplanes [A, P, 1] that are left without points."""
        return None

    def found(self, n: int, generator: torch.Generator) -> Tensor:
        """Classifiers [P, C] for the component that point n opens."""
        raise NotImplementedError

    def receive(self, weights: Tensor) -> None:
        """Take back the classifiers [P, C] of a component that closed."""


class Marginal(Founders):
    """Classifiers that see the points of their own component only are integrated out.

    A component that n is alone in is deleted with its classifiers: n may only open another one.
    """

    def __init__(self, data: Data, model: Model) -> None:
        super().__init__(data, (-math.inf, 0.0))
        self.model = model
        if data.targets.shape[1]:
            scale = model.weight_scale * data.features.norm(dim=1, keepdim=True)
            self.log_new = model.loss.log_marginal(scale, data.targets).sum(-1)

    def found(self, n: int, generator: torch.Generator) -> Tensor:
        return draw_new_weights(n, self.data, self.model, generator)


class Reserved(Founders):
    """Hyperplanes that see every point come from a reservoir of A and go back to it: each weighs 1 / A.

    The hyperplane of a component that n is alone in is one of the A + 1 that n could open a component with.
    """

    def __init__(self, reserved: Tensor, data: Data, model: Model) -> None:
        super().__init__(data, (0.0, 0.0))
        self.model, self.weights = model, reserved.double()  # [A, P, 1]
        self.gains = self._gains(self.weights)  # h(f) [A, N]
        self._price()

    @property
    def reserved(self) -> Tensor:
        return self.weights

    def found(self, n: int, generator: torch.Generator) -> Tensor:
        return self.take(n, uniforms((), generator))

    def take(self, n: int, uniform: Tensor) -> Tensor:
        """The hyperplane [P, 1] with which point n opens a component, with probability prop. to exp(h(f_n))."""
        cumulative = self.gains[:, n].softmax(0).cumsum(0)
        chosen = int(torch.searchsorted(cumulative, uniform * cumulative[-1]).clamp(max=len(self.gains) - 1))
        taken, kept = self.weights[chosen], torch.arange(len(self.gains), device=cumulative.device) != chosen
        self.weights, self.gains = self.weights[kept], self.gains[kept]
        self._price()
        return taken

    def receive(self, weights: Tensor) -> None:
        self.weights = torch.cat([self.weights, weights.unsqueeze(0)])
        self.gains = torch.cat([self.gains, self._gains(weights.unsqueeze(0))])
        self._price()

    def _price(self) -> None:
        size = len(self.weights)
        self.log_new = self.gains.logsumexp(0) - math.log(max(1, size))
        self.log_alone = -math.log(size + 1), math.log(size / (size + 1)) if size else 0.0

    def _gains(self, weights: Tensor) -> Tensor:
        """h(f) [A, N] of hyperplanes [A, P, 1]."""
        found = scores(self.data.features, weights.to(self.data.features))  # [N, A, 1]
        return self.model.log_margin(found, found.new_ones(1)).T.contiguous()


def draw_new_weights(n: int, data: Data, model: Model, generator: torch.Generator) -> Tensor:
    """Classifiers [P, C] of a component that point n opens: N(eta; 0, nu^2 I) phi(y_n | eta^T a_n), normalized.

    The score f is drawn first; eta keeps its prior across a_n: eta = g + a_n (f - g^T a_n) / |a_n|^2, g ~ N(0, nu^2 I).
    """
    feature, target = data.features[n], data.targets[n : n + 1]
    square = feature.square().sum()
    score = model.loss.draw_score((model.weight_scale * square.sqrt()).expand(1, 1), target, generator)
    weights = model.weight_scale * normals((data.features.shape[1], data.targets.shape[1]), generator, feature)
    gap = score.squeeze(0) - feature @ weights
    return weights + torch.outer(feature / square.clamp(min=torch.finfo(feature.dtype).tiny), gap)
