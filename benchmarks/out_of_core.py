"""Rows that need not fit into memory: time, memory, and the exponent of time against their number, one thread.

    python benchmarks/out_of_core.py made [1e8]         # rows x 10 made on the fly, to a DPM and to an InfiniteSVM
    python benchmarks/out_of_core.py growth             # the same of 10^6, 3 10^6 and 10^7 rows
    python benchmarks/out_of_core.py parquet [FOLDER]   # 10^7 x 16 in two files (1.4 GB) to an InfiniteSVM

CPU seconds. Each fit has a process of its own, whose peak of memory is the figure. `made` and `growth` see every row
once, in blocks of 50,000; `parquet` compares a fit of 200 steps of 4,096 rows, and one of a pass, with reading the
files alone: by pyarrow as it is, by pyarrow with the options of `rows_of`, and into arrays of rows.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import torch
from pyarrow.parquet import ParquetWriter

from regbayes.inference import SVI, rows_of
from regbayes.models import DPM, InfiniteSVM

BLOCK = 50_000
MODELS = {"DPM": DPM, "InfiniteSVM": InfiniteSVM}


def made_block(index: int, num_columns: int = 10, num_rows: int = BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight clusters, in each of which a hyperplane of its own tells two classes apart."""
    law = torch.Generator().manual_seed(0)
    centers, normals = (scale * torch.randn(8, num_columns, generator=law) for scale in (4.0, 1.0))
    own = torch.Generator().manual_seed(1 + index)
    place = torch.randint(8, (num_rows,), generator=own)
    noise = torch.randn(num_rows, num_columns, generator=own)
    return centers[place] + noise, ((noise * normals[place]).sum(1) > 0).long()


def made(name: str, number: int) -> dict[str, float]:
    """A pass over so many rows."""
    source = rows_of(made_block, num_blocks=number // BLOCK)
    seconds = timed(lambda: sum(len(X) for X, _ in source.blocks(BLOCK)))
    fit = timed(lambda: SVI(num_steps=number // BLOCK, progress=False).fit(MODELS[name](), source))
    return {"make": seconds, "fit": fit}


def reading(folder: str, how: str) -> dict[str, float]:
    """The files alone."""
    source, dataset = rows_of(folder, y="label"), ds.dataset(folder)
    lean = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: sum(map(len, dataset.to_batches())),
        "lean": lambda: sum(map(len, dataset.to_batches(batch_size=2**15, fragment_scan_options=lean))),
        "arrays": lambda: sum(len(X) for X, _ in source.blocks(4096)),
    }
    return {how: timed(ways[how])}


def parquet(folder: str, num_steps: int, batch_size: int) -> dict[str, float]:
    """A fit."""
    source, backend = rows_of(folder, y="label"), SVI(num_steps=num_steps, batch_size=batch_size, progress=False)
    return {"fit": timed(lambda: backend.fit(InfiniteSVM(), source))}


def timed(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def write(folder: Path, number: int = 10**7, num_columns: int = 16) -> None:
    """So many rows in two files."""
    group = 250_000
    for place in range(2):
        writer = None
        for index in range(number // group // 2):
            X, y = made_block(1000 * place + index, num_columns, group)
            columns = {f"x{d}": pa.array(X[:, d].double().numpy()) for d in range(num_columns)}
            table = pa.table(columns | {"label": y.numpy()})
            writer = writer or ParquetWriter(folder / f"{place}.parquet", table.schema)
            writer.write_table(table)
        writer.close()


def apart(function: Callable[..., dict[str, float]], *arguments: object) -> dict[str, float]:
    """What a function measures in a process of its own, with its peak of memory in MB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (function, arguments))


def _measured(function: Callable[..., dict[str, float]], arguments: tuple[object, ...]) -> dict[str, float]:
    torch.set_num_threads(1)
    found = function(*arguments)
    return found | {"MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def show(what: str, found: dict[str, float]) -> None:
    """One line."""
    print(f"{what:<34}" + "  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)


def main(what: str, *rest: str) -> None:
    """Measure what is asked for."""
    if what == "made":
        number = int(float(rest[0])) if rest else 10**8
        for name in MODELS:
            show(f"{name}, {number:.0e} rows", apart(made, name, number))
    elif what == "growth":
        for name in MODELS:
            sizes = [10**6, 3 * 10**6, 10**7]
            found = [apart(made, name, number) for number in sizes]
            for number, each in zip(sizes, found, strict=True):
                show(f"{name}, {number:.0e} rows", each)
            slope = np.polyfit(np.log(sizes), np.log([each["fit"] for each in found]), 1)[0]
            print(f"{name}: time grows as N^{slope:.3f}")
    else:
        with tempfile.TemporaryDirectory() as made_folder:
            folder = rest[0] if rest else made_folder
            if not rest:
                write(Path(folder))
            read = dict[str, float]()
            for how in ("read", "lean", "arrays"):
                found = apart(reading, folder, how)
                show("Parquet alone", found)
                read[how] = found[how]
            for what, steps, size in (("200 steps of 4,096 rows", 200, 4096), ("a pass", 200, 50_000)):
                found = apart(parquet, folder, steps, size)
                show(f"Parquet, {what}", found | {f"fit / {how}": found["fit"] / each for how, each in read.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
