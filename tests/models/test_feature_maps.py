"""Feature maps: what hyperplanes see of x, while the likelihood goes on seeing x itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import scipy.sparse
import torch

from regbayes.inference import SVI, SmallVariance
from regbayes.models import (
    DDPM,
    FeatureMap,
    Hinge,
    InfiniteSVM,
    MultinomialDirichlet,
    Nystroem,
    PrincipalDirections,
    RandomFourier,
    SparseRows,
    SphericalGaussian,
    Standardized,
)
from regbayes.models.config import from_plain, to_plain
from regbayes.models.domains import AnyNumbers
from regbayes.models.feature_maps import Function
from regbayes.testing import check_feature_map

pytestmark = pytest.mark.usefixtures("few_restarts")

MAPS = [
    Standardized(),
    Standardized(loc=0.5, scale=2.0, intercept=0.0),
    PrincipalDirections(num_directions=2),
    PrincipalDirections(num_directions=9, intercept=2.0),
    PrincipalDirections(num_directions=2, scaling=0.5),
    PrincipalDirections(num_directions=3, proportions=True, intercept=0.0),
    RandomFourier(num_features=8),
    RandomFourier(num_features=6, length_scale=0.5, seed=3, intercept=0.0),
    RandomFourier(num_features=10, common_scale=True),
    RandomFourier(num_features=10, common_scale=False),
    Nystroem(num_features=8, common_scale=True),
    Nystroem(num_features=50, length_scale=0.7, seed=3, intercept=0.0),
]
WIDTHS = [5, 4, 3, 5, 3, 3, 9, 6, 11, 11, 9, 30]


def rows(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([1.0, 3.0, 0.2, 10.0])
    return (torch.rand(30, 4, generator=generator) * scales + 1.0).to(device, dtype)


def sparse_rows() -> scipy.sparse.csr_matrix:
    generator = torch.Generator().manual_seed(0)
    counts = torch.poisson(torch.full((40, 12), 0.4, dtype=torch.float64), generator=generator)
    return scipy.sparse.csr_matrix(counts.numpy())


def same(one: object, other: object) -> bool:
    one, other = to_plain(one)["params"], to_plain(other)["params"]
    return all(torch.equal(one[k], other[k]) if isinstance(one[k], torch.Tensor) else one[k] == other[k] for k in one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("feature_map", "width"), list(zip(MAPS, WIDTHS, strict=True)), ids=str)
def test_a_map_is_resolved_once_and_takes_what_it_needs_from_the_data(feature_map, width, dtype, device) -> None:
    X = rows(device, dtype)
    before = to_plain(feature_map)["params"].copy()
    once = feature_map.resolve(X)
    assert same(once, once.resolve(X[:3] + 7.0))
    assert to_plain(feature_map)["params"] == before
    features = once(X)
    assert features.shape == (30, width)
    assert (features.dtype, features.device) == (X.dtype, X.device)
    torch.testing.assert_close(once(X[4:5]), features[4:5])
    if feature_map.intercept:
        assert (features[:, -1] == feature_map.intercept).all()
    assert torch.equal(from_plain(to_plain(once))(X), features)
    check_feature_map(feature_map, X)


@dataclass(eq=False)
class Shifted(FeatureMap):
    """x - loc, and what is wrong with it."""

    loc: AnyNumbers = None
    wrong: str = ""

    def resolve(self, X: torch.Tensor, weights: torch.Tensor | None = None) -> Shifted:
        if self.loc is not None and self.wrong != "refits":
            return self.replace()
        number = len(X) if weights is None or self.wrong == "weights" else weights.sum()
        total = (X if weights is None else X * weights.unsqueeze(1)).sum(0) / number
        if self.wrong == "in place":
            self.loc = total
            return self
        found = self.replace(loc=total)
        if self.wrong == "hidden":
            found.loc, found.found = None, total
        return found

    def project(self, X: torch.Tensor) -> torch.Tensor:
        loc = self.found if self.wrong == "hidden" else self.loc
        features = X - (X.mean(0) if self.wrong == "others" else loc)
        return features.double() if self.wrong == "dtype" else features


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("refits", "resolve changes a map that is resolved"),
        ("weights", "resolve finds something else if all rows have the weight 3"),
        ("in place", r"resolve changed loc in place; expected a copy"),
        ("hidden", "resolve stores something outside of the fields"),
        ("others", "project gives a row alone other features"),
        ("dtype", "float64 for 30 rows; expected a Tensor .* of torch.float32"),
    ],
)
def test_the_check_of_a_map_names_what_is_wrong(wrong: str, message: str) -> None:
    check_feature_map(Shifted(), rows())
    with pytest.raises(AssertionError, match=message):
        check_feature_map(Shifted(wrong=wrong), rows())


@pytest.mark.parametrize("feature_map", [Standardized(), PrincipalDirections(), RandomFourier(), Nystroem()], ids=str)
def test_a_map_that_is_not_resolved_says_so(feature_map) -> None:
    with pytest.raises(ValueError, match=r"Call model.resolve\(X\) first"):
        feature_map(rows())


def test_standardized_columns_have_mean_zero_and_deviation_one() -> None:
    X = rows()
    features = Standardized(intercept=0.0).resolve(X)(X)
    torch.testing.assert_close(features, (X - X.mean(0)) / X.std(0, correction=0))
    given = Standardized(loc=0.5, scale=2.0, intercept=0.0).resolve(X)(X)
    torch.testing.assert_close(given, (X - 0.5) / 2)


def test_principal_directions_are_the_leading_ones_at_mean_square_length_one() -> None:
    X = rows()
    projected = PrincipalDirections(num_directions=2).resolve(X)(X)[:, :2]
    centred = X - X.mean(0)
    left, size, _ = torch.linalg.svd(centred, full_matrices=False)
    expected = left[:, :2] * size[:2]
    expected = expected / (expected.square().sum() / 30).sqrt()
    torch.testing.assert_close(projected.abs(), expected.abs())
    assert float(projected.square().sum(1).mean()) == pytest.approx(1.0)
    whole = PrincipalDirections().resolve(X)(X)[:, :4]
    torch.testing.assert_close(whole * (centred.square().sum() / 30).sqrt(), centred)


@pytest.mark.parametrize("weighted", [False, True])
def test_of_fewer_rows_than_columns_the_directions_are_the_same(weighted) -> None:
    X = torch.randn(8, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.arange(1.0, 9.0, dtype=torch.float64) if weighted else torch.ones(8, dtype=torch.float64)
    feature_map = PrincipalDirections(3, intercept=0.0).resolve(X, weights if weighted else None)
    centred = X - weights @ X / weights.sum()
    scatter = (centred * weights.unsqueeze(1)).T @ centred
    expected = centred @ torch.linalg.eigh(scatter).eigenvectors[:, -3:].flip(1)
    expected = expected / (weights @ expected.square().sum(1) / weights.sum()).sqrt()
    torch.testing.assert_close(feature_map(X).abs(), expected.abs())
    assert PrincipalDirections(20, intercept=0.0).resolve(X)(X).shape == (8, 8)


def test_proportions_do_not_see_the_length_of_a_row() -> None:
    X = rows()
    feature_map = PrincipalDirections(num_directions=2, proportions=True).resolve(X)
    torch.testing.assert_close(feature_map(X * torch.arange(1.0, 31.0).unsqueeze(1)), feature_map(X))


@pytest.mark.parametrize("proportions", [False, True])
@pytest.mark.parametrize("num_directions", [3, 20])
def test_sparse_rows_have_the_features_of_dense_ones(num_directions, proportions) -> None:
    X = sparse_rows()
    weights = [1.0] * 12 if proportions or num_directions > 12 else [30.0, 9.0, 3.0, *[0.1] * 9]
    sparse = SparseRows.of(scipy.sparse.csr_matrix(X.multiply(weights)))
    feature_map = PrincipalDirections(num_directions, proportions, intercept=0.0)
    one, other = feature_map.resolve(sparse), feature_map.resolve(sparse.to_dense())
    torch.testing.assert_close(one(sparse), one(sparse.to_dense()))
    assert float(one(sparse).square().sum(1).mean()) == pytest.approx(1.0)
    # axes are as long as 1 / (root of what they find): of directions that hardly differ the span is near enough
    lengths = [resolved.axes.square().sum(0).mean() for resolved in (other, one)]
    assert 0.95 < float(lengths[0] / lengths[1]) < 1 + 1e-9
    if num_directions > 12:
        torch.testing.assert_close(one(sparse), other(sparse))
    elif not proportions:
        torch.testing.assert_close(one(sparse), other(sparse), rtol=1e-3, atol=1e-3)


def test_sparse_rows_without_entries_have_features_of_zero() -> None:
    X = SparseRows.of(scipy.sparse.csr_matrix((5, 4)))
    found = PrincipalDirections(2, intercept=0.0).resolve(X)(X)
    torch.testing.assert_close(found, torch.zeros_like(found))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_scaled_columns_are_those_of_rows_that_were_scaled_before(power, weighted) -> None:
    X, weights = SparseRows.of(sparse_rows()), torch.arange(1.0, 41.0, dtype=torch.float64)
    X, weights = X.to_dense(), (weights if weighted else None)
    X[:, 3] = 2.3  # a constant column stays as it is; the mean of its squares rounds to more than its square
    counts = torch.ones(len(X), dtype=X.dtype) if weights is None else weights
    mean = counts @ X / counts.sum()
    deviation = (counts @ (X - mean).square() / counts.sum()).sqrt()
    by_hand = X / torch.where(deviation > 1e-9, deviation, 1.0) ** power
    for num_directions in (4, 20):
        scaled = PrincipalDirections(num_directions, scaling=power, intercept=0.0)
        expected = scaled.replace(scaling=0.0).resolve(by_hand, weights)(by_hand)
        torch.testing.assert_close(scaled.resolve(X, weights)(X), expected)
        if num_directions == 20:
            sparse = SparseRows.of(scipy.sparse.csr_matrix(X.numpy()))
            seen = scaled.resolve(sparse, weights)
            torch.testing.assert_close(seen(sparse) @ seen(sparse).T, expected @ expected.T)
            assert seen(X + 1.0).abs().max() < 100  # nor does it blow up where new rows differ


@pytest.mark.parametrize("feature_map", [Standardized(), RandomFourier(), Nystroem()], ids=str)
def test_maps_that_would_make_sparse_rows_dense_refuse_them(feature_map) -> None:
    with pytest.raises(ValueError, match=r"X is sparse, .* Use feature_map=PrincipalDirections\(\)"):
        feature_map.resolve(SparseRows.of(sparse_rows()))


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("length_scale", [0.7, None])
def test_random_features_have_the_products_of_an_rbf_kernel(length_scale, common) -> None:
    X = rows()
    features = RandomFourier(20_000, length_scale, intercept=0.0, common_scale=common).resolve(X)(X)
    variances = X.var(0, correction=0)
    u = (X - X.mean(0)) / (variances.mean() if common else variances).sqrt()
    square = 2.0 if length_scale is None else length_scale**2  # D / 2
    kernel = (-torch.cdist(u, u).square() / (2 * square)).exp()
    assert (features @ features.T - kernel).abs().max() < 5 / 20_000**0.5
    torch.testing.assert_close(features.square().sum(1), torch.ones(30, dtype=X.dtype))


def test_one_scale_unless_a_few_columns_would_drown_the_others() -> None:
    """Principal components stay what they are; columns in units of their own do not."""
    X = torch.randn(200, 25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = torch.linalg.qr(X - X.mean(0)).Q * 200**0.5  # columns of deviation 1
    mapped, falling = RandomFourier(10), torch.linspace(1.0, 0.1, 25, dtype=torch.float64)
    common = mapped.replace(common_scale=True).resolve(X * falling)
    assert torch.equal(mapped.resolve(X * falling).scale, common.scale)
    torch.testing.assert_close(common.scale, falling.square().mean().sqrt().expand(25))
    own = mapped.replace(common_scale=False).resolve(X * falling)
    torch.testing.assert_close(own.scale, falling)
    for sizes, is_common in [
        ([1.0] * 3 + [1e-3] * 22, True),  # a tenth of the columns, and more than 2
        ([1.0] * 2 + [1e-3] * 23, False),
        ([1.0, 0.8, 1e-3], False),  # fewer than 2
        ([1.0, 1.0, 0.3], True),
        ([5.0] * 4, True),
    ]:
        scales = torch.tensor(sizes, dtype=torch.float64)
        found = mapped.resolve(X[:, : len(sizes)] * scales).scale
        assert bool((found == found[0]).all()) == is_common, sizes
    zeros = torch.zeros(5, 3, dtype=torch.float64)
    with pytest.warns(UserWarning, match="constant"):
        assert torch.equal(mapped.resolve(zeros).scale, torch.ones(3, dtype=torch.float64))


def test_frequencies_are_normal_draws_at_right_angles() -> None:
    """Blocks of D; the lengths have the moments of chi with D degrees of freedom, D and D (D + 2)."""
    frequencies = RandomFourier(12_002, 1.0).resolve(rows()).frequencies
    assert frequencies.shape == (4, 6001)
    blocks = frequencies[:, :6000].unflatten(1, (-1, 4)).transpose(0, 1)
    squares = blocks.mT @ blocks
    torch.testing.assert_close(squares, torch.diag_embed(squares.diagonal(dim1=1, dim2=2)))
    square = frequencies.square().sum(0)
    assert float(square.mean()) == pytest.approx(4, abs=4 * (8 / 6001) ** 0.5)
    assert float(square.square().mean()) == pytest.approx(24, rel=0.1)
    # directions are uniform: of fourth moments 3 / (D (D + 2)), of two columns together a third of that
    directions = (frequencies / square.sqrt()).square()
    torch.testing.assert_close(
        directions @ directions.T / 6001, (1 + 2 * torch.eye(4, dtype=torch.float64)) / 24, rtol=0.08, atol=0.0
    )
    assert RandomFourier(4).resolve(rows().repeat(1, 1000)).frequencies.shape == (4000, 2)


def test_the_error_of_the_kernel_falls_with_the_features_and_below_that_of_independent_ones() -> None:
    """Of M independent frequencies its variance is (1 - k^2)^2 / (2 M)."""
    X = rows()
    u = (X - X.mean(0)) / X.std(0, correction=0)
    kernel = (-torch.cdist(u, u).square() / 4).exp()
    independent = float((1 - kernel.square()).square().mean() / 2)
    for num_features in (16, 128):
        maps = (RandomFourier(num_features, intercept=0.0, common_scale=False, seed=seed) for seed in range(60))
        errors = torch.stack([(resolved(X) @ resolved(X).T) - kernel for resolved in (m.resolve(X) for m in maps)])
        assert float(errors.mean(0).abs().max()) < 5 * (independent / num_features) ** 0.5 / 60**0.5 * 2**0.5
        share = float(errors.square().mean()) * num_features / 2 / independent
        assert 0.3 < share < 0.85, num_features


@pytest.mark.parametrize("common", [False, True])
def test_features_of_landmarks_have_the_products_of_an_rbf_kernel(common, device) -> None:
    X = rows(device)
    variances = X.var(0, correction=0)
    u = (X - X.mean(0)) / (variances.mean() if common else variances).sqrt()
    for length_scale, square in ((0.7, 0.49), (None, 2.0)):
        kernel = (-torch.cdist(u, u).square() / (2 * square)).exp()
        whole = Nystroem(30, length_scale, intercept=0.0, common_scale=common).resolve(X)
        torch.testing.assert_close(whole(X) @ whole(X).T, kernel, rtol=0, atol=1e-6)
        errors = []
        for number in (4, 12):
            found = Nystroem(number, length_scale, intercept=0.0, common_scale=common).resolve(X)
            mine = (X.unsqueeze(1) == found.landmarks).all(2).any(1)
            assert int(mine.sum()) == number
            products = found(X) @ found(X).T
            torch.testing.assert_close(products[mine], kernel[mine], rtol=0, atol=1e-6)
            assert float(torch.linalg.eigvalsh(kernel - products)[0]) > -1e-6  # below the kernel, as projections are
            errors.append(float((kernel - products).trace()))
        assert errors[1] < 0.7 * errors[0]


def test_landmarks_may_be_equal_rows_and_are_those_of_their_seed() -> None:
    X = rows()
    twice = Nystroem(40, intercept=0.0).resolve(X[:20].repeat(2, 1))
    once = Nystroem(20, intercept=0.0).resolve(X[:20])
    torch.testing.assert_close(twice(X) @ twice(X).T, once(X) @ once(X).T, rtol=0, atol=1e-5)
    one, again, other = (Nystroem(6, seed=seed).resolve(X) for seed in (1, 1, 2))
    assert torch.equal(one(X), again(X))
    assert not torch.equal(one.landmarks, other.landmarks)


def test_random_features_are_those_of_their_seed(device) -> None:
    X = rows()
    one, again, other = (RandomFourier(6, seed=seed).resolve(X) for seed in (1, 1, 2))
    assert torch.equal(one.frequencies, again.frequencies)
    assert not torch.equal(one.frequencies, other.frequencies)
    torch.testing.assert_close(RandomFourier(6, seed=1).resolve(X.to(device)).frequencies.cpu(), one.frequencies)


def test_functions_and_modules_are_maps() -> None:
    X = rows(dtype=torch.float32)
    y = torch.arange(30) % 2
    with torch.random.fork_rng():
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    for function, width in ((torch.square, 5), (module, 4)):
        model = InfiniteSVM(feature_map=function).resolve(X, y)
        assert model.resolve(X, y).features(X).shape == (30, width)
        torch.testing.assert_close(model.features(X)[:, :-1], function(X).detach())
        assert not model.features(X).requires_grad
        assert (model.features(X)[:, -1] == 1).all()
    assert isinstance(DDPM(feature_map=torch.square).checked().feature_map, Function)
    assert isinstance(DDPM(feature_map=MAPS[0]).checked().feature_map, type(MAPS[0]))


@pytest.mark.parametrize(
    ("feature_map", "message"),
    [
        (lambda X: X.sum(1), r"feature_map gives \(2,\) of torch.float64 for 2 rows; expected a Tensor \[2, P\]"),
        (lambda X: X.float(), "of torch.float32 for 2 rows"),
        (lambda X: X.numpy(), "feature_map gives ndarray"),
        (Standardized, "feature_map is <class"),
        ("rbf", "feature_map is 'rbf'"),
        (Standardized(scale=0.0), "feature_map__scale is 0.0; it must be positive"),
        (PrincipalDirections(loc=0.0), "give both or neither"),
        (RandomFourier(num_features=7), "num_features is 7; it must be even"),
        (Nystroem(landmarks=torch.ones(3, 2)), r"landmarks has shape \(3, 2\); expected rows \[P, 4\]"),
        (Nystroem(landmarks=torch.ones(3, 4), root=torch.eye(2)), r"root has shape \(2, 2\); expected \[3, M\]"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("model", [InfiniteSVM(), DDPM()], ids=lambda model: type(model).__name__)
def test_what_is_wrong_with_a_map_is_named(model, feature_map, message) -> None:
    with pytest.raises(ValueError, match=message):
        model.replace(feature_map=feature_map).resolve(rows(), torch.arange(30) % 2)


def test_the_likelihood_goes_on_seeing_x() -> None:
    X, y = rows(), torch.arange(30) % 2
    one, other = (InfiniteSVM(feature_map=chosen).resolve(X, y) for chosen in (Standardized(), RandomFourier(10)))
    assert torch.equal(one.data(X, y).X, other.data(X, y).X)
    torch.testing.assert_close(one.likelihood.prior(), other.likelihood.prior())
    assert other.data(X, y).features.shape == (30, 11)


def test_counts_of_any_width_have_few_directions() -> None:
    counts = torch.poisson(torch.full((20, 60), 0.5, dtype=torch.float64), generator=torch.Generator().manual_seed(0))
    model = DDPM(MultinomialDirichlet(), feature_map=PrincipalDirections(5, proportions=True)).resolve(counts)
    assert model.data(counts).features.shape == (20, 6)


def test_with_an_rbf_kernel_one_component_separates_two_rings() -> None:
    generator = torch.Generator().manual_seed(0)
    angles = 6.2832 * torch.rand(200, generator=generator, dtype=torch.float64)
    y = torch.arange(200) % 2
    radius = 1.0 + 2.0 * y + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
    X = torch.stack([radius * angles.cos(), radius * angles.sin()], 1)
    linear = InfiniteSVM(SphericalGaussian(), Hinge(), weight_scale=5.0)
    kernel_machine = linear.replace(feature_map=RandomFourier(60, length_scale=0.7))
    accuracy = []
    for model in (linear, kernel_machine):
        posterior = SmallVariance(penalty=1e6).fit(model, X[:150], y[:150])
        assert posterior.num_components == 1
        accuracy.append(float((posterior.predict(X[150:]) == y[150:]).double().mean()))
    assert accuracy[0] < 0.8 < 0.97 < accuracy[1]


def test_a_function_is_refused_where_it_is_no_number() -> None:
    """Scores that are NaN would be predictions of the first class."""
    X, y = rows(), torch.arange(30) % 2
    posterior = SmallVariance().fit(InfiniteSVM(feature_map=torch.log), X, y)
    new = X.clone()
    new[3, 1] = 0.0
    with pytest.raises(ValueError, match=r"feature_map gives -inf for row 3 of X; expected finite numbers"):
        posterior.predict(new)
    with pytest.raises(ValueError, match=r"feature_map gives nan for row 0 of X; expected finite numbers"):
        SmallVariance().fit(InfiniteSVM(feature_map=torch.log), -X, y)


@pytest.mark.parametrize(
    ("function", "shape"),
    [(lambda X: X[:3], r"\(3, 4\)"), (lambda X: X if len(X) == 2 else X[:, 0], r"\(30,\)")],
    ids=["rows", "columns"],
)
def test_a_function_that_gives_too_few_rows_beyond_the_first_two_is_named(function, shape) -> None:
    message = rf"feature_map gives {shape} of torch.float64 for 30 rows; expected a Tensor \[30, P\]"
    with pytest.raises(ValueError, match=message):
        SVI(num_steps=1).fit(InfiniteSVM(feature_map=function), rows(), torch.arange(30) % 2)


# -- a map of an outsider ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Squares(FeatureMap):
    """What CONTRIBUTING asks of a map, and no more."""

    middle: object = None

    def resolve(self, X):
        return self.replace(middle=X.mean(0) if self.middle is None else self.middle)

    def project(self, X):
        return torch.cat([X - self.middle, (X - self.middle).square()], 1)


def test_a_map_without_a_field_for_the_constant_has_a_constant_of_one() -> None:
    X, y = rows(), torch.arange(30) % 2
    posterior = SVI(num_steps=3).fit(InfiniteSVM(feature_map=Squares()), X, y)
    assert posterior.predict(X).shape == y.shape
    features = posterior.model.features(X)
    torch.testing.assert_close(features[:, :-1], Squares().resolve(X).project(X))
    assert (features[:, -1] == 1).all()
    assert repr(Squares()) == "Squares()"
