"""The entries of a draw of each structure, by name; backends construct these records, and posteriors stack them.

The text in an annotation names the axes of the tensor in one draw, as `shapes.Axes` explains. The values after it fill
the components that a draw has less than others (`stacking`); the default is 0. A record states which names are required
and which are optional. A draw may have further numbers: hyperparameters of prior and likelihood, such as
`concentration` [], and `parameters.<name>` [K, ...] of the components of a likelihood without conjugacy.
"""

# no postponed annotations: TypedDict reads `Required` when the class is created

import math
from collections.abc import Mapping
from typing import Annotated, Any, Required, TypedDict, get_args, get_origin, get_type_hints

from torch import Tensor

from ..structures import Draw
from .shapes import Axes, require_draw

FIRST = "first"  # fill by copies of the first component, so that densities stay finite
NONE = -math.inf  # fill by log weights of absent components
Scalar = Annotated[Tensor, "float:"]


class ComponentDraw(TypedDict, total=False):
    """A draw of a model with K components: of a mixture, of a chain of states, or of label sets.

    The components' parameters are `hyperparameters` of the likelihood, `parameters.<name>`, or `centers` in the
    small-variance limit.
    """

    assignments: Required[Annotated[Tensor, "int:N"]]  # in samples of the smallest integer type that holds them
    log_mixture: Required[Annotated[Tensor, "K+1", NONE]]  # the last entry: a new component
    responsibilities: Annotated[Tensor, "N K"]  # of SVI and Hilbert embeddings
    hyperparameters: Annotated[Tensor, "K H", FIRST]
    centers: Annotated[Tensor, "K Q", FIRST]
    scale: Scalar  # factor on the divergence from a centre
    log_joint: Scalar
    penalty: Scalar
    gap: Scalar  # of a Hilbert embedding
    expected_loss: Annotated[Tensor, "float:..."]  # [1], if rows were weighted
    # for later batches of SVI
    sticks: Annotated[Tensor, "any:..."]  # [2, T - 1]
    prior_factor: Annotated[Tensor, "any:..."]
    num_seen: Annotated[Tensor, "float:..."]  # [1] rows


class PartitionDraw(ComponentDraw, total=False):
    """A draw of a model of partitions: C scores of P features."""

    weights: Required[Annotated[Tensor, "K P C"]]
    precision_tril: Annotated[Tensor, "K C P P", FIRST]  # of variational classifiers
    unseen_weights: Annotated[Tensor, "A P C"]  # hyperplanes of components without points, if components repel
    temperature: Scalar  # of `tempered` centres
    slope: Scalar  # of `with_slope`
    share: Scalar  # of `averaged_with`
    duality_gap: Scalar  # of SVI(rule="averaging")


class SequenceDraw(PartitionDraw, total=False):
    """A draw of a model of sequences, whose components are states; the last column is for all new states."""

    log_start: Required[Annotated[Tensor, "K+1", NONE]]
    log_transitions: Required[Annotated[Tensor, "K K+1", FIRST, NONE]]
    log_unseen_row: Annotated[Tensor, "K+1", NONE]  # transitions out of a new state
    log_edges: Annotated[Tensor, "K+1 K+1"]  # small variance: minus the cost of a transition; last row: of a start
    transition_penalty: Scalar


class LabelDraw(ComponentDraw, total=False):
    """A draw of a model of rows and sets of C labels."""

    classifiers: Required[Annotated[Tensor, "P C"]]
    classifier_tril: Annotated[Tensor, "C P P"]
    label_hyperparameters: Annotated[Tensor, "K R", FIRST]
    label_means: Annotated[Tensor, "K C", FIRST]
    label_totals: Annotated[Tensor, "K+1"]  # for labels that are counts


class FeatureDraw(TypedDict, total=False):
    """A draw of a latent feature model: K features of N rows, loadings of D columns, C scores."""

    features: Required[Annotated[Tensor, "any:N K"]]  # bits, int8; for SVI probabilities
    log_odds: Required[Annotated[Tensor, "float:K", NONE]]  # of having each feature, for a new row
    loadings: Required[Annotated[Tensor, "K D"]]
    weights: Required[Annotated[Tensor, "K C"]]
    input_weights: Required[Annotated[Tensor, "P C"]]
    loading_covariance: Annotated[Tensor, "U K K"]  # for the U kinds of columns
    kind: Annotated[Tensor, "int:D"]
    log_joint: Scalar
    penalty: Scalar
    duality_gap: Scalar


class ProjectionDraw(TypedDict, total=False):
    """A draw of M tasks that share a projection from D columns to K features."""

    features: Required[Annotated[Tensor, "any:D K"]]  # bits, int8; for SVI probabilities
    weights: Required[Annotated[Tensor, "K M"]]
    input_weights: Required[Annotated[Tensor, "P M"]]
    log_odds: Annotated[Tensor, "float:K"]
    log_joint: Scalar
    penalty: Scalar
    duality_gap: Scalar


class TopicDraw(TypedDict, total=False):
    """A draw of a topic model: K topics of V words, M tokens, C scores."""

    topics: Required[Annotated[Tensor, "K V"]]  # expectations: for Gibbs given the assignments, for SVI under q
    weights: Required[Annotated[Tensor, "K C"]]  # for SVI their means
    topic_sizes: Required[Annotated[Tensor, "K"]]  # (expected) numbers of tokens
    document_concentration: Required[Scalar]
    topic_concentration: Required[Scalar]
    log_topics: Annotated[Tensor, "K V"]  # for SVI, expected logs
    classifier_tril: Annotated[Tensor, "any:..."]  # for SVI [C, K, K] Cholesky factors of the precisions of the weights
    num_seen: Annotated[Tensor, "float:..."]  # for SVI [1] documents
    assignments: Annotated[Tensor, "int:M"]  # for Gibbs, in the order of `TopicData`
    log_joint: Scalar
    duality_gap: Scalar


class AnyDraw(TypedDict):
    """A draw of a structure that does not declare its entries."""


def drawn(record: Mapping[str, object], *others: Mapping[str, Tensor]) -> Draw:
    """A draw: the record of its structure, and further entries such as hyperparameters."""
    found: dict[str, Any] = dict(record)
    for other in others:
        found |= other
    return found


def axes_of(record: type[Any]) -> Axes:
    """The axes of each name of a record, as `shapes.require_samples` reads them."""
    return {name: text[0] for name, text in _notes(record).items()}


def tables_of(record: type[Any]) -> dict[str, str]:
    """The first axis in one draw of each entry that has one; N for entries with one value per row."""
    found = {name: axes.rpartition(":")[2].split() for name, axes in axes_of(record).items()}
    return {name: axes[0] for name, axes in found.items() if axes}


def fills_of(record: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The fill values of each entry for its axes K and K+1, in this order."""
    return {name: text[1:] for name, text in _notes(record).items()}


def _notes(record: type[Any]) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(record, include_extras=True)
    found = {name: hint if get_origin(hint) is Annotated else get_args(hint)[0] for name, hint in hints.items()}
    return {name: hint.__metadata__ for name, hint in found.items()} | {"parameters.": ("K ...", FIRST)}


def names_of(record: type[Any]) -> tuple[str, ...]:
    """The names that a draw must have, sorted."""
    return tuple(sorted(record.__required_keys__))


def require_record(draw: Draw, record: type[Any], whose: str) -> None:
    """Raise ValueError unless a draw has the names and axes of its record; `whose` names the backend in the message."""
    if record is not AnyDraw:
        require_draw(draw, names_of(record), axes_of(record), f"A draw of {whose}", record.__name__)
