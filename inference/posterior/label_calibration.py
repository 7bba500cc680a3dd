"""Choice of labels from probabilities (thresholds, the k largest), and calibration on held-out rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.domains import Natural, Whole, read


def largest(probabilities: Tensor, top_k: Natural) -> Tensor:
    """1 [N, C] at the k largest probabilities of each row, else 0; k = 0: as many as they add up to, rounded."""
    k = read("top_k", top_k, Whole(0))
    C = probabilities.shape[1]
    most = torch.full_like(probabilities[:, :1], min(k, C))
    count = probabilities.sum(1, keepdim=True).round() if k == 0 else most
    rank = probabilities.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (rank < count).long()


def best_thresholds(probabilities: Tensor, signs: Tensor) -> Tensor:
    """The threshold [C] of each label with the highest F1, from probabilities and signs [N, C], NaN where missing.

    It lies halfway between two probabilities; a label that no row has keeps one half.
    """
    found = probabilities.new_full((probabilities.shape[1],), 0.5)
    for c, (p, sign) in enumerate(zip(probabilities.T, signs.T, strict=True)):
        known = ~sign.isnan()
        if not (sign == 1).any():
            continue
        p, order = p[known].sort(descending=True)
        hits = (sign[known][order] == 1).double().cumsum(0)
        taken = torch.arange(1, len(p) + 1, dtype=torch.float64, device=p.device)
        below = torch.cat([p[1:], p.new_zeros(1)])
        f1 = torch.where(p > below, 2 * hits / (taken + hits[-1]), -1.0)
        best = int(f1.argmax())
        found[c] = (p[best] + below[best]) / 2
    return found


def shared_threshold(probabilities: Tensor, signs: Tensor) -> float:
    """The threshold of all labels with the highest micro-F1, from probabilities and signs [N, C], NaN where missing.

    Expected micro-F1 is highest at half of what it is there (Lipton, Elkan & Naryanaswamy 2014), which is far below one
    half where labels are rare; rows tell better how high it is than where. It is one half where they cannot tell:
    unless F1 rises by more than two standard errors, by the influence of each row on F1 = 2 hits / (predicted +
    present).
    """
    present = (signs == 1).double()

    def influences(threshold: float) -> tuple[Tensor, Tensor]:
        taken = ((probabilities > threshold) & ~signs.isnan()).double()
        hits, total = 2 * (taken * present).sum(1), (taken + present).sum(1)
        size = total.sum().clamp(min=1)
        f1 = hits.sum() / size
        return f1, (hits - f1 * total) / size

    highest, _ = influences(float(best_thresholds(probabilities.reshape(-1, 1), signs.reshape(-1, 1))))
    found = float(highest) / 2
    (best, each), (plain, every) = influences(found), influences(0.5)
    return found if best - plain > 2 * (each - every).square().sum().sqrt() else 0.5


def fit_calibration(mixture: Tensor, classifiers: Tensor, signs: Tensor, offset: Tensor) -> Tensor:
    """(a, b, d_1..d_C) [2 + C] of logit p_c = a mixture_c + b classifiers_c + d_c, by penalized logistic regression.

    With o the offset, d_c = (a + b - 1) o_c + r_c: a view enters by how far its odds are from those among all rows, so
    that a smaller weight of a view leaves a rare label rare. a and b are shrunk to 1 and r [C] to 0, each as by one
    observation of unit precision. Neither a nor b is negative: a view that contradicts itself on these rows, as that of
    a mixture of one component may, gets weight 0.

    Parameters
    ----------
    mixture, classifiers : log odds [N, C] of both views
    signs : +1 and -1 [N, C], NaN where missing
    offset : minus the log odds [C] of a label among all rows; 0 of views that count no label twice
    """
    known, y = (~signs.isnan()).double(), (signs == 1).double()
    views = torch.stack([mixture, classifiers]).double() + offset.double()
    base = -offset.double()
    heard = views.new_ones(2)
    slopes, shift = _fitted(views, y, known, base)
    while (slopes < 0).any():  # first the lower one: without it the other may be positive
        heard[slopes.argmin()] = 0.0
        slopes, shift = _fitted(heard.view(-1, 1, 1) * views, y, known, base)
        slopes = heard * slopes
    return torch.cat([slopes, shift + (slopes.sum() - 1) * offset]).to(mixture)


def _fitted(views: Tensor, y: Tensor, known: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes [2] of views [2, N, C] and shifts [C] relative to log odds `base` [C]; y, known [N, C] are 0 or 1."""
    slopes, shift = views.new_ones(2), torch.zeros_like(base)

    def cost(slopes: Tensor, shift: Tensor) -> Tensor:
        score = torch.einsum("v,vnc->nc", slopes, views) + shift + base
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, y, known, reduction="sum")
        return loss + ((slopes - 1).square().sum() + shift.square().sum()) / 2

    identity = torch.eye(2, dtype=views.dtype, device=views.device)
    for _ in range(_NEWTON_STEPS):
        score = torch.einsum("v,vnc->nc", slopes, views) + shift + base
        p = score.sigmoid()
        gap, curvature = known * (p - y), known * p * (1 - p)
        slope_of = torch.einsum("vnc,nc->v", views, gap) + slopes - 1
        shift_of = gap.sum(0) + shift
        cross = torch.einsum("vnc,nc->vc", views, curvature)
        square = torch.einsum("vnc,wnc,nc->vw", views, views, curvature) + identity
        own = curvature.sum(0) + 1
        step = torch.linalg.solve(square - (cross / own) @ cross.T, slope_of - (cross / own) @ shift_of)
        rest = (shift_of - cross.T @ step) / own
        size, before = 1.0, cost(slopes, shift)
        while cost(slopes - size * step, shift - size * rest) > before and size > _LEAST_STEP:
            size /= 2
        slopes, shift = slopes - size * step, shift - size * rest
    return slopes, shift


_NEWTON_STEPS = 15
_LEAST_STEP = 1e-6
