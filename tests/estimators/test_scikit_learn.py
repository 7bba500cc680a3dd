"""scikit-learn's own checks of the estimators, with no expected failure.

Each estimator and each backend is checked once; what is left of their product with structures is nightly.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from regbayes.estimators import (
    Classifier,
    ClassifierCV,
    Clusterer,
    FeatureTransformer,
    MultiLabelClassifier,
    MultiLabelClassifierCV,
    MultiTaskRegressor,
    MultiTaskRegressorCV,
    Regressor,
    RegressorCV,
    SequenceClusterer,
    TopicClassifierCV,
    TopicTransformer,
)
from regbayes.inference import NUTS, SVI, Autoguide, Gibbs, SmallVariance
from regbayes.models import (
    BNMC,
    DPM,
    IHMM,
    LDA,
    DirichletProcess,
    EpsilonInsensitive,
    InfiniteLatentSVM,
    InfiniteSVM,
    LatentFeatureModel,
    MedLDA,
    MultiTaskInfiniteLatentSVM,
    SphericalGaussian,
    Standardized,
)

# The checks contain constant columns, give classes weights such as 1e-4, and draw from numpy's global stream.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::regbayes.models.ConstantColumnWarning"),
    pytest.mark.filterwarnings("ignore::regbayes.estimators.RoundedWeightsWarning"),
    pytest.mark.filterwarnings("ignore::regbayes.inference.TruncationWarning"),
]


class Counting:
    """A part of an estimator that takes scikit-learn's real numbers for counts: no tag says that they must be whole."""

    def fit_data(self, X, **checks):
        found = super().fit_data(X, **checks)
        return (counts(found[0]), *found[1:]) if isinstance(found, tuple) else counts(found)

    def new_data(self, X):
        return counts(super().new_data(X))


class CountClassifier(Counting, Classifier):
    """A classifier of counts."""

    def is_of(self, data_type):
        return False  # of any real numbers, dense, without a transform


class CountClassifierCV(CountClassifier, TopicClassifierCV):
    """A search of topics of counts."""


class CountTransformer(Counting, TopicTransformer):
    """Topics of counts."""

    _takes_sparse = False

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = False
        return tags

    def _require_counts(self, X):
        pass


def counts(X: np.ndarray) -> np.ndarray:
    """One word for a large value of each column, another one for a small value."""
    return np.hstack([np.rint(np.clip(2 + 2 * X, 0, 9)), np.rint(np.clip(2 - 2 * X, 0, 9))])


SMALL = {"prior": DirichletProcess(1.0), "truncation": 3}
FEW = {"truncation": 3, "feature_map": Standardized()}
ISVM, REGRESSION = InfiniteSVM(**SMALL), InfiniteSVM(loss=EpsilonInsensitive(), **SMALL)
GROUPS, STATES, SETS = DPM(SphericalGaussian(), **SMALL), IHMM(truncation=3), BNMC(truncation=6)
REAL_FEATURES = InfiniteLatentSVM(loss=EpsilonInsensitive(5.0), weight_scale=3.0, **FEW)
TASKS = MultiTaskInfiniteLatentSVM(truncation=3)
REAL_TASKS = MultiTaskInfiniteLatentSVM(loss=EpsilonInsensitive(5.0), weight_scale=3.0, truncation=8)
# as short as they can be and still learn what the checks ask for
DESCENT, BOUND = SmallVariance(penalty=30.0, max_steps=5, merge=False), SVI(num_steps=3)
CHAIN = Gibbs(num_samples=1, num_warmup=2, split_merge=0, num_generative=1)
TREE, LONGER_TREE = (NUTS(1, steps, max_tree_depth=depth) for steps, depth in ((1, 1), (5, 3)))
POINT = Autoguide("AutoDelta", num_steps=3, learning_rate=0.3, num_samples=1)
GRID = {"strengths": [1.0], "weight_scales": [0.5, 1.0], "num_components": [1, 2], "temperatures": [0.0, 1.0], "cv": 2}
SVI_GRID = {"strengths": [0.5, 1.0], "weight_scales": [1.0], "cv": 2}

ONCE = [
    Classifier(ISVM, CHAIN),
    Regressor(REGRESSION, POINT),
    Clusterer(GROUPS, TREE),
    SequenceClusterer(STATES, BOUND),
    FeatureTransformer(LatentFeatureModel(truncation=3), SVI(num_steps=4)),
    MultiLabelClassifier(SETS, SVI(num_steps=12)),
    MultiTaskRegressor(REAL_TASKS, SVI(num_steps=8)),
    ClassifierCV(ISVM, SmallVariance(max_steps=5), **GRID),
    RegressorCV(REGRESSION, SmallVariance(max_steps=5), **GRID),
    MultiLabelClassifierCV(SETS, SVI(num_steps=12), weight_scales=[0.3, 1.0], cv=2),
    MultiTaskRegressorCV(REAL_TASKS, SVI(num_steps=8), **SVI_GRID),
]
PRODUCT = [
    *(Classifier(ISVM, backend) for backend in (DESCENT, BOUND, TREE, POINT)),
    *(Regressor(REGRESSION, backend) for backend in (DESCENT, BOUND, CHAIN, LONGER_TREE)),
    *(Clusterer(GROUPS, backend) for backend in (DESCENT, BOUND, CHAIN, POINT)),
    *(SequenceClusterer(STATES, backend) for backend in (DESCENT, CHAIN)),
    Classifier(InfiniteLatentSVM(**FEW), SVI(num_steps=8)),
    Classifier(InfiniteLatentSVM(**FEW), SmallVariance(penalty=10.0, max_steps=3, num_restarts=1, merge=False)),
    Regressor(REAL_FEATURES, Gibbs(num_samples=1, num_warmup=2, scan="blocked")),
    MultiLabelClassifier(SETS, SmallVariance(penalty=20.0, max_steps=5)),
    MultiLabelClassifier(TASKS, SVI(num_steps=8)),
    MultiTaskRegressor(REAL_TASKS, SmallVariance(penalty=0.05, max_steps=4, merge=False)),
    ClassifierCV(ISVM, SVI(num_steps=3), **SVI_GRID),
]


# fits as short as these need not find a feature in noise
LEARNT_OR_NOT = pytest.mark.filterwarnings("ignore::regbayes.estimators.NothingLearntWarning")


@LEARNT_OR_NOT
@pytest.mark.one_in(6)
@parametrize_with_checks(ONCE)
def test_each_estimator_and_backend_once_which_may_use_global_stream(estimator, check):
    check(estimator)


@LEARNT_OR_NOT
@pytest.mark.nightly
@parametrize_with_checks(
    [
        CountClassifier(MedLDA(num_topics=4), SVI(num_steps=15)),
        CountClassifierCV(inference=SVI(num_steps=15), num_topics=[4], strengths=[1.0], concentrations=[0.1], cv=2),
        CountTransformer(LDA(num_topics=3), SVI(num_steps=5)),
    ]
)
def test_counts_which_may_use_global_stream(estimator, check):
    check(estimator)


@pytest.mark.nightly
@parametrize_with_checks(PRODUCT)
def test_the_rest_of_the_product_which_may_use_global_stream(estimator, check):
    check(estimator)
