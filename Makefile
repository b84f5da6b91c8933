PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo demo-p2o test lint docs policy policy-arithmetic clean
.DELETE_ON_ERROR:

demo: $(READY)  ## train the bundled policy with INSPO and without, and compare
	$(BIN)/cotune demo

demo-p2o: $(READY)  ## train the bundled policy with P²O and without, and compare
	$(BIN)/cotune demo-p2o

test: $(READY)  ## the whole suite, slow tests included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

lint: $(READY)  ## linters and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(READY)  ## the documentation into site/, warnings as errors; without network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

policy: $(READY)  ## rebuild the bundled policy of geo and its card: about 50 minutes on two cores
	$(BIN)/python -m cotune.policies.geo

policy-arithmetic: $(READY)  ## rebuild the bundled policy of arithmetic and its card
	$(BIN)/python -m cotune.policies.arithmetic

clean:  ## remove the environment and what tools have cached; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist site
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment for all of the above, made anew where the pins have changed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cotune needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV): a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@
