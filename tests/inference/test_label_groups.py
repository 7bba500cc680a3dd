"""Groups that labels tell are found though half of the labels are hidden: no fit ends with one component."""

from __future__ import annotations

import pytest
import torch
from setups import seeded
from torch import Tensor

from regbayes.inference import SVI, Backend, Gibbs
from regbayes.inference.gibbs.label_sets import coupled, kernel
from regbayes.inference.posterior.partition_losses import pair_f1
from regbayes.models import BNMC

GROUPS = {"svi": SVI(), "gibbs": Gibbs(num_samples=5, num_warmup=5)}


def half_hidden(seed: int, num_rows: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [N, 8] in four groups at the corners of a square, which two of the columns tell; labels [N, 8], four of
    opposite corners and four that follow the other columns, half of them hidden; and the groups [N]."""
    generator = seeded(seed)
    groups = torch.randint(4, (num_rows,), generator=generator)
    corners = 4.0 * torch.tensor([[0, 0], [1, 1], [0, 1], [1, 0]]).double()
    X = torch.randn((num_rows, 8), generator=generator, dtype=torch.float64)
    directions = torch.randn((6, 4), generator=generator, dtype=torch.float64)
    X[:, :2] += corners[groups]
    rates = torch.tensor([[0.8, 0.6, 0.1, 0.1], [0.1, 0.1, 0.7, 0.6]]).double()[groups // 2]
    probabilities = torch.cat([rates, (1.2 * X[:, 2:] @ directions - 1).sigmoid()], 1)
    Y = torch.bernoulli(probabilities, generator=generator)
    return X, Y.masked_fill(torch.rand(Y.shape, generator=generator) < 0.5, torch.nan), groups


@pytest.mark.parametrize("seed", [1, 6, 11])
@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_found(name: str, seed: int) -> None:
    X, Y, groups = half_hidden(seed)
    backend: Backend = GROUPS[name].replace(progress=False)
    posterior = backend.fit(BNMC(), X, Y)
    assert pair_f1(posterior.partition(), groups) > 0.75, posterior.num_components


def test_chains_start_as_they_are_told() -> None:
    """By "auto" in the components of variational inference, or in one, or as given."""
    X, Y, groups = half_hidden(1)
    model, data = BNMC().prepare(X, Y)
    numbers = {
        init: len(kernel.init(model, data, seeded(), backend=Gibbs(init=init)).assignments.unique())
        for init in ("auto", "one", "random")
    }
    assert numbers["one"] == 1 < numbers["auto"] < numbers["random"] == model.truncation
    given = kernel.init(model, data, seeded(), backend=Gibbs(init=groups)).assignments
    assert torch.equal(given, groups)


def test_coupled_chains_start_there_too() -> None:
    X, Y, groups = half_hidden(1)
    model, data = BNMC(joint="and").prepare(X, Y)
    state = coupled.init(model, data, seeded(), backend=Gibbs(num_generative=0))
    assert pair_f1(state.assignments, groups) > 0.75
