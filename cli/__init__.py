"""The `regbayes` command: compare backends on a table, fit, predict, cluster, and describe a saved posterior."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple, NoReturn

from .errors import CommandError, one_line
from .ranks import rank

__all__ = ["command", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    It is 0, 2 for a mistake of the user (reported in one line), 130 for Ctrl-C, or 141 if the reader of the output
    stops, as under `| head`. Characters that the encoding of the output lacks become question marks.
    """
    if sys.stdout is None:
        print("regbayes: error: standard output is closed. Send it to a file, or to /dev/null.", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        options = _parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _show_warning
            options.run(options)
            sys.stdout.flush()
    except BrokenPipeError:
        return _unheard()
    except (CommandError, OSError) as error:  # such as a full disk, or a file that disappears
        print(f"regbayes: error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"regbayes: {one_line(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def command() -> NoReturn:
    """Run the command line as a program, and end the process with its exit code.

    After an error it ends without Python's own steps: a thread of Arrow that drops a file during these aborts it.
    """
    if not (code := main()):
        sys.exit()
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _unheard() -> int:
    """Discard the remaining output, since its reader has stopped."""
    with suppress(OSError, ValueError):  # a stream may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see `{self.prog} --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="regbayes", description=__doc__)
    parser.add_argument("--version", action="version", version=f"regbayes {version('regbayes')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, command in _COMMANDS.items():
        own = commands.add_parser(
            name,
            help=command.summary,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog=f"examples:\n{command.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.set_defaults(run=partial(_run, command.function))
        for option, differs in command.options.items():
            own.add_argument(option, *_ALSO.get(option, ()), **(_OPTIONS.get(option, {}) | differs))
    return parser


def _run(function: str, options: argparse.Namespace) -> None:
    """Run "module:function". Each command is imported when it runs, so that `--help` does not wait for torch."""
    module, _, name = function.partition(":")
    if rank()[1] > 1 and options.command != "fit":
        raise CommandError(f"several ranks are for `fit` alone: run `{options.command}` without torchrun.")
    getattr(import_module(f".{module}", __package__), name)(options)


def _names(text: str) -> list[str]:
    from .tables import names_in

    if not all(names := names_in(text)):
        raise argparse.ArgumentTypeError(f"{text!r} has a column without a name")
    return names


def _model(name: str) -> str:
    return {"ilsvm": "InfiniteLatentSVM", "medlda": "MedLDA"}.get(name.lower(), name)


def _integer(least: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
        return value

    return integer


def _show_warning(message: Warning | str, *context: Any, **more: Any) -> None:
    print(f"regbayes: warning: {one_line(message)}", file=sys.stderr)


_MODELS = ("InfiniteSVM", "InfiniteLatentSVM", "MedLDA", "DPM")
_LIKELIHOODS = ("full", "diagonal", "spherical")
_FULL = "default: full for up to 50 features, else diagonal"
_GAUSSIANS = f"covariance of the components of InfiniteSVM and DPM; {_FULL}"
_DROP = "columns to leave out, whatever is in them; repeatable"
_KEPT = "file in which the fit is kept while it runs; if the file exists, the fit goes on from it"

# the options that several commands share
_ALSO = {"--drop": ["--ignore"]}
_OPTIONS: dict[str, dict[str, Any]] = {
    "--data": {"metavar": "FILE.csv", "required": True, "help": "table with a header row; - for standard input"},
    "--target": {"metavar": "COLUMN", "help": "column of the labels or numbers; all others are numeric features"},
    "--drop": {"metavar": "A,B,C", "type": _names, "action": "extend", "default": [], "help": _DROP},
    "--task": {
        "choices": ("auto", "classification", "regression"),
        "default": "auto",
        "help": "auto (default): text and up to 20 values are classes, over 20 numbers that are not all whole "
        "regression; over 20 whole numbers could be either, and need this option",
    },
    "--likelihood": {"choices": _LIKELIHOODS, "help": _GAUSSIANS},
    "--inference": {"choices": ("small_variance", "svi", "gibbs")},
    "--seed": {"type": _integer(0), "default": 0, "help": "default: 0"},
    "--checkpoint": {"metavar": "FILE", "help": _KEPT},
    "--posterior": {"metavar": "FILE", "required": True},
    "--out": {"metavar": "DIR", "default": "regbayes-out"},
    "--json": {"action": "store_true", "help": "machine-readable results on standard output"},
}


class _Command(NamedTuple):
    summary: str
    function: str  # "module:function"
    options: dict[str, dict[str, Any]]  # by name, with the arguments that differ from `_OPTIONS`
    examples: str


_COMPARE = _Command(
    "cross-validate a model under every backend beside SVMs",
    "begin:compare",
    {
        "--data": {
            "required": False,
            "help": "table with a header row, - for standard input; default: simulated, three classes in nine clusters",
        },
        "--target": {},
        "--drop": {},
        "--task": {},
        "--targets": {
            "metavar": "A,B,C",
            "help": "columns of labels, each 0 or 1 in every row, in place of --target: BNMC beside classifiers of "
            "label sets",
        },
        "--model": {
            "type": _model,
            "choices": (*_MODELS[:3], "BNMC"),
            "help": "default: InfiniteSVM, or BNMC with --targets; ilsvm and medlda (for counts) for short",
        },
        "--likelihood": {"help": f"{_GAUSSIANS}; of BNMC diagonal"},
        "--inference": {
            "action": "append",
            "help": "repeatable; default: all it has, but no gibbs with --targets",
        },
        "--folds": {"type": _integer(2), "default": 3, "help": "default: 3"},
        "--seed": {},
        "--out": {"help": "for the picture; default: ./regbayes-out"},
        "--json": {},
    },
    """\
  regbayes compare
  regbayes compare --data houses.csv --target price --drop id --folds 5
  regbayes compare --data scenes.csv --targets beach,city,field""",
)
_FIT = _Command(
    "fit a model to a table and save the posterior",
    "commands:fit",
    {
        "--data": {"help": "table with a header row, FILE.csv or FILE.csv.gz; - for standard input"},
        "--target": {},
        "--drop": {},
        "--task": {},
        "--model": {
            "type": _model,
            "choices": _MODELS,
            "default": _MODELS[0],
            "help": "default: InfiniteSVM; ilsvm and medlda (for counts) for short; DPM clusters, and sees no --target",
        },
        "--likelihood": {},
        "--inference": {"help": "default: small_variance, or svi for MedLDA"},
        "--seed": {},
        "--no-search": {
            "dest": "search",
            "action": "store_false",
            "help": "fit at the default settings; else InfiniteSVM chooses its own by three folds (of 20000 rows at "
            "random if there are more), fits them to all rows, and says what it chose; by svi and gibbs that is the "
            "weight scale, found by small_variance; other models and a --checkpoint never search",
        },
        "--batch-size": {
            "metavar": "ROWS",
            "type": _integer(1),
            "help": "svi in stochastic steps, a pass over the table or 200 steps; each reads so many rows and keeps "
            "none: for tables, best in Parquet, that do not fit into memory. Rows should be in random order",
        },
        "--checkpoint": {},
        "--output": {"metavar": "FILE", "required": True, "help": "the posterior"},
    },
    """\
  regbayes fit --data iris.csv --target species --output iris.pt
  regbayes fit --data iris.csv --target species --inference gibbs --output iris.pt
  zcat logs.csv.gz | regbayes fit --data - --model DPM --drop id,time --output logs.pt""",
)
_PREDICT = _Command(
    "label the rows of a table with a saved posterior",
    "commands:predict",
    {
        "--posterior": {},
        "--data": {"help": "table with the columns of the fit, in any order; - for standard input"},
        "--drop": {"help": f"{_DROP}; those that the fit left out are left out anyway"},
        "--output": {
            "metavar": "FILE.csv",
            "default": "-",
            "help": "FILE.csv, or FILE.tsv with tabs, compressed as FILE.csv.gz; default: -, standard output",
        },
    },
    """\
  regbayes predict --posterior iris.pt --data new.csv --output labels.csv
  cat new.csv | regbayes predict --posterior iris.pt --data - | head""",
)
_CLUSTER = _Command(
    "find clusters of rows, or states over time, and label the table",
    "cluster:cluster",
    {
        "--data": {},
        "--drop": {},
        "--time": {
            "metavar": "COLUMN",
            "help": "the rows are one sequence in the order of this column of numbers or ISO dates: find states",
        },
        "--lengths": {
            "metavar": "N,N,...",
            "help": "the rows are sequences of these lengths, one after another: find states",
        },
        "--truth": {"metavar": "COLUMN", "help": "known labels, to compare with; not a feature"},
        "--model": {
            "choices": ("DPM", "DDPM-S", "DDPM-L", "IHMM", "DIH-S", "DIH-L"),
            "action": "append",
            "help": "repeatable; default: DPM and DDPM-S, or IHMM and DIH-S with --time or --lengths",
        },
        "--inference": {"action": "append", "help": "repeatable; default: gibbs"},
        "--likelihood": {"choices": (*_LIKELIHOODS, "multinomial"), "help": f"of a cluster's rows; {_FULL}"},
        "--seed": {},
        "--checkpoint": {"help": f"{_KEPT}; of several fits each has its own, FILE.MODEL.INFERENCE"},
        "--out": {"help": "for labels and picture; default: ./regbayes-out"},
        "--json": {},
    },
    """\
  regbayes cluster --data iris.csv --truth species
  regbayes cluster --data steps.csv --time date --model IHMM --inference svi""",
)
_INFO = _Command(
    "describe a saved posterior",
    "commands:info",
    {"--posterior": {}, "--json": {"help": "machine-readable"}},
    """\
  regbayes info --posterior iris.pt
  regbayes info --posterior iris.pt --json""",
)
_COMMANDS = {"compare": _COMPARE, "fit": _FIT, "predict": _PREDICT, "cluster": _CLUSTER, "info": _INFO}
