"""Prediction from scores: what posteriors of models with labels or targets share, whatever their structure.

A draw gives a row K scores, each with a weight that says how well its component explains the row. Then

    f(x) = sum_g sum_k W_k^g(x) f_k^g(x)  /  sum_g sum_k W_k^g(x)

is a ratio of averages over the draws g (docs/derivations/mixtures, "Prediction"). If the loss is a likelihood of
labels, their probabilities are averaged in the same way, in place of scores: softmax(f) for more than two classes. The
target of the model turns scores and probabilities into y (`models.targets`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...models import host
from ...models.arrays import like, read_labels
from ...models.distributions.sampling import draw_categorical, normals, uniforms
from ...models.shares import shares_of
from ...models.targets import Target


class ScoreMixture(NamedTuple):
    """Scores of N rows under one draw: a row has the k-th score with weight W_k."""

    log_weights: Tensor  # [N, K]
    mean: Tensor  # [N, K, C]
    variance: Tensor | None  # [N, K, C] where the classifier of a component has a distribution; None: it is 0


class ScorePrediction:
    """A mixin for posteriors of models with a loss: gives `predict` from `checked` and `score_mixtures`."""

    instead: ClassVar[str] = "assign(X)"  # alternative for a model without labels

    model: Any
    samples: dict[str, Tensor]

    def checked(self, X: Any) -> Any:
        """The rows [N, D] of a user's argument."""
        raise NotImplementedError

    def score_mixtures(self, X: Any, *, spread: bool = False) -> Iterator[ScoreMixture]:
        """The scores of rows [N, D] under each draw; with `spread` their variances too, where the posterior has any."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> Any:
        """Posterior mean scores: [N] for two classes (positive: the larger label) or a real target, else [N, L].

        For tasks they are [N, M], each as for two classes or a real target.

        With a logistic loss: logarithms of `predict_proba`, or log odds for two classes. If there are fewer scores than
        classes, as with ordered classes: log phi(y | f) [N, L] at the mean scores.
        """
        return like(self._decision(self.checked(X)), X)

    def predict(self, X: Any) -> Any:
        """Labels [N] of the largest `predict_proba`, as in the y of the fit, or mean real targets; [N, M] of tasks."""
        rows = self.checked(X)
        return like(self.coding.choose(self._decision(rows)), X)

    def predict_proba(self, X: Any) -> Any:
        """Class probabilities [N, L], classes sorted.

        With a logistic loss they are posterior predictive: means over draws and components of sigma(f), or for more
        than two classes of softmax(f), the likelihood given that a row has one of them. With variational classifiers
        they are means over q(eta) too, if the posterior keeps its spread (`precision_tril`); else eta has its mean, and
        so have the features, or topics, of a row. `SmallVariance` has one draw, a point.

        A hinge is not a likelihood, nor is a loss of ordered classes (`Ordinal`), even with `Logistic`: the values are
        then its pseudo-likelihood at the posterior mean score, normalized over the classes. They rank classes but are
        not calibrated (`Classifier` fits a slope by folds).

        In a posterior `with_slope`, such as `regbayes fit` saves after a search, they are softmax(slope scores), and in
        one `averaged_with` others too, with slope 1 if it has none.
        """
        rows, coding = self.checked(X), self.model.coding
        if coding is None or not coding.has_classes:
            use = self.instead if coding is None else "predict(X)"
            raise ValueError(f"{type(self.model).__name__} was fitted without classes; use {use}.")
        if self.samples.keys() & {"slope", "share"}:
            return like(self._sloped(self._decision(rows)), X)
        mean = self._mean(rows)
        return like(mean if self.averages_probabilities else coding.probabilities(mean, self.model.loss), X)

    def draw_targets(self, mean: Tensor, variance: Tensor | None, generator: torch.Generator) -> Tensor | None:
        """A target [N] for each row of scores of this mean and variance [N, C]; None of a model without targets.

        Labels have the probabilities that `predict_proba` averages, at these scores. A real target as the loss sees it
        has the density phi(t | f) / (its integral over t), which a regression loss states; the result is decoded.
        """
        coding, loss = self.model.coding, self.model.loss
        if coding is None:
            return None
        if not coding.has_classes:
            spread = 0.0 if variance is None else variance.sqrt() * normals(mean.shape, generator, mean)
            return coding.decode(loss.draw_target(mean + spread, generator), loss)
        if "slope" in self.samples:
            probabilities = self._sloped(coding.decisions(mean, loss))
        else:
            probabilities = self._probabilities(mean, variance if self.averages_probabilities else None)
        labels: Tensor = self.model.classes.to(mean.device)
        return labels[draw_categorical(probabilities.log(), uniforms((len(mean),), generator))]

    def predict_left_out(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Leave-one-out predictions for the rows [N, D] of the fit where these are cheap, else as `predict`.

        y [N] and the weights [N] are those of the fit. They are cheap for real targets of a mixture by `SmallVariance`.
        """
        return self.predict(X)

    def score_std(self, X: Any) -> Any:
        """Standard deviations [N, C] of the scores, or [N] for one real target: over draws, components and q(eta).

            Var f = sum_g sum_k W_k^g (Var f_k^g + (f_k^g)^2) / sum_g sum_k W_k^g - (E f)^2

        q(eta) has a variance where the posterior keeps its spread, that of a mixture by SVI. Where the infinite model
        may open a new component for a row, the prior of its classifier counts, too.
        """
        rows = self.checked(X)
        found = torch.cat([self._std_of_chunk(part) for part in chunks(rows)])
        return like(found if self.coding.has_classes else found.squeeze(-1), X)

    def class_index(self, y: Any, X: Any) -> Tensor:
        """Which class [N] the labels y [N] of rows [N, D] are, counted from 0; -1 where one is missing.

        Raises
        ------
        ValueError    if the loss is no likelihood of labels, or on a label that the model does not know.
        """
        if self.model.coding is None:
            raise ValueError(f"y is given, but {type(self.model).__name__} has no labels: leave y out.")
        if not self.averages_probabilities:
            raise ValueError(
                f"y is given, but loss={self.model.loss!r} of {type(self.model).__name__} is no likelihood of labels: "
                "leave y out, or fit with Logistic()."
            )
        return read_labels(self.coding.values(y, X), self.model.classes)[0]

    @property
    def coding(self) -> Target:
        """The model's target; ValueError if it has none."""
        found: Target | None = self.model.coding
        if found is None:
            raise ValueError(f"{type(self.model).__name__} has no labels to predict; use {self.instead}.")
        return found

    def _require_classes(self, X: Any) -> None:
        """Raise ValueError unless the first draw has the scores that the model's target decodes."""
        coding = self.model.coding
        found = 0 if coding is None else next(self.score_mixtures(X)).mean.shape[2]
        if coding is not None and found != coding.num_scores:
            raise ValueError(f"there are {found} scores for a target of {coding.num_scores}")

    @property
    def averages_probabilities(self) -> bool:
        """Whether probabilities of labels are averaged over components and draws, not scores."""
        coding = self.model.coding
        return bool(self.model.loss.is_likelihood and coding is not None and coding.has_classes)

    def _decision(self, X: Any) -> Tensor:
        coding = self.coding
        mean = self._mean(X)
        return coding.log_odds(mean) if self.averages_probabilities else coding.decisions(mean, self.model.loss)

    def _mean(self, X: Any) -> Tensor:
        """Posterior means [N, C or L] of the scores, or of the probabilities."""
        return torch.cat([self._mean_of_chunk(rows) for rows in chunks(X)])

    def _mean_of_chunk(self, X: Any) -> Tensor:
        log_evidence, means = [], []
        for mixture in self.score_mixtures(X, spread=self.averages_probabilities):
            share, total = shares_of(mixture.log_weights)
            log_evidence.append(total)
            means.append(torch.einsum("nk,nk...->n...", share, self._averaged(mixture)))
        share = torch.stack(log_evidence).softmax(0)
        return torch.einsum("sn,sn...->n...", share, torch.stack(means))

    def _std_of_chunk(self, X: Any) -> Tensor:
        """Standard deviations [n, C] of the scores of some rows."""
        log_evidence, means, squares = [], [], []
        for mixture in self.score_mixtures(X, spread=True):
            share, total = shares_of(mixture.log_weights)
            log_evidence.append(total)
            mean = torch.einsum("nk,nkc->nc", share, mixture.mean)
            within = (mixture.mean - mean.unsqueeze(1)).square()
            if mixture.variance is not None:
                within = within + mixture.variance
            means.append(mean)
            squares.append(torch.einsum("nk,nkc->nc", share, within))
        mean, weights = torch.stack(means), torch.stack(log_evidence).softmax(0)
        if "share" in self.samples:
            weights = self.samples["share"].unsqueeze(1).expand_as(weights)
        whole = torch.einsum("sn,snc->nc", weights, mean)
        between = (mean - whole).square()
        return torch.einsum("sn,snc->nc", weights, between + torch.stack(squares)).sqrt()

    def _averaged(self, mixture: ScoreMixture) -> Tensor:
        """The values to average over components and draws, [N, K, C or L], for tasks [N, K, C, L]."""
        return self._probabilities(mixture.mean, mixture.variance) if self.averages_probabilities else mixture.mean

    def _probabilities(self, mean: Tensor, variance: Tensor | None) -> Tensor:
        """Class probabilities [..., L] at scores with this mean and variance [..., C]."""
        coding, loss = self.coding, self.model.loss
        if variance is None:
            return coding.probabilities(mean, loss)
        spread = (variance > 0).any(-1)
        if mean.shape[-1] > 1:  # where all means are 0, as in a new component, classes are exchangeable
            spread &= (mean != 0).any(-1)
        found = coding.probabilities(mean, loss)
        if spread.any():
            found[spread] = coding.expected_probabilities(mean[spread], variance[spread], loss)
        return found

    def _sloped(self, decisions: Tensor) -> Tensor:
        """Probabilities [N, L] from decisions [N, L], or [N] for two classes, with the slope."""
        scores = decisions if decisions.ndim == 2 else torch.stack([torch.zeros_like(decisions), decisions], 1)
        return (self.samples["slope"][0] * scores if "slope" in self.samples else scores).softmax(1)


def chunks(X: Any) -> Iterator[Any]:
    """X [N, D] in chunks of some thousand rows; computations use one thread."""
    with host.one_thread():
        yield from (X[start : start + _CHUNK] for start in range(0, max(1, len(X)), _CHUNK))


_CHUNK = 4096
