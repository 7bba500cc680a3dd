"""scikit-learn estimators over a model and a backend, which are hyperparameters like any other."""

from .class_weights import RoundedWeightsWarning
from .partition import Classifier, Clusterer, Regressor
from .sequence import SequenceClusterer

__all__ = ["Classifier", "Clusterer", "Regressor", "RoundedWeightsWarning", "SequenceClusterer"]
