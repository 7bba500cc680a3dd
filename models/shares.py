"""Weights that sum to one, from their logarithms."""

from __future__ import annotations

from torch import Tensor

from . import host


def shares_of(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """exp(log_weights) / its sum over the last dimension [..., K], and the logarithm of that sum [...].

    On a CPU, torch's softmax takes two to five times as long if K is below a hundred.
    """
    if not host.on_cpu(log_weights):
        return log_weights.softmax(-1), log_weights.logsumexp(-1)
    largest = log_weights.amax(-1, keepdim=True)
    shares = (log_weights - largest).exp()
    total = shares.sum(-1, keepdim=True)
    return shares / total, (largest + total.log()).squeeze(-1)
