"""Pictures: what is drawn where, on Axes given or new."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from matplotlib.patches import Ellipse
from sklearn.datasets import load_iris, make_blobs

from regbayes.inference import SVI, Gibbs, Posterior, SmallVariance
from regbayes.models import BNMC, DPM, ClassTarget, EpsilonInsensitive, Hinge, InfiniteSVM, Ordinal, SphericalGaussian
from regbayes.plots import plot_components, plot_similarity, plot_trace
from regbayes.plots.components import chord

pytestmark = pytest.mark.usefixtures("no_window")


@pytest.fixture(scope="module")
def crossed():
    """Two groups in the plane, parted by x_1 = 0 in one and by x_0 = 10 in the other; X, y, posterior."""
    X, group = make_blobs(200, centers=[[-10, 0], [10, 0]], random_state=0)
    y = np.where(group == 0, X[:, 1] > 0, X[:, 0] > 10).astype(int)
    model = InfiniteSVM(SphericalGaussian(), Hinge(strength=1.0), weight_scale=10.0)
    return X, y, SmallVariance(num_components=2, num_restarts=2).fit(model, X, y)


def test_chord_is_on_the_line_and_on_the_ellipse():
    root = np.array([[2.0, 0.3], [0.1, 0.7]])
    slope = np.array([0.4, -1.0])
    ends = chord(0.5, slope, root)
    np.testing.assert_allclose(0.5 + ends @ slope, 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(np.linalg.solve(root, ends.T), axis=0), 2)
    assert chord(50.0, slope, root) is None
    assert chord(0.0, np.zeros(2), root) is None


def test_lines_are_the_hyperplanes(crossed, ax):
    X, y, posterior = crossed
    assert posterior.num_components == 2
    assert plot_components(posterior, X, y, ax=ax) is ax
    assert sum(isinstance(patch, Ellipse) for patch in ax.patches) == 2
    for points in unprojected(ax, X, posterior):
        np.testing.assert_allclose(posterior.decision_function(points), 0, atol=1e-6)


def test_lines_of_many_classes_part_the_most_frequent_two(crossed, ax):
    X, y, _ = crossed
    y = np.where(X[:, 0] > 0, y + 1, y)
    model = InfiniteSVM(SphericalGaussian(), Hinge(strength=1.0), weight_scale=10.0)
    posterior = SmallVariance(num_components=2, num_restarts=2).fit(model, X, y)
    plot_components(posterior, X, y, ax=ax)
    for points in unprojected(ax, X, posterior):
        scores = posterior.decision_function(points)
        left, right = (0, 1) if points[0, 0] < 0 else (1, 2)
        np.testing.assert_allclose(scores[:, left], scores[:, right], atol=1e-6)


def test_lines_of_ordered_classes_are_at_their_thresholds(crossed, ax):
    X = crossed[0]
    y = np.digitize(X[:, 1], [-2.0, 0.5]) * (X[:, 0] < 0) + np.digitize(X[:, 1], [-0.5, 2.0]) * (X[:, 0] > 0)
    model = InfiniteSVM(SphericalGaussian(), Hinge(strength=1.0), weight_scale=10.0, target=Ordinal())
    posterior = SmallVariance(num_components=2, num_restarts=2).fit(model, X, y)
    plot_components(posterior, X, y, ax=ax)
    parted = set()
    for points in unprojected(ax, X, posterior):
        levels = np.bincount(y[(X[:, 0] < 0) == (points[0, 0] < 0)], minlength=3).argsort()[-2:]
        scores = posterior.decision_function(points)[:, levels]
        np.testing.assert_allclose(scores[:, 0], scores[:, 1], atol=1e-6)
        parted.add(tuple(sorted(levels)))
    assert parted == {(0, 1), (1, 2)}


def test_classes_with_codes_of_their_own_have_no_lines(crossed, ax):
    X, y, _ = crossed
    model = InfiniteSVM(SphericalGaussian(), Hinge(strength=1.0), target=Corners())
    posterior = SmallVariance(num_components=2, num_restarts=1).fit(model, X, y + 2 * (X[:, 0] > 0))
    assert not plot_components(posterior, X, y + 2 * (X[:, 0] > 0), ax=ax).lines


@dataclass(eq=False)
class Corners(ClassTarget):
    """Four classes at the corners of a square, by two scores."""

    def codes(self) -> torch.Tensor:
        return torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])


def unprojected(ax, X, posterior):
    """Points in the middle of both lines: data of two features are only turned by the picture."""
    scale, loc = posterior.model.feature_map.scale.numpy(), posterior.model.feature_map.loc.numpy()
    standard = (X - loc) / scale
    axes = np.linalg.svd(standard - standard.mean(0))[2]
    axes *= np.sign(axes[np.arange(2), np.abs(axes).round(6).argmax(1)])[:, None]
    assert len(ax.lines) == 2
    for line in ax.lines:
        ends = (np.stack(line.get_data(), 1) @ axes + standard.mean(0)) * scale + loc
        yield ends.mean(0) + np.linspace(-0.2, 0.2, 5)[:, None] * (ends[1] - ends[0])


@pytest.mark.parametrize("labels", ["index", "text", "none", "tensor"])
def test_every_point_is_drawn_once(crossed, ax, labels):
    X, y, posterior = crossed
    given = {"index": y, "text": np.array(["no", "yes"])[y], "none": None, "tensor": torch.as_tensor(y)}[labels]
    plot_components(posterior, X, given, ax=ax)
    drawn = np.concatenate([points.get_offsets() for points in ax.collections])
    assert drawn.shape == (200, 2)
    named = {text.get_text() for text in ax.get_legend().get_texts()}
    assert {f"class {name}" for name in (("no", "yes") if labels == "text" else (0, 1))} <= named


@pytest.mark.parametrize("fitted", ["all", "some"])
@pytest.mark.parametrize("gap", [np.nan, -1])
def test_points_without_a_label_are_drawn_as_such(crossed, ax, gap, fitted):
    X, whole, _ = crossed
    y = np.where(np.arange(200) % 4 == 0, gap, whole).astype(type(gap))
    posterior = SmallVariance(num_components=2, num_restarts=1).fit(InfiniteSVM(), X, whole if fitted == "all" else y)
    for given, classes in ((y, 2), (np.where(y == 0, gap, y), 1), (np.full(200, gap), 0)):
        ax.clear()
        plot_components(posterior, X, given, ax=ax)
        named = [text.get_text() for text in ax.get_legend().get_texts()]
        assert [float(name.removeprefix("class ")) for name in named[:2]] == [0, 1]
        assert named[2] == "no label"
        drawn = [len(points.get_offsets()) for points in ax.collections]
        assert sum(drawn) == 200
        assert sum(drawn[2::3]) == {2: 50, 1: 50 + (y == 0).sum(), 0: 200}[classes]
        assert len(ax.lines) == posterior.num_components or not classes
    clusters = SmallVariance(num_components=2, num_restarts=1).fit(DPM(), X)
    names = [text.get_text() for text in plot_components(clusters, X, y).get_legend().get_texts()]
    assert ("no label" in names, "class -1" in names) == (np.isnan(gap), gap == -1)


def test_legend_counts_rows_and_says_what_the_lines_are(crossed, ax):
    X, y, posterior = crossed
    left = np.flatnonzero(X[:, 0] < 0)
    some = np.concatenate([left, np.flatnonzero(X[:, 0] > 0)[:1]])
    plot_components(posterior, X[some], y[some], ax=ax)
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert named == ["class 0", "class 1", f"{len(left)} rows", "1 row", "hyperplane"]
    clusters = SmallVariance(num_components=2, num_restarts=1).fit(DPM(), X)
    assert "hyperplane" not in {text.get_text() for text in plot_components(clusters, X).get_legend().get_texts()}


def test_targets_that_are_numbers_are_no_classes(crossed, ax):
    X = crossed[0]
    model = InfiniteSVM(loss=EpsilonInsensitive())
    posterior = SmallVariance(num_components=2, num_restarts=1).fit(model, X, X[:, 0])
    plot_components(posterior, X, X[:, 0], ax=ax)
    assert all(text.get_text().endswith("rows") for text in ax.get_legend().get_texts())
    assert len(ax.collections) == posterior.num_components


@pytest.mark.slow
def test_components_of_any_model(ax):
    X, y = load_iris(return_X_y=True)
    multi_class = SmallVariance(num_restarts=1).fit(InfiniteSVM(), X, y)
    plot_components(multi_class, X, y)
    plot_components(multi_class, X[:100], y[:100])  # rows without one of the classes
    with pytest.raises(ValueError, match="labels used in fit"):
        plot_components(multi_class, X[:100], y[:100] + 5)
    clusters = SmallVariance(num_restarts=1).fit(DPM(), X)
    assert not plot_components(clusters, X, y, ax=ax).lines
    narrow = SmallVariance(num_restarts=1).fit(InfiniteSVM(), X[:, 2:3], y)
    plot_components(narrow, X[:, 2:3], y).figure.canvas.draw()


def test_one_trace_is_in_its_own_units(crossed, ax):
    posterior = crossed[2]
    plot_trace({"one": posterior}, ax=ax)
    assert ax.get_ylabel() == "objective"
    assert ax.get_xscale() == "log"
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), posterior.trace.values[0])


def test_a_trace_of_one_step_says_its_value(crossed, ax):
    posterior = crossed[2]
    trace = replace(posterior.trace, values=torch.tensor([[1234.5]]), seconds=torch.tensor([[0.1]]))
    plot_trace({"one": posterior.replace(trace=trace)}, ax=ax)
    assert [text.get_text() for text in ax.texts] == ["1234.5 from the first step on"]
    plot_trace({"one": posterior})  # with more steps it is seen
    ax.figure.canvas.draw()


def test_traces_of_several_backends_share_a_scale(crossed, ax):
    X, y, posterior = crossed
    chains = Gibbs(num_samples=4, num_warmup=2, num_chains=2, split_merge=0).fit(InfiniteSVM(), X, y)
    posterior = SmallVariance(penalty=50.0, num_restarts=1).fit(InfiniteSVM(), X, y)  # from one component
    plot_trace({"small_variance": posterior, "gibbs": chains, "svi": SVI(num_steps=5).fit(InfiniteSVM(), X, y)}, ax=ax)
    assert len(ax.lines) == 4
    for line in ax.lines:
        assert line.get_ydata()[0] == 0
        assert line.get_ydata()[-1] == 1
    assert [text.get_text().split()[0] for text in ax.get_legend().get_texts()] == ["small_variance", "gibbs", "svi"]


def test_a_chain_without_a_value_has_no_trace(crossed, ax):
    posterior = crossed[2]
    values = torch.stack([torch.full((3,), torch.nan), torch.arange(3.0)]).double()
    trace = replace(posterior.trace, values=values, seconds=torch.arange(1.0, 4.0).expand(2, 3))
    plot_trace({"half": posterior.replace(trace=trace), "one": posterior}, ax=ax)
    assert [len(line.get_ydata()) for line in ax.lines][:2] == [0, 3]
    assert [text.get_text().split()[0] for text in ax.get_legend().get_texts()] == ["half", "one"]


def test_similarity_of_label_sets_is_shown(ax):
    X, group = make_blobs(60, centers=[[0, 0], [20, 0], [0, 20]], random_state=0)
    plot_similarity(SVI(num_steps=10).fit(BNMC(), X, np.stack([group == 0, group > 0], 1).astype(float)), ax=ax)
    assert ax.images[0].get_array().shape == (60, 60)


def test_similarity_is_in_blocks(ax):
    X, _ = make_blobs(60, centers=[[0, 0], [20, 0], [0, 20]], random_state=0)
    posterior: Posterior = Gibbs(num_samples=10, num_warmup=20).fit(DPM(SphericalGaussian()), X)
    plot_similarity(posterior, ax=ax)
    shown = ax.images[0].get_array()
    assert shown.shape == (60, 60)
    np.testing.assert_allclose(shown.sum(), posterior.similarity().sum().item(), rtol=1e-6)
    # neighbours in the picture are more alike than neighbours in the data
    assert np.diag(shown, 1).mean() > 0.9 > posterior.similarity().diagonal(1).mean()
