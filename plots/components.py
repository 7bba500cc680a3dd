"""Components and their separating hyperplanes in the first two principal axes."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import torch
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, Patch
from numpy.typing import NDArray

from ..inference import PartitionPosterior
from ..models.base import coding_of
from .axes import COLORS, as_groups, as_points, axes_or_new, color_of, counted, principal_axes, require_posterior

Array = NDArray[np.float64]


def plot_components(posterior: PartitionPosterior, X: Any, y: Any = None, ax: Axes | None = None) -> Axes:
    """Points in the first two principal axes of the standardized data, coloured by component, marked by class.

    An ellipse holds two standard deviations of a component's points. The line inside it is where the component's
    hyperplane meets the plane that is parallel to the picture and goes through the component's mean; a component whose
    hyperplane misses its ellipse has no line. With more than two classes it separates the two most frequent classes of
    the component, and ordered classes meet there at the threshold between these two (the mean of several).

    Parameters
    ----------
    X, y : points [N, D] and their labels [N] of any kind; without y, predicted classes. Real targets are ignored. A
        label is missing where it is NaN, or -1 unless that is a class of the fit; without classes -1 is a label
    """
    require_posterior(posterior, PartitionPosterior)
    rows, ax = as_points(X), axes_or_new(ax)
    assignments = np.asarray(torch.as_tensor(posterior.assign(X)).cpu())
    names, labels = _classes(posterior, X, y)
    standard = _standardized(posterior, rows)
    center = standard.mean(0)
    axes = principal_axes(standard - center)
    points = (standard - center) @ axes
    components, sizes = np.unique(assignments, return_counts=True)
    lines = []
    for index, position in enumerate(np.argsort(-sizes, kind="stable")):
        component, color = components[position], color_of(index)
        own = assignments == component
        for label, marker in _markers(labels, len(names)).items():
            across, up = points[own & (labels == label)].T
            ax.scatter(across, up, s=14, marker=marker, color=color, alpha=0.6, linewidths=0.5)
        mean, root = points[own].mean(0), _root_covariance(points[own])
        ax.add_patch(_ellipse(mean, root, color))
        hyperplane = _hyperplane(posterior, component, standard[own].mean(0), axes, labels[own])
        ends = None if hyperplane is None else chord(*hyperplane, root)
        if ends is not None:
            outline = [patheffects.withStroke(linewidth=4.5, foreground="white")]
            lines += ax.plot(*(mean + ends).T, color=color, linewidth=2.2, path_effects=outline, zorder=3)
    handles = [*_class_handles(names, labels), *_component_handles(np.sort(sizes)[::-1]), *_hyperplane_handles(lines)]
    ax.legend(handles=handles, frameon=False, fontsize="small", handlelength=1)
    ax.set(xlabel="first principal axis", ylabel="second principal axis")
    return ax


def chord(offset: float, slope: Array, root: Array) -> Array | None:
    """Ends [2, 2] of the line offset + slope . u = 0 inside the ellipse |root^-1 u| <= 2; None if they do not meet."""
    direction = root.T @ slope  # in v = root^-1 u the line is offset + direction . v = 0
    norm = np.linalg.norm(direction)
    if norm == 0 or abs(offset) >= _RADIUS * norm:
        return None
    foot = -offset * direction / norm**2
    along = np.array([-direction[1], direction[0]]) / norm
    half = np.sqrt(_RADIUS**2 - (offset / norm) ** 2)
    return np.stack([foot - half * along, foot + half * along]) @ root.T


_RADIUS = 2.0


def _markers(labels: NDArray[np.int64], num_classes: int) -> dict[int, str]:
    """The marker of each class 0..L-1, and of -1 where one of the labels [N] is missing."""
    markers = dict(zip(range(num_classes), cycle("oxs^Dv+P"), strict=False))
    return markers | {-1: "."} if (labels < 0).any() else markers


def _classes(posterior: PartitionPosterior, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Names [L] of the classes and the index [N] of each point's, -1 if missing; one class if the model has none."""
    known, coding = posterior.model.classes, coding_of(posterior.model)
    if known is None and (y is None or coding is not None):  # targets that are numbers are no classes
        y = np.zeros(len(X), dtype=int)
    elif y is None:
        y = posterior.predict(X)
    names, labels = as_groups("y", y, len(X))
    absent = _missing(names, posterior.model)
    names, labels = names[~absent], np.where(absent, -1, np.cumsum(~absent) - 1)[labels]
    if known is None or len(names) == len(known):
        return names, labels
    known = np.asarray(known.cpu())
    if not np.isin(names, known).all():
        raise ValueError(f"y has {len(names)} classes, but the posterior {len(known)}; pass the labels used in fit.")
    return known, np.append(np.searchsorted(known, names), -1)[labels]


