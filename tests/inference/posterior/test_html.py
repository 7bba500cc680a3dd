"""What notebooks show: diagrams or parts of models, and posteriors with their traces, in escaped HTML."""

from __future__ import annotations

import math
from types import SimpleNamespace
from xml.etree import ElementTree

import pyro
import pytest
import torch
from pyro.infer.inspect import get_model_relations

from regbayes import models
from regbayes.inference import Gibbs, Trace
from regbayes.inference.posterior.html import sparkline
from regbayes.models import DPM, Hinge, InfiniteSVM

from .test_posterior import X, Y

NAMES = ["DPM", "InfiniteSVM", "DDPM", "IHMM", "DIH", "BNMC", "InfiniteLatentSVM", "LatentFeatureModel"]
NAMES += ["MultiTaskInfiniteLatentSVM", "MedLDA", "LDA"]


def unrendered(*args, **kwargs):
    raise ImportError("no graphviz")


def test_a_model_shows_its_parts_and_which_were_changed(monkeypatch) -> None:
    monkeypatch.setattr(pyro, "render_model", unrendered)
    model = InfiniteSVM(loss=Hinge(strength=2.5), feature_map=lambda rows: rows)
    found = ElementTree.fromstring(model._repr_html_())
    cells = {row[0].text: row[1] for row in found.iter("tr")}
    assert list(cells) == list(model.get_params(deep=False))
    assert cells["loss"][0].text == "Hinge(strength=2.5)"
    assert cells["feature_map"][0].text.startswith("<function")  # escaped in the source
    assert cells["likelihood"].text == "DiagonalGaussian()"


@pytest.mark.parametrize("name", NAMES)
def test_the_diagram_is_of_the_models_own_program(name: str, monkeypatch) -> None:
    """What graphviz is asked for; it draws the sites of the program, and the source goes without the XML header."""
    seen = []

    def rendered(program, model_args):
        seen.append(get_model_relations(program, model_args=model_args))
        return SimpleNamespace(pipe=lambda **options: "<?xml version='1.0'?><svg><text>z</text></svg>")

    monkeypatch.setattr(pyro, "render_model", rendered)
    before = torch.get_rng_state()
    found = getattr(models, name)()._repr_html_()
    assert torch.equal(torch.get_rng_state(), before)
    assert found.startswith("<svg><text>z</text></svg><pre>")
    assert seen[0]["observed"]


def test_a_posterior_shows_model_backend_sizes_trace_and_diagnosis() -> None:
    posterior = Gibbs(num_samples=8, num_warmup=4, num_chains=2, scan="slice").fit(InfiniteSVM(), X, Y)
    found = ElementTree.fromstring(posterior._repr_html_())
    cells = {row[0].text: row[1] for row in found.iter("tr")}
    assert cells["backend"].text == "Gibbs(num_samples=8, num_warmup=4, num_chains=2, scan='slice')"
    assert cells["model"].text == repr(posterior.model)
    assert cells["draws"].text == f"8 + 8; {posterior.num_components} components"
    assert "assignments 60" in cells["samples"].text
    assert posterior.diagnose().verdict in cells["diagnosis"].text
    lines = [one for one in cells["trace"].iter() if one.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [12, 12]


@pytest.mark.parametrize("values", [[[math.nan]], [[1.0]], [[2.0, 2.0, math.nan]], [[]], [[0.0, -math.inf, 3.0]]])
def test_any_trace_has_a_picture(values) -> None:
    values = torch.tensor(values, dtype=torch.float64)
    found = ElementTree.fromstring(sparkline(Trace("<value>", values, values)))
    assert found[0].text == "<value>"
    shown = found[1].attrib["points"].split()
    assert len(shown) == int(values.isfinite().sum())
    assert all(0 <= float(part) <= 200 for point in shown for part in point.split(","))


def test_long_traces_are_thinned() -> None:
    values = torch.arange(5000, dtype=torch.float64).unsqueeze(0)
    points = ElementTree.fromstring(sparkline(Trace("value", values, values)))[1].attrib["points"].split()
    assert len(points) == 200
    assert (points[0], points[-1]) == ("0.0,30.0", "200.0,0.0")


def test_reprs_say_what_was_changed() -> None:
    likelihood = models.SphericalGaussian(torch.zeros(3), 0.5)
    model = DPM(models.Product([(likelihood, 3), (models.BernoulliBeta(), 2)]), models.DirichletProcess(2.0), 20)
    parts = "[(SphericalGaussian(loc=Tensor[3], variance=0.5), 3), (BernoulliBeta(), 2)]"
    assert repr(model) == f"DPM(likelihood=Product(parts={parts}), prior=DirichletProcess(concentration=2.0))"
    assert repr(model.replace(likelihood=models.DiagonalGaussian())) == "DPM(prior=DirichletProcess(concentration=2.0))"
    assert repr(Gibbs(num_samples=torch.tensor(3))) == "Gibbs(num_samples=3)"
    assert repr(DPM()) == "DPM()"
