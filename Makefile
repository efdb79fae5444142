# Every command a newcomer needs; `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
READY := $(VENV)/.ready
LINTED := build/linted
SOURCES := $(shell find . -name '*.py' -not -path './.venv/*' -not -path './build/*' -not -path './runs/*')
SEED ?= 0
SCHEDULES ?= 100
FIRST_SEED ?= auto
SHARD ?= all
MINUTES ?= 60
SIZES ?= 1b,7b
QUANTIZATION ?= nf4
# One thread per process: agents and test workers share the cores, and oversubscription costs more than it gives.
RUN := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# Images of Python often switch bytecode off. The tests start hundreds of processes, and each would compile its
# modules anew; pytest would rewrite the assertions of every test file in each run.
unexport PYTHONDONTWRITEBYTECODE
# Tests are handed out in order: the fault schedules, which replace clocks and threads in their process, come after
# all tests that share a running coordinator.
PYTEST := $(RUN) $(BIN)/python -m pytest -n 2 --dist load

.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv and install everything into it

# First torch, because its build decides: one for CUDA needs libraries of several gigabytes, one for the CPU none.
# The CPU build is taken where pip is configured to find it, otherwise what the package index has.
# uv installs the rest twenty times as fast as pip, which remains where uv does not reach the configured index.
$(READY): pyproject.toml requirements/dev.txt requirements/cuda.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Tessera needs Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3.11")'
	@echo "Installing Tessera with PyTorch into $(VENV): two to five minutes, 3 GB of disk (more with CUDA)."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --no-deps --require-hashes -r requirements/torch-cpu.txt 2>/dev/null || $(PIP) --no-deps --require-hashes -r requirements/torch.txt
	@$(PIP) --require-hashes -r requirements/uv.txt
	@locked="--no-deps --require-hashes -r requirements/dev.txt $$($(BIN)/python requirements/cuda_of_torch.py)"; \
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $$locked || $(PIP) $$locked
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $(READY)
	@echo "Installed. Next: source $(BIN)/activate, then tessera quickstart (a minute), or make demo (5 to 10 minutes)."

demo: setup ## Four helpdesks on a real model, alone and federated (5 to 10 minutes on two cores; SEED=0, OPEN=1, QUICK=1)
	$(RUN) $(BIN)/python -m examples.demo --seed $(SEED) $(if $(QUICK),--quick) $(if $(OPEN),--keep-open)

demo-tiny: setup ## Seven silos on two tiny base models, five methods compared (10 minutes; SEED=0)
	$(RUN) $(BIN)/python -m examples.demo_tiny --seed $(SEED)

test: setup lint ## Lint, types, dependency rules and the fast tests (9 minutes on two cores)
	$(PYTEST) -m "not slow and not long and not gpu and not system"

test-slow: setup ## PostgreSQL, every route as every caller, stories; SHARD=auto runs this commit's tenth
	$(PYTEST) -m "slow and not long" --shard $(SHARD)

test-long: setup ## Tests that take minutes: kills, memory, transfer between architectures (half an hour)
	$(PYTEST) -m long

test-system: setup ## The page in Chromium, replicas behind Caddy and nginx, alerts; Debian: `apt-get install chromium caddy nginx prometheus`
	$(RUN) $(BIN)/python -m pytest -m system

S3 := build/s3
# moto's own libraries are others than this project's, so its server has an environment of its own.
$(S3)/.ready: requirements/s3.txt
	$(PYTHON) -m venv $(S3)
	$(S3)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/s3.txt
	touch $@

test-s3: setup $(S3)/.ready ## Tensors in S3, played by moto's server (four minutes)
	PATH="$(CURDIR)/$(S3)/bin:$$PATH" $(RUN) $(BIN)/python -m pytest -m s3

fault-simulation: setup ## Play schedules of faults (SCHEDULES=100: three minutes); the commit chooses FIRST_SEED
	$(RUN) $(BIN)/python -m tests.faults.fault_simulation --schedules $(SCHEDULES) --seed $(FIRST_SEED)

