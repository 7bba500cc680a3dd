"""Posteriors that go on with another batch: the stochastic step from the last state, from what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regbayes.inference import SVI, Gibbs, Posterior, continue_fit
from regbayes.inference.svi.steps import Minibatch
from regbayes.models import BNMC, DDPM, DPM, IHMM, LDA, InfiniteSVM, MedLDA, PitmanYor

pytestmark = pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning")

X = torch.randn((90, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] > 0).long()
COUNTS, LABELS = (X.exp() * 2).round(), torch.stack([Y, 1 - Y, (X[:, 1] > 0).long()], 1).double()
LABELS[::7, 0] = LABELS[3::5, 1] = torch.nan
CASES: dict[str, tuple[Any, Tensor, Tensor | None, str]] = {
    "isvm": (InfiniteSVM(truncation=4), X, Y, "gibbs"),
    "pitman_yor": (DPM(prior=PitmanYor(0.3, 1.0), truncation=4), X, None, "gibbs"),
    "ddpm": (DDPM(truncation=3), X, None, "gibbs"),
    "lda": (LDA(num_topics=2), COUNTS, None, "averaging"),
    "medlda": (MedLDA(num_topics=2), COUNTS, Y, "gibbs"),
    "averaging": (MedLDA(num_topics=2), COUNTS, Y, "averaging"),
    "label sets": (BNMC(truncation=5), X, LABELS, "gibbs"),
    'label sets, "and"': (BNMC(truncation=5, joint="and"), X, LABELS, "gibbs"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_posterior_goes_on_as_its_state_would(name: str, tmp_path: Path) -> None:
    """One more batch is the stochastic step from the last state, also after the posterior was saved."""
    model, rows, y, rule = CASES[name]
    first, second = ((rows[part], None if y is None else y[part]) for part in (slice(60), slice(60, None)))
    backend = SVI(num_steps=6, tolerance=None, rule=rule)
    posterior = backend.fit(model, *first)
    resolved, data = model.prepare(*first)
    steps = backend.module_of(resolved).of(backend, resolved)
    state = steps.init(resolved, data, torch.Generator().manual_seed(0))
    for _ in range(6):
        state = steps.sweep(state, data, resolved)
    state = state if steps.polish is None else steps.polish(state, data, resolved)
    batch = resolved.data(*second)
    moved = steps.stochastic.sweep(state, Minibatch(batch, 3.0), resolved, (3.0 + 1.0) ** -0.7)
    expected = steps.draw(steps.complete(moved, batch, resolved), batch, resolved)
    posterior.save(tmp_path / "fit")
    more = continue_fit(Posterior.load(tmp_path / "fit"), *second)
    torch.testing.assert_close(more.trace.values[0, -1], moved.bound)
    assert len(expected) > 5
    for key in expected.keys() - {"num_seen"}:
        torch.testing.assert_close(more.samples[key][0], expected[key], msg=lambda text, key=key: f"{key}: {text}")
    assert float(more.samples["num_seen"]) == 90
    assert float(continue_fit(more, *second).samples["num_seen"]) == 120
    assert y is None or more.predict_proba(rows).shape == (90, y.shape[1] if y.ndim == 2 else 2)


def test_a_step_under_the_settings_of_a_caller_is_the_same() -> None:
    posterior = SVI(num_steps=2).fit(InfiniteSVM(truncation=3), X, Y)
    expected = continue_fit(posterior, X, Y).samples["weights"]
    with torch.inference_mode(), torch.device("meta"):
        found = continue_fit(posterior, X, Y).samples["weights"]
    assert torch.equal(found, expected)
    assert not found.is_inference()


def test_draws_states_and_averaged_mixtures_do_not_go_on() -> None:
    with pytest.raises(ValueError, match="cannot continue with another batch; posteriors of mixtures, topics and BNMC"):
        continue_fit(SVI(num_steps=2).fit(IHMM(truncation=3), X), X)
    with pytest.raises(NotImplementedError, match="needs all points at once"):
        continue_fit(SVI(num_steps=2, rule="averaging").fit(InfiniteSVM(truncation=3), X, Y), X, Y)
    with pytest.raises(ValueError, match="cannot continue"):
        continue_fit(Gibbs(1, 1).fit(BNMC(), X, LABELS), X, LABELS)
