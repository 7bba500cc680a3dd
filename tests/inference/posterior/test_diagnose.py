"""Chains whose agreement is known, and what `diagnose` says of them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from regbayes.inference import SVI, Backend, ChainsDisagree, Diagnosis, Gibbs, PartitionPosterior, Posterior, Trace
from regbayes.inference import backend as backends
from regbayes.models import DPM, IHMM, LDA, InfiniteLatentSVM, LinearGaussian


def drawn(
    truths: list[Tensor], num_draws: int = 60, *, astray: float = 0.15, levels: Tensor | None = None, seed: int = 0
) -> Posterior:
    """Chains of independent draws around a partition [N] each, some points astray; log joints around `levels` [C]."""
    generator = torch.Generator().manual_seed(seed)
    assignments = torch.stack(truths).repeat_interleave(num_draws, 0)
    moved = torch.rand(assignments.shape, generator=generator) < astray
    assignments[moved] = torch.randint(4, (int(moved.sum()),), generator=generator)
    noise = torch.randn(len(assignments), generator=generator, dtype=torch.float64)
    log_joint = noise if levels is None else noise + levels.repeat_interleave(num_draws)
    return posterior_of({"assignments": assignments, "log_joint": log_joint}, [num_draws] * len(truths))


def posterior_of(samples: dict[str, Tensor], num_draws: list[int]) -> Posterior:
    values = torch.zeros(len(num_draws), 1)
    return PartitionPosterior(DPM(), Gibbs(), samples, num_draws, Trace("log joint", values, values))


def slow(num_chains: int, num_draws: int, share: float, seed: int = 0) -> Posterior:
    """Chains of one law, all points of a draw taken over from the one before but a share of them."""
    generator, one = torch.Generator().manual_seed(seed), torch.arange(100) % 4
    draws = []
    for _ in range(num_chains):
        draw = torch.randint(4, (100,), generator=generator)
        for _ in range(num_draws):
            new = torch.where(
                torch.rand(100, generator=generator) < 0.2, torch.randint(4, (100,), generator=generator), one
            )
            draw = torch.where(torch.rand(100, generator=generator) < share, new, draw)
            draws.append(draw)
    assignments = torch.stack(draws)
    noise = torch.randn(len(assignments), generator=generator, dtype=torch.float64)
    return posterior_of({"assignments": assignments, "log_joint": noise}, [num_draws] * num_chains)


ONE = torch.arange(120) % 4
JOINED = torch.where(ONE == 3, 2, ONE)  # two blocks of `ONE` joined
OTHER = (torch.arange(120) // 30).roll(7)


def test_chains_in_one_mode_agree_whatever_their_labels_are() -> None:
    renamed = [ONE, (ONE + 1) % 4, 3 - ONE, ONE]
    found = drawn(renamed, 400).diagnose()
    assert found.verdict == "agree"
    assert not found.disagrees
    assert found.groups == [[0, 1, 2, 3]]
    assert found.p_value > 0.05
    assert found.ratio == pytest.approx(1.0, abs=0.01)
    assert found.energy == pytest.approx(0.0, abs=0.05)
    assert max(found.rhat.values()) < 1.01
    assert {"num_components", "entropy", "singletons", "log_joint", "together"} <= found.rhat.keys()


def test_few_draws_that_do_not_disagree_are_said_to_be_few() -> None:
    found = drawn([ONE, ONE], 60).diagnose()
    assert found.verdict == "few draws"
    assert not found.disagrees
    assert "num_samples" in found.advice


@pytest.mark.parametrize("other", [JOINED, OTHER], ids=["joined", "other"])
def test_modes_of_like_height_are_told_apart_and_grouped(other: Tensor) -> None:
    found = drawn([ONE, other, ONE, other]).diagnose()
    assert found.verdict == "modes"
    assert found.disagrees
    assert sorted(found.groups) == [[0, 2], [1, 3]]
    assert found.p_value == pytest.approx(0.002)
    assert found.ratio > 1.1
    assert "of_chains([0, 2])" in found.advice
    assert "of_chains([1, 3])" in found.advice


def test_modes_with_the_same_sizes_of_blocks_are_told_apart() -> None:
    """No number of K, entropy or log joint shows them."""
    found = drawn([ONE, OTHER], 300).diagnose()
    scalars = [value for name, value in found.rhat.items() if name != "together"]
    assert max(scalars) < 1.05
    assert found.rhat["together"] > 1.5
    assert found.verdict == "modes"


def test_a_chain_at_a_lower_log_joint_is_named() -> None:
    levels = torch.tensor([0.0, -0.3, -9.0])
    found = drawn([ONE, ONE, JOINED], levels=levels).diagnose()
    assert found.verdict == "stuck"
    assert found.groups in ([[0, 1], [2]], [[2], [0, 1]])
    assert "(chain 2 by 8.825, counted from 0)" in found.advice
    assert "of_chains([0, 1])" in found.advice
    assert drawn([ONE, ONE, ONE], levels=levels / 9).diagnose().verdict != "stuck"


def test_each_group_of_chains_has_a_posterior_of_its_own() -> None:
    whole = drawn([ONE, OTHER, ONE, OTHER], astray=0.02, levels=torch.arange(4.0))
    traced = Trace("log joint", torch.arange(8.0).view(4, 2), torch.arange(8.0, 16).view(4, 2))
    whole = PartitionPosterior(whole.model, whole.backend, whole.samples, [60, 50, 60, 70], traced, {"kept": 1})
    for group, truth in zip(([0, 2], [1, 3]), (ONE, OTHER), strict=True):
        found = whole.of_chains(group)
        assert [whole.num_draws[chain] for chain in group] == found.num_draws
        parts = {name: value.split(whole.num_draws) for name, value in whole.samples.items()}
        for name, value in found.samples.items():
            assert torch.equal(value, torch.cat([parts[name][chain] for chain in group]))
        assert torch.equal(found.trace.values, traced.values[group])
        assert torch.equal(found.trace.seconds, traced.seconds[group])
        assert found.metadata == {"kept": 1}
        assert len({(a, b) for a, b in zip(truth.tolist(), found.consensus().tolist(), strict=True)}) == 4
    alone = PartitionPosterior(whole.model, whole.backend, drawn([ONE]).samples, [60], traced)
    assert torch.equal(alone.of_chains([0]).trace.values, traced.values)  # of restarts
    for wrong in ([], [4], [-1], [0, 0], 0):
        with pytest.raises(ValueError, match=r"chains is .*; expected some of 0 to 3, each once, such as \[0\]"):
            whole.of_chains(wrong)


def test_chains_that_never_move_are_in_modes_of_their_own() -> None:
    found = drawn([ONE, JOINED], astray=0.0).diagnose()
    assert found.verdict == "modes"
    assert found.ratio == float("inf")
    one, other = torch.combinations(torch.arange(120)).T
    apart = ((ONE[one] == ONE[other]) != (JOINED[one] == JOINED[other])).double().mean()
    assert found.energy == pytest.approx(2 * float(apart), abs=0.05)  # of a thousand pairs alone
    assert found.rhat["num_components"] == float("inf")
    assert drawn([ONE, ONE], 400, astray=0.0).diagnose().ratio == 1.0


def test_chains_that_hardly_move_are_slow() -> None:
    found = slow(3, 40, 0.01).diagnose()
    assert found.verdict == "slow"
    assert found.disagrees
    assert "thinning" in found.advice


@pytest.mark.nightly
def test_alarms_are_rarely_false() -> None:
    """One in a hundred by the permutations, also of draws that are not independent, and none that matters."""
    independent = [drawn([ONE] * 3, 30, seed=seed).diagnose() for seed in range(20)]
    moving = [slow(2, 200, 0.3, seed=seed).diagnose() for seed in range(12)]
    for found in (independent, moving):
        assert sum(each.p_value <= 0.01 for each in found) <= 2
        assert not any(each.disagrees for each in found)


def test_one_chain_cannot_tell() -> None:
    found = drawn([ONE]).diagnose()
    assert found.verdict == "one chain"
    assert "cannot tell whether others would settle on another answer" in found.advice
    assert "num_chains=4" in found.advice
    moved = torch.cat([drawn([ONE]).samples["assignments"], drawn([JOINED]).samples["assignments"]])
    noise = torch.randn(120, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert "Its own halves differ" in posterior_of({"assignments": moved, "log_joint": noise}, [120]).diagnose().advice


def test_too_few_draws_and_a_single_one_cannot_tell() -> None:
    assert drawn([ONE, OTHER], 19).diagnose().verdict == "too short"
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    found = SVI(num_steps=5, num_restarts=2).fit(DPM(), X).diagnose()
    assert found.verdict == "one draw"
    assert "2 restarts ended at ELBO" in found.advice


def test_chains_of_different_lengths_are_compared_by_their_last_draws() -> None:
    long, short = drawn([ONE], 90), drawn([ONE], 40, seed=1)
    samples = {name: torch.cat([long.samples[name], short.samples[name]]) for name in long.samples}
    samples["log_joint"][:30] -= 100.0  # warming up
    assert posterior_of(samples, [90, 40]).diagnose().verdict == "few draws"


def test_it_prints_a_table_and_the_mend() -> None:
    text = repr(drawn([ONE, JOINED]).diagnose())
    assert "R-hat  bulk ESS  tail ESS" in text.splitlines()[0]
    assert any(line.startswith("log_joint") for line in text.splitlines())
    assert text.splitlines()[-1].startswith("modes: the chains have settled on different answers")
    assert "distance between chains / within 1." in text


def test_every_structure_has_quantities_of_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(24, 3, generator=generator, dtype=torch.float64)
    y, counts = (X[:, 0] > 0).long(), torch.poisson(torch.ones(12, 5), generator=generator)
    for model, scan, data, pairs in [
        (IHMM(truncation=4), "blocked", (X,), "together"),
        (InfiniteLatentSVM(LinearGaussian(), truncation=4, feature_map=None), "blocked", (X, y), "shared"),
        (LDA(num_topics=2), "collapsed", (counts,), "together"),
    ]:
        backend = Gibbs(num_samples=20, num_warmup=2, num_chains=2, scan=scan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ChainsDisagree)
            found = backend.fit(model, *data).diagnose()
        assert isinstance(found, Diagnosis)
        assert pairs in found.rhat
        assert "log_joint" in found.rhat
        assert found.ratio > 0


def test_a_fit_whose_chains_disagree_warns(monkeypatch) -> None:
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    backend = Gibbs(num_samples=20, num_warmup=0, num_chains=2)
    verdicts = {"modes": True, "stuck": True, "slow": True, "few draws": False, "agree": False}
    for verdict, warned in verdicts.items():
        monkeypatch.setattr(
            backends.Posterior,
            "diagnose",
            lambda self, verdict=verdict: Diagnosis(verdict, "do.", {}, {}, {}, [[0], [1]], ratio=1.1),
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            backend.fit(DPM(), X)
        assert [each.category for each in caught] == [ChainsDisagree] * warned
        assert all(each.filename == __file__ for each in caught)

    def never(self: Backend) -> None:
        raise AssertionError

    monkeypatch.setattr(backends.Posterior, "diagnose", never)
    backend.replace(num_samples=19).fit(DPM(), X)
    backend.replace(num_chains=1).fit(DPM(), X)
