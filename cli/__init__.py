"""The `regbayes` command: compare backends on a table, fit, predict, cluster, and describe a saved posterior."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any, NoReturn

from .errors import CommandError, one_line

__all__ = ["main"]

_MODELS = ("InfiniteSVM", "InfiniteLatentSVM", "MedLDA", "DPM")
_SHORT = {"ilsvm": "InfiniteLatentSVM", "medlda": "MedLDA"}
_CLUSTERINGS = ("DPM", "DDPM-S", "DDPM-L", "IHMM", "DIH-S", "DIH-L")
_LIKELIHOODS = ("full", "diagonal", "spherical")
_TASKS = ("auto", "classification", "regression")
_BACKENDS = ("small_variance", "svi", "gibbs")
_EXAMPLES = {
    "compare": """\
  regbayes compare
  regbayes compare --data houses.csv --target price --drop id --folds 5
  regbayes compare --data scenes.csv --targets beach,city,field""",
    "fit": """\
  regbayes fit --data iris.csv --target species --output iris.pt
  regbayes fit --data iris.csv --target species --inference gibbs --output iris.pt
  zcat logs.csv.gz | regbayes fit --data - --model DPM --drop id,time --output logs.pt""",
    "predict": """\
  regbayes predict --posterior iris.pt --data new.csv --output labels.csv
  cat new.csv | regbayes predict --posterior iris.pt --data - | head""",
    "cluster": """\
  regbayes cluster --data iris.csv --truth species
  regbayes cluster --data steps.csv --time date --model IHMM --inference svi""",
    "info": """\
  regbayes info --posterior iris.pt
  regbayes info --posterior iris.pt --json""",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Exit code: 0, 2 for a mistake of the user (told in one line), 130 for Ctrl-C,
    141 if whoever reads the output stops, as under `| head`."""
    try:
        options = _parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _show_warning
            options.run(options)
            sys.stdout.flush()
    except BrokenPipeError:
        return _unheard()
    except CommandError as error:
        print(f"regbayes: error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"regbayes: {one_line(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def _unheard() -> int:
    """Let what is still to be written go nowhere, as nobody reads on."""
    with suppress(OSError, ValueError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see `{self.prog} --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="regbayes", description=__doc__)
    parser.add_argument("--version", action="version", version=f"regbayes {version('regbayes')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_compare(commands)
    _add_fit(commands)
    _add_predict(commands)
    _add_cluster(commands)
    info = _command(commands, "info", "describe a saved posterior", _info)
    info.add_argument("--posterior", metavar="FILE", required=True)
    info.add_argument("--json", action="store_true", help="machine-readable")
    return parser


def _add_compare(commands: Any) -> None:
    compare = _command(commands, "compare", "cross-validate a model under every backend beside SVMs", _compare)
    _data_options(compare, "table with a header row, - for standard input; default: scikit-learn's breast cancer")
    _task_option(compare)
    text = "columns of labels, each 0 or 1 in every row, in place of --target: BNMC beside classifiers of label sets"
    compare.add_argument("--targets", metavar="A,B,C", help=text)
    text = "default: InfiniteSVM, or BNMC with --targets; ilsvm and medlda (for counts) for short"
    compare.add_argument("--model", type=_model, choices=(*_MODELS[:3], "BNMC"), help=text)
    _likelihood_option(compare, "; of BNMC diagonal")
    text = "repeatable; default: all it has, but no gibbs with --targets"
    compare.add_argument("--inference", choices=_BACKENDS, action="append", help=text)
    compare.add_argument("--folds", type=_integer(2), default=3, help="default: 3")
    _seed_option(compare)
    _report_options(compare, "for the picture")


def _add_fit(commands: Any) -> None:
    fit = _command(commands, "fit", "fit a model to a table and save the posterior", _fit)
    _data_options(fit, "table with a header row, FILE.csv or FILE.csv.gz; - for standard input", required=True)
    _task_option(fit)
    text = "default: InfiniteSVM; ilsvm and medlda (for counts) for short; DPM clusters, and sees no --target"
    fit.add_argument("--model", type=_model, choices=_MODELS, default=_MODELS[0], help=text)
    _likelihood_option(fit)
    text = "default: small_variance, or svi for MedLDA"
    fit.add_argument("--inference", choices=_BACKENDS, help=text)
    _seed_option(fit)
    text = (
        "fit at the default settings; else InfiniteSVM chooses its own by three folds (of 20000 rows at random if "
        "there are more), fits them to all rows, and says what it chose; by svi and gibbs that is the weight scale, "
        "found by small_variance; other models and a --checkpoint never search"
    )
    fit.add_argument("--no-search", dest="search", action="store_false", help=text)
    _checkpoint_option(fit, "")
    fit.add_argument("--output", metavar="FILE", required=True, help="the posterior")


def _add_predict(commands: Any) -> None:
    predict = _command(commands, "predict", "label the rows of a table with a saved posterior", _predict)
    predict.add_argument("--posterior", metavar="FILE", required=True)
    text = "table with the columns of the fit, in any order; - for standard input"
    predict.add_argument("--data", metavar="FILE.csv", required=True, help=text)
    _drop_option(predict, "; those that the fit left out are left out anyway")
    text = "FILE.csv, or FILE.tsv with tabs, compressed as FILE.csv.gz; default: -, standard output"
    predict.add_argument("--output", metavar="FILE.csv", default="-", help=text)


def _add_cluster(commands: Any) -> None:
    cluster = _command(commands, "cluster", "find clusters of rows, or states over time, and label the table", _cluster)
    cluster.add_argument(
        "--data", metavar="FILE.csv", required=True, help="table with a header row; - for standard input"
    )
    _drop_option(cluster)
    text = "the rows are one sequence in the order of this column of numbers or ISO dates: find states"
    cluster.add_argument("--time", metavar="COLUMN", help=text)
    text = "the rows are sequences of these lengths, one after another: find states"
    cluster.add_argument("--lengths", metavar="N,N,...", help=text)
    cluster.add_argument("--truth", metavar="COLUMN", help="known labels, to compare with; not a feature")
    text = "repeatable; default: DPM and DDPM-S, or IHMM and DIH-S with --time or --lengths"
    cluster.add_argument("--model", choices=_CLUSTERINGS, action="append", help=text)
    cluster.add_argument("--inference", choices=_BACKENDS, action="append", help="repeatable; default: gibbs")
    text = "of a cluster's rows; default: full for up to 50 features, else diagonal"
    cluster.add_argument("--likelihood", choices=(*_LIKELIHOODS, "multinomial"), help=text)
    _seed_option(cluster)
    _checkpoint_option(cluster, "; of several fits each has its own, FILE.MODEL.INFERENCE")
    _report_options(cluster, "for labels and picture")


def _command(commands: Any, name: str, summary: str, run: Callable[..., None]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"examples:\n{_EXAMPLES[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _data_options(parser: argparse.ArgumentParser, text: str, required: bool = False) -> None:
    parser.add_argument("--data", metavar="FILE.csv", required=required, help=text)
    parser.add_argument(
        "--target", metavar="COLUMN", help="column of the labels or numbers; all others are numeric features"
    )
    _drop_option(parser)


def _drop_option(parser: argparse.ArgumentParser, more: str = "") -> None:
    text = f"columns to leave out, whatever is in them; repeatable{more}"
    parser.add_argument("--drop", "--ignore", metavar="A,B,C", type=_names, action="extend", default=[], help=text)


def _names(text: str) -> list[str]:
    from .tables import names_in

    if not all(names := names_in(text)):
        raise argparse.ArgumentTypeError(f"{text!r} has a column without a name")
    return names


def _task_option(parser: argparse.ArgumentParser) -> None:
    text = "auto (default): numbers that are not all whole and take over 20 values are regression"
    parser.add_argument("--task", choices=_TASKS, default=_TASKS[0], help=text)


def _checkpoint_option(parser: argparse.ArgumentParser, more: str) -> None:
    text = f"where the fit is kept as it goes, and goes on from if that file exists{more}"
    parser.add_argument("--checkpoint", metavar="FILE", help=text)


def _model(name: str) -> str:
    return _SHORT.get(name.lower(), name)


def _likelihood_option(parser: argparse.ArgumentParser, more: str = "") -> None:
    text = "covariance of the components of InfiniteSVM and DPM; default: full for up to 50 features, else diagonal"
    parser.add_argument("--likelihood", choices=_LIKELIHOODS, help=f"{text}{more}")


def _seed_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_integer(0), default=0, help="default: 0")


def _report_options(parser: argparse.ArgumentParser, text: str) -> None:
    folder = "regbayes-out"
    parser.add_argument("--out", metavar="DIR", default=folder, help=f"{text}; default: ./{folder}")
    parser.add_argument("--json", action="store_true", help="machine-readable results on standard output")


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


# Each command is imported when it runs, so that `--help` need not wait for torch.


def _compare(options: argparse.Namespace) -> None:
    from .begin import begin

    problem, report = begin(options)
    from .compare import compare

    compare(problem, report, options)


def _fit(options: argparse.Namespace) -> None:
    from .commands import fit

    fit(options)


def _predict(options: argparse.Namespace) -> None:
    from .commands import predict

    predict(options)


def _cluster(options: argparse.Namespace) -> None:
    from .cluster import cluster

    cluster(options)


def _info(options: argparse.Namespace) -> None:
    from .commands import info

    info(options)


def _show_warning(message: Warning | str, *context: Any, **more: Any) -> None:
    print(f"regbayes: warning: {one_line(message)}", file=sys.stderr)