def _missing(names: NDArray[Any], model: Any) -> NDArray[np.bool_]:
    """Which of the different labels [L] stand for a missing one: NaN, and -1 if the fit had other classes."""
    if names.dtype.kind not in "if":
        return np.zeros(len(names), dtype=bool)
    has_others = model.classes is not None and -1 not in model.classes
    return np.isnan(names) | (has_others & (names == -1))


def _standardized(posterior: PartitionPosterior, rows: Array) -> Array:
    """The rows as the classifiers see them; for a model without classifiers, in units of their standard deviations."""
    seen = getattr(posterior.model, "feature_map", None)
    if seen is not None and seen.column_wise:
        return (rows - np.asarray(seen.loc.cpu())) / np.asarray(seen.scale.cpu())
    scale = rows.std(0)
    return (rows - rows.mean(0)) / np.where(scale > 0, scale, 1)


def _hyperplane(
    posterior: PartitionPosterior, component: int, mean: Array, axes: Array, labels: NDArray[np.int64]
) -> tuple[float, Array] | None:
    """(score at the mean, slope [2] along the axes) of a classifier that is linear in x; None without one."""
    weights = np.asarray(posterior.samples["weights"][posterior.representative, component].cpu(), dtype=float)
    seen = getattr(posterior.model, "feature_map", None)
    classes = posterior.model.classes
    if classes is None or seen is None or not seen.column_wise or weights.shape[1] not in {1, len(classes)}:
        return None
    first, second = np.argsort(-np.bincount(labels[labels >= 0], minlength=len(classes)), kind="stable")[:2]
    if weights.shape[1] > 1:
        weights = weights[:, [first]] - weights[:, [second]]
    slope = weights[: len(mean), 0]
    intercept = seen.intercept * weights[len(mean) :, 0].sum()
    if thresholds := getattr(posterior.model.loss.unmasked, "thresholds", ()):
        intercept -= np.mean(thresholds[min(first, second) : max(first, second)])
    return float(slope @ mean + intercept), axes.T @ slope


def _root_covariance(points: Array) -> Array:
    """A square root [2, 2] of the covariance, with a little spread for a component of one point."""
    covariance = np.cov(points.T, bias=True) if len(points) > 1 else np.zeros((2, 2))
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 1e-3))


def _ellipse(mean: Array, root: Array, color: str) -> Ellipse:
    across, along = (
        2 * _RADIUS * float(np.linalg.norm(column)) for column in root.T
    )  # eigh sorts: the long axis is last
    angle = np.degrees(np.arctan2(root[1, 1], root[0, 1]))
    return Ellipse(tuple(mean), along, across, angle=angle, facecolor=color, edgecolor=color, alpha=0.12)


def _class_handles(names: NDArray[Any], labels: NDArray[np.int64]) -> list[Line2D]:
    markers = _markers(labels, len(names))
    if len(markers) < 2:
        return []
    return [
        Line2D([], [], linestyle="", marker=marker, color="0.2", markersize=5, label=said)
        for said, marker in zip([*(f"class {name}" for name in names), "no label"], markers.values(), strict=False)
    ]


def _component_handles(sizes: NDArray[np.int64]) -> list[Patch]:
    """One patch for each component with a colour of its own, and one for all others."""
    handles = [
        Patch(facecolor=color, alpha=0.7, label=counted(size, "row"))
        for size, color in zip(sizes, COLORS, strict=False)
    ]
    if rest := sizes[len(COLORS) :].tolist():
        label = f"{counted(sum(rest), 'row')} in {counted(len(rest), 'other')}"
        handles.append(Patch(facecolor=color_of(len(COLORS)), label=label))
    return handles


def _hyperplane_handles(lines: list[Line2D]) -> list[Line2D]:
    """One line for all hyperplanes that are drawn."""
    return [Line2D([], [], color="0.2", linewidth=2.2, label="hyperplane")][: len(lines)]
