"""Estimators that choose their settings by folds: of rows with one target each; the search is in `search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..inference import SVI, Backend, SmallVariance, TopicPosterior
from ..models import InfiniteSVM, MedLDA, Model, SquaredHinge, TopicData
from .partition import Classifier, Regressor
from .search import PathSearch
from .slopes import least_squares_shares, likeliest_shares, likeliest_slope, log_probabilities, logits


class ClassifierCV(PathSearch, Classifier):
    """`Classifier` whose weight scale, number of components and other settings are chosen by cross-validated accuracy;
    the same folds choose the slope of the probabilities.

        p(class l | x) = softmax_l(slope_ f_l(x)),    for two classes 1 / (1 + exp(-slope_ f(x)))
        f(x) = sum_k shares_[k] f_k(x)

    where f_k is the decision function of the best setting with k components; several k are averaged for mixtures by
    `SmallVariance` only (stacking: Wolpert 1992; Breiman 1996). shares_, all at least 0, and slope_ maximize the
    likelihood of the labels of held-out rows (Platt 1999 without an intercept, so that probabilities and predictions
    agree). If `cv` is a number, the folds are stratified.

    Parameters
    ----------
    model : a model with classes; None: `InfiniteSVM(loss=SquaredHinge())`, which with one component is scikit-learn's
        LinearSVC at C = 2 strength * weight_scale^2. If the loss has no strength, leave `strengths` out
    inference : as in `Classifier`; None: `SmallVariance(scale=10.0)`, whose components follow the rows more than the
        labels; for topics and latent features as in `Classifier`. Fits of the search make one descent unless
        `num_restarts` is a number
    class_weight : as in `Classifier`; it weights the rows in all fits and in the scores of the folds
    strengths : strengths of the loss to choose from. With one component only strength * weight_scale^2 matters
    weight_scales : prior standard deviations of the classifier weights to choose from; components are found at the
        first one. None: eleven from 0.01 to 3, or from 0.03 to 10 if length scales are searched
    num_components : numbers of components to choose from, for which `SmallVariance` sets its penalty; None: 1, and,
        unless length scales are searched, those of 2, 4, 8 and 16 that leave 8 rows for each component. For latent
        features and topics, their numbers (`truncation`, `num_topics`); None: that of the model
    temperatures : temperatures to choose from; they set how softly a new row is assigned to components
        (`PartitionPosterior.tempered`). Only for `SmallVariance` of a mixture
    length_scales : length scales to choose from, for a feature map whose `length_scale` is None (`Nystroem`,
        `RandomFourier`); None: the one of gamma = 1 / D, half of it and twice it
    cv : number of folds, or a splitter of scikit-learn, or its splits. With a number, the rows of a group (`groups`)
        stay in one fold, and equal rows are spread evenly over the folds; if all weights are whole, a row of weight w
        counts as w equal rows

    Attributes
    ----------
    length_scale_, num_components_, strength_, weight_scale_, temperature_ : the best single setting, whose components
        `posterior_` has; None or 0 if there was no choice. If settings have the same accuracy, the one with the least
        log loss is best. A larger number of components is chosen only if it is better by more than chance: its gains in
        accuracy and in log likelihood over the best earlier number, each in standard errors, add up to more than 1, and
        its gain in log likelihood over the first number is more than one standard error. If the chosen number has no
        share, the best number with a share takes its place. `best_params_` has all of these settings
    shares_ : dict from a number of components to the weight of its best setting, the best single setting first; weights
        of 0 are left out
    scores_ : accuracies [F, G, K, S, W, T] by fold, length scale, number of components, strength, weight scale and
        temperature
    best_score_ : mean accuracy of the best single setting
    refit_time_ : seconds of the fits to all rows
    slope_ : slope of the probabilities, as above
    posterior_ : Posterior of the fits to all rows, with a draw for each of `shares_`
        (`PartitionPosterior.averaged_with`)
    classes_, n_components_, n_features_in_ : as in `Classifier`

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> ClassifierCV(num_components=[1, 3]).fit(X, y).best_score_ > 0.9
    True
    """

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        class_weight: dict[Any, float] | str | None = None,
        *,
        strengths: Sequence[float] = (1.0,),
        weight_scales: Sequence[float] | None = None,
        num_components: Sequence[int] | None = None,
        temperatures: Sequence[float] = (0.0, 1.0),
        length_scales: Sequence[float] | None = None,
        cv: Any = 3,
    ) -> None:
        super().__init__(model, inference, class_weight)
        self.strengths = strengths
        self.weight_scales = weight_scales
        self.num_components = num_components
        self.temperatures = temperatures
        self.length_scales = length_scales
        self.cv = cv

    scales: ClassVar[tuple[float, ...]] = (0.01, 0.018, 0.03, 0.055, 0.1, 0.18, 0.3, 0.55, 1.0, 1.8, 3.0)

    def defaults(self) -> tuple[Any, Backend]:
        return InfiniteSVM(loss=SquaredHinge()), self.variational() or SmallVariance(scale=_SCALE)

    def in_losses(self, parts: tuple[Any, Backend]) -> bool:
        return False  # the scores of the folds count rows as well

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return (logits(decisions).argmax(1) == y).astype(np.float64)

    def log_losses(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        told = log_probabilities(likeliest_slope(decisions, y, weights), decisions)
        found: NDArray[np.float64] = -told[np.arange(len(y)), y]
        return found

    def shares(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return likeliest_shares(decisions, y, weights)

    def calibrate(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> None:
        self.slope_ = likeliest_slope(decisions, y, weights)


class TopicClassifierCV(ClassifierCV):
    """`ClassifierCV` of documents, counts [N, V] of words, dense or sparse: it chooses the number of topics, their
    concentration in a document, and how much the labels pull on them.

    Margins need no search: a loss of margin l and strength c with weights of scale nu is equivalent to one of margin 1,
    strength c l and scale nu / l.

    Parameters
    ----------
    model : a topic model with classes; None: `MedLDA()`
    inference : as in `Classifier` of topics
    class_weight, strengths, cv : as in `ClassifierCV`
    weight_scales : prior standard deviations of the weights of topics to choose from; None: 1 and 8
    num_topics : numbers of topics to choose from; a later number only if it is better than the first by more than
        chance
    concentrations : concentrations of the topics of a document to choose from
        (`DirichletTopics.document_concentration`)

    Attributes
    ----------
    num_topics_, concentration_, strength_, weight_scale_, best_params_, best_score_, refit_time_, slope_ : as in
        `ClassifierCV`
    scores_ : accuracies [F, K, A, S, W] by fold, number of topics, concentration, strength and weight scale
    posterior_, classes_, n_components_, n_features_in_ : as in `Classifier`

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).poisson(2.0, (40, 6)) * np.eye(2).repeat(3, 1)[np.arange(40) % 2]
    >>> TopicClassifierCV(num_topics=[2], strengths=[1.0]).fit(X, np.arange(40) % 2).best_score_ > 0.9
    True
    """

    posteriors = (TopicPosterior,)
    accepted = "a topic model with classes"
    elsewhere = "ClassifierCV"
    default_data = TopicData
    arguments = ("num_topics", "concentrations", "strengths", "weight_scales")
    size = "num_topics"
    scales = (1.0, 8.0)

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        class_weight: dict[Any, float] | str | None = None,
        *,
        num_topics: Sequence[int] = (10, 20, 40),
        concentrations: Sequence[float] = (0.1, 1.0),
        strengths: Sequence[float] = (1.0, 10.0),
        weight_scales: Sequence[float] | None = None,
        cv: Any = 3,
    ) -> None:
        super().__init__(model, inference, class_weight, strengths=strengths, weight_scales=weight_scales, cv=cv)
        self.num_topics = num_topics
        self.concentrations = concentrations

    def defaults(self) -> tuple[Any, Backend]:
        return MedLDA(), self.variational() or SVI()


class RegressorCV(PathSearch, Regressor):
    """`Regressor` with the strength of its loss, the scale of its weights and the number of its components chosen by
    the squared error of held-out rows. If `cv` is a number, the folds are stratified by y.

    As in `ClassifierCV`, the best settings with several numbers of components are averaged, with the shares that
    minimize the squared error of held-out rows.

    Parameters
    ----------
    model : as in `Regressor`; if the loss has no strength, leave `strengths` out
    inference, strengths, num_components, temperatures, length_scales, cv : as in `ClassifierCV`
    weight_scales : as in `ClassifierCV`; None: .1, .3 and 1, or if length scales are searched eleven from 0.03 to 10

    Attributes
    ----------
    length_scale_, num_components_, strength_, weight_scale_, temperature_, best_params_, best_score_, shares_ : as in
        `ClassifierCV`
    scores_ : 1 - mean squared error / variance of y [F, G, K, S, W, T], as in `ClassifierCV`
    noise_scale_ : root mean squared error on held-out rows, in the units of y
    posterior_, target_mean_, target_scale_, n_components_, n_features_in_ : as in `Regressor`
    """

    def __init__(
        self,
        model: Model | None = None,
        inference: Backend | None = None,
        *,
        strengths: Sequence[float] = (1.0,),
        weight_scales: Sequence[float] | None = None,
        num_components: Sequence[int] | None = None,
        temperatures: Sequence[float] = (0.0, 1.0),
        length_scales: Sequence[float] | None = None,
        cv: Any = 3,
    ) -> None:
        super().__init__(model, inference)
        self.strengths = strengths
        self.weight_scales = weight_scales
        self.num_components = num_components
        self.temperatures = temperatures
        self.length_scales = length_scales
        self.cv = cv

    scales = (0.1, 0.3, 1.0)

    def defaults(self) -> tuple[Any, Backend]:
        return super().defaults()[0], self.variational() or SmallVariance(scale=_SCALE)

    def score_rows(self, decisions: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = 1 - (y - decisions.astype(np.float64)) ** 2  # y has variance 1
        return found

    def shares(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return least_squares_shares(decisions, y, weights)

    def calibrate(self, decisions: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64]) -> None:
        errors = 1 - self.score_rows(decisions, y)
        self.noise_scale_ = self.target_scale_ * float(np.average(errors, weights=weights)) ** 0.5


_SCALE = 10.0
