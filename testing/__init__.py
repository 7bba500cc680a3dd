"""Conformance checks for what users add (a likelihood, loss, kernel or model), and exact references for tiny data."""

from .enumeration import partition_posterior
from .kernels import check_kernel
from .likelihoods import check_likelihood
from .losses import check_loss
from .models import check_model
from .sequences import state_posterior

__all__ = ["check_kernel", "check_likelihood", "check_loss", "check_model", "partition_posterior", "state_posterior"]
