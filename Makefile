# Every target sets up what it needs in .venv; nothing has to be installed by hand but Python 3.10 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2
DATA ?= digits

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format bench docs tables clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY) ## train iPDLAM, DLAM, mini-batch iPDLAM and Adam on the embedded digits and compare them; DATA=mnist on MNIST
	$(BIN)/ipdlam compare $(DATA) --iterations 40

test: $(READY) ## the test suite, with doctests, README code and examples
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -n $(JOBS)

test-slow: $(READY) ## the tests that take longer; MNIST is found through IPDLAM_DATA
	$(BIN)/python -m pytest -m slow

check: $(READY) ## lint and types
	$(BIN)/ruff check src tests benchmarks examples docs/*.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/*.py
	$(BIN)/mypy

format: $(READY) ## put the code in the house style
	$(BIN)/ruff check --fix src tests benchmarks examples docs/*.py
	$(BIN)/ruff format src tests benchmarks examples docs/*.py

bench: $(READY) ## time an iteration at the size of the paper (some 15 minutes); writes results/iteration.json
	$(BIN)/python benchmarks/iteration.py

$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $(VENV)/.docs

docs: $(VENV)/.docs ## build the documentation into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tables: $(READY) ## write the tables of README and docs from results/
	$(BIN)/python benchmarks/tables.py

clean: ## remove the environment and everything made
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