stress: setup ## Kills, freezes, bad networks, hostile bytes and fuzzing at length, with a table (two hours)
	$(PIP) --require-hashes -r requirements/fuzz.txt
	$(RUN) $(BIN)/python -m tests.faults.stress

charts: setup ## Render and lint the Helm charts of deploy/charts, and rewrite the files that the tests compare with
	$(PIP) --require-hashes -r requirements/charts.txt
	$(RUN) $(BIN)/python -m tests.acceptance.deployment.rendered_charts
	$(RUN) $(BIN)/python -m pytest tests/acceptance/deployment/test_charts.py

images-check: setup ## Build the three images without a registry and run docker-compose.yml in them (20 minutes, 12 GB, root); Debian: `apt-get install --no-install-recommends buildah crun debootstrap tini`
	$(RUN) $(BIN)/python -m tests.acceptance.deployment.images $(if $(KEEP),--keep) $(if $(REGISTRY),--registry)

load: setup ## A thousand agents polling and delivering at once, and a long time (ten minutes)
	$(RUN) $(BIN)/python -m benchmarks.load

release-check: test test-slow test-long test-s3 ## Everything that is run before a release (five hours)
	$(MAKE) fault-simulation SCHEDULES=1000
	$(MAKE) stress load images-check demo demo-tiny

test-gpu: setup ## Models of 1 and 7 billion parameters in 16, 8 and 4 bits, and what a step costs there; needs a GPU
	$(RUN) $(BIN)/python -m pytest -m gpu tests/gpu
	$(RUN) $(BIN)/python -m benchmarks.training_step --device cuda --size 1b --quantization nf4 --gradient-checkpointing
	$(RUN) $(BIN)/python -m benchmarks.training_step --device cuda --size 7b --quantization nf4 --gradient-checkpointing

gpu-day: setup ## What needs a GPU in the order of its worth, until MINUTES=60 are over; SIZES=tiny QUANTIZATION=none on a CPU
	$(RUN) $(BIN)/python -m benchmarks.gpu_day --minutes $(MINUTES) --sizes $(SIZES) --quantization $(QUANTIZATION)

bench: setup ## What rounds, aggregation and a training step cost (an hour; nothing else should run)
	$(RUN) $(BIN)/python -m benchmarks.round
	$(RUN) $(BIN)/python -m benchmarks.aggregation
	$(RUN) $(BIN)/python -m benchmarks.training_step

lint: setup $(LINTED) ## Style, types and dependency rules; nothing is done where nothing changed

$(LINTED): $(READY) $(SOURCES) pyproject.toml .importlinter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	mkdir -p $(@D) && touch $@

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

models: setup ## Pretrain the three tiny models of examples/models anew (about 10 minutes)
	$(RUN) $(BIN)/python -m examples.models.make_models

real-models: setup ## Fetch and convert SmolLM2-135M into runs/models (93 MB); with ALL=1 Gemma 3 270M too (350 MB, two minutes)
	$(BIN)/python -m examples.real_models $(if $(ALL),,--only smollm2)

screenshots: setup ## Take the pictures of the dashboard page in docs/images (Chromium; five minutes)
	$(RUN) $(BIN)/python -m examples.screenshots

openapi: setup ## Rewrite the OpenAPI snapshot that the tests compare with
	$(BIN)/python -m tests.house.test_house

reference: setup ## Rewrite the generated pages of docs/reference
	$(RUN) $(BIN)/python -m docs.generate

docs: setup ## Build the documentation site into build/docs, with all links checked
	$(RUN) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "Open build/docs/index.html in a browser, or run make docs-serve, where the search works too."

docs-serve: setup ## Show the documentation site on http://127.0.0.1:8001, and follow changes
	$(RUN) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8001

lock: setup ## Renew requirements/: the newest versions that pyproject.toml allows, with hashes
	$(BIN)/python requirements/lock.py

dist: setup ## Build dist/: sdist and wheel
	rm -rf dist
	$(BIN)/python -m build --no-isolation

clean: ## Remove what was built, not what was trained
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help setup demo demo-tiny test test-slow test-long test-system test-s3 fault-simulation stress charts images-check load release-check test-gpu gpu-day bench lint format models real-models screenshots openapi reference docs docs-serve lock dist clean
