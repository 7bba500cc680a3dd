"""scikit-learn estimators over a model and a backend, which are hyperparameters like any other.

After Ctrl-C `fit` keeps what it had reached, and warns. Before there is a first state, and within a search, it raises
KeyboardInterrupt, which ends the search.
"""

from .base import NothingLearntWarning
from .class_weights import RoundedWeightsWarning
from .clusters import Clusterer, SequenceClusterer
from .cv import ClassifierCV, RegressorCV, TopicClassifierCV
from .multi import MultiLabelClassifier, MultiTaskRegressor
from .multi_cv import MultiLabelClassifierCV
from .partition import Classifier, Regressor
from .task_cv import MultiTaskRegressorCV
from .transformers import FeatureTransformer, TopicTransformer

__all__ = [
    "Classifier",
    "ClassifierCV",
    "Clusterer",
    "FeatureTransformer",
    "MultiLabelClassifier",
    "MultiLabelClassifierCV",
    "MultiTaskRegressor",
    "MultiTaskRegressorCV",
    "NothingLearntWarning",
    "Regressor",
    "RegressorCV",
    "RoundedWeightsWarning",
    "SequenceClusterer",
    "TopicClassifierCV",
    "TopicTransformer",
]
