"""Do the chains of a fit agree, and if not, what to do: from quantities that do not depend on labels.

R-hat and effective sizes are computed for the summaries of the structure. They can all pass while the partitions
differ, so chains are also compared by whole draws. D is the squared distance of two draws: the share of pairs of points
that are together in one draw and apart in the other (for features, it compares how many the two points share).

    energy = sum over pairs of chains i, j of (2 D_ij - D_ii - D_jj),     ratio = D of different chains / D within them,

Both use means over draws that are thinned until they are about independent. The null law of the energy comes from
permuting these draws among the chains.

References
----------
Szekely & Rizzo (2013), Energy statistics; Vehtari et al. (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..structures import Draw, structure_of
from .diagnostics import bulk_size, joint_size, rhat, tail_size

__all__ = ["ChainsDisagree", "Diagnosis", "diagnose"]


class ChainsDisagree(UserWarning):
    """The chains of a fit are in different places, so that its draws are not those of the posterior."""


@dataclass(frozen=True)
class Diagnosis:
    """Whether the chains of a fit agree. Printed, it is a table and advice.

    Attributes
    ----------
    verdict : "agree"; "few draws": no disagreement seen, but too few effective draws; "slow": chains differ, and move
        too slowly to tell whether they are in different modes; "modes": they are in different modes of similar log
        joint; "stuck": some have a lower log joint, in a lesser mode or still in warm-up; "one chain", "one draw" or
        "too short": there is nothing to compare
    advice : what the verdict means, and what to do
    rhat, bulk_size, tail_size : R-hat, and effective draws in the bulk and the tails, by the name of a quantity; the
        worst value if a quantity has several
    groups : lists of chains, counted from 0; the chains of one list agree
    energy, ratio, p_value : energy statistic of the chains, their distance divided by that within chains, and the
        p-value of a permutation test that they do not differ; NaN for a single chain
    """

    verdict: str
    advice: str
    rhat: dict[str, float]
    bulk_size: dict[str, float]
    tail_size: dict[str, float]
    groups: list[list[int]]
    energy: float = float("nan")
    ratio: float = float("nan")
    p_value: float = float("nan")

    @property
    def disagrees(self) -> bool:
        """Whether the chains differ by more than each of them moves."""
        return self.verdict in ("modes", "stuck") or (self.verdict == "slow" and self.ratio >= _LARGE_RATIO)

    def __repr__(self) -> str:
        lines = [f"{'':24}{'R-hat':>8}{'bulk ESS':>10}{'tail ESS':>10}"] if self.rhat else []
        for name, value in self.rhat.items():
            lines.append(f"{name:24}{value:8.3f}{self.bulk_size[name]:10.0f}{self.tail_size[name]:10.0f}")
        if self.ratio == self.ratio:
            lines.append(f"distance between chains / within {self.ratio:.2f}, p = {self.p_value:.3f}")
        return "\n".join([*lines, f"{self.verdict}: {self.advice}"])


def diagnose(posterior: Any) -> Diagnosis:
    """Whether the chains of a posterior agree; see `Diagnosis`."""
    num_draws, num_chains = min(posterior.num_draws), len(posterior.num_draws)
    if sum(posterior.num_draws) == 1 or "share" in posterior.samples:  # an average of several optima
        return Diagnosis("one draw", _of_one_draw(posterior.trace), {}, {}, {}, [[0]])
    if num_draws < FEWEST_DRAWS:
        advice = f"a chain has {num_draws} draws, and it takes {FEWEST_DRAWS} to compare chains. Raise num_samples."
        return Diagnosis("too short", advice, {}, {}, {}, [list(range(num_chains))])
    kept = structure_of(posterior.model).summaries(posterior)
    found = {name: _by_chain(value, posterior.num_draws) for name, value in kept.items() if value.numel()}
    shown = {name: value[:, :, :_MOST_SHOWN] for name, value in found.items()}
    sizes = {name: (float(bulk_size(value).min()), float(tail_size(value).min())) for name, value in shown.items()}
    bulk, tail = ({name: each[place] for name, each in sizes.items()} for place in (0, 1))
    table = _Table({name: float(rhat(value).max()) for name, value in shown.items()}, bulk, tail, num_chains)
    if num_chains == 1:
        return table.diagnosis("one chain", _of_one_chain(table), [[0]])
    return _compared(found, table)


@dataclass(frozen=True)
class _Table:
    """R-hat and effective sizes by name, for C chains."""

    rhat: dict[str, float]
    bulk_size: dict[str, float]
    tail_size: dict[str, float]
    num_chains: int

    @property
    def worst(self) -> str:
        """The quantity of the largest R-hat."""
        return max(self.rhat, key=self.rhat.__getitem__)

    @property
    def fewest(self) -> str:
        """The quantity with the fewest effective draws."""
        return min(self.bulk_size, key=self.bulk_size.__getitem__)

    def diagnosis(self, verdict: str, advice: str, groups: list[list[int]], **how: float) -> Diagnosis:
        return Diagnosis(verdict, advice, self.rhat, self.bulk_size, self.tail_size, groups, **how)


def _compared(found: Draw, table: _Table) -> Diagnosis:
    """The diagnosis of several chains."""
    number = _effective_draws(found)
    # at a distance of one autocorrelation time, draws are still correlated
    distance = _distances(found, max(_LEAST_THINNED, min(_MOST_THINNED, int(number / 2))))
    means = _block_means(distance, table.num_chains)
    how = {"energy": _energy(means), "ratio": _ratio(means), "p_value": _p_value(distance, table.num_chains)}
    groups, lower = _groups(means), _lower(found.get("log_joint"))
    if lower:
        return table.diagnosis("stuck", _of_stuck(lower, table.num_chains), groups, **how)
    if how["p_value"] <= _SMALL_P and (how["ratio"] < _LARGE_RATIO or number < _LEAST_THINNED):
        return table.diagnosis("slow", _of_slow(table), groups, **how)
    if how["p_value"] <= _SMALL_P:
        return table.diagnosis("modes", _of_modes(groups), groups, **how)
    together = [list(range(table.num_chains))]
    if table.rhat[table.worst] > _LARGE_RHAT or table.bulk_size[table.fewest] < _FEW_EFFECTIVE * table.num_chains:
        return table.diagnosis("few draws", _of_few(table), together, **how)
    return table.diagnosis("agree", "the chains are alike: pool their draws.", together, **how)


# -- distances between draws -------------------------------------------------------------------------------------------


def _by_chain(value: Tensor, num_draws: list[int]) -> Tensor:
    """Values [S, ...] of all draws as [C, S, Q] float64; chains of different lengths are cut to their last draws."""
    chains = value.double().reshape(len(value), -1).split(num_draws)
    return torch.stack([chain[-min(num_draws) :] for chain in chains])


def _effective_draws(found: Draw) -> float:
    """Effective draws of a chain: of the slowest scalar on average, or of all pairs where these have fewest."""
    scalars = torch.cat([value for value in found.values() if value.shape[2] == 1], 2)
    pairs = [value for value in found.values() if value.shape[2] > 1]
    sizes = [torch.stack([bulk_size(chain.unsqueeze(0)) for chain in scalars]).mean(0).min()]
    sizes += [joint_size(chain.unsqueeze(0)) for value in pairs for chain in value]
    return float(torch.stack(sizes).min())


def _distances(found: Draw, number: int) -> Tensor:
    """Squared distances [C S', C S'] of `number` draws of each chain, evenly spaced, chain after chain."""
    pairs = [value for value in found.values() if value.shape[2] > 1]
    scalars = [(value - value.mean((0, 1))) / value.std((0, 1)).clamp(min=1e-12) for value in found.values()]
    values = torch.cat(pairs or scalars, 2)
    chosen = torch.linspace(0, values.shape[1] - 1, min(number, values.shape[1])).round().long()
    rows = values[:, chosen.to(values.device)].flatten(0, 1)
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square() / rows.shape[1]


def _block_means(distance: Tensor, num_chains: int) -> Tensor:
    """Mean distances [C, C] between chains; on the diagonal, between different draws of one chain."""
    number = len(distance) // num_chains
    means = distance.view(num_chains, number, num_chains, number).mean((1, 3))
    means.diagonal().mul_(number / max(1, number - 1))
    return means


def _energy(means: Tensor) -> float:
    total = means.sum() - means.diagonal().sum()
    return float(total - (len(means) - 1) * means.diagonal().sum())


def _ratio(means: Tensor) -> float:
    within = means.diagonal().mean()
    between = (means.sum() - means.diagonal().sum()) / (len(means) * (len(means) - 1))
    return float(_over(between, within))


def _over(between: Tensor, within: Tensor) -> Tensor:
    """The ratio [...], 1 if both are 0."""
    return torch.where(between + within > 0, between / within, 1.0)


def _p_value(distance: Tensor, num_chains: int) -> float:
    """The share of permutations of draws among chains with at least the same energy."""
    generator = torch.Generator(distance.device).manual_seed(0)
    seen, as_much = _energy(_block_means(distance, num_chains)), 1
    for _ in range(_NUM_PERMUTATIONS):
        order = torch.randperm(len(distance), generator=generator, device=distance.device)
        found = _energy(_block_means(distance[order][:, order], num_chains))
        as_much += found >= seen - 1e-12
    return as_much / (1 + _NUM_PERMUTATIONS)


def _groups(means: Tensor) -> list[list[int]]:
    """Groups of chains in one place; two chains are linked if they are no farther apart than draws of one chain."""
    within = means.diagonal()
    near = _over(means, (within.unsqueeze(0) + within.unsqueeze(1)) / 2) < _LARGE_RATIO
    near.fill_diagonal_(True)
    for _ in range(len(near)):
        near = near.double() @ near.double() > 0
    return [row.nonzero().flatten().tolist() for row in near.unique(dim=0).flip(0)]


def _lower(log_joint: Tensor | None) -> dict[int, float]:
    """How far each chain's mean log joint is below that of the best one, for chains two standard deviations below."""
    if log_joint is None:
        return {}
    gap = log_joint.mean(1).max() - log_joint.mean(1).squeeze(1)
    spread = log_joint.var(1).mean().sqrt()
    return {chain: float(below) for chain, below in enumerate(gap) if below > _LARGE_GAP * spread}


