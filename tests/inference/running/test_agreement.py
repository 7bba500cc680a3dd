"""A single chain, and the short one from another start that it is compared with."""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine, make_blobs
from sklearn.preprocessing import StandardScaler

from regbayes.estimators import Clusterer
from regbayes.inference import ChainsDisagree, Diagnosis, Gibbs, Posterior
from regbayes.inference.running import agreement
from regbayes.models import DPM, DiagonalGaussian, InfiniteSVM

SHORT = Gibbs(num_warmup=100, num_samples=100, seed=2)


def wine() -> np.ndarray:
    """Rows [178, 13] whose clusters, with independent columns, chains from different starts find differently."""
    return StandardScaler().fit_transform(load_wine().data)


def warned(backend: Gibbs, X: np.ndarray) -> list[str]:
    """What a fit warns of: nothing but chains that disagree, at the line of its call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backend.fit(DPM(DiagonalGaussian()), X)
    assert all(each.category is ChainsDisagree and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_a_chain_in_one_of_several_modes_warns() -> None:
    (message,) = warned(SHORT, wine())
    assert "short chain from another start ended elsewhere" in message
    assert "num_chains=4" in message
    with pytest.warns(ChainsDisagree, match="The 2 chains disagree"):  # as long ones do
        SHORT.replace(num_chains=2, num_jobs=1).fit(DPM(DiagonalGaussian()), wine())


def test_an_estimator_warns_at_the_line_of_its_user() -> None:
    with pytest.warns(ChainsDisagree) as caught:
        Clusterer(DPM(DiagonalGaussian()), SHORT.replace(seed=4)).fit(wine())
    assert [each.filename for each in caught] == [__file__]


def test_a_chain_that_finds_all_there_is_does_not_warn() -> None:
    X, _ = make_blobs(120, n_features=3, centers=4, random_state=0)
    assert [warned(SHORT.replace(seed=seed), X) for seed in range(3)] == [[], [], []]


def test_no_other_chain_is_swept_if_their_number_is_given_or_sweeps_are_few_or_labels_count(monkeypatch) -> None:
    swept = []
    monkeypatch.setattr(agreement, "run", swept.append)
    for fewer in ({"num_chains": 1}, {"num_warmup": 99}, {"num_samples": 99}, {"init": "one"}):
        assert warned(SHORT.replace(**fewer), wine()[::5]) == []
    SHORT.fit(InfiniteSVM(), wine()[::5], load_wine().target[::5])
    assert swept == []


def test_the_other_chain_leaves_no_trace_in_the_draws() -> None:
    X, _ = make_blobs(40, n_features=3, centers=4, random_state=0)
    mine, alone = (SHORT.replace(num_chains=number).fit(DPM(), X) for number in (None, 1))
    assert mine.num_draws == [100]
    assert all(torch.equal(value, alone.samples[name]) for name, value in mine.samples.items())
    assert torch.equal(mine.trace.values, alone.trace.values)


def test_chains_that_differ_by_chance_say_nothing(monkeypatch) -> None:
    for verdict, ratio, number in [("modes", 1.6, 1), ("modes", 1.4, 0), ("few draws", 1.6, 0), ("agree", 1.6, 0)]:
        found = Diagnosis(verdict, "", {}, {}, {}, [[0], [1]], ratio=ratio)
        monkeypatch.setattr(Posterior, "diagnose", lambda self, found=found: found)
        assert len(warned(SHORT, wine())) == number


@pytest.mark.parametrize("below", [0.9, 1.1])
def test_a_chain_at_a_lower_log_joint_says_nothing(monkeypatch, below: float) -> None:
    """The values of the other chain are put so many standard deviations below the first one's."""
    values: list[torch.Tensor] = []
    kept, plain = agreement._kept, warned(SHORT, wine())
    assert len(plain) == 1

    def moved(chain, sweeps):
        values.append(kept(chain, sweeps))
        if len(values) % 2:
            return values[-1]
        return values[-1] - values[-1].mean() + values[-2].mean() - below * values[-2].std()

    monkeypatch.setattr(agreement, "_kept", moved)
    assert len(warned(SHORT, wine())) == (below < 1)


def test_ctrl_c_in_the_other_chain_keeps_the_first_one(monkeypatch) -> None:
    run, X = agreement.run, wine()

    def stopped(short):
        def sweep(*arguments):
            os.kill(os.getpid(), signal.SIGINT)
            return short.kernel.sweep(*arguments)

        return run(replace(short, kernel=replace(short.kernel, sweep=sweep)))

    monkeypatch.setattr(agreement, "run", stopped)
    assert SHORT.fit(DPM(DiagonalGaussian()), X).num_draws == [100]
    with pytest.raises(KeyboardInterrupt):
        SHORT.fit(DPM(DiagonalGaussian()), X, on_interrupt="raise")


def test_a_fit_that_goes_on_from_a_file_warns_alike(tmp_path) -> None:
    X, file = wine(), tmp_path / "chain"
    with pytest.warns(ChainsDisagree):
        whole = SHORT.fit(DPM(DiagonalGaussian()), X, checkpoint=file)
    with pytest.warns(ChainsDisagree):
        again = SHORT.fit(DPM(DiagonalGaussian()), X, resume=file)
    assert torch.equal(whole.samples["assignments"], again.samples["assignments"])
