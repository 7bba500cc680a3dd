"""Label-free comparison of partitions: variation of information, Binder loss, and their posterior expectations."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.domains import OneOf, read


def contingency(one: Tensor, other: Tensor) -> Tensor:
    """Numbers of points [K1, K2] in both block i of one and block j of the other of two partitions [N]."""
    rows, columns = int(one.max()) + 1, int(other.max()) + 1
    return torch.bincount(one.long() * columns + other, minlength=rows * columns).view(rows, columns).double()


def align(partition: Tensor, reference: Tensor) -> Tensor:
    """The partition [N] with labels that agree with the reference [N] at as many points as possible.

    Blocks without a partner in the reference take labels beyond its own.

    >>> align(torch.tensor([1, 1, 0]), torch.tensor([0, 0, 1]))
    tensor([0, 0, 1])
    """
    from scipy.optimize import linear_sum_assignment  # slow to import, and a fit does not need it

    table = contingency(partition, reference)
    rows, columns = linear_sum_assignment(table.cpu().numpy(), maximize=True)
    label = torch.full((len(table),), -1, device=partition.device)
    label[torch.as_tensor(rows, device=label.device)] = torch.as_tensor(columns, device=label.device)
    spare = label < 0
    label[spare] = table.shape[1] + torch.arange(int(spare.sum()), device=label.device)
    return label[partition.long()]


def pair_f1(found: Tensor, truth: Tensor) -> float:
    """F1 of the pairs of points that `found` [N] puts together against those that `truth` [N] does.

    >>> pair_f1(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]))
    1.0
    """
    table = contingency(found, truth)

    def pairs(counts: Tensor) -> float:
        return float((counts * (counts - 1)).sum() / 2)

    both, all_pairs = pairs(table), pairs(table.sum(1)) + pairs(table.sum(0))
    return 2 * both / all_pairs if all_pairs else 1.0


def expected_loss(assignments: Tensor, loss: str, most: int = 50) -> Tensor:
    """Posterior expected loss [S] of choosing each draw [S, N] as the point partition (Wade & Ghahramani 2018).

    Expectations and candidates are taken over at most `most` draws, evenly spaced; other candidates have loss inf.
    """
    loss = read("loss", loss, OneOf(*LOSSES))
    places = torch.linspace(0, len(assignments) - 1, min(most, len(assignments)), device="cpu")
    chosen = places.round().long().tolist()
    result = torch.full((len(assignments),), torch.inf, dtype=torch.float64, device="cpu")
    for candidate in chosen:
        tables = [contingency(assignments[candidate], assignments[other]) for other in chosen]
        result[candidate] = sum(LOSSES[loss](table) for table in tables) / len(chosen)
    return result


def _variation_of_information(table: Tensor) -> float:
    """2 H(a, b) - H(a) - H(b), in nats."""
    total = table.sum()

    def entropy(counts: Tensor) -> Tensor:
        return torch.special.entr(counts / total).sum()

    return float(2 * entropy(table) - entropy(table.sum(0)) - entropy(table.sum(1)))


def _binder(table: Tensor) -> float:
    """Share of ordered pairs that one partition joins and the other parts."""
    squares = table.sum(0).square().sum() + table.sum(1).square().sum() - 2 * table.square().sum()
    return float(squares / table.sum() ** 2)


LOSSES = {"vi": _variation_of_information, "binder": _binder}  # functions of the contingency table of two partitions
