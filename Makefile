PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=10
RUN ?= runs/quickstart

.PHONY: help install parity quickstart test ci wider clean

help:  ## Show the targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The stamp is younger than setup.py once everything it names is installed.
$(VENV)/installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/parity: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[test,parity]'
	touch $@

install: $(VENV)/installed  ## Make .venv and install into it.

parity: $(VENV)/parity  ## Install PyTorch too, which the tests of parity compare with.

quickstart: install  ## Compare three styles on the built-in corpus; minutes on two cores.
	$(BIN)/python -m scalelab.study run --config=configs/studies/quickstart.py --workdir=$(RUN)
	@echo
	@$(BIN)/python -m scalelab.study report --workdir=$(RUN) --study=quickstart

test: install  ## Lint, check types and run the quick tests.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(PYTEST) -m 'not (ci or slow or parity or realdata or gpu)'

ci: parity  ## The longer tests that every change must pass; .ci/run runs them after `test`.
	$(PYTEST) -m 'ci and not gpu'

wider: parity  ## All other tests, as far as this machine can.
	$(PYTEST) -m '(slow or parity or realdata) and not (ci or gpu)'

clean:  ## Remove the environment and what tests compiled.
	rm -rf $(VENV) .jax_cache
