"""The Gibbs update of classifiers: each way of who scores whom against sums that are written out pair by pair."""

from __future__ import annotations

import pytest
import torch
from setups import Ramp, Softmax
from torch import Tensor
from torch.distributions import Normal

from regbayes.inference.classifiers.draws import (
    OwnClassifiers,
    RepellingHyperplanes,
    Scored,
    SharedClassifiers,
    log_prior,
)
from regbayes.models import Hinge, Logistic, Masked, OneVsRest
from regbayes.models.losses import Loss, PseudoObservation

NU, K = 1.3, 4
A = torch.randn((9, 2), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
OWNERS = torch.tensor([2, 0, 0, 3, 2, -1, 3, 0, 2])  # none is of component 1; -1 is of no component
SIGNS = 2 * torch.nn.functional.one_hot(torch.arange(9) % 3, 3).double() - 1


def of_each_component(scored: Scored) -> list[list[tuple[int, Tensor]]]:
    """The rows that each component scores, with their targets [C]."""
    rows = range(len(A))
    if isinstance(scored, RepellingHyperplanes):
        sides = [[1.0 if int(scored.owners[n]) == k else -1.0 for n in rows] for k in range(K)]
        return [[(n, torch.tensor([own[n]]).double()) for n in rows] for own in sides]
    if isinstance(scored, OwnClassifiers):
        return [[(n, scored.targets[n]) for n in rows if int(scored.owners[n]) == k] for k in range(K)]
    assert isinstance(scored, SharedClassifiers)
    return [[(n, scored.targets[n]) for n in rows]]


def ways(loss: Loss, targets: Tensor) -> list[Scored]:
    own = OwnClassifiers(A, loss, NU, targets, OWNERS.clamp(min=0), K)
    shared = SharedClassifiers(A, loss, NU, targets)
    return (
        [own, shared]
        if loss.meets or targets.shape[1] > 1
        else [own, shared, RepellingHyperplanes(A, loss, NU, OWNERS)]
    )


HOLES = SIGNS[:, :1].masked_fill((torch.arange(9) == 4).unsqueeze(1), torch.nan)
WAYS = [
    *ways(Ramp(), SIGNS[:, :1]),
    *ways(OneVsRest(Hinge(0.8)), SIGNS),
    *ways(Softmax(), SIGNS),
    *ways(Masked(Logistic()), HOLES)[:2],
]


def name_of(scored: Scored) -> str:
    return f"{type(scored).__name__}-{type(scored.loss).__name__}"


def some_weights(scored: Scored, generator: torch.Generator) -> Tensor:
    num_scores = scored.targets.shape[1] if hasattr(scored, "targets") else 1
    return torch.randn((len(of_each_component(scored)), 2, num_scores), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("scored", WAYS, ids=name_of)
def test_likelihoods_are_sums_over_the_rows_of_each_component(scored: Scored) -> None:
    weights = some_weights(scored, torch.Generator().manual_seed(0))
    pairs = of_each_component(scored)
    every = torch.stack(
        [
            sum((scored.loss.log_factor(A[n] @ eta, y).sum() for n, y in own), A.new_zeros(()))
            for eta, own in zip(weights, pairs, strict=True)
        ]
    )
    for chosen in ([0], list(range(len(weights))), list(range(len(weights)))[::-2]):
        which = torch.tensor(chosen)
        torch.testing.assert_close(scored.log_likelihood(weights[which], which), every[which])
    prior = Normal(0.0, NU).log_prob(weights)
    torch.testing.assert_close(log_prior(weights, NU), prior.sum((1, 2)))
    torch.testing.assert_close(scored.log_density(weights), every.sum() + prior.sum())


@pytest.mark.parametrize("scored", WAYS, ids=name_of)
def test_the_posterior_is_the_prior_times_the_pseudo_observations(scored: Scored) -> None:
    """Of two classifiers of each component, and of the prior alone where a component scores no row."""
    generator = torch.Generator().manual_seed(0)
    weights, other = (some_weights(scored, generator) for _ in range(2))
    repels = isinstance(scored, RepellingHyperplanes)
    shape = (len(A), K if repels else weights.shape[2])
    precision, shift = torch.rand((2, *shape), generator=generator, dtype=torch.float64) - torch.tensor([0, 0.5]).view(
        2, 1, 1
    )
    law = scored.posterior(PseudoObservation(precision, shift))

    def log_target(eta: Tensor, k: int, rows: list[tuple[int, Tensor]]) -> Tensor:
        total = Normal(0.0, NU).log_prob(eta).sum()
        for n, _ in rows:
            a, b = (part[n, k : k + 1] if repels else part[n] for part in (precision, shift))
            total = total + (b * (A[n] @ eta) - a * (A[n] @ eta).square() / 2).sum()
        return total

    for k, rows in enumerate(of_each_component(scored)):
        found = [
            -((law.precision_tril[k].mT @ (each[k] - law.mean[k]).T.unsqueeze(2)).square()).sum() / 2
            for each in (weights, other)
        ]
        expected = [log_target(each[k], k, rows) for each in (weights, other)]
        torch.testing.assert_close(found[1] - found[0], expected[1] - expected[0])


def test_the_density_of_an_infinite_model_is_relative_to_hyperplanes_without_rows() -> None:
    """Adding hyperplanes without rows, which the reserve has, changes nothing."""
    owners = OWNERS.clamp(min=0)
    scored = RepellingHyperplanes(A, Logistic(), NU, owners)
    weights = some_weights(scored, torch.Generator().manual_seed(0))
    rejecting = RepellingHyperplanes(A, Logistic(), NU, torch.full_like(owners, -1))
    expected = scored.log_density(weights) - rejecting.log_density(weights)
    torch.testing.assert_close(scored.log_density(weights, relative=True), expected)


@pytest.mark.parametrize("scored", WAYS, ids=name_of)
def test_a_draw_moves_all_classifiers_and_leaves_those_given(scored: Scored) -> None:
    weights = some_weights(scored, torch.Generator().manual_seed(0))
    before = weights.clone()
    drawn = scored.draw(weights, torch.Generator().manual_seed(1))
    assert (drawn != weights).all()
    assert torch.equal(weights, before)
