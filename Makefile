# Everything that CI runs, one target each. PYTHON is the interpreter of an environment with `.[dev]` installed.
PYTHON ?= python

.PHONY: lint format types fast test nightly mutants docs notebooks grid site peers bench gpu pretend evidence

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

types:  # of the installed package, since the folder names map to regbayes.*
	cd tests && $(PYTHON) -m mypy -p regbayes --config-file ../pyproject.toml

fast:
	$(PYTHON) -m pytest -n logical --dist worksteal -m "not slow"

test:
	$(PYTHON) -m pytest -n logical --dist worksteal

nightly:  # whole products of orthogonal parts too
	$(PYTHON) -m pytest -n logical --dist worksteal --nightly

mutants:  # every one of them is noticed by the tests named for it
	$(PYTHON) tests/mutants.py

docs:  # the examples in docstrings
	$(PYTHON) -m pytest tests/test_docs.py

notebooks:
	$(PYTHON) -m pytest tests/test_notebooks.py

grid:  # the table of models and backends in README, whose cells test_grid.py fits
	$(PYTHON) tests/grid.py

site:  # the documentation as pages, in docs/_build/html; needs `.[docs]`
	$(PYTHON) -m sphinx -q -W --keep-going -b html docs docs/_build/html

peers:  # environments with what benchmarks compare with
	$(PYTHON) -m venv build/bench
	build/bench/bin/pip install -q -c constraints.txt ".[data]" hmmlearn==0.3.3 tomotopy==0.14.0 polyagamma==2.0.2
	$(PYTHON) -m venv build/pdc
	build/pdc/bin/pip install -q pdc-dp-means==0.0.8 "scikit-learn<1.4" "numpy<2"

bench: peers  # every ratio of speed beside its peer, on an idle machine
	build/bench/bin/python benchmarks/run.py

gpu:  # the tests that need a CUDA device, and from how many rows one pays
	$(PYTHON) -m pytest -m gpu
	$(PYTHON) benchmarks/gpu.py rows

pretend:  # the tests of a GPU without one, on a device that refuses what a GPU refuses
	$(PYTHON) -m pytest -n auto --pretend -m gpu --nightly tests/test_grid.py
	$(PYTHON) -m pytest -n auto --pretend -m gpu

evidence: peers  # pages of docs/evidence: make evidence PART="chain samplers", or none, which lists them
	build/bench/bin/python benchmarks/evidence.py $(PART)
