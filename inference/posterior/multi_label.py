"""The posterior of a multi-label model: components of rows and label sets, classifiers, and label sets of new rows.

Two views of a new row say which labels it has: its component, by psi(x) = sum_g sum_k W_k psi_k / sum_g sum_k W_k over
the draws g, and the classifiers, by s(x) = E sigma(f) (docs/derivations/label-sets, "Prediction"). Under the joint
"product" both learned from the same labels. If the views are independent given a label, Bayes' rule multiplies their
odds and divides once by the odds of the label's frequency, which both include:

    logit p_c = logit psi_c(x) + logit s_c(x) - logit rate_c

`calibrated` learns the weight of each view from rows that the fit has not seen. The coupled joints have one law of the
labels, whose probabilities are averaged over components and draws: psi_c sigma(f_c), or for counts 1 - exp(-r q_c) with
the mean total r and the share q_c prop. to psi_c sigma(f_c).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ...models.arrays import as_features, like
from ...models.bnmc import BNMC
from ...models.distributions.sampling import uniforms
from ...models.domains import NonNegative, Number, read, shown
from ...models.label_data import LabelData
from ...models.likelihoods import MaskedBernoulli
from ...models.numbers import as_tensor
from ..structures import Draw, Structure, register_structure
from .base import Posterior
from .clustering import Clustering, clustering_summaries, rows_moved
from .components import component_size
from .draws import LabelDraw
from .label_calibration import best_thresholds, fit_calibration, largest, shared_threshold
from .label_draws import counts_labels
from .label_views import (
    Views,
    classifier_view,
    component_means,
    component_weights,
    joint_view,
    logit,
    mixture_view,
    row_scores,
)
from .new_data import NewData, by_draw, in_place, mixture_rows
from .scores import chunks
from .stacking import stacks


class HeldOut(NamedTuple):
    """Scores and labels of rows that a fit has not seen."""

    mixture: Tensor  # [N, C] log odds; in a coupled joint 0
    classifiers: Tensor  # [N, C] log odds; in a coupled joint those of the joint probability
    signs: Tensor  # [N, C] +1 and -1, NaN where a label is missing


class MultiLabelPosterior(Clustering, Posterior):
    """A fitted model of rows and their label sets.

    `samples` holds S draws: `assignments`, `log_mixture`, `hyperparameters` and `centers` as in `PartitionPosterior`,
    `label_hyperparameters` of the labels in each component, and `classifiers` [S, P, C]. `LabelDraw` has all names.
    """

    record = LabelDraw

    # -- label sets of new rows ------------------------------------------------------------------------------------

    def predict(self, X: Any, *, thresholds: Any = None, top_k: int | None = None, known: Any = None) -> Any:
        """Label sets [N, C] of 0 and 1, int64: 1 where `predict_proba` is above the threshold.

        Parameters
        ----------
        thresholds : a label is present where its probability is above this, a number or [C]; None: one half
        top_k : the k most probable labels of each row instead; 0: as many as its probabilities add up to
        known : labels [N, C] of the rows, where they are known already, else NaN; None: no label is known
        """
        probabilities = self._probabilities(X, known)
        if top_k is not None:
            if thresholds is not None:
                raise ValueError("thresholds and top_k are two ways to choose labels. Give one of them.")
            return like(largest(probabilities, top_k), X)
        level = as_tensor("thresholds", 0.5 if thresholds is None else thresholds).to(probabilities)
        if level.shape not in {(), probabilities.shape[1:]} or level.isnan().any():
            C = probabilities.shape[1]
            raise ValueError(f"thresholds is {shown(thresholds)}; expected a number, or one for each of {C} labels.")
        return like((probabilities > level).long(), X)

    def predict_proba(self, X: Any, *, known: Any = None) -> Any:
        """Probability [N, C] that a row has each label; `known` labels [N, C] (else NaN) inform about its component.

        Under the joints "and" and "multinomial" it is the posterior mean over draws, components and, with SVI,
        approximately over q(classifiers). Under "product" each of the two views is such a mean (with a hinge, which is
        not a likelihood, its factor at the mean score), but both learned from the same labels. Combined as if they were
        independent, they count a label twice and are overconfident; `calibrated`, and the folds of
        `MultiLabelClassifier`, correct this. A calibrated probability is a logistic function of the two views.
        """
        return like(self._probabilities(X, known), X)

    def decision_function(self, X: Any) -> Any:
        """Log odds [N, C] of each label, those of `predict_proba`."""
        return like(self._log_odds(self.checked(X)), X)

    def thresholds(self, X: Any, Y: Any) -> Any:
        """For each label the threshold [C] of highest F1 on X [N, D] and Y [N, C]; better not the rows of the fit."""
        rows = self.checked(X)
        signs = self.model.coding.encode(Y, rows)
        return like(best_thresholds(self._log_odds(rows).sigmoid(), signs), X)

    def calibrated(self, X: Any, Y: Any) -> Self:
        """The same posterior with probabilities fitted to rows X [N, D] and labels Y [N, C], NaN where missing:

            logit p_c = a logit psi_c(x) + b logit s_c(x) + d_c

        by logistic regression, with a and b shared by all labels; for a coupled joint, which has one probability p of a
        label, b logit p + d_c. Do not use the rows of the fit. Point estimates need calibration most: probabilities of
        `SmallVariance` are overconfident, or too low with the joint "and".
        """
        return self.calibrated_by([self.held_out(X, Y)])

    def held_out(self, X: Any, Y: Any) -> HeldOut:
        """Scores of rows X [N, D] that the fit has not seen, and their labels Y [N, C], for `calibrated_by`."""
        rows = self.checked(X)
        signs = self.model.coding.encode(Y, rows)
        return HeldOut(*self._stated(rows), signs)

    def calibrated_by(self, folds: Iterable[HeldOut]) -> Self:
        """As `calibrated`, but from `held_out` scores of other fits of the same model, such as fits to folds.

        This fit may then use all rows.

        Raises
        ------
        ValueError    unless `folds` is a list of what `held_out` returns, of as many labels.
        """
        mixture, classifiers, signs = self._joined(folds)
        return self._recalibrated(fit_calibration(mixture, classifiers, signs, self._offset(mixture)))

    def threshold_by(self, folds: Iterable[HeldOut]) -> float:
        """The threshold for all labels with the highest micro-F1 on folds (`held_out`), at this calibration.

        It is one half if the folds have too few labels (`label_calibration.shared_threshold`).
        """
        mixture, classifiers, signs = self._joined(folds)
        return shared_threshold(self._calibrated(mixture, classifiers).sigmoid(), signs)

    def weighing(self, mixture: NonNegative) -> Self:
        """The same posterior, with this weight of the mixture relative to the classifiers:

            logit p_c = mixture (logit psi_c(x) - logit base_c) + logit s_c(x)

        The value 1, that of every fit, is Bayes' rule for views that are independent given a label. Two views of the
        same x are hardly independent: on held-out rows 0.1 to 0.5 is often better. With 0 only the classifiers count.

        Raises
        ------
        ValueError    on a negative number, and of a coupled joint, which has no two views.
        """
        if self.model.is_coupled:
            raise ValueError(
                f"The joint {self.model.joint!r} has one probability for each label, and no two views to weigh."
            )
        share = read("mixture", mixture, Number(least=0.0))
        offset = self._offset(self.samples["log_mixture"])
        return self._recalibrated(torch.cat([offset.new_tensor([share, 1.0]), share * offset]))

    # -- components ----------------------------------------------------------------------------------------------------

    def assign(self, X: Any, *, known: Any = None) -> Any:
        """Component [N] of each row in the representative draw, from its features and `known` labels [N, C]."""
        rows, labels = self._rows(X, known)
        draw = self.draw(self.representative)
        found = [self._joining(part, draw, known).argmax(1) for part, known in _both(rows, labels)]
        return like(torch.cat(found), X)

    def sample(self, num_rows: int, *, totals: Any = None, generator: torch.Generator | None = None) -> NewData:
        """Independent new rows of the predictive distribution, with their label sets y [N, C] of 0 and 1.

        A row has a draw g at random, a component of it by its weight, and x ~ p(x | component). Its labels are
        independent given these three, with the odds that `predict_proba` has of the one component: of a coupled joint
        psi_c sigma(f_c), of "product" those of psi_c and of the classifier as independent views. `assignments` are as
        in `PartitionPosterior.sample`.

        Parameters
        ----------
        totals : of inputs that are counts whose total is given, as of `MultinomialDirichlet`, one or [num_rows]
        generator : on the device of the posterior; None: a new one of seed 0

        Raises
        ------
        NotImplementedError    of small-variance centres, which have no density, and of labels that are counts, whose
            totals are not modelled.
        """
        if counts_labels(self.model):
            raise NotImplementedError("The totals of labels that are counts are not modelled, so none are drawn.")
        X, draws, own, own_stream = mixture_rows(self.model, self.samples, num_rows, totals, generator)
        labels, targets = torch.empty_like(own), list[tuple[Tensor, Tensor]]()
        for g, rows in by_draw(draws):
            draw = self.draw(g)
            labels[rows] = self.labels_of(draw)[own[rows]]
            p = self._calibrated(*self._of_components(X[rows], draw, own[rows])).sigmoid()
            targets.append((rows, (uniforms(p.shape, own_stream) < p).long()))
        return NewData(X, in_place(targets), labels)

    def over_rows(self, place: Tensor, left_out: Any = None) -> Self:
        """The same posterior with other training rows: row n is row place[n] [N] of this one.

        Where place[n] is -1 it is the next row left out [M, D], which joins a component of each draw as a new row.
        """
        return self.replace(samples=rows_moved(self, place, left_out, self._joining))

    def rehearse(self) -> None:
        rows = self.samples["log_mixture"].new_zeros(0, self.model.num_features)
        draws, labels = [self.draw(0)], None if counts_labels(self.model) else rows.new_zeros(0, self.model.num_labels)
        component_weights(self.model, rows, labels, draws[0])
        views = [joint_view] if self.model.is_coupled else [mixture_view]
        found = [view(self.model, draws, rows, labels) for view in views] + [classifier_view(self.model, draws, rows)]
        found[0] + found[1] + self._offset(rows)
        if any(view.shape[1] != self.model.num_labels for view in found):
            raise ValueError(f"there are probabilities of {found[0].shape[1]} labels, not {self.model.num_labels}")
        calibration = self.metadata.get("calibration", rows.new_zeros(2 + self.model.num_labels))
        if not isinstance(calibration, Tensor) or calibration.shape != (2 + self.model.num_labels,):
            raise ValueError(f"its calibration is {shown(calibration)}")

    # -- the two views -------------------------------------------------------------------------------------------------

    def checked(self, X: Any) -> Any:
        """The rows [N, D] of a user's argument X."""
        rows = as_features(X, num_features=self.model.num_features, like=self.samples["log_mixture"])
        self.model.likelihood.admit(rows)
        return rows

    def views(self, X: Any, labels: Tensor | None = None) -> Views:
        """Both views of rows [N, D], given known labels [N, C], NaN where unknown."""
        draws = list(self.draws())
        mixture = [mixture_view(self.model, draws, *part) for part in _both(X, labels)]
        classifiers = [classifier_view(self.model, draws, part) for part in chunks(X)]
        return Views(torch.cat(mixture), torch.cat(classifiers))

    # -- probabilities -----------------------------------------------------------------------------------------------

    def _probabilities(self, X: Any, known: Any) -> Tensor:
        rows, labels = self._rows(X, known)
        found = self._log_odds(rows, labels).sigmoid()
        return found if labels is None else torch.where(labels.isnan(), found, (labels > 0).to(found))

    def _log_odds(self, X: Any, labels: Tensor | None = None) -> Tensor:
        return self._calibrated(*self._stated(X, labels))

    def _calibrated(self, mixture: Tensor, classifiers: Tensor) -> Tensor:
        """Log odds [N, C] from those of both views."""
        if "calibration" not in self.metadata:
            return mixture + classifiers + self._offset(mixture)
        a, b, offset = self.metadata["calibration"].to(mixture).tensor_split([1, 2])
        return a * mixture + b * classifiers + offset

    def _stated(self, X: Any, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log odds [N, C] of both views; in a coupled joint 0 and those of its one probability."""
        if not self.model.is_coupled:
            views = self.views(X, labels)
            return logit(views.mixture), views.classifiers
        draws = list(self.draws())
        joint = logit(torch.cat([joint_view(self.model, draws, *part) for part in _both(X, labels)]))
        return torch.zeros_like(joint), joint

    def _of_components(self, X: Tensor, draw: Draw, own: Tensor) -> tuple[Tensor, Tensor]:
        """As `_stated`, for rows [N, D] with known components `own` [N] of a draw (K: a new one)."""
        psi = component_means(self.model, draw)[own]
        if not self.model.is_coupled:
            return logit(psi), classifier_view(self.model, [draw], X)
        joint = logit(psi * row_scores(self.model, X, draw).sigmoid())
        return torch.zeros_like(joint), joint

    def _joining(self, X: Any, draw: Draw, labels: Tensor | None = None) -> Tensor:
        """Log weights [N, K] of the components of a draw for rows with known `labels` [N, C]."""
        return component_weights(self.model, X, labels, draw)[:, :-1]

    def _joined(self, folds: Iterable[HeldOut]) -> HeldOut:
        """All folds joined; ValueError unless they are results of `held_out` with the same number of labels."""
        C = self.model.num_labels
        parts = list(folds) if isinstance(folds, list | tuple | Iterator) else []
        if not parts or not all(isinstance(part, HeldOut) and part.signs.shape[1] == C for part in parts):
            raise ValueError(f"folds is {shown(folds)}; expected a list of what `held_out` returns, of {C} labels.")
        return HeldOut(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))

    def _recalibrated(self, calibration: Tensor) -> Self:
        metadata = {**self.metadata, "calibration": calibration}
        return self.replace(metadata=metadata)

    def _offset(self, like: Any) -> Tensor:
        """-logit rate [C], which both views include; in a coupled joint 0."""
        base = -logit(self.model.label_rates.to(like.dtype))
        return torch.zeros_like(base) if self.model.is_coupled else base

    def _rows(self, X: Any, known: Any) -> tuple[Any, Tensor | None]:
        rows = self.checked(X)
        if known is None:
            return rows, None
        if counts_labels(self.model):
            raise ValueError(
                f"known is {shown(known)}; labels that are counts cannot be known one by one: leave it out."
            )
        try:
            labels: Tensor = self.model.labels(rows, known).to_dense()
            MaskedBernoulli().check(labels)
        except ValueError as error:
            raise ValueError(re.sub("^[XY] ", "known ", str(error))) from None
        return rows, labels


def _both(X: Any, labels: Tensor | None) -> Iterator[tuple[Any, Tensor | None]]:
    """Rows and their known labels, in chunks."""
    if labels is None:
        return ((part, None) for part in chunks(X))
    return zip(chunks(X), chunks(labels), strict=True)


def _state_size(model: BNMC, data: LabelData, number: int) -> int:
    """The numbers of hyperparameters, of rows and of labels."""
    return number * (component_size(model, data.X) + data.y.shape[1])


register_structure(
    Structure(
        "sets of labels",
        LabelData,
        MultiLabelPosterior,
        stacks(LabelDraw),
        clustering_summaries,
        _state_size,
    )
)
