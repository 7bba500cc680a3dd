"""The posterior of a model of partitions: assignment and prediction of new points.

A draw has log weights of its components and of a new one, and the parameters of each component and its classifiers.
The weight of component k for a row is W_k = w_k p(x | component k); the classifier of a new component has its prior.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...models.arrays import as_weights, like, tensor_of
from ...models.base import Model
from ...models.config import same
from ...models.data import Data
from ...models.domains import POSITIVE, Number, read, shown
from ...models.scores import scores as scores_of
from ...models.shares import shares_of
from ..classifiers.scored import own_scores
from ..hilbert_embedding.mmd import MMD, goodness_of_fit
from ..structures import Draw, Structure, register_structure
from .base import Posterior
from .clustering import Clustering, clustering_summaries, rows_moved
from .components import (
    all_score_moments,
    component_size,
    counts_hyperplanes,
    hyperplane_gain,
    log_component_density,
    log_unseen_density,
)
from .draws import PartitionDraw
from .left_out import left_out_scores
from .new_data import NewData, by_draw, in_place, mixture_rows
from .scores import ScoreMixture, ScorePrediction, chunks
from .stacking import stack_draws, stacks


class PartitionPosterior(ScorePrediction, Clustering, Posterior):
    """A fitted mixture: the posterior of `DPM`, `InfiniteSVM` or `DDPM`.

    `samples` holds S draws: `assignments` [S, N]; `log_mixture` [S, K + 1], log weights of the components, then of a
    new one (-inf beyond the components of a draw); `weights` [S, K, P, C] of the classifiers; `hyperparameters` [S, K,
    H] of the posterior of each component's parameters, or after small variance `centers` [S, K, Q] (`coordinates` of
    the likelihood); hyperparameters of the prior, such as `concentration` [S]. `PartitionDraw` has all names;
    `Clusterer` has means and covariances.
    """

    record = PartitionDraw

    def assign(self, X: Any, *, discriminative: bool | None = None) -> Any:
        """Component [N] of each row in the representative draw (see `partition`), 0..K-1.

        Parameters
        ----------
        discriminative : whether hyperplanes count as well as the likelihood; None: only if components repel
        """
        rows, with_margin = self.checked(X), counts_hyperplanes(self.model, discriminative)
        draw = self.draw(self.representative)
        return like(torch.cat([self._joining(part, draw, with_margin).argmax(1) for part in chunks(rows)]), X)

    def assign_proba(self, X: Any, *, discriminative: bool | None = None) -> Any:
        """Probability [N, K + 1] that each row belongs to component k of the representative draw; last: to a new one.

        sum_g W_k^g / sum_g sum_j W_j^g with W_k^g = w_k p(x | component k) over the draws g, whose components take the
        labels of `aligned`. Where hyperplanes count, the row takes part in the margin factors:

            W_k = w_k p(x | k) exp(h(f_k)) prod_j phi(-1 | f_j) / q_-^K,     W_new = w_new p(x) q_+ / q_- prod_j ...,

        q_+- the mean of phi(+-1 | f) over hyperplanes of components without points; in a truncated model these are
        among the f_j, and there is no q (docs/derivations/repelling, "Clusters of new rows").

        Parameters
        ----------
        discriminative : as in `assign`
        """
        rows, with_margin = self.checked(X), counts_hyperplanes(self.model, discriminative)
        labels, num_labels = [self.labels_of(draw) for draw in self.draws()], self.num_labels
        if "centers" in self.samples:
            chosen = labels[self.representative][tensor_of(self.assign(rows, discriminative=discriminative))]
            return like(one_hot(chosen, num_labels + 1).to(self.samples["centers"]), X)
        return like(torch.cat([self._assign_chunk(part, labels, num_labels, with_margin) for part in chunks(rows)]), X)

    def predict_left_out(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        if "centers" not in self.samples or self.coding.has_classes:
            return super().predict_left_out(X, y, sample_weight)
        data = self.model.data(self.checked(X), y)
        if sample_weight is not None:
            data = replace(data, weights=as_weights(sample_weight, data.X))
        if "share" in self.samples:
            each = torch.stack([one._left_out(data) for one in self._averaged_posteriors()])
            found = torch.einsum("s,s...->...", self.samples["share"], each)
        else:
            found = self._left_out(data)
        return like(self.coding.choose(found), X)

    def _left_out(self, data: Data) -> Tensor:
        """`_decision` [N, ...] of rows of the fit, as if the row had not contributed to its component's classifier."""
        draw = self.draw(0)
        fitted, weights = draw["assignments"].long(), draw["weights"]
        share = self._predictive_weights(data.X, draw).softmax(1).gather(1, fitted.unsqueeze(1))
        change = left_out_scores(self.model, data, weights, fitted) - own_scores(data.features, weights, fitted)
        return self.coding.decisions(self._mean(data.X) + share * change, self.model.loss)

    def log_predictive_density(self, X: Any) -> Any:
        """log of the mean over the draws of p(x_n) [N], components summed out; margin factors do not count."""
        found = tensor_of(self.log_likelihood(X))
        return like(found.logsumexp(0) - math.log(len(found)), X)

    def log_likelihood(self, X: Any, y: Any = None) -> Any:
        """log p(x_n | draw) [S, N] of rows under each draw, components summed out: what loo and waic take.

        With y it is log p(x_n, y_n | draw), which needs a loss that is a likelihood of labels; where a label is
        missing, log p(x_n | draw). If draws hold distributions of the parameters (Gibbs and SVI), p is the predictive
        density under the draw.
        """
        rows = self.checked(X)
        if "centers" in self.samples:
            raise NotImplementedError("Small-variance centres have no density. Fit with Gibbs or SVI.")
        if y is None:
            each = [
                torch.stack([self._log_weights(part, draw).logsumexp(1) for draw in self.draws()])
                for part in chunks(rows)
            ]
            return like(torch.cat(each, 1), X)
        index = self.class_index(y, rows)
        each = [self._log_joint(part, own) for part, own in zip(chunks(rows), chunks(index), strict=True)]
        return like(torch.cat(each, 1), X)

    def _log_joint(self, X: Tensor, index: Tensor) -> Tensor:
        """log p(x_n, y_n | draw) [S, N] of rows [N, D] with class indices [N]; -1: not known."""
        found = []
        for mixture in self.score_mixtures(X, spread=True):
            log_labels = self._averaged(mixture).log()
            own = log_labels.gather(2, index.clamp(min=0)[:, None, None].expand(-1, log_labels.shape[1], 1)).squeeze(2)
            found.append((mixture.log_weights + own.where(index.unsqueeze(1) >= 0, 0.0)).logsumexp(1))
        return torch.stack(found)

    def sample(self, num_rows: int, *, totals: Any = None, generator: torch.Generator | None = None) -> NewData:
        """Independent new rows of the predictive distribution, with targets where the model has them.

        A row has a draw g at random, a component of it by its weight, x ~ p(x | component) and y by the component's own
        scores: x has the density of `log_predictive_density` and, with a loss that is a likelihood, y given x the
        probabilities of `predict_proba`. The classifier of a new component is drawn from its prior, for each row anew.
        Margin factors do not count for x.
        `assignments` are components 0..K-1 of the representative draw; K stands for all others.

        Parameters
        ----------
        totals : of counts whose total is given, as of `MultinomialDirichlet`, one or [num_rows]
        generator : on the device of the posterior; None: a new one of seed 0

        Raises
        ------
        NotImplementedError    of small-variance centres, which have no density.
        """
        X, draws, own, own_stream = mixture_rows(self.model, self.samples, num_rows, totals, generator)
        labels, targets = torch.empty_like(own), list[tuple[Tensor, Tensor]]()
        for g, rows in by_draw(draws):
            draw = self.draw(g)
            labels[rows] = self.labels_of(draw)[own[rows]]
            y = self._draw_own_targets(X[rows], draw, own[rows], own_stream)
            if y is not None:
                targets.append((rows, y))
        return NewData(X, in_place(targets), labels)

    def mmd(
        self, X: Any, *, rkhs: Any = None, num_draws: int | None = None, num_permutations: int = 999, seed: int = 0
    ) -> MMD:
        """Distance of the predictive distribution from rows X [N, D] in the space of a kernel, and a test that it is 0.

        Do not use the rows of the fit: the distribution is nearer to these than to others. Margin factors do not count.
        The distance uses at most 1,000 components, drawn at random if the posterior has more, or has distributions of
        their parameters.

        Parameters
        ----------
        rkhs : a kernel such as `RBFKernel`; None: as in `HilbertEmbedding`. Defaults of the kernel, such as the
            bandwidth, come from X, and for the test from all rows that are permuted
        num_draws : number of rows drawn from the predictive distribution, which the test permutes with rows of X (2,000
            of these at random, if X has more); None: as many as the test takes of X
        num_permutations : of the test
        seed : of draws and permutations
        """
        options: dict[str, Any] = {"num_draws": num_draws, "num_permutations": num_permutations, "seed": seed}
        return goodness_of_fit(self.model, self.samples, self.checked(X), rkhs=rkhs, **options)

    def tempered(self, temperature: float) -> Self:
        """The same posterior, with predictions that average over all centres, not only the nearest one:

            W_k = w_k exp(-D(x, mu_k) / temperature)

        with the shares w_k of the components and the divergence D of the likelihood. Components keep their numbers.

        Parameters
        ----------
        temperature : at least 0; 0: the nearest centre alone, as `SmallVariance` leaves it. The divergence of a
            Gaussian is in units of its prior's expected covariance, in which 1 is then the temperature of that Gaussian

        Raises
        ------
        ValueError    on other numbers, and where there are no centres, whose weights are the likelihood's own.
        """
        if "centers" not in self.samples:
            raise ValueError(
                f"{type(self.backend).__name__} has no centres to temper: its components count by their densities."
            )
        heat = torch.full_like(self.samples["log_mixture"][:, 0], read("temperature", temperature, _TEMPERATURE))
        samples = self.samples | {"temperature": heat}
        return self.replace(samples=samples)

    def with_slope(self, slope: float) -> Self:
        """The same posterior, with `predict_proba` = softmax(slope scores), or sigma(slope score) for two classes.

        Parameters
        ----------
        slope : positive; `ClassifierCV` finds it on held-out rows

        Raises
        ------
        ValueError    on other numbers, and of a model without classes.
        """
        if self.model.coding is None or not self.model.coding.has_classes:
            raise ValueError(
                f"{type(self.model).__name__} was fitted without classes: slope is for their probabilities."
            )
        slopes = torch.full_like(self.samples["log_mixture"][:, 0], read("slope", slope, POSITIVE))
        samples = self.samples | {"slope": slopes}
        return self.replace(samples=samples)

    def averaged_with(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """One posterior of several small-variance fits to the same rows, with averaged decisions (stacking).

        Sources: Wolpert (1992); Breiman (1996).

            f(x) = sum_s share_s f_s(x)

        The shares are the same for all rows, unlike the weights of draws of one fit. Components of rows are those of
        this fit, whose draw is the representative one; `similarity()` and `consensus()` take all fits alike. Set a
        slope of the mean afterwards (`with_slope`).

        Parameters
        ----------
        others : posteriors of one draw each, as this one, of the same model but for its weight scale
        shares : of this posterior and of the others, at least 0 and 1 in all

        Raises
        ------
        ValueError    on other shares, models or rows, on several draws, and where there are no centres or targets.
        """
        if "centers" not in self.samples or self.model.coding is None:
            raise ValueError(
                f"{type(self.model).__name__} by {type(self.backend).__name__} has no decisions of centres to average; "
                "others and shares are for fits by SmallVariance with targets."
            )
        every, found = self._beside(others), _read_shares(shares)
        if len(found) != len(every) or abs(sum(found) - 1) > _ROUNDING:
            raise ValueError(
                f"shares is {shown(shares)}; expected numbers of at least 0 that add up to 1, {len(every)} in all."
            )
        one_each = [one if "temperature" in one.samples else one.tempered(0.0) for one in every]
        draws = [{name: value for name, value in one.draw(0).items() if name != "slope"} for one in one_each]
        share = self.samples["log_mixture"].new_tensor(found)
        return self.replace(samples=stack_draws(draws, PartitionDraw) | {"share": share}, num_draws=[len(every)])

    def _beside(self, others: Any) -> list[Self]:
        """This posterior and the others; ValueError unless they can be averaged."""
        if not isinstance(others, list | tuple) or not all(isinstance(one, PartitionPosterior) for one in others):
            raise ValueError(f"others is {shown(others)}; expected a list of posteriors as this one is.")
        every = [self, *others]
        if any(sum(one.num_draws) != 1 for one in every):
            raise ValueError("others, or this posterior, has several draws; averaged_with takes fits of one draw each.")
        for one in every:
            if one.samples.keys() - _OWN != self.samples.keys() - _OWN:
                raise ValueError("others has a fit by another backend than this one.")
            if one.samples["assignments"].shape != self.samples["assignments"].shape:
                raise ValueError("others has a fit to other rows than this one.")
            kin = type(one.model) is type(self.model)
            if not kin or not same(one.model.replace(weight_scale=self.model.weight_scale), self.model):
                raise ValueError("others has a fit of another model; models may differ in weight_scale alone.")
        return every

    def _best_draw(self, loss: str) -> int:
        return 0 if "share" in self.samples else super()._best_draw(loss)

    def _decision(self, X: Any) -> Tensor:
        if "share" not in self.samples:
            return super()._decision(X)
        each = torch.stack([one._decision(X) for one in self._averaged_posteriors()])
        return torch.einsum("s,s...->...", self.samples["share"], each)

    def _averaged_posteriors(self) -> Iterator[Self]:
        samples = {name: value for name, value in self.samples.items() if name != "share"}
        for draw in range(len(self.samples["share"])):
            own = {name: value[draw : draw + 1] for name, value in samples.items()}
            yield self.replace(samples=own, num_draws=[1])

    def over_rows(self, place: Tensor, left_out: Tensor | None = None) -> Self:
        """The same posterior with other rows for its training points.

        Parameters
        ----------
        place : row n is the training point place[n] [N] of this one, or the next of those left out where that is -1
        left_out : rows [M, D], which join a component of each draw as new rows do
        """
        return self.replace(samples=rows_moved(self, place, left_out, self._joining))

    def checked(self, X: Any) -> Tensor:
        rows = self.model.as_rows(X, num_features=self.model.num_features, like=self.samples["log_mixture"])
        self.model.likelihood.admit(rows)
        return rows

    def rehearse(self) -> None:
        draw = self.draw(0)
        rows = draw["log_mixture"].new_zeros(0, self.model.num_features)
        self._joining(rows, draw, with_margin=False)
        if counts_hyperplanes(self.model, None):
            self._clamped_log_weights(rows, draw)
        self._require_classes(rows)

    def score_mixtures(self, X: Tensor, *, spread: bool = False) -> Iterator[ScoreMixture]:
        for draw in self.draws():
            if not spread:
                draw.pop("precision_tril", None)  # variances are costly, and mean scores do not need them
            mean, variance = all_score_moments(self.model, X, draw)
            yield ScoreMixture(self._predictive_weights(X, draw), mean, variance)

    def _draw_own_targets(self, X: Tensor, draw: Draw, own: Tensor, generator: torch.Generator) -> Tensor | None:
        """Draw targets [N] of rows [N, D] with components `own` [N] of a draw (K: a new one)."""
        (mean, variance), rows = all_score_moments(self.model, X, draw), torch.arange(len(X), device=X.device)
        return self.draw_targets(mean[rows, own], None if variance is None else variance[rows, own], generator)

    def _predictive_weights(self, X: Tensor, draw: Draw) -> Tensor:
        """The log weights log W [N, K + 1] of the scores of a draw."""
        if "temperature" not in draw or not draw["temperature"] > 0:
            return self._log_weights(X, draw)
        return self._log_weights(X, draw, nearest=False) / draw["temperature"] + draw["log_mixture"]

    def _joining(self, X: Tensor, draw: Draw, with_margin: bool | None = None) -> Tensor:
        """Log weights [N, K] of a draw's components for new rows, up to a constant; None: hyperplanes if they count."""
        with_margin = counts_hyperplanes(self.model, with_margin)
        log_weights = self._log_weights(X, draw, nearest=not with_margin)[:, :-1]
        return log_weights + hyperplane_gain(self.model, X, draw) if with_margin else log_weights

    def _assign_chunk(self, X: Tensor, labels: list[Tensor], num_labels: int, with_margin: bool) -> Tensor:
        log_evidence, shares = [], []
        for draw, label in zip(self.draws(), labels, strict=True):
            log_weights = self._clamped_log_weights(X, draw) if with_margin else self._log_weights(X, draw)
            share, total = shares_of(log_weights)
            log_evidence.append(total)
            shares.append(share.new_zeros(len(X), num_labels + 1).index_add_(1, label, share))
        return torch.einsum("sn,snk->nk", torch.stack(log_evidence).softmax(0), torch.stack(shares))

    def _clamped_log_weights(self, X: Tensor, draw: Draw) -> Tensor:
        """log W [N, K + 1] of rows that take part in the margin factors of a draw."""
        log_weights, gain = self._log_weights(X, draw), hyperplane_gain(self.model, X, draw)
        features, log_factor = self.model.features(X), self.model.loss.log_factor
        exists = draw["log_mixture"][:-1] > -torch.inf
        scores = scores_of(features, draw["weights"])
        rejected = log_factor(scores, scores.new_tensor(-1.0)).sum(-1).where(exists, 0.0).sum(1)
        new = torch.zeros_like(gain[:, :1])
        if "unseen_weights" in draw:
            unseen = draw["unseen_weights"]
            scores = scores_of(features, unseen)
            accept, reject = (
                log_factor(scores, scores.new_tensor(side)).sum(-1).logsumexp(1) - math.log(len(unseen))
                for side in (1.0, -1.0)
            )
            rejected, new = rejected - exists.sum() * reject, (accept - reject).unsqueeze(1)
        return log_weights + torch.cat([gain, new], 1) + rejected.unsqueeze(1)

    def _log_weights(self, X: Tensor, draw: Draw, *, nearest: bool = True) -> Tensor:
        """log W [N, K + 1] of a draw; the last column is a new component.

        With centres it is 0 at the nearest one and -inf elsewhere; if not `nearest`, -scale times the divergence.
        """
        seen = log_component_density(self.model, X, draw)
        if "centers" not in draw:
            return torch.cat([seen, log_unseen_density(self.model, X, draw)], 1) + draw["log_mixture"]
        log_weights = pad(seen.where(draw["log_mixture"][:-1] > -torch.inf, -torch.inf), (0, 1), value=-torch.inf)
        if not nearest:
            return log_weights
        closest = log_weights.argmax(1, keepdim=True)
        return torch.full_like(log_weights, -torch.inf).scatter_(1, closest, 0.0)


def _read_shares(given: Any) -> list[float]:
    """The shares as numbers >= 0; empty if they are none."""
    try:
        return [_SHARE.read(share) for share in given] if isinstance(given, list | tuple) else []
    except (TypeError, ValueError):
        return []


_TEMPERATURE = _SHARE = Number(least=0.0)
_ROUNDING = 1e-6  # error of the sum of shares
_OWN = {"temperature", "slope"}  # entries that a fit may have and others not


def _state_size(model: Model, data: Data, number: int) -> int:
    """The numbers of hyperparameters and hyperplanes."""
    return number * (component_size(model, data.X) + data.features.shape[1] * data.targets.shape[1])


register_structure(
    Structure(
        "partition",
        Data,
        PartitionPosterior,
        stacks(PartitionDraw),
        clustering_summaries,
        _state_size,
    )
)
