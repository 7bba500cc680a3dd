"""A family of an outsider: its field is a plain number, and its compiled functions stand in its own file."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import torch
from negative_binomial import Compiled, NegativeBinomial
from setups import mixture_rows

import regbayes.models
from regbayes.inference import SVI, Gibbs, Posterior
from regbayes.inference.compiled._numba_losses import margins
from regbayes.inference.compiled.decorators import entry, entry_of
from regbayes.inference.gibbs.scans import collapsed, slots
from regbayes.inference.gibbs.scans._numba_family import log_predictives
from regbayes.inference.gibbs.state import PartitionState
from regbayes.models import DPM, IHMM, Hinge, InfiniteSVM
from regbayes.models.compiled import compiled_form, is_compiled, register_compiled
from regbayes.testing import check_likelihood, check_loss

pytestmark = pytest.mark.usefixtures("few_restarts")

X, Z = mixture_rows(NegativeBinomial, 60)


@pytest.mark.parametrize("family", [NegativeBinomial(), NegativeBinomial(r=0.7, a=3.0, b=[0.5, 1.0, 2.0])])
def test_conformance(family) -> None:
    check_likelihood(family, X[:24])


class WrongPredictive(Compiled):
    def log_predictives(self, n, own, out, scratch):
        for k in range(len(out)):
            out[k] = self.components[0, k]


class WrongShift(Compiled):
    def shift(self, n, k, sign):
        self.components[2, k] += sign * self.r
        for d in range(self.X.shape[1]):
            self.components[3 + d, k] += abs(sign) * self.X[n, d]
        return False


class WrongNormalizer(Compiled):
    @staticmethod
    def log_normalizers(family, counts):
        return 0 * counts


@pytest.mark.parametrize(
    "wrong",
    [WrongPredictive, *(pytest.param(each, marks=pytest.mark.nightly) for each in (WrongShift, WrongNormalizer))],
)
def test_the_check_finds_a_wrong_compiled_form(wrong) -> None:
    class Mine(NegativeBinomial):
        pass

    register_compiled(Mine, wrong)
    with pytest.raises(AssertionError, match="of the compiled form"):
        check_likelihood(Mine(), X[:24])


def test_the_check_says_why_a_form_cannot_be_compiled() -> None:
    class Mine(NegativeBinomial):
        pass

    class Form(Compiled):
        def log_predictives(self, n, own, out, scratch):
            out[:] = self.nothing

    register_compiled(Mine, Form)
    with pytest.raises(AssertionError, match=r"compiled form cannot be checked, raised TypingError: Unknown.*nothing"):
        check_likelihood(Mine(), X[:24])


def test_the_check_finds_a_wrong_sum_of_components() -> None:
    class Mine(NegativeBinomial):
        pass

    class Form(Compiled):
        def summed(self, family, data, labels, slots):
            return np.repeat(self.components, slots if family.r == 1.0 else slots - 1, 1)

        @staticmethod
        def wide():
            return 100

    register_compiled(Mine, Form)
    with pytest.raises(AssertionError, match="of the compiled form differ from the tensor code after `summed`"):
        check_likelihood(Mine(r=1.0), X[:24])
    with pytest.raises(AssertionError, match=r"summed of the compiled form has shape .*; expected"):
        check_likelihood(Mine(r=2.0), X[:24])


def test_a_form_of_the_same_name_does_not_run_the_code_of_the_first() -> None:
    """As of another module, or of a cell that is run again."""

    def family(number: float) -> NegativeBinomial:
        class Mine(NegativeBinomial):
            pass

        class Form(Compiled):
            def log_predictives(self, n, own, out, scratch):
                for k in range(len(out)):
                    out[k] = number * k

        register_compiled(Mine, Form)
        return Mine()

    found = []
    for number in (0.5, -3.0):
        model = DPM(family(number)).resolve(X)
        state = PartitionState(Z, X.new_zeros(int(Z.max()) + 1, 0, 0), model.prior.start(X))
        visitor = slots.Compiled(collapsed.PartitionSlots(state, model.data(X), model))
        out = np.empty(4)
        visitor.entry(predictives)(visitor.state, 0, 0, out, visitor.scratch[:, :4].copy())
        found.append(out[1] - out[0])
    assert found == [0.5, -3.0]


@entry
def predictives(state, n, own, out, scratch):
    log_predictives(state, n, own, out, scratch)


def test_the_check_finds_a_wrong_compiled_factor() -> None:
    class Mine(Hinge):
        pass

    class Form(compiled_form(Hinge())):
        def log_factor(self, score, y):
            return -self.strength * max(0.0, self.margin - y * score)

    register_compiled(Mine, Form)
    with pytest.raises(AssertionError, match="log_factor of the compiled form"):
        check_loss(Mine())


def test_the_check_finds_wrong_pseudo_observations_of_compiled_code() -> None:
    class Mine(Hinge):
        pass

    right = compiled_form(Hinge())

    class Form(right):
        def observe(self, score, y, half, uniform):
            precision, shift = right.observe(self, score, y, half, uniform)
            return precision, -shift

    register_compiled(Mine, Form)
    with pytest.raises(AssertionError, match="observe of the compiled form has another law than augment"):
        check_loss(Mine())


def test_a_subclass_has_no_compiled_form_of_its_own() -> None:
    class Mine(NegativeBinomial):
        pass

    assert is_compiled(NegativeBinomial())
    assert not is_compiled(Mine())
    assert compiled_form(Mine()) is None


def test_the_scan_is_the_compiled_one() -> None:
    model = DPM(NegativeBinomial()).resolve(X)
    state = PartitionState(Z, X.new_zeros(int(Z.max()) + 1, 0, 0), model.prior.start(X))
    visitor = slots.visitor_of(collapsed.PartitionSlots(state, model.data(X), model), None)
    assert type(visitor) is slots.Compiled
    assert collapsed.moves_are_compiled(model.data(X), model)


# -- a field that is a number ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [Gibbs(num_samples=4, num_warmup=2), SVI(num_steps=4)], ids=["Gibbs", "SVI"])
def test_a_field_of_a_number_stays_one_in_fits_predictions_and_files(backend, tmp_path) -> None:
    y = (X[:, 0] > 2).long()
    posterior = backend.fit(InfiniteSVM(NegativeBinomial(r=1.5), truncation=30), X, y)
    assert posterior.model.likelihood.r == 1.5
    assert type(posterior.model.likelihood.r) is float
    predicted = posterior.predict(X)
    assert predicted.shape == y.shape
    posterior.save(tmp_path / "posterior")
    assert torch.equal(Posterior.load(tmp_path / "posterior").predict(X), predicted)
    clusters = backend.fit(DPM(NegativeBinomial(r=1.5), truncation=30), X.float())
    assert clusters.assign(X.float()[:7]).shape == (7,)


def test_sequences_take_it_too() -> None:
    posterior = Gibbs(num_samples=3, num_warmup=1).fit(IHMM(NegativeBinomial()), X, lengths=[40, 20])
    assert posterior.assign(X, [40, 20]).shape == (60,)


class Tensors(NegativeBinomial):
    """Its resolve makes a tensor of what is declared to be a number."""

    def resolve(self, X, weights=None):
        family = super().resolve(X, weights)
        return family.replace(r=torch.as_tensor(family.r).to(X))


def test_a_tensor_in_a_field_of_a_number_is_refused_before_the_fit() -> None:
    with pytest.raises(
        ValueError, match=r"Tensors.resolve returned .*: r is tensor.*Keep numbers as numbers.*AnyNumbers"
    ):
        Gibbs(num_samples=1).fit(DPM(Tensors()), X)
    with pytest.raises(AssertionError, match=r"^Tensors.resolve returned .*Keep numbers as numbers"):
        check_likelihood(Tensors(), X)


def test_domains_and_compiled_are_public() -> None:
    assert {"domains", "compiled"} <= set(regbayes.models.__all__)
    assert regbayes.models.domains.Positive


# -- a form of a file --------------------------------------------------------------------------------------------------


def test_machine_code_goes_with_all_files_that_the_form_imports(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = ["from typing import NamedTuple", "import numpy", "from my_helper import LIMIT"]
    (tmp_path / "my_form.py").write_text("\n".join([*source, "class Form(NamedTuple):", "    r: float"]))
    names = []
    for limit in (1, 1, 2):
        (tmp_path / "my_helper.py").write_text(f"LIMIT = {limit}\n")
        for name in ("my_form", "my_helper"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        form = importlib.import_module("my_form").Form(1.0)
        names.append(entry_of(margins, form).py_func.__qualname__)
    assert names[0] == names[1] != names[2]
