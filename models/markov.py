"""The normalizer of a Markov chain's paths, differentiable: it marginalizes the state sequences in a Pyro program."""

from __future__ import annotations

import torch
from torch import Tensor


def pad_sequences(rows: Tensor, lengths: list[int], value: float = 0.0) -> Tensor:
    """Sequences [B, longest, ...] from the stacked rows [N, ...] of B sequences."""
    return torch.nn.utils.rnn.pad_sequence(list(rows.split(lengths)), batch_first=True, padding_value=value)


def log_normalizers(log_start: Tensor, log_transition: Tensor, log_emission: Tensor, lengths: list[int]) -> Tensor:
    """log of the sum over all paths [B] of start [K], transition [K, K] and emission weights [N, K], by filtering.

    alpha_1 = start + e_1,   alpha_t(k) = e_t(k) + logsumexp_j [alpha_{t-1}(j) + transition(j, k)]
    """
    # -inf has no gradient; a forbidden transition gets a tiny weight instead
    tables = log_start, log_transition, log_emission
    start, transition, rows = (table.double().clamp(min=-_FORBIDDEN) for table in tables)
    emission = pad_sequences(rows, lengths)
    message = start + emission[:, 0]
    last = torch.tensor(lengths, device=log_emission.device) - 1
    for t in range(1, emission.shape[1]):
        step = torch.logsumexp(message.unsqueeze(2) + transition, 1) + emission[:, t]
        message = torch.where((t <= last).unsqueeze(1), step, message)
    total = message.logsumexp(1)
    return torch.where(total > -_FORBIDDEN / 10, total, -torch.inf).to(log_emission)


_FORBIDDEN = 1e30
