# One target per habit; `make` lists them. Everything runs in .venv, which `make setup` creates when it is first needed.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=# more arguments for pip, for example another package index
ARGS ?=# more arguments for pytest, the training, the benchmarks or the audit
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)# processes that run the tests
LAYERS ?= 300# random layers that test-ptx executes
SEED ?= 0# of the first of them
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.DEFAULT_GOAL := help
.PHONY: help setup build test test-triton test-launch test-ptx test-gpu lint format train results bench bench-full bench-train bench-host bench-gpu audit wheels clean

help: ## list the targets
	@echo "make TARGET [PYTHON=python3] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## create .venv and install the package (editable), its tools and its pinned dependencies

$(INSTALLED): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	        echo "make: $(PYTHON) is missing or older than Python 3.10; name another: make PYTHON=python3.12" >&2; exit 1; }; \
	    echo "==> making $(VENV) with $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv $(VENV) || { \
	        echo "make: '$(PYTHON) -m venv' failed: install your system's venv package (python3-venv on Debian)" \
	             "or name another Python: make PYTHON=python3.12" >&2; exit 1; }; }
	@echo "==> installing wnfused, its tools and its dependencies into $(VENV) (versions: constraints.txt)"
	$(PIP_INSTALL) --quiet "setuptools>=77"
	$(PIP_INSTALL) --no-build-isolation --editable ".[train,deploy,dev]"
	@touch $@

build: setup ## compile the native CPU kernels ahead of first use
	@echo "==> building the native CPU kernels"
	@$(BIN)/wnfused build

lint: setup ## check format, lint and types
	@echo "==> checking format, lint and types"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## format the code and apply the safe fixes
	@echo "==> formatting"
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

test: setup lint ## lint, build the native kernels and run the tests
	@echo "==> building the native CPU kernels"
	@$(BIN)/wnfused build || echo "==> continuing without them, with the torch backend"
	@echo "==> running the tests"
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-triton: setup ## run the operators' own tests on the Triton kernels, in triton's interpreter (more than half an hour)
	@echo "==> running the operators' tests on the Triton kernels, in triton's interpreter"
	WNFUSED_BACKEND=triton TRITON_INTERPRET=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/ops --ignore tests/ops/backends $(ARGS)

test-launch: setup ## the same through the C++ launch path, with launches executed by the interpreter (an hour)
	@echo "==> running the operators' tests through the C++ launch path, in triton's interpreter"
	WNFUSED_TEST_DRIVER=interpreter WNFUSED_BACKEND=triton TRITON_INTERPRET=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/ops --ignore tests/ops/backends $(ARGS)

test-ptx: setup ## execute the compiled Triton kernels on a PTX emulator: LAYERS random layers from SEED on (half an hour or more)
	@echo "==> executing the compiled Triton kernels on the PTX emulator: $(LAYERS) random layers from seed $(SEED) on"
	WNFUSED_PTX_LAYERS=$(LAYERS) WNFUSED_PTX_SEED=$(SEED) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/kernels/triton -k ptx $(ARGS)

test-gpu: setup ## run the Triton kernels' tests on a GPU instead of in the interpreter, without tf32 and with it
	@echo "==> testing the Triton kernels on a GPU"
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "make: torch sees no GPU here")'
	TRITON_INTERPRET=0 WNFUSED_TEST_TF32=0 $(BIN)/python -m pytest tests/kernels/triton $(ARGS)
	TRITON_INTERPRET=0 WNFUSED_TEST_TF32=1 $(BIN)/python -m pytest tests/kernels/triton $(ARGS)

train: setup ## train a deep weight-normalized network from three initializations (ARGS="--preset smoke": another run)
	@echo "==> building the native CPU kernels"
	@$(BIN)/wnfused build || echo "==> continuing without them, with the torch backend"
	@echo "==> wnfused train"
	@$(BIN)/wnfused train $(ARGS)

results: setup ## run every experiment of the paper at smoke scale into results/ (ARGS="--scale small": hours)
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/experiments/test_pages.py
	@$(PIP_INSTALL) --quiet --no-build-isolation --editable ".[rl]"
	@for name in $$($(BIN)/wnfused experiment list | awk '{ print $$1 }'); do \
	    echo "==> wnfused experiment $$name"; $(BIN)/wnfused experiment $$name --out results --force $(ARGS) || exit; done

bench: setup ## measure layers and networks against plain torch.nn and torch's weight_norm: five minutes
	@echo "==> measuring (leave the machine idle meanwhile)"
	$(BIN)/python -m benchmarks.layers $(ARGS)
	$(BIN)/python -m benchmarks.networks $(ARGS)

bench-full: setup ## all shapes and networks, memory and scaling, into benchmarks/results and docs/performance.md (half an hour)
	@echo "==> measuring (leave the machine idle meanwhile)"
	$(BIN)/python -m benchmarks.layers --full --json benchmarks/results/layers.json
	$(BIN)/python -m benchmarks.networks --full --json benchmarks/results/networks.json
	$(BIN)/python -m benchmarks.memory --json benchmarks/results/memory.json
	$(BIN)/python -m benchmarks.scaling --json benchmarks/results/scaling.json --plot benchmarks/results/scaling.png
	$(BIN)/python -m benchmarks.limits measure
	$(BIN)/python -m benchmarks.limits page

bench-train: setup ## measure steps of the trainer: wnfused, torch's weight_norm, batch norm, no normalization
	@echo "==> measuring (leave the machine idle meanwhile)"
	$(BIN)/python -m benchmarks.training $(ARGS)

bench-host: setup ## measure the host time of a layer's call, with a driver that launches nothing (no GPU needed)
	@echo "==> measuring host time (leave the machine idle meanwhile)"
	@$(BIN)/wnfused build
	$(BIN)/python -m wnfused.benchmarks.host $(ARGS)

bench-gpu: setup ## measure the layers on a GPU
	@echo "==> measuring on a GPU (leave the machine idle meanwhile)"
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "make: torch sees no GPU here")'
	$(BIN)/python -m benchmarks.gpu $(ARGS)

audit: setup ## compile the Triton kernels for every target without a GPU and write docs/audit.md
	@echo "==> auditing the Triton kernels"
	@$(BIN)/wnfused audit --markdown docs/audit.md $(ARGS)

wheels: setup ## write two wheels to dist/: a pure one, and one with the native CPU kernels prebuilt for this torch
	@echo "==> building the wheels"
	@rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@$(BIN)/wnfused build --wheel dist/wnfused-*-py3-none-any.whl
	@rm -rf build

clean: ## remove caches and build products (not .venv)
	@echo "==> removing caches and build products"
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find wnfused kernels benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
