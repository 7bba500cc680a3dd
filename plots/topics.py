"""Topics: their most probable words, and which side of the hyperplane each one speaks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from ..inference import TopicPosterior
from ..models.domains import Whole, read
from .axes import COLORS, axes_or_new, require_posterior


def plot_topics(
    posterior: TopicPosterior,
    vocabulary: Sequence[Any] | None = None,
    *,
    num_words: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Topics as bars of their weights in the score, with their most probable words beside them.

    With more than two classes the bar of a topic is its largest weight, with the name of that class. Without targets
    (`LDA`) it is the topic's share of all words. The bars are in increasing order. With several draws they are those of
    the representative draw.

    Parameters
    ----------
    vocabulary : the name of each column of X [V]; None: its number
    num_words : words of each topic; None: 8, or all V if there are fewer
    """
    require_posterior(posterior, TopicPosterior)
    V = posterior.samples["topics"].shape[2]
    number = read("num_words", min(_NUM_WORDS, V) if num_words is None else num_words, Whole(1, V))
    draw = posterior.representative
    sizes, weights = (_numbers(posterior.samples[name][draw]) for name in ("topic_sizes", "weights"))
    unscored = not weights.shape[1]
    if unscored:
        weights = (sizes / sizes.sum())[:, None]
    words = [" ".join(map(str, found)) for found in posterior.top_words(number, vocabulary)]
    strongest, value = weights.argmax(1), weights.max(1)
    classes = posterior.model.classes
    if weights.shape[1] > 1 and classes is not None:
        words = [f"{classes[index].item()}: {text}" for index, text in zip(strongest, words, strict=True)]
    order = np.argsort(value, kind="stable")
    ax = axes_or_new(ax)
    ax.barh(range(len(order)), value[order], color=[COLORS[0] if value[k] > 0 else COLORS[5] for k in order])
    ax.set_yticks(range(len(order)), [words[k] for k in order], fontsize="small")
    ax.axvline(0, color="0.5", linewidth=0.8)
    ax.set_xlabel("share of the words" if unscored else "weight of the topic in the score")
    return ax


def _numbers(values: Tensor) -> np.ndarray:
    return np.asarray(values.cpu(), dtype=np.float64)


_NUM_WORDS = 8
