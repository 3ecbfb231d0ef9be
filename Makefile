# Everything from a fresh clone. Needs Python >= 3.11, pip and make; all the rest goes into .venv.
#
#   make demo     install, run the default experiment, say where its report is
#   make test     install the test tools, check format, lint and types, run all tests but those marked slow
#   make test-all the same with all tests
#   make test-timing   run the tests that wait or draw secret numbers twenty times on a busy machine
#   make bench    measure the engines against the plain loop
#   make docs     build the documentation into site/
#
#   PYTHON=python3.12   another interpreter        CPU=1   torch without CUDA (Linux)
#   PYTEST="-n 0 -x"    other options for pytest

PYTHON ?= python3
PYTEST ?= -n auto --maxprocesses 8 --dist worksteal
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TORCH_INDEX := $(if $(CPU),--extra-index-url https://download.pytorch.org/whl/cpu)

.PHONY: help demo test test-all test-timing bench docs
.DELETE_ON_ERROR:

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.installed
	@echo "Running the default experiment: 12 simulated organisations train one model on handwritten digits without pooling them."
	@$(BIN)/fedatlas run

test: SELECT := -m "not slow"
test test-all: $(VENV)/.installed-test
	@echo "1/4 format (ruff format)"
	@$(BIN)/ruff format --check .
	@echo "2/4 lint (ruff check)"
	@$(BIN)/ruff check .
	@echo "3/4 types (mypy --strict), beside 4/4 tests (pytest)"
	@$(BIN)/mypy > $(VENV)/mypy.log 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
	$(BIN)/pytest $(SELECT) $(PYTEST); tests=$$?; \
	wait $$types || { cat $(VENV)/mypy.log; exit 1; }; exit $$tests

test-timing: $(VENV)/.installed-test
	@for i in 1 2 3 4; do $(BIN)/python -c "while True: pass" & busy="$$busy $$!"; done; trap "kill $$busy" EXIT; \
	for i in $$(seq 20); do echo "$$i/20"; $(BIN)/pytest -q -m "timing and not slow" -n 2 --dist worksteal || exit 1; done

bench: $(VENV)/.installed
	@$(BIN)/python benchmarks/simulation_speed.py

docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

# A stamp per set of requirements: installs again only when pyproject.toml or constraints.txt changed.
$(VENV)/.installed: EXTRA :=
$(VENV)/.installed-test: EXTRA := [test]
$(VENV)/.installed-docs: EXTRA := [docs]
$(VENV)/.installed $(VENV)/.installed-test $(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing PyTorch into $(VENV) (the large part; a few minutes the first time) ..."
	@$(PIP) $(TORCH_INDEX) torch
	@echo "Installing fedatlas$(EXTRA) and what else it needs ..."
	@$(PIP) --editable '.$(EXTRA)'
	@touch $@

# Some distributions ship Python without what `venv` needs to bring its own pip: then the outside pip fetches one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fedatlas needs Python 3.11 or newer as '$(PYTHON)': try  make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || { $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
