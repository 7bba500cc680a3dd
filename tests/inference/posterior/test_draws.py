"""Records of draws: what a backend leaves out, misspells or gives another shape is refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regbayes.inference import structures
from regbayes.inference.posterior.draws import AnyDraw, PartitionDraw, axes_of, drawn, names_of, require_record

RECORD = PartitionDraw(
    assignments=torch.tensor([0, 1, 0]),
    log_mixture=torch.zeros(3),
    weights=torch.zeros(2, 1, 1),
    hyperparameters=torch.zeros(2, 5),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"parameters.loc": torch.zeros(2, 4), "concentration": torch.ones(()), "noise": torch.ones(7)}, None),
        ({"log_mixture": None}, "A draw of Mine has no 'log_mixture'; PartitionDraw needs assignments, log_mixture, w"),
        (
            {"assignments": torch.zeros(3)},
            "'assignments' of type torch.float32; expected integers, .int:N. of",
        ),
        ({"responsabilities": torch.zeros(3, 2)}, r"'responsabilities' of shape \[3, 2\], a name that PartitionDraw"),
        ({"responsibilities": torch.zeros(3, 4)}, r"'responsibilities' of shape \[3, 4\]; expected 'N K' .* K = 2"),
        ({"parameters.loc": torch.zeros(3, 4)}, r"'parameters.loc' of shape \[3, 4\]; expected 'K ...'"),
        ({"penalty": torch.zeros(1)}, r"'penalty' of shape \[1\]; expected 'float:'"),
    ],
)
def test_a_draw_agrees_with_its_record(changes: dict[str, Any], message: str | None) -> None:
    draw = {name: value for name, value in (drawn(RECORD) | changes).items() if value is not None}
    if message is None:
        require_record(draw, PartitionDraw, "Mine")
        return
    with pytest.raises(ValueError, match=message):
        require_record(draw, PartitionDraw, "Mine")


def test_every_structure_of_ours_has_a_record_of_its_own() -> None:
    kinds = [entry.posterior for entry in structures._STRUCTURES.values() if "regbayes" in entry.posterior.__module__]
    assert len({kind.record for kind in kinds} - {AnyDraw}) == len(kinds)
    for kind in kinds:
        assert set(names_of(kind.record)) < set(axes_of(kind.record))
