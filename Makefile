# Every target installs what it needs into .venv; a bare machine needs Python 3.11, git and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(UPGRADE)
# uv does not look where pip was told to find wheels.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.PHONY: install frameworks demo test test-fast test-heavy test-slow check lint types lock audit release bench docs shape clean

install: .venv/installed .services/installed .services/system
frameworks: .venv/frameworks .services/vision/installed .services/mlflow/installed .services/installed .services/system

.venv/uv: requirements/installer.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Stoker needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
	  --requirement requirements/installer.txt
	@touch $@

# Exactly the files of the lock, and nothing that is built from a source: what was not reviewed is not run.
.venv/installed: .venv/uv pyproject.toml requirements/development.txt
	$(INSTALL) --require-hashes --only-binary :all: --requirement requirements/development.txt
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# Azurite, the Azure Blob that tests speak to.
.services/installed: Makefile
	@command -v npm >/dev/null || { echo "error: the tests need node and npm; try: apt-get install nodejs npm"; exit 1; }
	npm install --prefix .services --no-audit --no-fund --loglevel=error azurite@3.35.0
	@touch $@

# Programs of the system that tests run: the sshd of the twin's machines, and for the heavy tests container engines and a
# Slurm, which they start themselves. Nothing is started here: RUNLEVEL=1 says so to Debian's packages.
.services/system: PACKAGES := openssh-server openssh-client iproute2 sudo openmpi-bin
.services/engines: PACKAGES := docker.io podman catatonit uidmap docker-registry slurm-wlm slurmdbd mariadb-server-core \
  mariadb-client-core charliecloud-runtime charliecloud-builders python3-lark python3-requests
.services/engines: | .services/system
.services/system .services/engines: Makefile
	@mkdir -p .services
	@if dpkg --status $(PACKAGES) >/dev/null 2>&1 || [ "$$(uname)" != Linux ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; \
	else echo "error: the tests need $(PACKAGES); try: sudo apt-get install $(PACKAGES)"; exit 1; fi
	@touch $@

# Azure's own command line, which drives the twin in a long proof. Its pins suit nobody else, so it lives by itself.
.venv-az/installed: | .venv/installed
	rm -rf .venv-az
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-az
	$(BIN)/uv pip install --quiet --python .venv-az/bin/python --compile-bytecode azure-cli==2.91.0
	@touch $@

# Azure ML's own SDK, which drives the twin in a heavy test: large, and nobody else needs it.
.venv-azureml/installed: | .venv/installed
	rm -rf .venv-azureml
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-azureml
	$(BIN)/uv pip install --quiet --python .venv-azureml/bin/python --compile-bytecode azure-ai-ml==1.35.2 azure-identity
	@touch $@

# A Ray of the cluster's side: the provider speaks REST, and heavy tests start a real cluster of it.
.venv-ray/installed: | .venv/installed
	rm -rf .venv-ray
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-ray
	$(BIN)/uv pip install --quiet --python .venv-ray/bin/python --compile-bytecode 'ray[default,train]==2.60.0'
	@touch $@

# Keras on TensorFlow, for another long proof: large, and nobody else needs it.
.venv-tensorflow/installed: | .venv/installed
	rm -rf .venv-tensorflow
	$(BIN)/uv venv --quiet --python $(BIN)/python .venv-tensorflow
	$(BIN)/uv pip install --quiet --python .venv-tensorflow/bin/python --compile-bytecode \
	  --editable . keras==3.15.1 pillow tensorflow-cpu==2.21.0
	@touch $@

# Hydra, for a long proof: it pins a parser that others need newer, so it lies beside them.
HYDRA := .services/hydra
$(HYDRA)/installed: | .venv/installed
	rm -rf $(HYDRA)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(HYDRA) hydra-core==1.3.8
	@touch $@

.venv/frameworks: .venv/installed
	$(INSTALL) --group frameworks
	@touch $@

# torchvision: its compiled operators do not load with every build of PyTorch, and libraries that find it fail then.
# So it lies beside them, for the example that brings operators of its own.
VISION := .services/vision
$(VISION)/installed: | .venv/installed
	rm -rf $(VISION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(VISION) --no-deps --compile-bytecode torchvision==0.28.0
	@touch $@

# MLflow's client, for the tests of exports: it wants older versions of packages that the lock has.
.services/mlflow/installed: | .venv/installed
	rm -rf .services/mlflow
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target .services/mlflow --compile-bytecode mlflow-skinny==3.17.2
	@touch $@

# All that the demo trains with.
.venv/torch: .venv/installed
	$(INSTALL) torch==2.13.0 'numpy>=2'
	@touch $@

demo: .venv/torch .services/installed  ## the whole mission: trained on a spot machine, evicted, resumed, brought back
	@$(BIN)/python examples/demo.py

PYTEST := .ci/tests

test: frameworks  ## everything but the heavy tests and the long proofs
	$(PYTEST) -m "not slow and not heavy"

test-heavy: frameworks .services/engines .venv-azureml/installed .venv-ray/installed  ## what takes long, and is still part of every check
	$(PYTEST) -m "heavy and not slow"

test-fast: install  ## the pure rings
	$(BIN)/pytest -q tests/unit tests/contract tests/simulation -m "not slow and not heavy"

test-slow: frameworks .services/engines .venv-azureml/installed .venv-ray/installed .venv-az/installed .venv-tensorflow/installed $(HYDRA)/installed  ## the long proofs
	$(BIN)/pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Each example is a project of its own, and pytest wants one `conftest.py` per folder: mypy reads modules of one name apart.
types: frameworks
	$(BIN)/mypy
	$(BIN)/mypy examples/ants_and_bees/*.py
	$(BIN)/mypy examples/horses_or_humans/*.py
	$(BIN)/mypy examples/mask_rcnn/*.py
	$(BIN)/mypy examples/ncf/*.py
	for folder in tests/examples tests/integration tests/unit tests/unit/agent/attempt; do \
	  $(BIN)/mypy $$folder/conftest.py || exit 1; done

# With UPGRADE=--upgrade everything is renewed, else only what no longer fits. Frameworks have their versions in
# pyproject.toml: which file of torch is installed depends on the machine, so it has no hash here.
lock: .venv/uv  ## the versions and hashes of everything that server, tests and CI install
	echo uv | $(LOCK) --output-file requirements/installer.txt -
	$(LOCK) --extra azure --output-file requirements/server.txt pyproject.toml
	$(LOCK) --extra azure --group dev --constraint requirements/server.txt --output-file requirements/development.txt \
	  pyproject.toml

audit: install  ## what is installed against the lock, and the lock against known vulnerabilities
	$(BIN)/python .ci/audit.py

release: install  ## builds wheel and sdist into dist, and runs the quickstart with each in an empty environment
	$(BIN)/python .ci/release.py

# All tests in one go: the quick ones, which come last, fill the time in which the last long ones wait.
check: lint types frameworks .services/engines .venv-azureml/installed .venv-ray/installed  ## exactly what CI runs
	$(PYTEST) -m "not slow"

bench: frameworks  ## Stoker beside its peers; writes benchmarks/results
	$(BIN)/python -m benchmarks

docs: install  ## the generated references and the recorded sessions
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/record.py

shape: install  ## counts files, lines and names anew for docs/internals/architecture.md
	$(BIN)/python docs/shape.py

clean:
	rm -rf .venv .venv-az .venv-azureml .venv-ray .venv-tensorflow .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
