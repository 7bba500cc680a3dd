"""Pictures of latent features and of topics: what is drawn where."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regbayes.inference import FeaturePosterior, Gibbs, SmallVariance, TopicPosterior, Trace
from regbayes.models import LDA, InfiniteLatentSVM, LatentFeatureModel, LinearGaussian, MedLDA
from regbayes.plots import plot_activations, plot_loadings, plot_topics

pytestmark = pytest.mark.usefixtures("no_window")

LOADINGS = torch.tensor([[9.0, 0, 0, 0], [0, 9.0, 0, 0], [0, 0, 0, 0.1]], dtype=torch.float64)
TRACE = Trace("log joint", torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))


@pytest.fixture
def features():
    """Two features that are columns 0 and 1 of X, the second in all rows of class 1; a third that no row has."""
    Z = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0]])
    X, y = Z.double() @ LOADINGS, np.array(["a", "a", "b", "b", "b"])
    likelihood = LinearGaussian(offset=0.0, noise_variance=0.1)
    model = InfiniteLatentSVM(likelihood=likelihood, feature_map=None).resolve(X, [0, 0, 1, 1, 1])
    samples = {
        "features": Z.to(torch.int8),
        "log_odds": torch.tensor([0.0, 0.0, -9.0], dtype=torch.float64),
        "loadings": LOADINGS,
        "weights": torch.zeros(3, 1, dtype=torch.float64),
        "input_weights": torch.zeros(1, 1, dtype=torch.float64),
        **model.likelihood.start(X),
    }
    draws = {name: value.unsqueeze(0) for name, value in samples.items()}
    return FeaturePosterior(model, Gibbs(), draws, [1], TRACE), X, y


def test_a_posterior_without_features_has_no_picture() -> None:
    X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    posterior = SmallVariance(penalty=1e9).fit(LatentFeatureModel(), X)
    for picture in (lambda: plot_loadings(posterior, (1, 3)), lambda: plot_activations(posterior, X, [0, 1] * 6)):
        with pytest.raises(ValueError, match="posterior has no features to show"):
            picture()


def test_activations_are_the_shares_of_each_class(features):
    posterior, X, y = features
    ax = plot_activations(posterior, X, y)
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 0.5], [1, 1 / 3]], atol=1e-3)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "0"]  # the third has no row
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]


def test_loadings_are_images_side_by_side(features):
    posterior, _, _ = features
    sheet = plot_loadings(posterior, (2, 2)).images[0].get_array().filled(np.nan)
    assert sheet.shape == (2, 5)
    np.testing.assert_allclose(sheet[:, :2], LOADINGS[1].view(2, 2))
    np.testing.assert_allclose(sheet[:, 3:], LOADINGS[0].view(2, 2))
    assert np.isnan(sheet[:, 2]).all()
    assert plot_loadings(posterior, (1, 4), columns=1, num=1).images[0].get_array().shape == (1, 4)


def test_a_shape_that_is_none_is_refused(features):
    posterior, _, _ = features
    with pytest.raises(ValueError, match=r"shape is \(3, 2\); expected \(height, width\) with 4 pixels"):
        plot_loadings(posterior, (3, 2))
    with pytest.raises(ValueError, match="num is 0; it must be an integer of at least 1"):
        plot_loadings(posterior, (2, 2), num=0)


def topic_posterior(num_classes: int):
    X = np.array([[2, 0, 1], [0, 3, 0], [1, 1, 4]])
    model = MedLDA(num_topics=2).resolve(X, np.arange(3) % num_classes)
    weights = torch.tensor([[0.5, 2.0, -1.0], [-3.0, 0.0, -0.5]], dtype=torch.float64)
    samples = {
        "topics": torch.tensor([[0.7, 0.1, 0.2], [0.2, 0.5, 0.3]], dtype=torch.float64),
        "weights": weights if num_classes > 2 else weights[:, :1],
        "topic_sizes": torch.ones(2, dtype=torch.float64),
        "document_concentration": torch.tensor(0.1),
        "topic_concentration": torch.tensor(0.1),
    }
    draws = {name: value.unsqueeze(0) for name, value in samples.items()}
    return TopicPosterior(model, Gibbs(), draws, [1], TRACE)


def test_topics_stand_in_the_order_of_their_weights_with_their_words():
    ax = plot_topics(topic_posterior(2), ["ape", "bee", "cat"], num_words=2)
    assert [bar.get_width() for bar in ax.patches] == [-3.0, 0.5]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["bee cat", "ape cat"]


def test_without_targets_the_bars_of_topics_are_their_shares_of_the_words():
    posterior = Gibbs(4, 2).fit(LDA(num_topics=3), np.array([[4, 0, 0], [0, 6, 0], [0, 0, 10]] * 2))
    ax = plot_topics(posterior, ["ape", "bee", "cat"], num_words=1)
    sizes = posterior.samples["topic_sizes"][posterior.representative]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], sizes.sort().values / 40)
    assert ax.get_xlabel() == "share of the words"


def test_of_several_classes_a_topic_speaks_for_the_one_of_its_largest_weight():
    ax = plot_topics(topic_posterior(3), num_words=1)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1: 1", "1: 0"]
    assert [bar.get_width() for bar in ax.patches] == [0.0, 2.0]


def test_topics_of_few_words_show_all_of_them(ax):
    words = {len(text.get_text().split()) for text in plot_topics(topic_posterior(2), ax=ax).get_yticklabels()}
    assert words == {3}
    with pytest.raises(ValueError, match="num_words is 4; it must be an integer of at least 1 and at most 3"):
        plot_topics(topic_posterior(2), num_words=4)
