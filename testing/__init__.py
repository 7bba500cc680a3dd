"""Checks of the parts, models and backends of a user, and exact references for tiny data."""

from .enumeration import partition_posterior
from .feature_maps import check_feature_map
from .features import feature_posterior
from .kernels import check_kernel
from .likelihoods import check_likelihood
from .losses import check_loss
from .models import check_model
from .multi_label import label_posterior
from .priors import check_prior
from .references import Reference, register_reference
from .sequences import state_posterior
from .targets import check_target
from .topics import topic_posterior

__all__ = [
    "Reference",
    "check_feature_map",
    "check_kernel",
    "check_likelihood",
    "check_loss",
    "check_model",
    "check_prior",
    "check_target",
    "feature_posterior",
    "label_posterior",
    "partition_posterior",
    "register_reference",
    "state_posterior",
    "topic_posterior",
]
