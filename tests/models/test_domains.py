"""Every field states its domain, and one validator reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from regbayes.models import DDPM, Hinge, InfiniteSVM, PitmanYor
from regbayes.models.config import Config
from regbayes.models.domains import SEED, Count, GammaPrior, Number, OneOf, Positive, PositiveNumbers, Whole, read


@dataclass(eq=False)
class Part(Config):
    size: Positive = 1.0


@dataclass(eq=False)
class Outer(Config):
    part: Part = field(default_factory=Part)
    share: Annotated[float, Number(above=0.5, most=1.0)] = 1.0
    count: Count | None = None
    kind: Annotated[str, OneOf("a", "b")] = "a"
    law: GammaPrior | None = (1.0, 1.0)
    rates: PositiveNumbers = None
    plain: float = 0.0
    flag: bool = False
    anything: Any = None


def refused(**changes: Any) -> str:
    with pytest.raises(ValueError, match=r"it must|expected") as caught:
        Outer(**changes).checked()
    return str(caught.value)


def test_messages_name_the_argument_what_was_found_and_what_is_accepted() -> None:
    assert refused(share=0.5) == "share is 0.5; it must be a number of more than 0.5 and at most 1."
    assert refused(part=Part(-1.0)) == "part__size is -1.0; it must be a positive number."
    assert refused(part=Part) == f"part is {Part!r}; expected an object of class Part, such as Part()."
    assert refused(count=0) == "count is 0; it must be an integer of at least 1, or None."
    assert refused(kind="c") == "kind is 'c'; it must be one of 'a', 'b'."
    assert refused(law=(1.0,)) == "law is (1.0,); it must be a pair (shape > 0, rate > 0), or None."
    assert refused(rates=[1.0, -1.0]) == "rates is [1.0, -1.0]; it must be positive, a number or an array, or None."
    assert refused(plain=math.nan) == "plain is nan; it must be a number."
    assert refused(flag=1) == "flag is 1; it must be True or False."
    assert refused(share=None).startswith("share is None; it must be")
    assert refused(plain=1e300) == "plain is 1e+300; it must be between 1e-100 and 1e+100 in size."


def test_what_is_found_is_cut_where_it_is_long() -> None:
    assert len(refused(part=list(range(1000)))) < 200


def test_scalars_of_numpy_become_those_of_python() -> None:
    checked = Outer(Part(np.float32(2.0)), count=np.int64(3), flag=np.bool_(True), law=np.array([1.0, 2.0])).checked()
    assert [type(value) for value in (checked.part.size, checked.count, checked.flag)] == [float, int, bool]
    assert checked.law == (1.0, 2.0)


def test_the_object_given_stays_as_it_is() -> None:
    given = Outer(count=np.int64(3))
    assert given.checked() is not given
    assert type(given.count) is np.int64


@pytest.mark.parametrize("change", [{"truncation": -3}, {"loss__strength": -1.0}])
def test_what_is_changed_in_a_checked_one_is_read_again(change: dict[str, float]) -> None:
    checked = InfiniteSVM().checked()
    assert checked.checked().checked() is checked.checked()
    for model in (checked, checked.replace(weight_scale=2.0)):
        with pytest.raises(ValueError, match=r"truncation is -3|loss__strength is -1"):
            model.set_params(**change).checked()


def test_tensors_and_arrays_pass_as_they_are() -> None:
    values = torch.tensor([1.0, 2.0])
    assert Outer(rates=values).checked().rates is values
    marker = object()
    assert Outer(anything=marker).checked().anything is marker


def test_arguments_that_depend_on_one_another() -> None:
    with pytest.raises(ValueError, match=r"prior__concentration is -0.5; it must be more than -0.3"):
        InfiniteSVM(prior=PitmanYor(0.3, -0.5)).checked()


def test_functions_of_users_become_feature_maps() -> None:
    model = DDPM(feature_map=torch.square).checked()
    assert model.feature_map(torch.tensor([[2.0]])).tolist() == [[4.0, 1.0]]


def test_domains_of_a_class_that_a_type_checker_alone_can_read_are_not_looked_at() -> None:
    @dataclass
    class Local(Hinge):
        slack: Unknown = 1.0  # noqa: F821

    assert Local(strength=-1.0).checked().strength == -1.0


def test_an_argument_of_a_method_is_read_alike() -> None:
    assert read("num_steps", np.int64(3), Whole(1)) == 3
    with pytest.raises(ValueError, match=r"num_steps is 2.5; it must be an integer of at least 1"):
        read("num_steps", 2.5, Whole(1))


def test_an_integer_that_is_too_large_is_told_the_largest() -> None:
    with pytest.raises(
        ValueError, match=r"seed is 4294967296; it must be an integer of at least 0 and at most 4294967295"
    ):
        read("seed", 2**32, SEED)
