"""Configuration objects follow scikit-learn's parameter convention without importing it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.base import clone

from regbayes import models
from regbayes.inference import Gibbs
from regbayes.inference.running.sweeps import Sweeps
from regbayes.models import config
from regbayes.models.config import Config, from_plain, to_plain


@dataclass(eq=False)
class Inner(Config):
    strength: float = 1.0


@dataclass(eq=False)
class Outer(Config):
    inner: Inner = field(default_factory=Inner)
    values: object = None


def test_nested_names_reach_the_inner_configuration() -> None:
    outer = Outer()
    outer.set_params(inner__strength=3.0, values=2)
    assert outer.inner.strength == 3.0
    assert outer.get_params()["inner__strength"] == 3.0
    assert "inner__strength" not in outer.get_params(deep=False)


def test_an_inner_parameter_reaches_the_new_inner_configuration() -> None:
    given = Inner()
    outer = Outer().set_params(inner__strength=5.0, inner=given)
    assert outer.inner is given
    assert given.strength == 5.0


def test_a_part_with_arguments_that_copies_would_lose_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Mine defines __init__.*lose its arguments. Make it a dataclass"):

        class Mine(Config):
            def __init__(self, number: float) -> None:
                self.number = number

    @dataclass(eq=False, slots=True)
    class Slotted(Config):
        number: float = 1.0

    assert Slotted(2.0).replace().number == 2.0


def test_a_default_that_objects_share_is_copied_before_it_changes() -> None:
    @dataclass(eq=False)
    class Shared(Config):
        part: Inner = Inner()  # noqa: RUF009

    one, other = Shared(), Shared()
    one.set_params(part__strength=7.0)
    assert (one.part.strength, other.part.strength) == (7.0, 1.0)


def test_unknown_parameter_is_named() -> None:
    with pytest.raises(ValueError, match="'power'; it has: inner, values"):
        Outer().set_params(power=1)


def test_an_inner_parameter_of_what_has_none_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"Outer has None as its values, which has no parameter 'power'. Give it a values"
    ):
        Outer().set_params(values__power=1)


def test_sklearn_clone_copies_deeply() -> None:
    outer = Outer(Inner(4.0))
    copy = clone(outer)
    assert copy.inner is not outer.inner
    assert copy.inner.strength == 4.0


def test_plain_round_trip_keeps_nested_classes_and_tensors() -> None:
    outer = Outer(Inner(7.0), values=torch.tensor([1.0, 2.0]))
    back = from_plain(to_plain(outer))
    assert isinstance(back, Outer)
    assert back.inner.strength == 7.0
    assert torch.equal(back.values, outer.values)


def test_configurations_in_lists_tuples_and_dicts_come_back() -> None:
    outer = Outer(values=[(1, Inner(2.0)), {"deep": [Inner(3.0)]}])
    back = from_plain(to_plain(outer)).values
    assert back[0][0] == 1
    assert isinstance(back[0], tuple)
    assert back[0][1].strength == 2.0
    assert back[1]["deep"][0].strength == 3.0
    with pytest.raises(ValueError, match="would be read as a class"):
        to_plain(Outer(values={"class": "a", "params": "b"}))


def test_names_are_those_of_modules_and_the_last_of_a_name_counts() -> None:
    def define(default: float) -> type[Config]:
        @dataclass(eq=False)
        class Again(Config):
            strength: float = default

        return Again

    first, last = define(1.0), define(2.0)
    described = to_plain(first())
    assert described["class"] == f"{__name__}.{first.__qualname__}"
    assert type(from_plain(described)) is last
    assert type(from_plain({"class": "Again", "params": {}})) is last  # as in files of schema 1


def test_arguments_that_the_class_does_not_take_are_refused() -> None:
    described = to_plain(Inner())
    for params in ({"power": 2.0}, {1: 2.0}, None, [1]):
        with pytest.raises(ValueError, match=r"other arguments for .*Inner' than the class takes"):
            from_plain({**described, "params": params})


def test_unknown_class_names_the_mend() -> None:
    with pytest.raises(ValueError, match="'Nowhere', which is not imported"):
        from_plain({"class": "Nowhere", "params": {}})


@pytest.mark.parametrize("name", ["DPM", "InfiniteSVM", "IHMM", "BNMC", "MedLDA", "InfiniteLatentSVM"])
def test_every_argument_of_a_model_is_read_once_in_a_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = torch.tensor([[0.0, 2.0], [1.0, 0.0], [3.0, 1.0], [2.0, 4.0]]), torch.tensor([0, 1, 1, 0])
    targets = {"DPM": None, "IHMM": None, "BNMC": torch.eye(2)[y]}.get(name, y)
    model, seen, checked = getattr(models, name)(), [], config._checked

    def counted(argument: str, value: Any, field: Any, domains: Any) -> Any:
        if domains is config._domains(type(model)) and not isinstance(value, Config):
            seen.append((argument, value))
        return checked(argument, value, field, domains)

    monkeypatch.setattr(config, "_checked", counted)
    posterior = Gibbs(num_samples=1, num_warmup=1).fit(model, X, targets)
    times = Counter((argument, id(value)) for argument, value in seen)
    assert len(times) > 1
    assert set(times.values()) == {1}, seen
    again = posterior.model.checked()
    assert again.checked() is again


def test_a_fit_enters_few_files_before_its_first_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them are the parts of the model, one file each."""
    folder, entered = Path(models.__file__).parents[1], set()

    def enter(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(folder):
            entered.add(frame.f_code.co_filename)

    class Begun(Exception):
        """The first sweep."""

    def begin(*_: Any) -> None:
        raise Begun

    monkeypatch.setattr(Sweeps, "advance", begin)
    X, y = torch.tensor([[0.0, 2.0], [1.0, 0.0], [3.0, 1.0], [2.0, 4.0]]), torch.tensor([0, 1, 1, 0])
    for _ in range(2):  # what is imported or computed once and for all comes first
        entered.clear()
        sys.setprofile(enter)
        try:
            with pytest.raises(Begun):
                Gibbs().fit(models.InfiniteSVM(), X, y)
        finally:
            sys.setprofile(None)
    entered.discard(__file__)  # of a checkout that is installed as it stands
    assert 30 < len(entered) <= 40, sorted(entered)