# -- advice ------------------------------------------------------------------------------------------------------------


def _of_one_draw(trace: Any) -> str:
    final = trace.final
    ends = f" {len(final)} restarts ended at {trace.name} {final.min():.6g} to {final.max():.6g}." * (len(final) > 1)
    return (
        f"a single optimum says nothing about others.{ends} Compare `trace.best` of other seeds, or use "
        "Gibbs(num_chains=4)."
    )


def _of_one_chain(table: _Table) -> str:
    worst = table.rhat[table.worst]
    halves = f" Its own halves differ: R-hat of {table.worst} is {worst:.2f}. Raise num_warmup." * (worst > 1.1)
    return (
        "one chain cannot tell whether others would settle on another answer, however sure it looks. Fit with "
        f"num_chains=4, which run side by side.{halves}"
    )


def _of_stuck(lower: dict[int, float], num_chains: int) -> str:
    whose = ", ".join(f"chain {chain} by {below:.4g}" for chain, below in lower.items())
    best = [chain for chain in range(num_chains) if chain not in lower]
    return (
        "some chains hold an answer that is less probable than that of the best one: their mean log joint is lower by "
        f"more than {_LARGE_GAP:g} standard deviations ({whose}, counted from 0). They are stuck there or still "
        "warming up, and each of them alone would have looked sure. Raise num_warmup or split_merge. If chains still "
        f"differ, report that, beside what the best found, of_chains({best}) of the posterior; drop none silently."
    )


