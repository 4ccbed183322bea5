# Every target installs what it needs into .venv; a bare machine needs Python 3.11, git and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode
# uv does not look where pip was told to find wheels.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.PHONY: install frameworks demo test test-fast test-slow check lint types bench docs clean

install: .venv/installed .services/installed .services/system
frameworks: .venv/frameworks .services/installed .services/system

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Stoker needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
	$(INSTALL) --editable '.[azure]' --group dev
	@touch $@

# Azurite, the Azure Blob that tests speak to.
.services/installed: Makefile
	@command -v npm >/dev/null || { echo "error: the tests need node and npm; try: apt-get install nodejs npm"; exit 1; }
	npm install --prefix .services --no-audit --no-fund --loglevel=error azurite@3.35.0
	@touch $@

# Programs of the system that tests run: the sshd of the twin's machines. Nothing is started: RUNLEVEL=1 says so to
# Debian's packages.
SYSTEM := openssh-server openssh-client sudo
.services/system: Makefile
	@mkdir -p .services
	@if dpkg --status $(SYSTEM) >/dev/null 2>&1 || [ "$$(uname)" != Linux ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SYSTEM) >/dev/null; \
	else echo "error: the tests need $(SYSTEM); try: sudo apt-get install $(SYSTEM)"; exit 1; fi
	@touch $@

# Azure's own command line, which drives the twin in a long proof. Its pins suit nobody else, so it lives by itself.
.venv-az/installed: | .venv/installed
	rm -rf .venv-az
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-az
	$(BIN)/uv pip install --quiet --python .venv-az/bin/python --compile-bytecode azure-cli==2.91.0
	@touch $@

# Keras on TensorFlow, for another long proof: large, and nobody else needs it.
.venv-tensorflow/installed: | .venv/installed
	rm -rf .venv-tensorflow
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-tensorflow
	$(BIN)/uv pip install --quiet --python .venv-tensorflow/bin/python --compile-bytecode \
	  --editable . keras==3.15.1 pillow tensorflow-cpu==2.21.0
	@touch $@

.venv/frameworks: .venv/installed
	$(INSTALL) --group frameworks
	@touch $@

# All that the demo trains with.
.venv/torch: .venv/installed
	$(INSTALL) torch==2.13.0 'numpy>=2'
	@touch $@

demo: .venv/torch .services/installed  ## the whole mission: trained on a spot machine, evicted, resumed, brought back
	@$(BIN)/python examples/demo.py

test: frameworks  ## everything but the long proofs
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-fast: install  ## the pure rings
	$(BIN)/pytest -q tests/unit tests/contract tests/simulation -m "not slow"

test-slow: frameworks .venv-az/installed .venv-tensorflow/installed  ## the long proofs
	$(BIN)/pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: frameworks
	$(BIN)/mypy

check: lint types test  ## exactly what CI runs

bench: frameworks  ## Stoker beside its peers; writes benchmarks/results
	$(BIN)/python -m benchmarks

docs: install  ## the generated references and the recorded sessions
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/record.py

clean:
	rm -rf .venv .venv-az .venv-tensorflow .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
