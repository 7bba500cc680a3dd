"""An outsider's structure: a few binary features of every row, with what is public alone."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regbayes.inference import SVI, Gibbs, Kernel, Posterior, Structure, register_structure, structure_of
from regbayes.inference.running.sweeps import Schedule
from regbayes.models import DPM
from regbayes.models.config import Config

# -- the outsider: at most 100 lines -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    X: Tensor  # [N, D]
    loadings: Tensor  # [K, D]

    @property
    def num_data(self) -> int:
        return len(self.X)


@dataclass(eq=False)
class BinaryFeatures(Config):
    """z_nk ~ Bernoulli(share),  x_n ~ N(z_n loadings, scale^2 I), loadings [K, D] known."""

    data_type = Rows

    loadings: Tensor
    share: float = 0.3
    scale: float = 1.0

    def prepare(self, X, y=None, lengths=None):
        X = torch.as_tensor(X)
        return self.replace(loadings=self.loadings.to(X)), Rows(X, self.loadings.to(X))

    def log_joint(self, data: Rows, features: Tensor) -> Tensor:
        """log p(x_n, z_n) [N] of features [N, K]."""
        residual = (data.X - features @ data.loadings) / self.scale
        log_density = -residual.square().sum(1) / 2 - data.X.shape[1] * math.log(self.scale * math.sqrt(2 * math.pi))
        return log_density + (features * math.log(self.share) + (1 - features) * math.log1p(-self.share)).sum(1)


@dataclass(frozen=True)
class FeatureState:
    features: Tensor  # [N, K] of 0 and 1


def log_joint(state, data, model):
    return model.log_joint(data, state.features).sum()


class BinaryFeatureGibbs:
    """What a backend's table holds; a module with these two functions would do as well."""

    @staticmethod
    def check(backend, model) -> None:
        if backend.scan != "auto":
            raise ValueError(f"scan is {backend.scan!r}; features have one scan, 'auto'.")

    @staticmethod
    def kernel(backend, model) -> Kernel:
        def init(model, data, generator):
            return FeatureState(data.X.new_zeros(len(data.X), len(data.loadings)))

        def sweep(state, data, model, generator, step):
            features = state.features.clone()
            for k in range(features.shape[1]):
                column = torch.tensor([k])
                without, with_it = (model.log_joint(data, features.index_fill(1, column, on)) for on in (0.0, 1.0))
                uniforms = torch.rand(len(features), generator=generator, dtype=features.dtype)
                features[:, k] = (uniforms < (with_it - without).sigmoid()).to(features)
            return FeatureState(features)

        def draw(state, data, model):
            # up to the last feature that a row has
            used = max((k + 1 for k in range(len(model.loadings)) if state.features[:, k].any()), default=0)
            return {"features": state.features[:, :used], "log_joint": log_joint(state, data, model)}

        return Kernel(FeatureState, init, sweep, log_joint, draw)


class FeaturePosterior(Posterior):
    """A fitted model of binary features: samples `features` [S, N, K]."""

    def facts(self):
        return [f"{self.samples['features'].shape[2]} features"]

    def shares(self) -> Tensor:
        """p(z_nk = 1 | X) [N, K]."""
        return self.samples["features"].mean(0)


def stack(draws):
    """Draws with as many features as any of them has; the others have no row with it."""
    most = max(draw["features"].shape[1] for draw in draws)
    padded = [torch.nn.functional.pad(draw["features"], (0, most - draw["features"].shape[1])) for draw in draws]
    return {"features": torch.stack(padded), "log_joint": torch.stack([draw["log_joint"] for draw in draws])}


def summaries(posterior):
    """What does not depend on the names of the features, [S] each."""
    features = posterior.samples["features"]
    return {"num_features": features.any(1).sum(1), "log_joint": posterior.samples["log_joint"]}


register_structure(Structure("binary features", Rows, FeaturePosterior, stack, summaries))
Gibbs.register(Rows, BinaryFeatureGibbs)

# -- what it gets for that ---------------------------------------------------------------------------------------------

X = torch.tensor([[0.1, -0.2], [2.1, 0.3], [1.8, 2.2], [0.2, 1.7]], dtype=torch.float64)
MODEL = BinaryFeatures(torch.tensor([[2.0, 0.0], [0.0, 2.0], [-9.0, 5.0]], dtype=torch.float64))
BACKEND = Gibbs(num_samples=500, num_warmup=10, num_chains=2)


