PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=10
RUN ?= runs/quickstart

.PHONY: help install parity quickstart docs test ci wider mutate clean

help:  ## Show the targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# A stamp is younger than setup.py once everything it names is installed.
$(VENV)/package: setup.py
	@echo "Making $(VENV) and installing scalelab with JAX, TensorFlow and transformers; minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed: $(VENV)/package
	@echo "Installing what tests and checks need."
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/parity: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[test,parity]'
	touch $@

$(VENV)/docs: $(VENV)/package
	@echo "Installing what builds the documentation."
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

install: $(VENV)/installed  ## Make .venv; install the package and its test tools into it.

parity: $(VENV)/parity  ## Install PyTorch too, which the tests of parity compare with.

quickstart: $(VENV)/package  ## Compare BERT and GPT-2 on a synthetic language; minutes on two cores.
	$(BIN)/scalelab study run --config=studies/quickstart --workdir=$(RUN)
	@echo
	@$(BIN)/scalelab report --workdir=$(RUN) --study=quickstart

docs: $(VENV)/docs  ## Build the documentation as a site, build/site/index.html.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: install  ## Lint, check types and run the quick tests.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(PYTEST) -m 'not (ci or slow or parity or realdata or gpu)'

ci: parity $(VENV)/docs  ## The longer tests that every change must pass; .ci/run runs them after `test`.
	$(PYTEST) -m 'ci and not gpu' $$(grep -rl --include='test_*.py' 'mark\.ci' tests)

wider: parity  ## All other tests, as far as this machine can.
	$(PYTEST) -m '(slow or parity or realdata) and not (ci or gpu)'

mutate: install  ## Read a million damaged data files; about ten minutes.
	$(BIN)/python -m pytest -q tests/test_data_files.py -k mutation --mutations=1000000 --timeout=0

clean:  ## Remove the environment and what tests compiled.
	rm -rf $(VENV) .jax_cache
