"""The law of a label set given the label rates psi of a component and the classifiers' scores f.

    "and"           y_c ~ Bernoulli(psi_c sigma(f_c)): the component has the label, and the classifier agrees
    "multinomial"   y ~ Multinomial(sum y, q),  q_c prop. to psi_c sigma(f_c): counts of labels

Under "product" the mixture and the classifiers have a factor each, and this module is not used. Source:
docs/derivations/label-sets, "Three joints".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid

from .likelihoods.masked_bernoulli import ObservedBits
from .likelihoods.multinomial import Counts

COUPLED = ("and", "multinomial")


def label_law(joint: str, psi: Tensor, scores: Tensor) -> Distribution:
    """The law of a row's labels [C], NaN where one is missing, from psi [..., C] and scores f [..., C]."""
    if joint == "and":
        return ObservedBits(psi * torch.sigmoid(scores))
    shares = psi * torch.sigmoid(scores)
    return Counts(shares / shares.sum(-1, keepdim=True))


def log_label_factor(joint: str, psi: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    """log p(y | psi, f) [...] of labels [..., C], finite even where sigma(f) rounds to 0.

    For counts the multinomial coefficient is left out, and psi [..., C] matters only up to a factor.
    """
    least = torch.finfo(psi.dtype).tiny
    log_share = psi.clamp(min=least).log() + logsigmoid(scores)
    if joint == "and":
        log_none = torch.log1p(-log_share.exp().clamp(max=1 - torch.finfo(psi.dtype).eps))
        terms = torch.where(labels > 0, log_share, log_none)
        return torch.where(labels.isnan(), 0.0, terms).sum(-1)
    return (labels * log_share).sum(-1) - labels.sum(-1) * log_share.logsumexp(-1)
