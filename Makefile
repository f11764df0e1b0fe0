# The two commands a newcomer needs are `make demo` and `make test`; everything else is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest

.PHONY: demo test fast check-slow check-lowest bench docs lint format clean

# Dozens of processes import the package: what one has compiled, the others read.
export PYTHONDONTWRITEBYTECODE :=

# The stamp is rebuilt when the dependencies change; the sources are installed in place.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "widelimit needs Python 3.11 or newer: run 'make PYTHON=python3.12 $(MAKECMDGOALS)'"; exit 1; }
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing widelimit and its developer tools into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# What reads the sources runs beside what runs them: both have a process that is alone for a while.
test: $(STAMP)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line lint fast

fast: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

check-slow: $(STAMP) check-lowest
	$(BIN)/python -m pytest -m slow

# The lowest Python and the lowest version of each dependency that pyproject.toml names.
$(LOWEST)/.installed: pyproject.toml | $(STAMP)
	@$(BIN)/uv venv --quiet --clear --python 3.11 $(LOWEST)
	@$(BIN)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --editable '.[dev]'
	@touch $@

check-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -m "not slow" -n 2 --dist worksteal

docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest tests/test_docs.py -q -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) $(LOWEST) out build dist .pytest_cache .ruff_cache
