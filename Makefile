# Two commands on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed

.PHONY: demo test lint bench reference assets clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

assets: $(STAMP)
	$(BIN)/python -m examples.assets

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: assets
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: assets
	$(BIN)/python -m benchmarks

reference: $(STAMP)
	$(BIN)/python -m pdoc --docformat numpy --output-directory reference \
		actstore actstore.corpus actstore.errors actstore.extraction actstore.fitting actstore.grams \
		actstore.models actstore.store analysis

clean:
	rm -rf $(VENV) reference build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
