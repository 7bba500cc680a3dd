"""Variational inference from a DataLoader: points, with all or some labels or sparse, and sequences."""

from __future__ import annotations

import warnings

import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from variational import blobs, purity, walk

from regbayes.inference import SVI, Gibbs, RowsInOrder, SmallVariance, rows_of
from regbayes.inference.svi.partition import kernel as partition
from regbayes.inference.svi.sequence import kernel as sequence
from regbayes.models import DIH, DPM, IHMM, InfiniteSVM
from regbayes.models.likelihoods import MultinomialDirichlet
from regbayes.models.losses import EpsilonInsensitive, Logistic, Masked, OneVsRest
from regbayes.models.sparse import SparseRows


class Batches(Dataset):
    """Whole batches, as they are."""

    def __init__(self, *batches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int):
        return self.batches[index]


def loader_of(*batches) -> DataLoader:
    return DataLoader(Batches(*batches), batch_size=None, generator=torch.Generator())


@pytest.fixture(autouse=True)
def _few_first_rows(monkeypatch) -> None:
    monkeypatch.setattr("regbayes.inference.svi.steps.NUM_FIRST", 200)


# -- points ------------------------------------------------------------------------------------------------------------


def test_a_loader_serves_batches(cpu_generator) -> None:
    X, y = blobs(600, cpu_generator)
    labels = torch.tensor([3, 8])[y]
    own_stream = {"batch_size": 60, "generator": torch.Generator()}
    model = InfiniteSVM(loss=Logistic(), truncation=10)
    posterior = SVI(num_steps=100).fit(model, DataLoader(TensorDataset(X, labels), **own_stream))
    assert (posterior.predict(X) == labels).double().mean() > 0.9
    same = posterior.samples["assignments"][0] == posterior.assign(X)
    assert same.double().mean() > 0.9
    full = SVI().fit(model, X, labels)
    assert float(posterior.trace.values[0, -20:].mean()) == pytest.approx(float(full.trace.final), rel=0.02)
    unlabelled = SVI(num_steps=40).fit(DPM(truncation=10), DataLoader(TensorDataset(X), **own_stream))
    assert unlabelled.num_components == 3


def test_labels_may_be_missing_in_any_batch(cpu_generator, monkeypatch) -> None:
    """The first rows, which all defaults come from, have all labels but not all classes."""
    monkeypatch.setattr("regbayes.inference.distributed.stream._NUM_DEFAULTS", 100)
    X, y = blobs(600, cpu_generator)
    labels = torch.where(X[:, 1] > 3.5, 2, y)
    order = torch.cat([torch.nonzero(labels < 2)[:150, 0], torch.nonzero(labels == 2)[:, 0]])
    X, labels = X[order], labels[order]
    given = labels.clone()
    given[120::3] = -1
    assert not (given[:100] == -1).any()
    loader = loader_of(*zip(X.split(50), given.split(50), strict=True))
    with pytest.warns(RowsInOrder, match="have no label 2"):
        posterior = SVI(num_steps=60).fit(InfiniteSVM(truncation=8), loader)
    assert posterior.model.classes.tolist() == [0, 1, 2]
    assert isinstance(posterior.model.loss, Masked)
    assert isinstance(posterior.model.loss.loss, OneVsRest)
    assert (posterior.predict(X) == labels).double().mean() > 0.85


@pytest.mark.parametrize(("order", "warns"), [("sorted", True), ("two runs", True), ("as they came", False)])
def test_rows_in_the_order_of_their_labels_are_told(order, warns, cpu_generator) -> None:
    """All classes are among the first rows, but the steps would see one after the other."""
    X, y = blobs(400, cpu_generator)
    places = {"sorted": y.argsort(), "two runs": torch.cat([y[:200].argsort(), 200 + y[200:].argsort()])}
    place = places.get(order, torch.arange(400))
    source = rows_of(X[place], y[place])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        SVI(num_steps=4, batch_size=50).fit(InfiniteSVM(truncation=8), source)
    found = [str(each.message) for each in told if each.category is RowsInOrder]
    assert len(found) == warns
    if warns:
        assert found[0].startswith(
            f"The labels of the first 400 rows of the array change {2 * (order != 'sorted') + 1} "
        )
        assert "in random order about" in found[0]
    with warnings.catch_warnings():  # whose sweeps see all rows
        warnings.simplefilter("error", RowsInOrder)
        SmallVariance(num_components=2, num_restarts=1).fit(InfiniteSVM(), source)


def test_targets_of_a_whole_batch_may_be_missing(cpu_generator) -> None:
    X, _ = blobs(240, cpu_generator)
    y = X @ torch.tensor([1.0, -0.5], dtype=torch.float64)
    given = y.clone()
    given[120:180] = torch.nan
    loader = loader_of(*zip(X.split(60), given.split(60), strict=True))
    posterior = SVI(num_steps=40).fit(InfiniteSVM(loss=EpsilonInsensitive(), truncation=20), loader)
    assert (posterior.predict(X) - y).abs().mean() < 0.5


