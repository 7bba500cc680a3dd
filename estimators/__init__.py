"""scikit-learn estimators over a model and a backend, which are hyperparameters like any other."""

from .class_weights import RoundedWeightsWarning
from .multi import MultiLabelClassifier, MultiTaskRegressor
from .partition import Classifier, Clusterer, Regressor
from .sequence import SequenceClusterer

__all__ = [
    "Classifier",
    "Clusterer",
    "MultiLabelClassifier",
    "MultiTaskRegressor",
    "Regressor",
    "RoundedWeightsWarning",
    "SequenceClusterer",
]