@pytest.fixture(scope="module")
def fitted() -> FeaturePosterior:
    return BACKEND.fit(MODEL, X)


def test_the_outsider_is_brief() -> None:
    lines = Path(__file__).read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("# -- ")]
    assert starts[1] - starts[0] <= 100, starts[1] - starts[0]


def test_draws_are_from_the_posterior(fitted: FeaturePosterior) -> None:
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.float64)
    _, data = MODEL.prepare(X)
    log_weights = torch.stack([MODEL.log_joint(data, state.expand(len(X), 3)) for state in states], 1)
    exact = log_weights.softmax(1) @ states
    found = fitted.shares()
    error = (exact[:, : found.shape[1]] * (1 - exact[:, : found.shape[1]]) / 1000).sqrt()
    # successive draws are nearly independent: loadings are orthogonal but for the third, which no row has
    assert ((found - exact[:, : found.shape[1]]).abs() <= 6 * error + 1e-3).all()
    assert (exact[:, found.shape[1] :] < 1e-3).all()
    assert type(fitted) is FeaturePosterior
    assert "BinaryFeatures by Gibbs: 1000 draws, 2 features, log joint" in repr(fitted)
    assert fitted.trace.values.shape == (2, 510)


def test_a_schedule_keeps_no_draw_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CONTRIBUTING says, under "Add a backend": the last state of the last chain is all that there is."""
    backend, schedule = Gibbs(num_samples=5, num_warmup=2, num_chains=2), Gibbs.schedule
    kept = backend.fit(MODEL, X)
    monkeypatch.setattr(Gibbs, "schedule", lambda own: replace(schedule(own), keep=Schedule.keep))
    last = backend.fit(MODEL, X)
    assert (len(kept.samples["log_joint"]), len(last.samples["log_joint"])) == (10, 1)
    assert last.samples["log_joint"][0] == kept.samples["log_joint"][-1] == last.trace.values[-1, -1]


def test_it_goes_on_from_a_checkpoint_bit_for_bit(fitted: FeaturePosterior, tmp_path: Path) -> None:
    BACKEND.replace(num_samples=60).fit(MODEL, X, checkpoint=tmp_path / "chain.pt")
    resumed = BACKEND.fit(MODEL, X, resume=tmp_path / "chain.pt")
    assert torch.equal(resumed.samples["features"], fitted.samples["features"])
    assert torch.equal(resumed.trace.values, fitted.trace.values)


def test_it_is_saved_and_loaded(fitted: FeaturePosterior, tmp_path: Path) -> None:
    fitted.save(tmp_path / "posterior.pt")
    loaded = Posterior.load(tmp_path / "posterior.pt")
    assert type(loaded) is FeaturePosterior
    assert torch.equal(loaded.shares(), fitted.shares())
    assert repr(loaded) == repr(fitted)


@pytest.mark.filterwarnings("default")
def test_it_is_exported(fitted: FeaturePosterior) -> None:
    pytest.importorskip("arviz")
    group = fitted.to_arviz()["posterior"]
    assert group["num_features"].shape == (2, 500)
    torch.testing.assert_close(torch.tensor(group["log_joint"].values).flatten(), fitted.samples["log_joint"])


def test_options_and_other_backends_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="features have one scan"):
        Gibbs(scan="slice").fit(MODEL, X)
    with pytest.raises(NotImplementedError, match="BinaryFeatures has no SVI backend; it has: Gibbs"):
        SVI().fit(MODEL, X)


def test_structures_and_kernels_are_inherited() -> None:
    """A model or data class that derives from a known one is served as that is, and so are subclasses of backends."""

    class Own(DPM):
        pass

    class Slower(Gibbs):
        pass

    assert structure_of(Own()) is structure_of(DPM())
    assert Slower.module_of(MODEL) is BinaryFeatureGibbs
    assert Slower.module_of(Own()) is Gibbs.module_of(DPM())
    Slower.register(Rows, sys)
    assert Slower.module_of(MODEL) is sys
    assert Gibbs.module_of(MODEL) is BinaryFeatureGibbs


def test_an_unknown_structure_names_the_known_ones() -> None:
    class Ring(DPM):
        data_type = object

    with pytest.raises(NotImplementedError, match="Ring has no SVI backend; it has: none"):
        SVI().fit(Ring(), X)
    known = "binary features, features, partition"
    with pytest.raises(NotImplementedError, match=f"Ring has no known structure; known are: {known}"):
        structure_of(Ring())