def _of_slow(table: _Table) -> str:
    name = table.fewest
    return (
        "the chains are not in one place yet, and move slowly: "
        f"{table.bulk_size[name]:.0f} effective draws of {name} in all. Raise num_samples or thinning until they meet."
    )


def _of_modes(groups: list[list[int]]) -> str:
    places = ", ".join(f"of_chains({group})" for group in groups)
    return (
        "the chains have settled on different answers (modes) that are about as probable. Pooled, these count by their "
        "numbers of chains, not by their probability, which these draws do not show. Raise split_merge and num_warmup; "
        f"if that does not join them, report each answer: {places} of the posterior."
    )


def _of_few(table: _Table) -> str:
    worst, fewest = table.worst, table.fewest
    return (
        f"the chains differ by no more than chance, but R-hat of {worst} is {table.rhat[worst]:.3f} and {fewest} has "
        f"{table.bulk_size[fewest]:.0f} effective draws. Raise num_samples for R-hat below {_LARGE_RHAT} and "
        f"{_FEW_EFFECTIVE} effective draws of each chain."
    )


FEWEST_DRAWS = 20  # least number of draws of a chain for a comparison
_MOST_SHOWN = 100  # quantities of one kind in the table
_LARGE_RHAT, _FEW_EFFECTIVE = 1.01, 100
_LEAST_THINNED, _MOST_THINNED, _NUM_PERMUTATIONS = 10, 50, 499
_SMALL_P, _LARGE_RATIO, _LARGE_GAP = 0.01, 1.05, 2.0
