"""Batched weighted ridge regressions: the solver behind the classifier update of every backend.

    A_kc = I / nu^2 + sum_n r_nk precision_nc a_n a_n^T,    B_kc = sum_n r_nk shift_nc a_n

Gibbs draws from N(A^-1 B, A^-1), SVI keeps this Gaussian, and the small-variance limit takes its mean. `row_space` has
the same Gaussian for fewer rows than features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...models import host
from ...models.distributions.sampling import normals
from ...models.linalg import safe_cholesky
from ...models.sums import ranks
from ..distributed.collectives import all_sums
from .row_space import RowRidge


@dataclass(frozen=True)
class Ridge:
    """Gaussians N(mean_kc, A_kc^-1) of the weight vectors of K components and C scores."""

    mean: Tensor  # [K, P, C]
    precision_tril: Tensor  # [K, C, P, P], Cholesky factor L of A = L L^T; [K, 1, P, P] if all scores share A

    @classmethod
    def of_natural(cls, gram: Tensor, linear: Tensor) -> Ridge:
        """From A [K, C, P, P], or [K, 1, P, P] if all scores share it, and A m [K, P, C]."""
        tril = safe_cholesky(gram)
        if gram.shape[1] == 1:
            return cls(torch.cholesky_solve(linear, tril.squeeze(1)), tril)
        return cls(torch.cholesky_solve(linear.mT.unsqueeze(-1), tril).squeeze(-1).mT, tril)

    @property
    def natural(self) -> tuple[Tensor, Tensor]:
        """A [K, C, P, P] and A m [K, P, C]."""
        gram = self.precision_tril @ self.precision_tril.mT
        return gram, (gram @ self.mean.mT.unsqueeze(-1)).squeeze(-1).mT

    @property
    def squares(self) -> Tensor:
        """The second moments E eta^2 [K, P, C]."""
        return self.mean.square() + self._inverse_tril.square().sum(-2).mT

    def __getitem__(self, components: list[int]) -> Ridge:
        """The Gaussians of some components."""
        return Ridge(self.mean[components], self.precision_tril[components])

    def towards(self, natural: tuple[Tensor, Tensor], rho: float) -> Ridge:
        """A step of size rho in natural parameters, towards A [K, C, P, P] and A m [K, P, C]."""
        return Ridge.of_natural(*(torch.lerp(*pair, rho) for pair in zip(self.natural, natural, strict=True)))

    def draw(self, generator: torch.Generator) -> Tensor:
        """One draw [K, P, C]."""
        return self.draws(1, generator)[:, 0]

    def draws(self, number: int, generator: torch.Generator) -> Tensor:
        """R draws [K, R, P, C]: mean + L^-T e."""
        noise = normals((*self.mean.mT.shape, number), generator, self.mean)
        step = torch.linalg.solve_triangular(self.precision_tril.mT, noise, upper=True)
        return self.mean.unsqueeze(1) + step.permute(0, 3, 2, 1)

    def log_density(self, weights: Tensor) -> Tensor:
        """log N(eta; mean, A^-1) [K, R] of R draws eta [K, R, P, C], summed over the scores."""
        gap = (weights - self.mean.unsqueeze(1)).permute(0, 3, 1, 2)
        square = (gap @ self.precision_tril).square().sum((1, 3))
        log_det = self.precision_tril.diagonal(dim1=-2, dim2=-1).log().sum(2).expand(-1, self.mean.shape[2])
        return log_det.sum(1, keepdim=True) - (square + self.mean[0].numel() * math.log(2 * math.pi)) / 2

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, each [N, K, C], of the scores of features [N, P].

        In memory the index of the row varies fastest, for code that takes one component after another.
        """
        return self.score_mean(features), self.score_variance(features)

    def score_mean(self, features: Tensor) -> Tensor:
        """Mean [N, K, C] of the scores of features [N, P]."""
        return self._rows_last(self.mean.mT.flatten(0, 1) @ features.T)

    def score_variance(self, features: Tensor, asked: Tensor | None = None) -> Tensor:
        """Variance [N, K, C] of the scores of features [N, P]: |L^-1 a_n|^2, or for many ridges <A^-1, a_n a_n^T>.

        asked : bool [N, K] or None: the pairs of rows and components to compute; the variance of the others is 1
        """
        if asked is not None:
            found = features.new_ones((*self.precision_tril.shape[:2], len(features)))
            for inverse, own, rows in zip(self._inverse_tril, found, _rows_of(asked), strict=True):
                reach = inverse.flatten(0, 1) @ features[rows].T
                own[:, rows] = reach.unflatten(0, inverse.shape[:2]).square_().sum(1)
            return found.permute(2, 0, 1)
        inverse = self._inverse_tril.flatten(0, 1)
        if _takes_products(features, len(inverse)):
            chunks = _chunks(features, self._covariances.shape[1] + len(inverse))
            variances = [(self._covariances @ _products(features[rows])).clamp_(min=0.0) for rows in chunks]
        else:
            # summing over P then adds whole vectors, several times faster than short inner sums
            variances = [
                (inverse.flatten(0, 1) @ features[rows].T).unflatten(0, inverse.shape[:2]).square_().sum(1)
                for rows in _chunks(features, inverse.shape[:2].numel())
            ]
        return self._rows_last(torch.cat(variances, 1))

    def _rows_last(self, values: Tensor) -> Tensor:
        """Values [K C, N] as [N, K, C]."""
        return values.unflatten(0, (len(self.mean), len(values) // max(1, len(self.mean)))).permute(2, 0, 1)

    def kl(self, weight_scale: float) -> Tensor:
        """KL(N(mean, A^-1) || N(0, nu^2 I)) [K], summed over the scores."""
        num_features = self.mean.shape[1]
        trace = self._inverse_tril.square().sum((-2, -1))  # tr A^-1 = |L^-1|_F^2
        log_det = 2 * self.precision_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # log det A
        square = self.mean.square().sum(1)
        constant = num_features * (2 * math.log(weight_scale) - 1)
        per_score = (trace + square) / weight_scale**2 + log_det + constant
        return per_score.sum(-1) / 2

    @cached_property
    def _inverse_tril(self) -> Tensor:
        """L^-1 [K, C, P, P], contiguous for matrix products."""
        identity = torch.eye(self.mean.shape[1], dtype=self.mean.dtype, device=self.mean.device)
        return torch.linalg.solve_triangular(self.precision_tril, identity, upper=False).contiguous()

    @cached_property
    def _covariances(self) -> Tensor:
        """The upper halves of the A^-1 [K C, P (P + 1) / 2], which multiply `_products`."""
        inverse = self._inverse_tril.flatten(0, 1)
        return _upper(inverse.mT @ inverse)


class Laws(tuple[Ridge | RowRidge, ...]):
    """Gaussians of K sets of C classifiers over the same rows, as one `Ridge` or as one item per set."""

    @classmethod
    def of_rows(cls, features: Tensor, precision: Tensor, shift: Tensor, weight_scale: float) -> Laws:
        """From precision and shift [N, K, C] of pseudo-observations.

        With many features, each set uses only the rows whose precision or shift is not 0, and one covariance for all
        its scores, at their mean precision.
        """
        if features.shape[1] < _WIDE or ranks() is not None:
            ones = precision.new_ones(precision.shape[:2])
            return cls([Ridge.of_natural(*soft_natural(features, precision, shift, ones, weight_scale=weight_scale))])
        laws = list[Ridge | RowRidge]()
        for k in range(precision.shape[1]):
            said = torch.nonzero(((precision[:, k] != 0) | (shift[:, k] != 0)).any(1)).squeeze(1)
            mean = precision[:, k].mean(1, keepdim=True)
            laws += ridges_of_owners(features, mean, shift[:, k], [said], weight_scale)
        return cls(laws)

    @property
    def mean(self) -> Tensor:
        """The means [K, P, C]."""
        return torch.cat([law.mean for law in self])

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, each [N, K, C], of the scores of features [N, P]."""
        mean, variance = (torch.cat(parts, 1) for parts in zip(*(law.moments(features) for law in self), strict=True))
        return mean, variance

    def kl(self, weight_scale: float) -> Tensor:
        """KL(law || N(0, nu^2 I)) [K]."""
        return torch.cat([law.kl(weight_scale) for law in self])

    def draws(self, number: int, generator: torch.Generator) -> Tensor:
        """R draws of each set of classifiers, [K, R, P, C]."""
        return torch.cat([law.draws(number, generator) for law in self])

    def log_density(self, weights: Tensor) -> Tensor:
        """Log densities [K, R] of R draws [K, R, P, C]."""
        parts = weights.split([len(law.mean) for law in self])
        return torch.cat([law.log_density(part) for law, part in zip(self, parts, strict=True)])


def natural_of_owners(
    features: Tensor, precision: Tensor, shift: Tensor, rows: Sequence[Tensor], weight_scale: float
) -> tuple[Tensor, Tensor]:
    """A [K, C, P, P] and B [K, P, C] of K sets of classifiers with rows of their own; without rows the prior's.

    Parameters
    ----------
    features : Tensor [N, P]
    precision, shift : Tensor [N, C], the pseudo-observations of the scores; precision may be [N, 1], and A [K, 1, P, P]
    rows : the row numbers of each of the K owners
    """
    (P, C), K = (features.shape[1], precision.shape[1]), len(rows)
    gram, linear = features.new_zeros((K, C, P, P)), features.new_zeros((K, shift.shape[1], P))
    add = _add_compiled if host.on_cpu(features) else _add
    add(features, precision.sqrt(), shift, rows, gram, linear)
    return with_prior(gram, linear.mT, weight_scale)


def _add(features: Tensor, root: Tensor, shift: Tensor, rows: Sequence[Tensor], gram: Tensor, linear: Tensor) -> None:
    """Add precision a a^T of each owner's rows to gram [K, C, P, P], and shift a to linear [K, C', P].

    root [N, C] are the square roots of the precisions; shift is [N, C'].
    """
    for k, own in enumerate(rows):
        for tile in own.split(_TILE):
            seen, roots = features.index_select(0, tile), root[tile]
            linear[k].addmm_(shift[tile].T, seen)
            for c in range(root.shape[1]):
                weighted = seen * roots[:, c, None]
                gram[k, c].addmm_(weighted.T, weighted)


def _add_compiled(
    features: Tensor, root: Tensor, shift: Tensor, rows: Sequence[Tensor], gram: Tensor, linear: Tensor
) -> None:
    """`_add` on a CPU, in tiles of rows; numpy, unlike torch, computes only one half of a Gram matrix."""
    from . import _numba_scores  # compiles or loads machine code: only where it is needed

    arrays = [part.contiguous().numpy() for part in (features, root, shift)]
    grams, pulls, width = gram.numpy(), linear.numpy(), root.shape[1] * features.shape[1]
    room = features.new_empty(min(_TILE, max(map(len, rows), default=0)) * width).numpy()
    for k, own in enumerate(part.numpy() for part in rows):
        for start in range(0, len(own), _TILE):
            tile = own[start : start + _TILE]
            seen = room[: len(tile) * width].reshape(root.shape[1], len(tile), features.shape[1])
            _numba_scores.weighted_rows(arrays[0], tile, *arrays[1:], seen, pulls[k])
            for c, weighted in enumerate(seen):
                grams[k, c] += weighted.T @ weighted


def owner_means(
    features: Tensor, precision: Tensor, shift: Tensor, rows: Sequence[Tensor], weight_scale: float
) -> Tensor:
    """The means [K, P, C] of `ridges_of_owners`."""
    return torch.cat([law.mean for law in ridges_of_owners(features, precision, shift, rows, weight_scale)])


def ridges_of_owners(
    features: Tensor, precision: Tensor, shift: Tensor, rows: Sequence[Tensor], weight_scale: float
) -> Iterator[Ridge | RowRidge]:
    """The Gaussians N(A^-1 B, A^-1) of K sets of classifiers with rows of their own, given as in `natural_of_owners`.

    features [N, P], precision and shift [N, C]. Small sets are solved many at a time; a set with fewer rows than
    features is solved alone, in the space of its rows.
    """
    (_, P), together = features.shape, list[Tensor]()
    most = max(1, _MOST_NUMBERS // max(1, precision.shape[1] * P * P))
    for own in rows:
        apart = in_row_space(len(own), P)
        if together and (apart or len(together) == most):
            yield Ridge.of_natural(*natural_of_owners(features, precision, shift, together, weight_scale))
            together = []
        if apart:
            yield RowRidge.of(features[own], precision[own].T, shift[own].T, weight_scale)
        else:
            together.append(own)
    if together:
        yield Ridge.of_natural(*natural_of_owners(features, precision, shift, together, weight_scale))


def in_row_space(num_rows: int, num_features: int) -> bool:
    """Whether to represent a classifier in the space of its rows, which requires all rows on one machine."""
    return ranks() is None and num_features >= _WIDE and num_rows < num_features


def soft_means(
    features: Tensor, precision: Tensor, shift: Tensor, responsibilities: Tensor, *, weight_scale: float
) -> Tensor:
    """The means A^-1 B [K, P, C] of `soft_natural`; with fewer rows than features solved in the space of the rows.

    The host waits for no Cholesky factor: each diagonal is raised by its rounding error, and a matrix that still has no
    factor gives NaN.
    """
    (N, P), (K, C) = features.shape, precision.shape[1:]
    if not in_row_space(N, P):
        gram, linear = soft_natural(features, precision, shift, responsibilities, weight_scale=weight_scale)
        return torch.cholesky_solve(linear.mT.unsqueeze(-1), _raised_cholesky(gram)).squeeze(-1).mT
    weight = responsibilities.unsqueeze(-1)
    precision, shift = ((weight * part).flatten(1).T for part in (precision, shift))
    law = RowRidge.of(features, precision, shift, weight_scale, _raised_cholesky)
    return law.mean[0].T.view(K, C, P).mT


def _raised_cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factors [..., D, D], diagonals raised by their rounding error; NaN where there is none."""
    raised = matrix.clone()
    raised.diagonal(dim1=-2, dim2=-1).mul_(1 + matrix.shape[-1] * torch.finfo(matrix.dtype).eps)
    tril, info = torch.linalg.cholesky_ex(raised)
    return torch.where(info[..., None, None] > 0, torch.nan, tril)


def soft_natural(
    features: Tensor, precision: Tensor, shift: Tensor, responsibilities: Tensor, *, weight_scale: float
) -> tuple[Tensor, Tensor]:
    """A [K, C, P, P] and B [K, P, C], prior included, given responsibilities.

    Parameters
    ----------
    features : Tensor [N, P]
    precision, shift : Tensor [N, K, C]
    responsibilities : Tensor [N, K]
    """
    return with_prior(*soft_sums(features, precision, shift, responsibilities), weight_scale)


def soft_sums(features: Tensor, precision: Tensor, shift: Tensor, responsibilities: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over these rows in A [K, C, P, P] and B [K, P, C] of `soft_natural`, without the prior."""
    shape, num_features = precision.shape[1:], features.shape[1]
    if is_sparse(features, responsibilities):
        pairs = ((rows, slice(k, k + 1)) for k, rows in enumerate(_rows_of(responsibilities != 0)))
        parts = [soft_sums(features[r], *(x[r, k] for x in (precision, shift, responsibilities))) for r, k in pairs]
        gram, linear = map(torch.cat, zip(*parts, strict=True))
        return gram, linear
    times = responsibilities.T.contiguous().unsqueeze(1)
    weight, pull = ((times * part.permute(1, 2, 0)).flatten(0, 1) for part in (precision, shift))
    linear = (pull @ features).unflatten(0, shape).mT
    if _takes_products(features, len(weight)):
        sums = features.new_zeros((len(weight), num_features * (num_features + 1) // 2))
        for rows in _chunks(features, sums.shape[1] + len(weight)):
            sums.addmm_(weight[:, rows], _products(features[rows]).T)
        return _whole(sums, num_features).unflatten(0, shape), linear
    gram = features.new_zeros((num_features, len(weight) * num_features))
    for rows in _chunks(features, gram.shape[1]):
        own = features[rows]
        gram.addmm_(own.T, (weight.T[rows].unsqueeze(2) * own.unsqueeze(1)).flatten(1))  # all components in one product
    return gram.view(num_features, *shape, num_features).permute(1, 2, 0, 3), linear


def is_sparse(features: Tensor, pairs: Tensor) -> bool:
    """Whether most pairs [N, K] of rows and components are 0, so that one matrix product per component is faster."""
    if not host.on_cpu(pairs) or features.shape[1] < _NARROW:  # with few features, products cost less than this check
        return False
    return 2 * int(torch.count_nonzero(pairs)) < pairs.numel()


def _rows_of(pairs: Tensor) -> tuple[Tensor, ...]:
    """The row numbers of each component, from pairs [N, K] that are True for the component's rows."""
    return torch.nonzero(pairs.T)[:, 1].split(pairs.sum(0).tolist())


def moments_and_sums(
    q: Ridge, features: Tensor, observe: Callable[[slice, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """`Ridge.moments`, and `soft_sums` of the pseudo-observations there; both share the products of features.

    observe : function of a slice of rows and the moments [n, K, C] of their scores; returns precision, shift [n, K, C]
        and responsibilities [n, K]
    """
    R, P = q.precision_tril.shape[:2].numel(), features.shape[1]
    if not _takes_products(features, R):
        mean, variance = q.moments(features)
        return mean, variance, soft_sums(features, *observe(slice(None), mean, variance))
    parts, weights = list[Tensor](), q.mean.mT.flatten(0, 1)
    sums, linear = features.new_zeros((R, P * (P + 1) // 2)), features.new_zeros((R, P))
    for rows in _chunks(features, sums.shape[1] + R):
        own, products = features[rows], _products(features[rows])
        moments = torch.stack([weights @ own.T, (q._covariances @ products).clamp_(min=0.0)])
        parts.append(moments)
        precision, shift, times = observe(rows, *map(q._rows_last, moments))
        counted = times.T.unsqueeze(1)
        sums.addmm_((counted * precision.permute(1, 2, 0)).flatten(0, 1), products.T)
        linear.addmm_((counted * shift.permute(1, 2, 0)).flatten(0, 1), own)
    mean, variance = map(q._rows_last, torch.cat(parts, 2))
    shape = q.precision_tril.shape[:2]
    return mean, variance, (_whole(sums, P).unflatten(0, shape), linear.unflatten(0, shape).mT)


def with_prior(gram: Tensor, linear: Tensor, weight_scale: float) -> tuple[Tensor, Tensor]:
    """A and B of all ranks from the sums gram [K, C, P, P] and linear [K, P, C] over this rank's rows, prior added."""
    gram, linear = all_sums(gram, linear)
    gram = gram.clone(memory_format=torch.contiguous_format)
    gram.diagonal(dim1=-2, dim2=-1).add_(weight_scale**-2)
    return gram, linear


def rows_of_owners(owner: Tensor, num_owners: int) -> list[Tensor]:
    """The row numbers [N_k] of each owner, in increasing order, from the owner [N] of each row."""
    narrow = owner.to(torch.int16) if num_owners < 2**15 else owner  # int16 sorts several times as fast
    sizes = torch.bincount(owner, minlength=num_owners).tolist()
    return list(torch.argsort(narrow, stable=True).split(sizes))


def _takes_products(features: Tensor, num_ridges: int) -> bool:
    """Whether ridges are so many, and features so few, that products of all pairs of features save time.

    Not in single precision, where differences of such products lose too many digits.
    """
    return num_ridges >= _MANY and features.shape[1] < _WIDE and features.dtype == torch.float64


def _products(features: Tensor) -> Tensor:
    """The products a_np a_nq for p <= q, [P (P + 1) / 2, N]."""
    columns = features.T.contiguous()
    first, second = torch.triu_indices(len(columns), len(columns), device=features.device)
    return columns[first].mul_(columns[second])


def _upper(matrices: Tensor) -> Tensor:
    """Factors [R, P (P + 1) / 2] with <matrix, a a^T> = factors @ `_products`, of symmetric matrices [R, P, P]."""
    first, second = torch.triu_indices(*matrices.shape[1:], device=matrices.device)
    return matrices[:, first, second] * (1 + (first < second).to(matrices))


def _whole(upper: Tensor, num_features: int) -> Tensor:
    """Symmetric matrices [R, P, P] from their entries p <= q."""
    first, second = torch.triu_indices(num_features, num_features, device=upper.device)
    place = first.new_empty(num_features, num_features)
    place[first, second] = place[second, first] = torch.arange(len(first), device=upper.device)
    return upper.index_select(1, place.flatten()).unflatten(1, place.shape)


def _chunks(features: Tensor, width: int) -> Iterator[slice]:
    """Slices of the rows such that `width` numbers per row about fit the cache of a CPU, or the memory of a GPU."""
    step = max(64, (2**16 if host.on_cpu(features) else 2**25) // max(1, width))
    yield from (slice(start, start + step) for start in range(0, max(1, len(features)), step))


_TILE = 1024  # rows at a time, few enough for a cache
_NARROW = 16  # with fewer features, products use all rows
_MANY = 16  # the least number of ridges for `_products`
_WIDE = 64  # the least number of features for work in the space of the rows
_MOST_NUMBERS = 2**22  # most entries of the matrices A in memory at once
