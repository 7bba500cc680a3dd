"""Arguments of the models whose components repel."""

from __future__ import annotations

import pytest
import torch

from regbayes.models import DDPM, DIH, CrammerSinger, EpsilonInsensitive, OneVsRest

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("model", [DDPM(), DIH()], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_directions": 0}, "num_directions is 0"),
        ({"num_directions": 2.5}, r"num_directions is 2\.5"),
        ({"loss": EpsilonInsensitive()}, "a hyperplane needs a binary loss"),
        ({"loss": OneVsRest()}, "a hyperplane needs a binary loss"),
        ({"loss": CrammerSinger()}, "a hyperplane needs a binary loss"),
        ({"feature_loc": torch.zeros(3)}, "feature_loc and feature_axes belong together"),
        ({"weight_scale": 0.0}, r"weight_scale is 0\.0"),
        ({"intercept": -1.0}, r"intercept is -1\.0"),
    ],
)
def test_wrong_arguments_are_named(model, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        model.replace(**change).resolve(X)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"stickiness": 1.0}, r"stickiness is 1\.0"), ({"top_concentration": 0.0}, r"top_concentration is 0\.0")],
)
def test_wrong_arguments_of_states_are_named(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        DIH(**change).resolve(X)


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        (X, [3, 3], "lengths add up to 6, but X has 8 rows"),
        (X, [0, 8], "expected whole numbers of at least 1"),
        (X, [2.5, 5.5], "expected whole numbers of at least 1"),
        (torch.where(torch.arange(24).view(8, 3) == 4, torch.nan, X), None, r"some values missing: \[1\]"),
        (torch.full((4, 2), torch.nan), None, "0 observed rows"),
        (torch.where(torch.arange(24).view(8, 3) == 4, torch.inf, X), None, "contains NaN or inf"),
    ],
)
def test_wrong_sequences_are_named(inputs, lengths, message) -> None:
    with pytest.raises(ValueError, match=message):
        DIH().prepare(inputs, None, lengths)


def test_labels_and_lengths_are_for_the_models_that_have_them() -> None:
    with pytest.raises(ValueError, match="finds states without labels"):
        DIH().prepare(X, torch.arange(8))
    with pytest.raises(ValueError, match="DDPM has no sequences"):
        DDPM().prepare(X, None, [8])
