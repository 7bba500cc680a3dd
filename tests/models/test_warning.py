"""Warnings of this package: withheld for the code of one thread, or shown at the user's line."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from regbayes.models.warning import each_once, warn, withheld


def test_the_innermost_context_that_withholds_a_category_gets_its_messages() -> None:
    with withheld(FutureWarning) as outer, each_once():
        with withheld(Warning) as inner:
            for message in ("late", "late", "early"):
                warn(message, FutureWarning)
        with withheld(UnicodeWarning) as other:
            warn("later", FutureWarning)
        with pytest.warns(UserWarning, match="shown") as told:
            warn("shown", UserWarning)
    assert inner == {"late": FutureWarning, "early": FutureWarning}
    assert outer == {"later": FutureWarning}
    assert not other
    assert [each.filename for each in told] == [__file__]


def test_a_message_that_was_withheld_can_still_be_shown() -> None:
    with each_once():
        with withheld(UserWarning):
            warn("once", UserWarning)
        with pytest.warns(UserWarning, match="once"):
            warn("once", UserWarning)
        warn("once", UserWarning)


def test_other_threads_hear_their_warnings() -> None:
    filters = list(warnings.filters)
    with withheld(Warning) as found, ThreadPoolExecutor(1) as pool, pytest.raises(UserWarning, match="elsewhere"):
        pool.submit(warn, "elsewhere", UserWarning).result()
    assert not found
    assert warnings.filters == filters
