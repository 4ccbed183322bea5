# Every target installs what it needs into .venv; a bare machine needs Python 3.11, git and make.
PYTHON ?= python3
BIN := .venv/bin
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.PHONY: install demo test test-fast check lint types bench docs clean

install: .venv/installed

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Stoker needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --editable . --group dev --group frameworks
	@touch $@

demo: install
	cd examples/first_run && ../../$(BIN)/stoker run

test: install
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow"

test-fast: install
	$(BIN)/pytest -q tests/unit tests/contract tests/simulation -m "not slow"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

check: lint types test

bench: install
	$(BIN)/python -m benchmarks

docs: install
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
