"""Shares of log weights are torch's softmax and logsumexp, on every device."""

from __future__ import annotations

import pytest
import torch

from regbayes.models import host
from regbayes.models.shares import shares_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_shares_are_the_softmax(dtype, size, generator, monkeypatch):
    log_weights = size * torch.randn(50, 7, generator=generator, dtype=dtype)
    log_weights[0, 2] = -torch.inf
    share, total = shares_of(log_weights)
    torch.testing.assert_close(share, log_weights.softmax(1))
    torch.testing.assert_close(total, log_weights.logsumexp(1))
    torch.testing.assert_close(share.sum(1), torch.ones(50, dtype=dtype))
    monkeypatch.setattr(host, "on_cpu", lambda like: False)
    torch.testing.assert_close(shares_of(log_weights), (share, total))
