"""Pictures of states over time, of hyperplanes between clusters, and of how many components there were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regbayes.inference import SVI, Gibbs
from regbayes.models import BNMC, DDPM, DPM, IHMM, Hinge
from regbayes.plots import plot_hyperplanes, plot_num_components, plot_partition, plot_states
from regbayes.plots.axes import color_of

pytestmark = pytest.mark.usefixtures("no_window")


@pytest.fixture(scope="module")
def clusters():
    """Three clusters in the plane and a fit that found them; X, posterior."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    X = centers.repeat_interleave(20, 0) + torch.randn(60, 2, generator=generator, dtype=torch.float64)
    model = DDPM(loss=Hinge(0.5), weight_scale=5.0, truncation=5)
    return X, SVI(num_steps=40).fit(model, X)


def colors_of(ax: Axes) -> np.ndarray:
    """RGB [rows, N, 3] of the ribbons."""
    (image,) = ax.images
    return image.cmap(image.norm(image.get_array()))[..., :3]


# -- ribbons -----------------------------------------------------------------------------------------------------------


def test_states_have_the_colours_of_the_true_ones_they_share_most_steps_with(ax):
    truth = np.array(["run", "run", "run", "rest", "rest", "walk"])
    states = torch.tensor([7, 7, 5, 5, 5, 9])
    assert plot_states(states, truth, ax=ax) is ax
    found, true = colors_of(ax)
    np.testing.assert_array_equal((found == true).all(1), [True, True, False, True, True, True])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["found", "true"]
    assert len(np.unique(true, axis=0)) == 3
    np.testing.assert_allclose(true[0], to_rgb(color_of(0)), atol=1 / 255)  # the most frequent one


def test_spare_states_have_colours_of_their_own(ax):
    plot_states([0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1], ax=ax)
    found, true = colors_of(ax)
    assert len(np.unique(found, axis=0)) == 3
    own = [np.array_equal(row, other) for row, other in zip(found, true, strict=True)]
    assert own in ([True, True, False, False, True, True], [False, False, True, True, True, True])


def test_lines_part_the_sequences(ax):
    plot_states([0, 1, 1, 0, 1], lengths=[2, 1, 2], ax=ax)
    assert [line.get_xdata()[0] for line in ax.lines] == [1.5, 2.5]
    assert colors_of(ax).shape == (1, 5, 3)
    assert (colors_of(ax)[0, 1] == colors_of(ax)[0, 2]).all()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["found"]


def test_many_states_share_grey(ax):
    plot_states(np.arange(12), ax=ax)
    assert len(np.unique(colors_of(ax)[0], axis=0)) == 9


def test_ribbons_of_other_lengths_are_refused(ax):
    with pytest.raises(ValueError, match="truth has shape \\(2,\\); expected \\[3\\]"):
        plot_states([0, 1, 1], [0, 1], ax=ax)
    with pytest.raises(ValueError, match="lengths add up to 4, but X has 3 rows"):
        plot_states([0, 1, 1], lengths=[2, 2], ax=ax)


# -- hyperplanes -------------------------------------------------------------------------------------------------------


def test_lines_are_where_scores_vanish(clusters, ax):
    X, posterior = clusters
    assert plot_hyperplanes(posterior, X, ax=ax) is ax
    scores_at = hyperplane_scores(posterior)
    lines = [(to_rgb(lines.get_edgecolor()[0]), path.vertices) for lines in contours(ax) for path in lines.get_paths()]
    assert len(lines) == 3
    components, sizes = torch.unique(posterior.samples["assignments"][0], return_counts=True)
    order = components[np.argsort(-sizes.numpy(), kind="stable")]
    for index, (color, ends) in enumerate(lines):
        assert color == to_rgb(color_of(index))
        scores = scores_at(torch.from_numpy(np.asarray(ends)))[:, order[index]]
        slope = scores_at(X)[:, order[index]].abs().max()
        assert (scores.abs() < 1e-5 * slope).all()


