"""Who scores whom: each way against sums that are written out pair by pair."""

from __future__ import annotations

import pytest
import torch
from setups import Ramp, Softmax
from torch import Tensor
from torch.distributions import Normal

from regbayes.inference.classifiers import scored as scored_module
from regbayes.inference.classifiers.scored import RepellingHyperplanes, Scored, log_prior
from regbayes.inference.gibbs.moves.tempering import Tempered
from regbayes.models import Hinge, Logistic, Masked, OneVsRest
from regbayes.models.losses import CrammerSinger, Loss, PseudoObservation

NU, K = 1.3, 4
A = torch.randn((9, 2), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
OWNERS = torch.tensor([2, 0, 0, 3, 2, -1, 3, 0, 2])  # none is of component 1; -1 is of no component
SIGNS = 2 * torch.nn.functional.one_hot(torch.arange(9) % 3, 3).double() - 1
HOLES = SIGNS[:, :1].masked_fill((torch.arange(9) == 4).unsqueeze(1), torch.nan)
COUNTS = torch.arange(1.0, 10.0).double()

CASES: list[tuple[Loss, Tensor]] = [
    (Ramp(), SIGNS[:, :1]),
    (OneVsRest(Hinge(0.8)), SIGNS),
    (Softmax(), SIGNS),
    (Masked(Logistic()), HOLES),
]
OWN = [Scored(A, y, loss, NU, owner=OWNERS.clamp(min=0), num_owners=K) for loss, y in CASES]
ALL = [Scored(A, y, loss, NU) for loss, y in CASES]
REPELLING = [RepellingHyperplanes(A, loss, NU, OWNERS) for loss in (Ramp(), Hinge(0.8))]
WAYS = pytest.mark.parametrize(
    "scored",
    [*OWN, *ALL, *REPELLING],
    ids=lambda s: f"{type(s).__name__}-{type(s.loss).__name__}-{getattr(s, 'owner', 0) is None}",
)


def of_each_component(scored: Scored | RepellingHyperplanes) -> list[list[tuple[int, Tensor]]]:
    """The rows that each component scores, with their targets [C]."""
    if isinstance(scored, RepellingHyperplanes):
        sides = [[1.0 if int(label) == k else -1.0 for label in OWNERS] for k in range(K)]
        return [[(n, torch.tensor([own[n]]).double()) for n in range(9)] for own in sides]
    owner = torch.zeros(9).int() if scored.owner is None else scored.owner
    return [[(n, scored.targets[n]) for n in range(9) if int(owner[n]) == k] for k in range(scored.num_owners)]


def some_weights(scored: Scored | RepellingHyperplanes, seed: int = 0) -> Tensor:
    num_scores = scored.targets.shape[1] if isinstance(scored, Scored) else 1
    shape = (len(of_each_component(scored)), 2, num_scores)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@WAYS
def test_densities_are_sums_over_the_rows_of_each_component(scored) -> None:
    weights, none = some_weights(scored), A.new_zeros(())
    pairs = zip(weights, of_each_component(scored), strict=True)
    every = torch.stack(
        [sum((scored.loss.log_factor(A[n] @ eta, y).sum() for n, y in own), none) for eta, own in pairs]
    )
    for chosen in ([0], list(range(len(weights))), list(range(len(weights)))[::-2]):
        which = torch.tensor(chosen)
        torch.testing.assert_close(scored.log_likelihood(weights[which], which), every[which])
        both = torch.stack([weights[which].flip(1), weights[which]])  # two values of each
        one_by_one = torch.stack([scored.log_likelihood(values, which) for values in both])
        torch.testing.assert_close(scored.log_likelihood(both, which), one_by_one)
    prior = Normal(0.0, NU).log_prob(weights)
    torch.testing.assert_close(log_prior(weights, NU), prior.sum((1, 2)))
    torch.testing.assert_close(scored.log_density(weights), every.sum() + prior.sum())


@pytest.mark.parametrize("scored", [OWN[1], ALL[1], REPELLING[1].sides(torch.arange(K))], ids=["own", "all", "sides"])
@pytest.mark.parametrize("counts", [None, COUNTS], ids=["once", "weighed"])
def test_the_posterior_is_the_prior_times_the_pseudo_observations(scored, counts) -> None:
    """Of two sets of classifiers, and of the prior alone where a set scores no row; its means alone are the same."""
    scored = Scored(A, scored.targets, scored.loss, NU, counts, scored.owner, scored.num_owners)
    both = some_weights(scored), some_weights(scored, 1)
    shape, generator = scored.targets.shape, torch.Generator().manual_seed(2)
    observed = PseudoObservation(*torch.rand((2, *shape), generator=generator, dtype=torch.float64))
    law, times = next(scored.posteriors(observed)), torch.ones(9) if counts is None else counts
    torch.testing.assert_close(scored.means(observed), law.mean)
    for k, rows in enumerate(of_each_component(scored)):
        found, expected = [], []
        for eta in (weights[k] for weights in both):
            gap = law.precision_tril[k].mT @ (eta - law.mean[k]).T.unsqueeze(2)
            found.append(-gap.square().sum() / 2)
            each = [times[n] * (b * (A[n] @ eta) - a * (A[n] @ eta).square() / 2) for n, a, b in _of(rows, observed)]
            expected.append(Normal(0.0, NU).log_prob(eta).sum() + sum((own.sum() for own in each), A.new_zeros(())))
        torch.testing.assert_close(found[1] - found[0], expected[1] - expected[0])


def _of(rows: list[tuple[int, Tensor]], observed: PseudoObservation) -> list[tuple[int, Tensor, Tensor]]:
    return [(n, observed.precision[n], observed.shift[n]) for n, _ in rows]


def test_scores_that_meet_are_observed_around_what_the_others_say() -> None:
    loss, columns = CrammerSinger(0.7), slice(1, 2)
    scored = Scored(A, SIGNS, loss, NU)
    weights = some_weights(scored)
    scores = scored.scores(weights)
    around = loss.reference(scores, SIGNS, columns)
    found = scored.observe(weights, columns, torch.Generator().manual_seed(1))
    own = loss.augment(scores[:, columns] - around, SIGNS[:, columns], torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.shift / found.precision, around + own.shift / own.precision)


def test_the_density_of_an_infinite_model_is_relative_to_hyperplanes_without_rows() -> None:
    """Adding hyperplanes without rows, which the reserve has, changes nothing."""
    owners = OWNERS.clamp(min=0)
    scored, nobody = (RepellingHyperplanes(A, Logistic(), NU, own) for own in (owners, torch.full_like(owners, -1)))
    weights = some_weights(scored)
    expected = RepellingHyperplanes(A, Logistic(), NU, owners).log_density(weights) - nobody.log_density(weights)
    torch.testing.assert_close(scored.log_density(weights, relative=True), expected)


@WAYS
def test_a_draw_moves_all_classifiers_and_leaves_those_given(scored) -> None:
    weights = some_weights(scored)
    before = weights.clone()
    assert (scored.draw(weights, torch.Generator().manual_seed(1)) != weights).all()
    assert torch.equal(weights, before)


COLUMNS = torch.randn((1100, 3), generator=torch.Generator().manual_seed(4), dtype=torch.float64)  # more than a tile


def both_codes(loss: Loss, features: Tensor) -> tuple[RepellingHyperplanes, RepellingHyperplanes, Tensor]:
    """Tensor code, and compiled code of the same; some hyperplanes."""
    owners = torch.arange(1100) % 3 - 1
    tensors, compiled = (RepellingHyperplanes(features, loss, NU, owners) for _ in range(2))
    vars(tensors)["compiled"] = None
    assert compiled.compiled is not None
    weights = torch.randn((2, 3, 1), generator=torch.Generator().manual_seed(5), dtype=torch.float64) / 9
    return tensors, compiled, weights.to(features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [Hinge(0.8), Tempered(Logistic(), 0.3)], ids=["hinge", "tempered"])
def test_compiled_slice_steps_are_those_of_tensor_code(loss: Loss, dtype: torch.dtype) -> None:
    """One by one, whose uniform numbers come in the same order."""
    tensors, compiled, weights = both_codes(loss, COLUMNS.to(dtype))
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for seed in range(5):
        expected, found = (way.slide(weights[:1], torch.Generator().manual_seed(seed)) for way in (tensors, compiled))
        torch.testing.assert_close(found, expected, **close)
        assert found.dtype == dtype
        assert (found != weights[:1]).all()


@pytest.mark.parametrize("loss", [Hinge(0.8), Tempered(Hinge(2.0, 0.5), 0.3)], ids=["hinge", "tempered"])
def test_compiled_draws_are_those_of_tensor_code(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same numbers for the same rows and hyperplanes."""
    tensors, compiled, weights = both_codes(loss, COLUMNS)
    for name in ("half_normals", "uniforms"):
        draw = getattr(scored_module, name)
        turned = lambda shape, *rest, draw=draw, **like: draw(shape[::-1], *rest, **like).T.contiguous()  # noqa: E731
        monkeypatch.setattr(scored_module, name, turned)
    for seed in range(5):
        expected, found = (way.draw(weights, torch.Generator().manual_seed(seed)) for way in (tensors, compiled))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert (found != weights).all()
