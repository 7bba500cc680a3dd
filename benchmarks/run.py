"""Every ratio of speed beside its peer, in one go: what it must be, and what is reached.

    make bench                              all of them, in an environment with the peers, made in build/bench
    python benchmarks/run.py [WORD ...]     those whose name has one of the words, in this environment

One thread; each job measures ours and its peer in turn in one process. It is what a change is judged by, so run it on
an idle machine. A job that needs newsgroups reads REGBAYES_DATA, or downloads them; one whose peer is not installed
says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
NUMBER = r"([\d.]+)"


@dataclass(frozen=True)
class Figure:
    """A number that a job prints: what it is, the job, where it stands, and the least or the most that it must be."""

    name: str
    job: str  # file of this folder and its arguments
    pattern: str  # its first group is the number
    least: float = 0.0
    most: float = float("inf")

    def shown(self, value: float) -> str:
        """A line of the table."""
        bound = f"at most {self.most:.3g}" if self.most < float("inf") else f"at least {self.least:.3g}"
        verdict = "reached" if self.least <= value <= self.most else "MISSED"
        return f"{self.name:84} {bound:>13} {value:9.2f}  {verdict}"


FIGURES = [
    *(
        Figure(
            f"one EM iteration of hmmlearn / a path drawn (the recursion alone), K = {K}",
            "markov.py steps",
            rf"K={K} sample_paths: .* = {NUMBER}",
            least=least,
        )
        for K, least in ((10, 4), (50, 12))
    ),
    *(
        Figure(
            f"one EM iteration of hmmlearn / a whole sweep of IHMM, log joint included, K = {K}",
            "markov.py sweep",
            rf"K={K} whole sweep: .* = {NUMBER}",
            least=least,
        )
        for K, least in ((10, 4), (50, 12))
    ),
    *(
        Figure(
            f"direct assignment scan / one EM iteration of hmmlearn, K = {K}",
            "sequences.py direct",
            rf"{K} states: .* = {NUMBER}",
            most=1 / 3,
        )
        for K in (10, 50)
    ),
    *(
        Figure(
            f"{model}, tokens a second / those of tomotopy, K = {K}",
            "topics.py speed",
            rf"(?m)^{model}, K = {K},.* = {NUMBER}",
            least=1,
        )
        for model in ("MedLDA", "LDA")
        for K in (20, 100)
    ),
    *(
        Figure(
            f"stochastic step of BNMC, rows a second / online LDA of scikit-learn, batch {rows}",
            f"multi_label.py speed --batch {rows}",
            rf"BNMC, product .* {NUMBER} x",
            least=least,
        )
        for rows, least in ((256, 5), (2048, 15))
    ),
    Figure(
        "CPU seconds of a stochastic fit of BNMC of 2 steps, 5,000 columns, K = 50",
        "multi_label.py start",
        rf"K = 50: {NUMBER} s",
        most=2,
    ),
    *(
        Figure(
            f"{what} iteration / Lloyd iteration of KMeans, D = {D}, K = {K}",
            "small_variance.py iteration",
            rf"\d+ +{D} +{K} +" + skipped * r"[\d.]+ +" + NUMBER,
            most=most,
        )
        for what, skipped, most in (("DP-means", 1, 1.2), ("M2DPM", 2, 3))
        for D, K in ((64, 50), (64, 200))
    ),
    *(
        Figure(
            f"collapsed scan / iteration of BayesianGaussianMixture, {family}, D = {D}",
            "collapsed.py scan",
            rf"{family} D={D}: .* = {NUMBER}",
            most=0.6,
        )
        for family in ("FullGaussian", "SphericalGaussian", "DiagonalGaussian")
        for D in (8, 32)
    ),
    *(
        Figure(
            f"iLSVM, averaging rule, {loss}: a whole sweep / its four matrix products",
            "features_svi.py sweep",
            rf"{loss}: .* = {NUMBER}",
            most=5,
        )
        for loss in ("OneVsRest", "CrammerSinger")
    ),
    *(
        Figure(
            f"longest first fit without machine code, {kind}, CPU seconds less imports",
            "first_fit.py",
            rf"of {kind} = {NUMBER}",
            most=most,
        )
        for kind, most in (("InfiniteLatentSVM", 5), ("others", 3))
    ),
    *(
        Figure(
            f"Gibbs of 300 features, 311 rows, 27 classes: {what}", "wide.py gibbs", rf"{what} = {NUMBER}", most=most
        )
        for what, most in (("CPU seconds a sweep", 0.5), ("peak memory, GB", 1))
    ),
    *(
        Figure(
            f"collapsed scan of DDPM, hyperplanes drawn / iteration of BayesianGaussianMixture, diag, D = {D}",
            "collapsed.py repelling",
            rf"DDPM D={D}: .* = {NUMBER}",
        )
        for D in (8, 32)
    ),
    Figure(
        "an outsider's compiled family / PoissonGamma, collapsed scan, D = 8",
        "collapsed.py outsider",
        rf"D=8: .* = {NUMBER}",
        most=1.5,
    ),
    Figure(
        "stochastic InfiniteSVM from Parquet of 10^7 x 16 / reading it into arrays",
        "out_of_core.py parquet",
        rf"200 steps.*fit / arrays {NUMBER}",
        most=5,
    ),
    *(
        Figure(
            f"exponent of time against rows to 10^7, stochastic SVI of {name}",
            "out_of_core.py growth",
            rf"{name}: time grows as N\^{NUMBER}",
            most=1.05,
        )
        for name in ("DPM", "InfiniteSVM")
    ),
]


@cache
def output(job: str) -> str:
    """What a job prints; what went wrong where it fails."""
    command = [sys.executable, *job.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else f"failed: {(done.stderr.strip() or 'no word').splitlines()[-1]}"


def main() -> None:
    words = sys.argv[1:]
    for figure in FIGURES:
        if words and not any(word.lower() in figure.name.lower() for word in words):
            continue
        text = output(figure.job)
        found = re.search(figure.pattern, text)
        print(figure.shown(float(found[1])) if found else f"{figure.name:84} {text[:120] or 'not found'}", flush=True)


if __name__ == "__main__":
    main()
