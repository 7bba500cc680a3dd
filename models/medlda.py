"""MedLDA: topics found together with a max-margin predictor of each document's target; and LDA, without one.

The module `topics` has the joint density. zbar_n sums to one, so it includes the constant: there is no intercept. A
document without tokens has zbar = 0 and score 0, and its theta has the prior's law.

Source: Zhu, Ahmed & Xing (2012); Zhu, Chen, Perkins & Zhang (2014) for the Gibbs classifier. The factors phi are not
normalized over y; a document without a target has no factor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from .base import Labelled
from .domains import Count, Positive
from .losses import Hinge, Loss
from .priors.topics import DirichletTopics
from .targets import Classes, Target
from .topics import TopicModel


@dataclass(eq=False)
class LDA(TopicModel):
    """Latent Dirichlet allocation: topics from the words alone.

    With a classifier on `transform(X)` it is the baseline that finds topics first and predicts afterwards.

    Parameters
    ----------
    prior : Dirichlet priors of topics and documents
    num_topics : K >= 1
    num_features : size V of the vocabulary; None: that of the data

    References
    ----------
    Blei, Ng & Jordan (2003).
    """

    prior: DirichletTopics = field(default_factory=DirichletTopics)
    num_topics: Count = 20
    num_features: Count | None = None


@dataclass(eq=False)
class MedLDA(Labelled, TopicModel):
    """Max-margin supervised topics, for two or more classes, or real targets with a regression loss.

    X holds counts [N, V] of words, sparse or dense. A missing target is NaN in y, or -1 among integer labels (unless
    the labels are -1 and +1, or others are negative too): such a document shapes the topics through its words alone.

    Parameters
    ----------
    prior : Dirichlet priors of topics and documents
    loss : margin loss. A binary loss is used one-versus-rest when there are more than two classes
    weight_scale : nu > 0, prior standard deviation of the weights eta of the topics
    num_topics : K >= 1; each class needs some topics of its own
    classes : sorted integer labels [L]; None: those in the data
    num_features : size V of the vocabulary; None: that of the data
    target : the kind of y. None: classes, or real numbers if the loss is one for these; `Ordinal()`: ordered classes

    References
    ----------
    Zhu, Ahmed & Xing (2012); docs/derivations/topics, "Joint density".

    Examples
    --------
    >>> from regbayes.models import Hinge, MedLDA
    >>> MedLDA(loss=Hinge(strength=2.5), num_topics=10).get_params()["loss__strength"]
    2.5
    """

    prior: DirichletTopics = field(default_factory=DirichletTopics)
    loss: Loss = field(default_factory=Hinge)
    weight_scale: Positive = 1.0
    num_topics: Count = 40
    classes: Annotated[Tensor, Classes()] | None = None
    num_features: Count | None = None
    target: Target | None = None
