"""The posterior of a multi-label model: components of rows and label sets, classifiers, and label sets of new rows.

Two views of a new row say which labels it has: its component, by psi(x) = sum_g sum_k W_k psi_k / sum_g sum_k W_k over
the draws g, and the classifiers, by s(x) = E sigma(f) (math/multilabel, section 4). Under joint P both were taught by
the same labels. If the views are independent given a label, Bayes' rule joins their odds and divides by those of the
label's frequency, which both count:

    logit p_c = logit psi_c(x) + logit s_c(x) - logit rate_c

`calibrated` learns how far to trust each view from rows that the fit has not seen. The coupled joints state one law of
the labels, whose probabilities are averaged over components and draws: psi_c sigma(f_c), or of counts
1 - exp(-r q_c) with the mean total r and the share q_c prop. to psi_c sigma(f_c).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.arrays import as_features, like
from ...models.domains import shown
from ...models.label_data import LabelData, as_label_sets, signs_of
from ...models.label_joints import log_label_factor
from ...models.likelihoods import MaskedBernoulli
from ...models.sparse import SparseRows
from ..label_draws import counts_labels, label_means
from ..labels import stack_labels
from ..ridge import Ridge
from ..structures import Draw, Structure, register_structure
from .base import Posterior
from .clustering import Clustering, clustering_summaries
from .components import log_component_density, log_unseen_density
from .label_calibration import best_thresholds, fit_calibration, largest
from .scores import chunks
from .stacking import stack_components


class Views(NamedTuple):
    """What both views say of N rows and C labels."""

    mixture: Tensor  # [N, C] probabilities
    classifiers: Tensor  # [N, C] log odds


class MultiLabelPosterior(Clustering, Posterior):
    """A fitted model of rows and their label sets.

    `samples` holds `assignments` [S, N], `log_mixture` [S, K + 1] (last: a component not yet seen), `classifiers`
    [S, P, C], `hyperparameters` [S, K, ...] and `label_hyperparameters` [S, K, R] or `centers` [S, K, D] and
    `label_means` [S, K, C], and the prior's hyperparameters; of SVI also `classifier_tril` [S, C, P, P]. Components
    beyond a draw's own have log weight -inf.
    """

    kept: ClassVar[tuple[str, ...]] = ("assignments", "log_mixture", "classifiers")

    # -- label sets of new rows ------------------------------------------------------------------------------------

    def predict(self, X: Any, *, thresholds: Any = None, top_k: int | None = None, known: Any = None) -> Any:
        """Label sets [N, C] of 0 and 1, as int64.

        Parameters
        ----------
        thresholds : a label is present where its probability is above this, a number or [C]; None: one half
        top_k : the k most probable labels of each row instead; 0: as many as its probabilities add up to
        known : labels [N, C] of the rows that are known already, NaN for the others; None: none are
        """
        probabilities = self._probabilities(X, known)
        if top_k is not None:
            if thresholds is not None:
                raise ValueError("thresholds and top_k are two ways to choose labels. Give one of them.")
            return like(largest(probabilities, top_k), X)
        level = torch.as_tensor(0.5 if thresholds is None else thresholds).to(probabilities)
        if level.shape not in {(), probabilities.shape[1:]}:
            C = probabilities.shape[1]
            raise ValueError(f"thresholds has shape {tuple(level.shape)}; expected a number, or one for each of {C}.")
        return like((probabilities > level).long(), X)

    def predict_proba(self, X: Any, *, known: Any = None) -> Any:
        """Probability [N, C] that a row has each label; `known` labels [N, C] (NaN: not known) tell its component."""
        return like(self._probabilities(X, known), X)

    def decision_function(self, X: Any) -> Any:
        """Log odds [N, C] of each label."""
        return like(self._log_odds(self.checked(X)), X)

    def thresholds(self, X: Any, Y: Any) -> Any:
        """The threshold [C] of each label with the highest F1 on rows X [N, D] with labels Y [N, C], best held out."""
        rows = self.checked(X)
        signs = signs_of(as_label_sets(Y, rows, self.model.num_labels))
        return like(best_thresholds(self._log_odds(rows).sigmoid(), signs), X)

    def calibrated(self, X: Any, Y: Any) -> Self:
        """The same posterior with probabilities fitted to rows X [N, D] and labels Y [N, C], NaN where missing:

            logit p_c = a logit psi_c(x) + b logit s_c(x) + d_c

        by logistic regression, a and b shared by all labels. The rows should not be those of the fit.

        Raises
        ------
        ValueError    of a coupled joint, which states probabilities as they are.
        """
        if self.model.is_coupled:
            raise ValueError(f"The joint {self.model.joint!r} states one probability of a label, not two to weigh.")
        rows = self.checked(X)
        signs = signs_of(as_label_sets(Y, rows, self.model.num_labels))
        views = self.views(rows)
        found = fit_calibration(_logit(views.mixture), views.classifiers, signs, self._offset(rows))
        metadata = {**self.metadata, "calibration": found}
        return type(self)(self.model, self.backend, self.samples, self.num_draws, self.trace, metadata)

    # -- components ------------------------------------------------------------------------------------------------

    def assign(self, X: Any, *, known: Any = None) -> Any:
        """Component [N] of each row in the representative draw, from its features and `known` labels [N, C]."""
        rows, labels = self._rows(X, known)
        draw = self._draw(self.representative)
        return like(torch.cat([self._log_weights(*part, draw)[:, :-1].argmax(1) for part in _both(rows, labels)]), X)

    def over_rows(self, place: Tensor, left_out: Any = None) -> Self:
        """The same posterior with other rows for its training rows: row n is the row place[n] [N] of this one, or the
        next of those left out [M, D] where that is -1, which join a component of each draw as new rows do."""
        samples = dict(self.samples)
        for name in samples.keys() & {"assignments", "responsibilities"}:
            samples[name] = samples[name][:, place.clamp(min=0)]
        if left_out is not None and len(left_out):
            samples["assignments"] = samples["assignments"].long()
            for index, draw in enumerate(self._draws()):
                parts = _both(left_out, None)
                log_weights = torch.cat([self._log_weights(*part, draw)[:, :-1] for part in parts])
                samples["assignments"][index, place < 0] = log_weights.argmax(1)
                if "responsibilities" in samples:
                    samples["responsibilities"][index, place < 0] = log_weights.softmax(1)
            samples["assignments"] = stack_labels(list(samples["assignments"]))
        return type(self)(self.model, self.backend, samples, self.num_draws, self.trace, self.metadata)

    # -- both views ------------------------------------------------------------------------------------------------

    def checked(self, X: Any) -> Any:
        """The rows [N, D] of what a user passes."""
        rows = as_features(X, num_features=self.model.num_features, like=self.samples["log_mixture"])
        self.model.likelihood.admit(rows)
        return rows

    def views(self, X: Any, labels: Tensor | None = None) -> Views:
        """Both views of rows [N, D], of which labels [N, C] are known, NaN where one is not."""
        parts = [Views(self._mixture_view(*part), self._classifier_view(part[0])) for part in _both(X, labels)]
        return Views(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def _mixture_view(self, X: Any, labels: Tensor | None) -> Tensor:
        """psi(x) [N, C], of counts 1 - exp(-r(x) psi(x)) with the mean total r(x): the label is counted at all."""
        evidence, means, totals = [], [], []
        for draw in self._draws():
            log_weights = self._log_weights(X, labels, draw)
            share = log_weights.softmax(1)
            evidence.append(log_weights.logsumexp(1))
            means.append(share @ self._means(draw))
            if "label_totals" in draw:
                totals.append(share @ draw["label_totals"])
        each = torch.stack(evidence).softmax(0)
        found = torch.einsum("sn,snc->nc", each, torch.stack(means))
        if not totals:
            return found
        return -torch.expm1(-found * (each * torch.stack(totals)).sum(0).unsqueeze(1))

    def _classifier_view(self, X: Any) -> Tensor:
        """Log odds [N, C] of E sigma(f); of a loss that is no likelihood those of its factor at the mean score."""
        if not self.model.loss.is_likelihood:
            return self._factor_odds(self.model.features(X) @ self.samples["classifiers"].mean(0))
        return _logit(torch.stack([self._scores(X, draw).sigmoid() for draw in self._draws()]).mean(0))

    def _log_weights(self, X: Any, labels: Tensor | None, draw: Draw) -> Tensor:
        """log W [N, K + 1] of rows with known labels [N, C]; of centres 0 at the nearest one and -inf elsewhere."""
        seen = log_component_density(self.model, X, draw)
        if "centers" in draw:
            closed = draw["log_mixture"][:-1] == -torch.inf
            seen = seen if labels is None else seen + self._log_labels(X, labels, draw)[:, :-1]
            nearest = seen.masked_fill(closed, -torch.inf).argmax(1, keepdim=True)
            none = seen.new_full((len(seen), seen.shape[1] + 1), -torch.inf)
            return none.scatter_(1, nearest, 0.0)
        found = torch.cat([seen, log_unseen_density(self.model, X, draw)], 1) + draw["log_mixture"]
        return found if labels is None else found + self._log_labels(X, labels, draw)

    def _log_labels(self, X: Any, labels: Tensor, draw: Draw) -> Tensor:
        """log probability [N, K + 1] of known labels in each component."""
        means = self._means(draw)
        if self.model.is_coupled:
            return log_label_factor(self.model.joint, means, self._scores(X, draw).unsqueeze(1), labels.unsqueeze(1))
        means = means.clamp(_LEAST, 1 - _LEAST)
        known = ~labels.isnan()
        ones, zeros = (known & (labels > 0)).to(means), (known & (labels <= 0)).to(means)
        return ones @ means.log().T + zeros @ torch.log1p(-means).T

    def _scores(self, X: Any, draw: Draw) -> Tensor:
        """Log odds [N, C] of rows under the classifiers of a draw; of variational ones those whose sigma is about
        E sigma(f)."""
        features = self.model.features(X)
        scores = features @ draw["classifiers"]
        if "classifier_tril" in draw:
            ridge = Ridge(draw["classifiers"].unsqueeze(0), draw["classifier_tril"].unsqueeze(0))
            scores = self.model.loss.moderated(scores, ridge.score_variance(features).squeeze(1))
        return self._factor_odds(scores)

    def _factor_odds(self, scores: Tensor) -> Tensor:
        """log phi(+1 | f) - log phi(-1 | f) [...] of scores [...], which are the scores of a logistic loss."""
        one, loss = torch.ones_like(scores), self.model.loss
        odds: Tensor = loss.log_factor(scores, one) - loss.log_factor(scores, -one)
        return odds

    def _means(self, draw: Draw) -> Tensor:
        """E psi [K + 1, C] of the components of a draw, the last one not yet seen."""
        prior = label_means(self.model, self.model.label_likelihood.prior()).unsqueeze(0)
        if "label_means" in draw:
            return torch.cat([draw["label_means"], prior])
        return torch.cat([label_means(self.model, draw["label_hyperparameters"]), prior])

    # -- probabilities -----------------------------------------------------------------------------------------------

    def _probabilities(self, X: Any, known: Any) -> Tensor:
        rows, labels = self._rows(X, known)
        found = self._log_odds(rows, labels).sigmoid()
        return found if labels is None else torch.where(labels.isnan(), found, (labels > 0).to(found))

    def _log_odds(self, X: Any, labels: Tensor | None = None) -> Tensor:
        if self.model.is_coupled:
            return _logit(torch.cat([self._joint_probabilities(*part) for part in _both(X, labels)]))
        views = self.views(X, labels)
        mixture = _logit(views.mixture)
        if "calibration" not in self.metadata:
            return mixture + views.classifiers + self._offset(mixture)
        a, b, offset = self.metadata["calibration"].to(mixture).tensor_split([1, 2])
        return a * mixture + b * views.classifiers + offset

    def _joint_probabilities(self, X: Any, labels: Tensor | None) -> Tensor:
        """Probabilities [N, C] of the labels of rows under a coupled joint, averaged over components and draws."""
        evidence, found = [], []
        for draw in self._draws():
            log_weights = self._log_weights(X, labels, draw)
            evidence.append(log_weights.logsumexp(1))
            share, psi, sigma = log_weights.softmax(1), self._means(draw), self._scores(X, draw).sigmoid()
            if self.model.joint == "and":
                found.append(share @ psi * sigma)
                continue
            total = sigma @ psi.T
            shares = (share / total.clamp(min=torch.finfo(total.dtype).tiny)) @ psi * sigma
            found.append(-torch.expm1(-(share @ draw["label_totals"]).unsqueeze(1) * shares))
        return torch.einsum("sn,snc->nc", torch.stack(evidence).softmax(0), torch.stack(found))

    def _offset(self, like: Any) -> Tensor:
        """-logit rate [C]."""
        return -_logit(self.model.label_rates.to(like.dtype))

    def _rows(self, X: Any, known: Any) -> tuple[Any, Tensor | None]:
        rows = self.checked(X)
        if known is None:
            return rows, None
        if counts_labels(self.model):
            raise ValueError(
                f"known is {shown(known)}; labels that are counts cannot be known one by one: leave it out."
            )
        labels = as_label_sets(known, rows, self.model.num_labels)
        labels = labels.dense() if isinstance(labels, SparseRows) else labels
        MaskedBernoulli().check(labels)
        return rows, labels

    def _draw(self, index: int) -> Draw:
        return {name: value[index] for name, value in self.samples.items()}

    def _draws(self) -> Iterator[Draw]:
        return (self._draw(index) for index in range(len(self.samples["assignments"])))


def _both(X: Any, labels: Tensor | None) -> Iterator[tuple[Any, Tensor | None]]:
    """Rows and their known labels in parts."""
    if labels is None:
        return ((part, None) for part in chunks(X))
    return zip(chunks(X), chunks(labels), strict=True)


def _logit(p: Tensor) -> Tensor:
    """log odds [...] of probabilities [...], finite."""
    least = torch.finfo(p.dtype).eps
    return p.clamp(least, 1 - least).logit()


def _stack(draws: list[Draw]) -> Draw:
    most = max(len(draw["log_mixture"]) for draw in draws)
    for draw in draws:  # of a component not yet seen it is the last
        if "label_totals" in draw:
            totals = draw["label_totals"]
            missing = most - len(totals)
            draw["label_totals"] = torch.cat([pad(totals[:-1], (0, missing)), totals[-1:]])
    components = ("hyperparameters", "label_hyperparameters", "centers", "label_means")
    return stack_components(draws, log_weights=("log_mixture",), components=components)


_LEAST = 1e-12

register_structure(Structure("sets of labels", LabelData, MultiLabelPosterior, _stack, clustering_summaries))
