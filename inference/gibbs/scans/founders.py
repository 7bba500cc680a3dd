"""The classifiers that new components start with, in scans that visit one point at a time, and their weights.

A new component of point n has the weight I(x_n, y_n) times those of prior and likelihood. I is the mean of exp(`gains`)
[N, A] over A classifiers to choose from, or with A = 1 the exact integral. `log_alone` [2] is added to the log weights
of n's own component and of a new one if n is alone in its own. Compiled code takes `gains` [N, A + room] and
hyperplanes `weights` [A + room, P, 1], of which the first A count; the space is for hyperplanes that are given back,
and `size` [1] holds A.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ....models import host
from ....models.base import Model
from ....models.compiled import compiled_loss
from ....models.data import Data
from ....models.distributions.sampling import normals, uniforms
from ....models.scores import scores
from ...compiled.decorators import entry_of


class Founders:
    """For models without classifiers: all gains [N, 1] are 0."""

    def __init__(self, data: Data) -> None:
        N, P = data.features.shape
        self.data, self.size = data, np.ones(1, np.int64)
        self.gains, self.weights = data.features.new_zeros(N, 1), data.features.new_zeros(0, P, 1)

    @property
    def reserved(self) -> Tensor | None:
        """The reserved hyperplanes [A, P, 1]; None without a reservoir."""
        return None

    @property
    def log_alone(self) -> tuple[float, float]:
        """Terms of the log weights of n's own component and of a new one, if n is alone in its own."""
        return 0.0, -math.inf

    def log_margin(self, weights: Tensor, model: Model) -> Tensor:
        """log phi(y_n | eta_k) [N, K] of classifiers [K, P, C]."""
        found: Tensor = model.log_margin(scores(self.data.features, weights), self.data.targets.unsqueeze(1))
        return found

    def log_new(self, n: int) -> Tensor:
        """log I for point n, []."""
        size = int(self.size[0])
        return self.gains[n, :size].logsumexp(0) - math.log(max(1, size))

    def found(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw classifiers [P, C] for the component that point n opens; also log phi [N] of all points under them."""
        raise NotImplementedError

    def receive(self, weights: Tensor, log_margin: Tensor) -> None:
        """Take back the classifiers [P, C] of a closed component, with log phi [N] of all points."""

    def exchange(self, n: int, weights: Tensor, log_margin: Tensor, generator: torch.Generator) -> None:
        """Replace classifiers in place, where point n leaves its own component for a new one in the same slot."""
        found = self.found(n, generator)
        weights.copy_(found[0])
        log_margin.copy_(found[1])


class Marginal(Founders):
    """Classifiers that see only the points of their own component are integrated out.

    A component that n is alone in is deleted with its classifiers: n may only open another one.
    """

    @property
    def log_alone(self) -> tuple[float, float]:
        return -math.inf, 0.0

    def __init__(self, data: Data, model: Model) -> None:
        super().__init__(data)
        self.model = model
        if data.targets.shape[1]:
            scale = model.weight_scale * data.features.norm(dim=1, keepdim=True)
            self.gains = model.loss.log_marginal(scale, data.targets).sum(-1, keepdim=True)

    def found(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        weights = draw_new_weights(n, self.data, self.model, generator)
        return weights, self.model.log_margin(self.data.features @ weights, self.data.targets)


class Reserved(Founders):
    """Hyperplanes that see every point are taken from a reservoir of A, with weight 1 / A each, and given back to it.

    If n is alone in a component, its hyperplane is one of the A + 1 that n could open a component with.
    """

    def __init__(self, reserved: Tensor, data: Data, model: Model, room: int = 0) -> None:
        self.data, self.size = data, np.array([len(reserved)])
        self.weights = pad(reserved.double(), (0, 0, 0, 0, 0, room))  # a copy, changed in place
        self.gains = pad(self.log_margin(reserved.to(data.features), model), (0, room))

    def log_margin(self, weights: Tensor, model: Model) -> Tensor:
        """h(f) [N, K] of hyperplanes [K, P, 1]."""
        found, (loss, power) = scores(self.data.features, weights), model.loss.untempered
        form = compiled_loss(loss) if host.on_cpu(found) else None
        if form is None:
            return super().log_margin(weights, model)
        from ...classifiers import _numba_hyperplanes  # compiles or loads machine code: only where it is needed

        found = found.squeeze(2).contiguous()
        entry_of(_numba_hyperplanes.margins, form)(form, power, found.view(-1).numpy())
        return found

    @property
    def reserved(self) -> Tensor:
        return self.weights[: int(self.size[0])]

    @property
    def log_alone(self) -> tuple[float, float]:
        """The hyperplane of n's own component is one of A + 1."""
        size = int(self.size[0])
        return -math.log(size + 1), math.log(size / (size + 1)) if size else 0.0

    def found(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.take(n, uniforms((), generator))

    def take(self, n: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Take the hyperplane [P, 1] with which point n opens a component, and h [N] of all points under it.

        It is chosen with probability proportional to exp(h(f_n)); the last reserved hyperplane moves to its place.
        """
        chosen = self._choose(n, uniform)
        taken = self.weights[chosen].clone(), self.gains[:, chosen].clone()
        self.size -= 1
        last = int(self.size[0])
        self.weights[chosen], self.gains[:, chosen] = self.weights[last], self.gains[:, last]
        return taken

    def receive(self, weights: Tensor, log_margin: Tensor) -> None:
        size = int(self.size[0])
        self.weights[size], self.gains[:, size] = weights, log_margin
        self.size += 1

    def exchange(self, n: int, weights: Tensor, log_margin: Tensor, generator: torch.Generator) -> None:
        """Swap the given hyperplane [P, 1] and its h [N] with those of a chosen reserved one."""
        chosen = self._choose(n, uniforms((), generator))
        for left, kept in ((weights, self.weights[chosen]), (log_margin, self.gains[:, chosen])):
            taken = kept.clone()
            kept.copy_(left)
            left.copy_(taken)

    def _choose(self, n: int, uniform: Tensor) -> int:
        cumulative = self.gains[n, : int(self.size[0])].softmax(0).cumsum(0)
        return int(torch.searchsorted(cumulative, uniform * cumulative[-1]).clamp(max=len(cumulative) - 1))


def draw_new_weights(n: int, data: Data, model: Model, generator: torch.Generator) -> Tensor:
    """Draw classifiers [P, C] of a component that point n opens, from N(eta; 0, nu^2 I) phi(y_n | eta^T a_n) / I.

    The score f is drawn first. eta keeps its prior orthogonally to a_n: eta = g + a_n (f - g^T a_n) / |a_n|^2, g ~ N(0,
    nu^2 I).
    """
    feature, target = data.features[n], data.targets[n : n + 1]
    square = feature.square().sum()
    score = model.loss.draw_score((model.weight_scale * square.sqrt()).expand(1, 1), target, generator)
    weights = model.weight_scale * normals((data.features.shape[1], data.targets.shape[1]), generator, feature)
    gap = score.squeeze(0) - feature @ weights
    return weights + torch.outer(feature / square.clamp(min=torch.finfo(feature.dtype).tiny), gap)