@pytest.mark.parametrize(
    "given", [SparseRows.of, lambda X: scipy.sparse.csr_matrix(X.numpy()), torch.Tensor.to_sparse_csr]
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_batches(given, cpu_generator) -> None:
    topics = torch.rand(3, 30, generator=cpu_generator, dtype=torch.float64) ** 6
    X = torch.poisson(3 * topics[torch.randint(3, (300,), generator=cpu_generator)], generator=cpu_generator)
    model, backend = DPM(MultinomialDirichlet(), truncation=6), SVI(num_steps=20)
    expected = backend.fit(model, loader_of(*((rows,) for rows in X.split(60))))
    found = backend.fit(model, loader_of(*((given(rows),) for rows in X.split(60))))
    for name, value in expected.samples.items():
        torch.testing.assert_close(found.samples[name], value, rtol=1e-6, atol=1e-8, msg=name)


# -- sequences ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", [IHMM(truncation=5), DIH(loss=Logistic(), truncation=5)], ids=["IHMM", "DIH"])
def test_one_batch_of_all_sequences_is_the_tensor_fit(model, cpu_generator) -> None:
    lengths = [40, 60, 35, 45]
    X, _ = walk(lengths, cpu_generator)
    backend = SVI(num_steps=8, batch_size=4, num_full_steps=0)
    expected = backend.fit(model, X, lengths=lengths)
    found = backend.fit(model, loader_of((X, torch.tensor(lengths))))
    torch.testing.assert_close(found.trace.values, expected.trace.values, rtol=1e-6, atol=1e-6)
    for name, value in expected.samples.items():
        torch.testing.assert_close(found.samples[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_batches_of_sequences_find_the_states(cpu_generator) -> None:
    """Two sequences a batch, then one a batch, without lengths."""
    lengths = [80, 40, 60, 60, 50, 70]
    X, states = walk(lengths, cpu_generator)
    rows = X.split(lengths)
    loader = loader_of((torch.cat(rows[:2]), lengths[:2]), (torch.cat(rows[2:4]), lengths[2:4]), rows[4], (rows[5],))
    posterior = SVI(num_steps=16).fit(IHMM(truncation=6), loader)
    assert purity(posterior.partition(), states) > 0.97  # in the order of the loader
    full = SVI(num_steps=30).fit(IHMM(truncation=6), X, lengths=lengths)
    assert float(posterior.trace.values[0, -8:].mean()) == pytest.approx(float(full.trace.final), rel=0.04)


def test_streams_count_what_their_batches_stand_for(cpu_generator) -> None:
    X, _ = walk([150, 100, 30], cpu_generator)
    kernel, model, data = sequence.STEPS.stream(
        SVI(), IHMM(truncation=4), rows_of(loader_of((X[:250], [150, 100]), (X[250:],)))
    )
    assert (data.num_data, data.num_units, data.first.lengths) == (280, 3, [150, 100])
    batches = [data.at(step) for step in range(3)]
    assert [batch.lengths for batch in batches] == [[150, 100], [30], [150, 100]]
    assert len(data.X) == 247  # the observed ones
    state = kernel.init(model, data, cpu_generator)
    # expected transitions as if there were three sequences of 280 / 3 steps
    torch.testing.assert_close(state.transitions[-1].sum(), torch.tensor(3.0, dtype=torch.float64))
    assert float(state.transitions[:-1].sum()) == pytest.approx(248 * 280 / 250)
    points, y = blobs(240, cpu_generator)
    _, _, data = partition.STEPS.stream(
        SVI(), InfiniteSVM(), rows_of(loader_of(*zip(points.split(80), y.split(80), strict=True)))
    )
    assert (data.num_data, data.num_units, data.first.num_data) == (240, 240, 200)


def test_bad_loaders_are_refused(cpu_generator) -> None:
    X, y = blobs(20, cpu_generator)
    for options in ({"shuffle": True}, {"batch_sampler": [[0, 1], [2]]}):
        with pytest.raises(ValueError, match=r"from the DataLoader, whose order may change, so .* cannot be resumed"):
            SVI().fit(DPM(), DataLoader(TensorDataset(X), **options), checkpoint="chain")
    with pytest.raises(ValueError, match="come with the blocks"):
        SVI().fit(IHMM(), loader_of((X,)), lengths=[20])
    for backend, model in ((Gibbs(num_samples=1), DPM()), (SmallVariance(), IHMM())):
        with pytest.raises(ValueError, match=r"X comes from the DataLoader, which \w+ cannot read: pass its rows"):
            backend.fit(model, loader_of((torch.zeros(3, 2),)))
    with pytest.raises(ValueError, match="gives 1 rows"):
        SVI().fit(DPM(), loader_of((X[:1],)))
    with pytest.raises(ValueError, match="gives 1 steps"):
        SVI().fit(IHMM(), loader_of((X[:1],)))
    with pytest.raises(ValueError, match="lengths add up to"):
        SVI().fit(IHMM(), loader_of((X, y + 1)))


def test_a_bad_row_is_found_in_its_batch() -> None:
    X = torch.zeros(60, 2)
    X[47, 1] = torch.nan
    with pytest.raises(ValueError, match=r"block 2 of the DataLoader: .*row 7\b"):
        SVI(num_steps=2).fit(DPM(), DataLoader(TensorDataset(X), batch_size=20, generator=torch.Generator()))
