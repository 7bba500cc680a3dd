"""Bayesian nonparametric multi-label classification: a mixture of rows and label sets, and a classifier per label.

    v_k ~ Beta(a_k, b_k) of the prior,  phi_k ~ prior of the family,  psi_k ~ prior of the labels       k = 1..T
    w_c ~ N(0, nu^2 I)                                                                                  c = 1..C
    z_n ~ Categorical(pi(v)),  x_n ~ p(. | phi_{z_n}),  y_n ~ labels(. | psi_{z_n}),  f_nc = w_c^T a_n
    factor prod_c phi(s_nc | f_nc),   s_nc = +1 if y_nc > 0, else -1                                     n = 1..N

a_n = feature_map(x_n). A missing label has neither a bit nor a factor. This is the joint "product"
(docs/derivations/label-sets, "Three joints"): given the data, the mixture and the classifiers are independent, and the
prediction combines them. Each label counts twice, so the scores rank labels but are not calibrated;
`MultiLabelPosterior.predict_proba` corrects for the double count. The joints "and" and "multinomial" have a single
distribution of y_n given psi and f in place of labels(. | psi) and the factor (`label_joints`).

Source: Nguyen, Gupta, Rana, Li & Venkatesh, supplement; corrections in docs/derivations/label-sets, "What the
supplement prints".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

import pyro
import torch
from torch import Tensor

from .arrays import as_features
from .base import Model, announced
from .config import resolved
from .domains import Count, Numbers, OneOf, Positive, Truncation
from .dpm import DPM
from .feature_maps import AnyFeatureMap, Standardized
from .label_data import LabelData
from .label_joints import COUPLED, label_law
from .likelihoods import BernoulliBeta, DiagonalGaussian, Likelihood, MaskedBernoulli, MultinomialDirichlet, Product
from .likelihoods.base import hyperparameter
from .likelihoods.parts import ending
from .losses import Logistic, Loss, Masked, masked
from .mixture import sample_components
from .priors import DirichletProcess, PartitionPrior
from .sparse import Rows, SparseRows
from .sums import all_any, all_sum
from .targets import LabelSet


@dataclass(eq=False)
class BNMC(Model):
    """Multi-label classification by a Dirichlet process mixture of (x, y) and a margin classifier for each label.

    Targets are Y [N, C] of 0 and 1, dense or sparse, NaN (or -1) where a label is missing. With `MultinomialDirichlet`
    labels they are counts, and a row of them is missing as a whole or not at all.

    Parameters
    ----------
    likelihood : family of the inputs; hyperparameters left at None are set from the data
    label_likelihood : family of the labels, `BernoulliBeta` or `MultinomialDirichlet`; None: the latter for the joint
        "multinomial", else the former. If a and b of `BernoulliBeta` are both None, they are `label_rates` and 1 minus
        these: the prior counts as one row, with the rates of the labels
    loss : margin loss of each label: a binary one, such as `Logistic` or `Hinge`
    prior : over the partition, `DirichletProcess`, `PitmanYor` or `MixtureOfFiniteMixtures` (Gibbs, small variance)
    feature_map : what the classifiers see of x, with a constant feature 1 added; sparse X needs a map for sparse rows,
        such as `PrincipalDirections`
    weight_scale : nu > 0, prior standard deviation of the classifier weights
    truncation : T >= 2, number of components of the Pyro program, of SVI and of the blocked Gibbs scan
    joint : how mixture and classifiers share the labels. "product": each has a factor of them; "and": a label needs
        both, with the probability psi sigma(f); "multinomial": label counts in proportion to psi sigma(f)
        (docs/derivations/label-sets, "Three joints"). "and" needs bits, "multinomial" counts; both need a logistic
        loss, except for SmallVariance
    label_rates : frequency of each label, [C] in (0, 1); None: as in the data. Predictions of "product" divide by their
        odds, since both the mixture and the classifier of a label contain them
    num_features, num_labels : widths D of X and C of Y; None: those of the data

    References
    ----------
    Nguyen, Gupta, Rana, Li & Venkatesh, supplement; docs/derivations/label-sets, "Three joints".

    Examples
    --------
    >>> from regbayes.models import BNMC, Hinge
    >>> BNMC(loss=Hinge(strength=2.0)).get_params()["loss__strength"]
    2.0
    """

    data_type: ClassVar[type] = LabelData

    likelihood: Likelihood = field(default_factory=DiagonalGaussian)
    label_likelihood: Likelihood | None = None
    loss: Loss = field(default_factory=Logistic)
    prior: PartitionPrior = field(default_factory=DirichletProcess)
    feature_map: AnyFeatureMap = field(default_factory=Standardized)
    weight_scale: Positive = 1.0
    truncation: Truncation = 20
    joint: Annotated[str, OneOf("product", *COUPLED)] = "product"
    label_rates: Annotated[Any, Numbers(above=0.0, below=1.0)] = None
    num_features: Count | None = None
    num_labels: Count | None = None

    def checked(self, name: str = "") -> Self:
        model = super().checked(name)
        if model.label_likelihood is None:
            counting = model.joint == "multinomial"
            model = model.replace(label_likelihood=MultinomialDirichlet() if counting else BernoulliBeta())
        if not model.loss.binary:
            raise ValueError(f"{name}loss is {model.loss!r}; each label needs a binary loss such as Logistic().")
        if not isinstance(model.label_likelihood, BernoulliBeta | MultinomialDirichlet):
            raise ValueError(
                f"{name}label_likelihood is {model.label_likelihood!r}; expected BernoulliBeta() for bits, or "
                "MultinomialDirichlet() for counts."
            )
        kind = {"and": BernoulliBeta, "multinomial": MultinomialDirichlet}.get(model.joint, object)
        if not isinstance(model.label_likelihood, kind):
            raise ValueError(f"{name}joint is {model.joint!r}, which needs label_likelihood={kind.__name__}().")
        return model

    # -- from a user's arguments to the kernels' data ------------------------------------------------------------------

    def resolve(self, X: Any, y: Any = None, weights: Tensor | None = None) -> Self:
        """A copy with all defaults set from X [N, D] and labels y [N, C], rows counted `weights` [N] times."""
        self.require_targets(y)
        X, model = as_features(X), super().resolve(X, weights=weights)
        labels = model.labels(X, y)
        missing = (labels.values if labels.is_sparse else labels).isnan()
        model = model.replace(num_labels=labels.shape[1])
        if all_any(missing):
            model = model.with_missing()
        model = model.replace(label_rates=model._rates(model.coding.read(labels, X), weights))
        counts, family = model._counted(labels), model._label_family()
        model._admit_labels(counts)
        return model.replace(label_likelihood=resolved(family, counts, weights))

    def admit(self, X: Any, y: Any = None, lengths: Any = None) -> tuple[Rows, Rows | None]:
        rows, labels = super().admit(X, y, lengths)
        if labels is not None:
            self.with_missing()._admit_labels(self._counted(labels))
        return rows, labels

    def accepting(self, X: Any, y: Any) -> Self:
        """A copy of a resolved model that takes further rows X [n, D] and labels y [n, C]; checks both.

        Labels may be missing in them even if none was missing in the training rows.
        """
        rows = as_features(X, num_features=self.num_features)
        self.likelihood.admit(rows)
        labels = self.labels(rows, y)
        missing = (labels.values if labels.is_sparse else labels).isnan().any()
        model = self.with_missing() if missing else self
        model._admit_labels(model._counted(labels))
        return model

    def data(self, X: Any, y: Any = None, weights: Tensor | None = None) -> LabelData:
        """The kernels' view of X [N, D] and labels y [N, C], each row counted `weights` [N] times; None: once."""
        X = as_features(X, num_features=self.num_features)
        labels = self.labels(X, y)
        counts = self._counted(labels)
        if not X.is_sparse:
            counts = counts.to_dense()
        return LabelData(X, counts, self.features(X), self.coding.read(labels, X), weights)

    def labels(self, X: Rows, y: Any) -> Rows:
        """Labels [N, C] of the rows of X [N, D], NaN where one is missing; sparse if y is."""
        return self.coding.values(y, X)

    @property
    def coding(self) -> LabelSet:
        return LabelSet(self.num_labels)

    # -- methods that kernels call -------------------------------------------------------------------------------------

    @property
    def is_coupled(self) -> bool:
        """Whether the joint density couples the classifiers with the components."""
        return self.joint in COUPLED

    @property
    def without_sticks(self) -> str:
        """What to use with a prior without stick-breaking weights, which a coupled joint needs; "" for "product"."""
        others = 'use SmallVariance(), joint="product", or a prior with sticks such as DirichletProcess()'
        return others if self.is_coupled else ""

    def require_probabilities(self) -> None:
        """Raise ValueError if a coupled joint has a loss other than the logistic one."""
        own = self.loss.loss if isinstance(self.loss, Masked) else self.loss
        if self.is_coupled and not (isinstance(own, Logistic) and own.is_likelihood):
            raise ValueError(f"joint is {self.joint!r}, which is of probabilities: it needs loss=Logistic().")

    @property
    def family(self) -> Product:
        """The likelihood of rows (x, y)."""
        return Product([(self.likelihood, self.num_features), (self.label_likelihood, self.num_labels)])

    @property
    def mixture(self) -> DPM:
        """The mixture of rows (x, y), without classifiers."""
        width = None if self.num_features is None or self.num_labels is None else self.num_features + self.num_labels
        return DPM(self.family, self.prior, self.truncation, width)

    @announced
    def program(self, data: LabelData) -> None:
        """The Pyro program of a resolved model.

        Sites: the prior's hyperparameters that are random, `sticks` [T-1], parameters of both families [T, ...]
        (`_0` after the names of those of x, `_1` of y), `weights` [P, C], `assignments` [N] (enumerable in parallel),
        `X` (observed, x and y), and the factor `margin`. In a coupled joint `X` is x alone, and `Y` is observed.
        """
        self.require_probabilities()
        family, sticks = self.family, self.prior.sample_sticks(self.truncation, data.features)
        with pyro.plate("components", self.truncation):
            parameters = family.parameters(family.prior(), pyro.sample)
        weights = self.sample_weights(data.features, data.features.shape[1], data.targets.shape[1])
        with pyro.plate("data", data.num_data):
            _, own = sample_components(sticks, parameters)
            if not self.is_coupled:
                pyro.sample("X", family.distribution(own), obs=data.X)
                pyro.factor("margin", self.log_margin(data.features @ weights, data.targets))
                return
            x, y = data.X.split([self.num_features, self.num_labels], 1)
            pyro.sample("X", self.likelihood.distribution(ending(own, 0)), obs=x)
            pyro.sample("Y", label_law(self.joint, own["probs_1"], data.features @ weights), obs=y)

    # -- details -----------------------------------------------------------------------------------------------------

    def with_missing(self) -> Self:
        """A copy whose loss and whose binary labels may be missing."""
        labels = self.label_likelihood
        if isinstance(labels, BernoulliBeta) and not isinstance(labels, MaskedBernoulli):
            labels = MaskedBernoulli(labels.a, labels.b)
        return self.replace(loss=masked(self.loss), label_likelihood=labels)

    def _admit_labels(self, counts: Rows) -> None:
        """Raise ValueError unless labels [N, C] are in the support of their likelihood."""
        family: Any = self.label_likelihood
        try:
            family.admit(counts)
        except ValueError as error:
            raise ValueError(str(error).replace("X has", "Y has")) from error

    def _counted(self, labels: Rows) -> Rows:
        """Labels [N, C] as their likelihood takes them; wholly missing rows of counts become rows of 0."""
        family: Any = self.label_likelihood
        if not family.given_totals:
            return labels
        dense = labels.to_dense()
        missing = dense.isnan()
        if partly := torch.nonzero(missing.any(1) & ~missing.all(1)).flatten().tolist():
            raise ValueError(
                f"Y has rows with some counts missing: {partly[:5]}. With MultinomialDirichlet() a row is missing as a "
                "whole; use BernoulliBeta() for labels that are missing one by one."
            )
        filled = dense.masked_fill(missing, 0.0)
        return SparseRows.of(filled) if labels.is_sparse else filled

    def _label_family(self) -> Any:
        """The likelihood of the labels; the default prior of bits counts as one row with the data's label rates."""
        family, rates = self.label_likelihood, self.label_rates
        if not isinstance(family, BernoulliBeta) or family.a is not None or family.b is not None:
            return family
        return family.replace(a=rates, b=1 - rates)

    def _rates(self, signs: Tensor, weights: Tensor | None) -> Tensor:
        """Fractions [C] of the known labels that are present, with half a label of each kind added."""
        count = torch.ones_like(signs) if weights is None else weights.to(signs).unsqueeze(1).expand_as(signs)
        known, present = (all_sum((count * kind).sum(0)) for kind in (~signs.isnan(), signs == 1))
        return hyperparameter("label_rates", self.label_rates, (present + 0.5) / (known + 1), signs, signs.shape[1])
