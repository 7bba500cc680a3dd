"""The one result type: what a fit learned, from whichever backend.

Every backend leaves the same kind of draws of a mixture: log weights of the components, what a component's inputs look
like (posterior hyperparameters of the family, or centres in the small-variance limit) and its classifiers. Prediction
is then one rule (math/dp-mixtures, section 5):

    f(x) = sum_g sum_k W_k^g(x) eta_k^g . a  /  sum_g [sum_k W_k^g(x) + W_new^g(x)],    W_k = w_k p(x | component k)

a ratio of averages over the draws g, in which a component not yet seen has score 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models.arrays import as_features, like
from ..models.config import from_plain, to_plain
from .engine import Chain, Draw, read_file, write_file
from .partitions import align, expected_loss
from .ridge import Ridge

__all__ = ["Posterior", "Trace", "result_class", "stack"]

_SCHEMA = 1


@dataclass(frozen=True)
class Trace:
    """Log joint, ELBO or objective after every step, with the seconds it took to get there."""

    name: str
    values: Tensor  # [chains, steps] float64, NaN after a chain's last step
    seconds: Tensor  # [chains, steps] float64

    @classmethod
    def of(cls, name: str, chains: list[Chain]) -> Trace:
        """The trace of some chains."""
        length = max((len(chain.values) for chain in chains), default=0)

        def padded(rows: list[list[float]]) -> Tensor:
            return torch.tensor([row + [float("nan")] * (length - len(row)) for row in rows], dtype=torch.float64)

        return cls(name, padded([chain.values for chain in chains]), padded([chain.times for chain in chains]))

    @property
    def final(self) -> Tensor:
        """The last value [chains] of every chain; NaN for one that was stopped before its first step."""
        values = torch.cat([self.values, self.values.new_full((len(self.values), 1), torch.nan)], 1)
        last = (~self.values.isnan()).sum(1) - 1
        return values.gather(1, (last % values.shape[1]).unsqueeze(1)).squeeze(1)


class Posterior:
    """A fitted model.

    Attributes
    ----------
    model : the model with every data-dependent default resolved
    backend : the backend that computed it
    samples : dict of Tensors with a leading axis of S draws (chains one after another; S = 1 for SVI, SmallVariance):
        `assignments` [S, N], `weights` [S, K, P, C], `log_mixture` [S, K + 1] (last: a component not yet seen),
        `hyperparameters` [S, K, ...] or `centers` [S, K, D], `concentration` [S]; of an infinite model whose components
        repel also `unseen_weights` [S, A, P, 1], hyperplanes of components without points. Components beyond a draw's
        own have log weight -inf.
    num_draws : int list, draws of each chain
    trace : Trace
    metadata : dict of plain data that travels with the posterior; empty unless its user fills it
    """

    def __init__(
        self,
        model: Any,
        backend: Any,
        stacked: tuple[Draw, list[int]],
        trace: Trace,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.metadata = dict(metadata or {})
        self.model = model
        self.backend = backend
        self.samples, self.num_draws = stacked
        self.trace = trace

    def __repr__(self) -> str:
        return (
            f"Posterior({type(self.model).__name__} by {type(self.backend).__name__}: {sum(self.num_draws)} draws, "
            f"{self.num_components} components, {self.trace.name} {float(self.trace.final.max()):.6g})"
        )

    # -- new points ---------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> Any:
        """Posterior mean scores: [N] for two classes (positive: the larger label) or a real target, else [N, L]."""
        return like(self._decision(self._check(X)), X)

    def predict(self, X: Any) -> Any:
        """Labels [N] in the user's own values; for a regression loss the posterior mean target."""
        decision = self._decision(self._check(X))
        if self.model.loss.target == "real":
            return like(decision, X)
        index = (decision > 0).long() if decision.ndim == 1 else decision.argmax(1)
        return like(self.model.classes[index], X)

    def predict_proba(self, X: Any) -> Any:
        """Class probabilities [N, L], classes sorted.

        With a logistic loss these are posterior predictive probabilities. A hinge is no likelihood: there they are
        the loss's pseudo-likelihood at the posterior mean score, normalized over the classes.
        """
        rows = self._check(X)
        self._needs_classes()
        mean = self._mean(rows, averaged=self._average)
        probabilities = mean if self._is_probabilistic else self.model.loss.probabilities(mean)
        return like(probabilities, X)

    def assign(self, X: Any, *, discriminative: bool | None = None) -> Any:
        """Component [N] of each row in the representative draw (see `partition`), 0..K-1.

        Parameters
        ----------
        discriminative : whether hyperplanes count as well as the likelihood; None: they do where components repel
        """
        rows, with_margin = self._check(X), self._hyperplanes_count(discriminative)
        chosen = []
        for part in rows.split(_CHUNK):
            log_weights = self._log_weights(part, self.representative, nearest=not with_margin)[:, :-1]
            if with_margin:
                log_weights = log_weights + self._gain(part, self.representative)
            chosen.append(log_weights.argmax(1))
        return like(torch.cat(chosen), X)

    def assign_proba(self, X: Any, *, discriminative: bool | None = None) -> Any:
        """Probability [N, K + 1] that each row belongs to component k of the representative draw; last: to no such one.

        sum_g W_k^g / sum_g sum_j W_j^g with W_k^g = w_k p(x | component k) over the draws g, whose components take the
        labels of `aligned`. Where hyperplanes count, the row takes part in the margin factors:

            W_k = w_k p(x | k) exp(h(f_k)) prod_j phi(-1 | f_j) / q_-^K,     W_new = w_new p(x) q_+ / q_- prod_j ...,

        q_+- the mean of phi(+-1 | f) over hyperplanes of components without points; in a truncated model these are
        among the f_j, and there is no q (math/discriminative-clustering, section 7).

        Parameters
        ----------
        discriminative : as in `assign`
        """
        rows, with_margin = self._check(X), self._hyperplanes_count(discriminative)
        reference = self.samples["assignments"][self.representative]
        num_labels = int(reference.max()) + 1
        if "centers" in self.samples:
            chosen = torch.as_tensor(self.assign(rows, discriminative=discriminative))
            return like(torch.nn.functional.one_hot(chosen, num_labels + 1).to(rows), X)
        labels = [self._labels(index, reference, num_labels) for index in range(len(self.samples["assignments"]))]
        parts = [self._assign_chunk(part, labels, num_labels, with_margin) for part in rows.split(_CHUNK)]
        return like(torch.cat(parts), X)

    def log_predictive_density(self, X: Any) -> Any:
        """log of the mean over the draws of p(x_n) [N], components summed out; margin factors do not count."""
        rows = self._check(X)
        if "centers" in self.samples:
            raise NotImplementedError("Small-variance centres have no density. Fit with Gibbs or SVI.")
        num_draws = len(self.samples["weights"])
        parts = [
            torch.stack([self._log_weights(part, index).logsumexp(1) for index in range(num_draws)]).logsumexp(0)
            for part in rows.split(_CHUNK)
        ]
        return like(torch.cat(parts) - math.log(num_draws), X)

    # -- the training points ------------------------------------------------------------------------------------

    @property
    def num_components(self) -> int:
        """Number of occupied components in the representative draw."""
        return len(torch.unique(self.samples["assignments"][self.representative]))

    def similarity(self) -> Tensor:
        """Posterior probability [N, N] that two training points share a component."""
        assignments = self.samples["assignments"]
        if assignments.shape[1] > 20_000:
            raise ValueError(f"The similarity of {assignments.shape[1]} points takes N x N memory; use partition().")
        total = torch.zeros(2 * assignments.shape[1:], device=assignments.device)
        for draw in assignments:
            total += draw.unsqueeze(0) == draw.unsqueeze(1)
        return total / len(assignments)

    def partition(self, loss: str = "vi") -> Tensor:
        """Point partition [N] of the training points: the draw of least posterior expected loss.

        Parameters
        ----------
        loss : "vi" (variation of information) or "binder" (pairs put together or apart wrongly)
        """
        return self.samples["assignments"][self._best_draw(loss)]

    def aligned(self) -> Tensor:
        """Assignments [S, N] with the labels of every draw changed to agree best with the representative draw."""
        assignments = self.samples["assignments"]
        return torch.stack([align(draw, assignments[self.representative]) for draw in assignments])

    @cached_property
    def representative(self) -> int:
        """Index of the draw that `partition()` returns."""
        return self._best_draw("vi")

    def _best_draw(self, loss: str) -> int:
        assignments = self.samples["assignments"]
        if len(assignments) == 1:
            return 0
        return int(expected_loss(assignments, loss).argmin())

    # -- files and other libraries ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tensors and plain data to `path`, atomically."""
        from . import __version__

        write_file(
            path,
            {
                "kind": "posterior",
                "schema": _SCHEMA,
                "version": __version__,
                "model": to_plain(self.model),
                "backend": to_plain(self.backend),
                "samples": self.samples,
                "num_draws": self.num_draws,
                "trace": vars(self.trace),
                "metadata": self.metadata,
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: Any = None) -> Posterior:
        """Read a saved posterior; loading never runs code from the file.

        Raises
        ------
        FileNotFoundError    if there is no such file.
        ValueError           if it is broken, of a newer schema, or needs a class that is not imported.
        """
        content = read_file(path, "posterior", _SCHEMA, device)
        stacked = content["samples"], content["num_draws"]
        trace, metadata = Trace(**content["trace"]), content.get("metadata")
        model = from_plain(content["model"])
        return result_class(model)(model, from_plain(content["backend"]), stacked, trace, metadata)

    def to_arviz(self) -> Any:
        """Label-free summaries as arviz InferenceData (0.x) or DataTree (1.x): K, sizes in order, concentration."""
        import arviz

        assignments = self.samples["assignments"]
        sizes = torch.stack(
            [torch.bincount(draw, minlength=1).sort(descending=True).values[:1] for draw in assignments]
        )
        kept = {
            "num_components": torch.tensor([len(torch.unique(draw)) for draw in assignments]),
            "largest_component": sizes[:, 0],
            "concentration": self.samples["concentration"],
        }
        kept |= {name: self.samples[name] for name in ("top_concentration", "log_joint") if name in self.samples}
        if len(set(self.num_draws)) != 1:
            raise ValueError(f"The chains have {self.num_draws} draws, but arviz needs equal numbers. Resume the fit.")
        shape = (len(self.num_draws), self.num_draws[0])
        groups = {"posterior": {name: np.asarray(value.cpu()).reshape(shape) for name, value in kept.items()}}
        if int(arviz.__version__.split(".")[0]) >= 1:
            return arviz.from_dict(groups)
        return arviz.from_dict(**groups)

    # -- the prediction rule ------------------------------------------------------------------------------------

    @property
    def _is_probabilistic(self) -> bool:
        return self.model.loss.is_likelihood

    def _check(self, X: Any) -> Tensor:
        kept = self.samples["log_mixture"]
        return as_features(X, num_features=self.model.num_features, like=kept)

    def _needs_classes(self) -> None:
        if self.model.classes is None:
            use = "predict(X)" if self.model.loss.target == "real" else "assign(X)"
            raise ValueError(f"{type(self.model).__name__} was fitted without classes; use {use}.")

    def _decision(self, X: Tensor) -> Tensor:
        if self.model.classes is None and self.model.loss.target == "sign":
            raise ValueError(f"{type(self.model).__name__} has no labels to predict; use assign(X).")
        mean = self._mean(X, averaged=self._average)
        if not self._is_probabilistic:
            return mean.squeeze(1) if mean.shape[1] == 1 else mean
        log_odds = mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
        return log_odds[:, 1] - log_odds[:, 0] if mean.shape[1] == 2 else log_odds

    def _average(self, scores: Tensor) -> Tensor:
        """What is averaged over components and draws: probabilities where the loss is a likelihood, else scores."""
        return self.model.loss.probabilities(scores) if self._is_probabilistic else scores

    def _mean(self, X: Tensor, averaged: Callable[[Tensor], Tensor]) -> Tensor:
        """Posterior mean [N, ...] of a function of the scores: the ratio of averages above."""
        return torch.cat([self._mean_of_chunk(rows, averaged) for rows in X.split(_CHUNK)])

    def _mean_of_chunk(self, X: Tensor, averaged: Callable[[Tensor], Tensor]) -> Tensor:
        features = self.model.features(X)
        log_evidence, means = [], []
        for index in range(len(self.samples["weights"])):
            log_weights = self._log_weights(X, index)
            scores = torch.einsum("np,kpc->nkc", features, self.samples["weights"][index])
            if self._is_probabilistic and "precision_tril" in self.samples:
                # E sigmoid(f) is about sigmoid(E f / sqrt(1 + pi var f / 8)) (MacKay 1992)
                classifiers = Ridge(self.samples["weights"][index], self.samples["precision_tril"][index])
                scores = scores / (1 + math.pi / 8 * classifiers.score_variance(features)).sqrt()
            unseen = scores.new_zeros((len(X), 1, scores.shape[2]))
            values = averaged(torch.cat([scores, unseen], 1))
            log_evidence.append(log_weights.logsumexp(1))
            means.append(torch.einsum("nk,nkc->nc", log_weights.softmax(1), values))
        share = torch.stack(log_evidence).softmax(0)
        return torch.einsum("sn,snc->nc", share, torch.stack(means))

    def _hyperplanes_count(self, discriminative: bool | None) -> bool:
        if discriminative and not self.model.repels:
            raise ValueError(f"The components of {type(self.model).__name__} have no hyperplanes that part them.")
        return self.model.repels if discriminative is None else discriminative

    def _labels(self, index: int, reference: Tensor, num_labels: int) -> Tensor:
        """Labels [K + 1] in the reference of the components of a draw; `num_labels` for those it has no label for."""
        assignments = self.samples["assignments"][index]
        labels = torch.full_like(self.samples["log_mixture"][index], num_labels, dtype=torch.long)
        labels[assignments] = align(assignments, reference).clamp(max=num_labels)
        return labels

    def _assign_chunk(self, X: Tensor, labels: list[Tensor], num_labels: int, with_margin: bool) -> Tensor:
        log_evidence, shares = [], []
        for index, label in enumerate(labels):
            log_weights = self._clamped_log_weights(X, index) if with_margin else self._log_weights(X, index)
            log_evidence.append(log_weights.logsumexp(1))
            share = X.new_zeros(len(X), num_labels + 1)
            shares.append(share.index_add_(1, label, log_weights.softmax(1)))
        return torch.einsum("sn,snk->nk", torch.stack(log_evidence).softmax(0), torch.stack(shares))

    def _clamped_log_weights(self, X: Tensor, index: int) -> Tensor:
        """log W [N, K + 1] of rows that take part in the margin factors of draw `index`."""
        log_weights, gain = self._log_weights(X, index), self._gain(X, index)
        features, log_factor = self.model.features(X), self.model.loss.log_factor
        exists = self.samples["log_mixture"][index][:-1] > -torch.inf
        scores = torch.einsum("np,kpc->nkc", features, self.samples["weights"][index])
        rejected = log_factor(scores, scores.new_tensor(-1.0)).sum(-1).where(exists, 0.0).sum(1)
        if "unseen_weights" in self.samples:
            unseen = self.samples["unseen_weights"][index]
            scores = torch.einsum("np,apc->nac", features, unseen)
            accept, reject = (
                log_factor(scores, scores.new_tensor(side)).sum(-1).logsumexp(1) - math.log(len(unseen))
                for side in (1.0, -1.0)
            )
            rejected = rejected - exists.sum() * reject
            gain = torch.cat([gain, (accept - reject).unsqueeze(1)], 1)
        else:
            gain = torch.cat([gain, torch.zeros_like(gain[:, :1])], 1)
        return log_weights + gain + rejected.unsqueeze(1)

    def _gain(self, X: Tensor, index: int) -> Tensor:
        """h(f) [N, K]: what the hyperplanes of draw `index` add to the log weight of a component.

        Of variational hyperplanes it is the difference of the bounds of E log phi, as in the fit.
        """
        features, weights = self.model.features(X), self.samples["weights"][index]
        scores = torch.einsum("np,kpc->nkc", features, weights)
        if "precision_tril" not in self.samples or not scores.numel():
            return self.model.log_margin(scores, self.model.targets(X).unsqueeze(1))
        variance = Ridge(weights, self.samples["precision_tril"][index]).score_variance(features)
        bound, one = self.model.loss.expected_log_factor, torch.ones_like(scores)
        return (bound(scores, variance, one) - bound(scores, variance, -one)).sum(-1)

    def _log_weights(self, X: Tensor, index: int, *, nearest: bool = True) -> Tensor:
        """log W [N, K + 1] of draw `index`, the last column a component not yet seen.

        For centres it is 0 at the nearest one, and -inf elsewhere; with `nearest` false -scale times the divergence.
        """
        likelihood, log_mixture = self.model.likelihood, self.samples["log_mixture"][index]
        if "centers" in self.samples:
            cost = likelihood.divergence(likelihood.coordinates(X), self.samples["centers"][index])
            cost = torch.where(log_mixture[:-1] > -torch.inf, cost, torch.inf)
            log_weights = X.new_full((len(X), len(log_mixture)), -torch.inf)
            if not nearest:
                log_weights[:, :-1] = -self.samples["scale"][index] * cost
                return log_weights
            return log_weights.scatter_(1, cost.argmin(1, keepdim=True), 0.0)
        seen = likelihood.log_predictive(X, self.samples["hyperparameters"][index])
        unseen = likelihood.log_predictive(X, likelihood.prior().unsqueeze(0))
        return torch.cat([seen, unseen], 1) + log_mixture


_CHUNK = 4096


def result_class(model: Any) -> type[Posterior]:
    """The class of the posteriors of a model."""
    from .sequence_posterior import SequencePosterior  # which is a Posterior

    return SequencePosterior if model.structure == "sequence" else Posterior


def stack(chains: list[list[Draw]]) -> tuple[Draw, list[int]]:
    """One Tensor [S, ...] for each name, components padded to the most that any draw has; and draws of each chain.

    Padding of `hyperparameters`, `centers` and rows repeats the first component, so that densities stay finite.
    """
    draws = [draw for chain in chains for draw in chain]
    most = max(draw["log_mixture"].shape[0] for draw in draws) - 1
    padded = [_pad(draw, most) for draw in draws]
    return {name: torch.stack([draw[name] for draw in padded]) for name in padded[0]}, [len(chain) for chain in chains]


def _pad(draw: Draw, most: int) -> Draw:
    missing = most + 1 - draw["log_mixture"].shape[0]
    if not missing:
        return draw
    padded = dict(draw)
    for name in ("log_mixture", "log_start", "log_transitions", "log_unseen_row"):
        if name in draw:
            none = draw[name].new_full((*draw[name].shape[:-1], missing), -torch.inf)
            padded[name] = torch.cat([draw[name][..., :-1], none, draw[name][..., -1:]], -1)
    for name in ("hyperparameters", "centers", "weights", "precision_tril", "log_transitions"):
        if name in draw:
            first = padded[name][:1] * (0 if name == "weights" else 1)
            padded[name] = torch.cat([padded[name], first.expand(missing, *first.shape[1:])])
    if "responsibilities" in draw:
        padded["responsibilities"] = torch.nn.functional.pad(draw["responsibilities"], (0, missing))
    return padded
