"""`torchrun ... -m regbayes fit`: each of several processes reads its own row groups of one Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import CommandError


def rank() -> tuple[int, int]:
    """The number of this process and of all processes that torchrun started; (0, 1) without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def ranked() -> Iterator[Any]:
    """A context with the process group of all ranks, for `on_all`; None with one process.

    Raises
    ------
    CommandError    on the other ranks, if a rank ends.
    """
    import torch.distributed as dist

    from ..models.ranks import RankLost, meeting
    from ..models.sums import among

    if rank()[1] == 1:
        yield None
        return
    begins = not dist.is_initialized()
    if begins:
        dist.init_process_group("gloo")
    try:
        with meeting(dist.group.WORLD) as those, among(those):
            yield those.group
    except RankLost as error:
        raise CommandError(str(error)) from error
    finally:
        if begins:
            dist.destroy_process_group()