def test_the_limits_show_the_clusters_and_not_a_hyperplane_far_away(clusters, ax):
    """A hyperplane that misses the picture leaves no line, and no warning."""
    X, posterior = clusters
    plot_hyperplanes(posterior, X, ax=ax)
    for limits, column in zip((ax.get_xlim(), ax.get_ylim()), X.T, strict=True):
        assert limits[0] < column.min() < column.max() < limits[1]
        assert limits[1] - limits[0] < 1.3 * (column.max() - column.min())
    weights = posterior.samples["weights"].clone()
    moved = weights.clone()
    moved[:, :, -1] += 1000
    posterior.samples["weights"] = moved
    other = Figure().add_subplot()
    plot_hyperplanes(posterior, X, ax=other)
    posterior.samples["weights"] = weights
    assert not contours(other)


def contours(ax: Axes) -> list:
    return [part for part in ax.collections if type(part).__name__ == "QuadContourSet"]


def hyperplane_scores(posterior):
    weights = posterior.samples["weights"][0, :, :, 0]
    return lambda rows: posterior.model.features(rows.to(weights)) @ weights.T


def test_hyperplanes_that_cannot_be_drawn_are_refused(clusters, ax):
    X, posterior = clusters
    for rows, message in ((X[:, :1], r"expected \[N, 2\]"), (X[:10], "X has 10 rows; expected the 60 training points")):
        with pytest.raises(ValueError, match=message):
            plot_hyperplanes(posterior, rows, ax=ax)
    with pytest.raises(ValueError, match="DPM have no hyperplanes"):
        plot_hyperplanes(SVI(num_steps=2).fit(DPM(), X), X, ax=ax)


# -- numbers of components ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [IHMM(truncation=5), BNMC(truncation=9)], ids=repr)
def test_numbers_of_components_of_every_chain(ax, model):
    X = np.random.default_rng(0).normal(size=(20, 1))
    y = (X > [0.0, 0.5]).astype(float) if isinstance(model, BNMC) else None
    posterior = Gibbs(num_samples=6, num_warmup=2, num_chains=2, scan="blocked").fit(model, X, y)
    assert plot_num_components(posterior, ax=ax) is ax
    shown = np.concatenate([line.get_ydata() for line in ax.lines])
    np.testing.assert_array_equal(shown, [len(torch.unique(draw)) for draw in posterior.samples["assignments"]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["chain 1", "chain 2"]


@pytest.mark.parametrize("plot", [plot_num_components, lambda posterior: plot_states([0, 1])])
def test_without_axes_there_is_a_new_figure(plot, clusters):
    import matplotlib.pyplot as plt

    ax = plot(clusters[1])
    assert isinstance(ax, Axes)
    plt.close(ax.figure)


def test_rows_with_missing_values_and_labels_of_text_are_drawn(ax):
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    rows[5] = torch.nan
    plot_partition(rows, ["a", "b", "c"] * 10, ax=ax)
    assert sorted(len(collection.get_offsets()) for collection in ax.collections) == [9, 10, 10]
    plot_partition(rows[:1], [0], ax=ax)


def test_lengths_may_be_a_tensor(ax):
    plot_states(torch.arange(6) // 2, lengths=torch.tensor([2, 4]), ax=ax)
    assert len(ax.lines) == 1


def test_principal_axes_of_wide_rows_need_no_square_of_their_columns(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    few = rng.normal(size=(6, 4)) * [9.0, 5.0, 1.0, 0.1]
    wide = np.hstack([few, np.zeros((6, 9_996))])
    narrow = plot_partition(few, np.zeros(6, dtype=int)).collections[0].get_offsets()

    def refused(matrix):
        raise AssertionError(f"eigh of {matrix.shape}")

    monkeypatch.setattr(np.linalg, "eigh", refused)
    shown = plot_partition(wide, np.zeros(6, dtype=int)).collections[0].get_offsets()
    np.testing.assert_allclose(np.abs(shown), np.abs(narrow), atol=1e-9)
