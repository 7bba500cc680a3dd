"""Mixtures and topics that go on with another batch: the stochastic step from the last state, from what is kept."""

from __future__ import annotations

import pytest
import torch

from regbayes.inference import SVI, Posterior, continue_fit
from regbayes.inference.svi.partition import kernel as partition
from regbayes.inference.svi.rules import AVERAGING, NATURAL
from regbayes.inference.svi.steps import Minibatch
from regbayes.inference.svi.topics import kernel as topics
from regbayes.models import DDPM, DPM, IHMM, LDA, InfiniteSVM, MedLDA, PitmanYor

pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")

X = torch.randn((90, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] > 0).long()
COUNTS = (X.exp() * 2).round()
RHO = (90 / 30 + 1.0) ** -0.7


@pytest.mark.parametrize(
    "model",
    [InfiniteSVM(truncation=4), DPM(prior=PitmanYor(0.3, 1.0), truncation=4), DDPM(truncation=3)],
    ids=["isvm", "pitman_yor", "ddpm"],
)
def test_a_mixture_goes_on_as_its_state_would(model, tmp_path) -> None:
    y = Y if isinstance(model, InfiniteSVM) else None
    posterior = SVI(num_steps=6, tolerance=None).fit(model, X[:60], None if y is None else y[:60])
    resolved, data = model.prepare(X[:60], None if y is None else y[:60])
    state = partition.init(resolved, data, torch.Generator().manual_seed(0))
    for _ in range(6):
        state = partition.sweep(state, data, resolved)
    batch = resolved.data(X[60:], None if y is None else y[60:])
    moved = partition.STEPS.stochastic.sweep(state, Minibatch(batch, 3.0), resolved, RHO)
    posterior.save(tmp_path / "fit")
    more = continue_fit(Posterior.load(tmp_path / "fit"), X[60:], None if y is None else y[60:])
    torch.testing.assert_close(more.trace.values[0, -1], moved.bound)
    for name, value in (
        ("hyperparameters", moved.hyperparameters),
        ("weights", moved.mean),
        ("precision_tril", moved.precision_tril),
        ("sticks", moved.sticks),
        ("prior_factor", moved.q),
    ):
        torch.testing.assert_close(more.samples[name][0], value)
    assert float(more.samples["num_seen"]) == 90
    assert more.samples["assignments"].shape == (1, 30)
    assert more.predict_proba(X).shape == (90, 2) if y is not None else more.assign(X).shape == (90,)


@pytest.mark.parametrize(
    ("model", "rule"),
    [(LDA(num_topics=2), AVERAGING), (MedLDA(num_topics=2), NATURAL), (MedLDA(num_topics=2), AVERAGING)],
    ids=["lda", "medlda", "averaging"],
)
def test_topics_go_on_as_their_state_would_it_goes_on(model, rule) -> None:
    y = Y if isinstance(model, MedLDA) else None
    backend = SVI(num_steps=5, tolerance=None, rule=rule.name)
    posterior = backend.fit(model, COUNTS[:60], None if y is None else y[:60])
    resolved, data = model.prepare(COUNTS[:60], None if y is None else y[:60])
    steps = topics.steps_by(rule)
    state = steps.init(resolved, data, torch.Generator().manual_seed(0))
    for _ in range(5):
        state = steps.sweep(state, data, resolved)
    state = state if steps.polish is None else steps.polish(state, data, resolved)
    batch = resolved.data(COUNTS[60:], None if y is None else y[60:])
    moved = steps.stochastic.sweep(state, Minibatch(batch, 3.0), resolved, RHO)
    more = continue_fit(posterior, COUNTS[60:], None if y is None else y[60:])
    expected = topics.summary(moved, batch, resolved)
    for name in ("topics", "weights", "topic_sizes", "classifier_tril"):
        torch.testing.assert_close(more.samples[name][0], expected[name])
    torch.testing.assert_close(more.trace.values[0, -1], moved.bound)
    assert float(more.samples["num_seen"]) == 90


def test_states_and_averaged_mixtures_do_not_go_on() -> None:
    with pytest.raises(ValueError, match="cannot go on with another batch; those of mixtures, topics and BNMC"):
        continue_fit(SVI(num_steps=2).fit(IHMM(truncation=3), X), X)
    with pytest.raises(NotImplementedError, match="sees all points at once"):
        continue_fit(SVI(num_steps=2, rule="averaging").fit(InfiniteSVM(truncation=3), X, Y), X, Y)
