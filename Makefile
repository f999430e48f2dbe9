# Everything from nothing: each target makes the virtual environment it needs.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test slow experiments lint bench-numerics clean
help:
	@echo "make demo            train a classifier, find its NaN and its half-precision disagreements"
	@echo "make test            lint, types and the fast tests (under 5 minutes on 2 cores)"
	@echo "make slow            the slower tests"
	@echo "make experiments     the tests that reproduce the figures of docs/EXPERIMENTS.md"
	@echo "make bench-numerics  the known numerical bugs, one table"

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV): about 1 GB is downloaded and installed, which takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	rm -rf nnfuzz-demo
	$(BIN)/nnfuzz demo --out nnfuzz-demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

experiments: $(STAMP)
	$(BIN)/python -m pytest -m experiment

bench-numerics: $(STAMP)
	$(BIN)/python benchmarks/numerics/bench.py

clean:
	rm -rf $(VENV) nnfuzz-demo .pytest_cache .mypy_cache .ruff_cache
