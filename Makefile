# `make demo` and `make test` need only Python 3.10 or newer: each creates .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread for trainings under test, for reproducible numbers. Three workers for two cores, because many tests wait for a process.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types tests test-long format docs clean

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (about two minutes, once) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

test: lint types tests

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

tests: $(VENV)/.installed
	$(BIN)/pytest -n 3 --dist worksteal

test-long: $(VENV)/.installed
	$(BIN)/pytest -n 2 --dist worksteal -m long

# bench-detection, bench-overhead, bench-goodput, bench-op_check, ...: see the README.md of each.
bench-%: $(VENV)/.installed
	$(BIN)/python bench/$*/run.py $(ARGS)

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed
	$(BIN)/python tools/write_docs.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
