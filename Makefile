PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN ?= runs/quickstart

.PHONY: help install quickstart test lint wider clean

help:  ## Show the targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The stamp is younger than setup.py once everything it names is installed.
$(VENV)/installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

install: $(VENV)/installed  ## Make .venv and install into it.

quickstart: install  ## Compare three styles on the built-in corpus; minutes on two cores.
	$(BIN)/python -m scalelab.study run --config=configs/studies/quickstart.py --workdir=$(RUN)
	@echo
	@$(BIN)/python -m scalelab.study report --workdir=$(RUN) --study=quickstart

test: install  ## Lint, type-check and run the quick tests.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not slow and not parity and not realdata and not gpu'

wider: install  ## The tests that take longer or need PyTorch or real data, as far as this machine can.
	$(BIN)/python -m pip install --quiet --editable '.[test,parity]'
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=20 -m '(slow or parity or realdata) and not gpu'

clean:  ## Remove the environment.
	rm -rf $(VENV)
