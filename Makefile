# Each target creates .venv or adds to it what the target needs: the demo needs little, the tests need every extra.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo-ready
CHECK_READY := $(VENV)/.check-ready
READY := $(VENV)/.ready
VENV_PUBLIC ?= build/public-venv
VENV_STACKS ?= build/stacks-venv
# Python compiles the modules that are imported, once if it may keep the result; pip would compile every module of
# every package, a minute of work.
unexport PYTHONDONTWRITEBYTECODE
PIP_FLAGS := --no-compile --disable-pip-version-check
PINNED := $(PIP_FLAGS) -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check check-source check-house test-all test-python bench bench-detection bench-overhead bench-public bench-mutants stacks corpus transfer corruption packs docs dist clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Two tests run at a time, each with training of its own: one thread for each is fastest.
demo test test-all test-python: export OMP_NUM_THREADS := 1

demo: $(DEMO_READY)  ## Learn from good examples, then catch five silent errors in others
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

JOBS ?= 2

test: $(READY)  ## The tests, without those of `make check`; with the slow ones by SLOW=1, JOBS=3 at a time
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not $(if $(SLOW),(slow and long),slow)" --ignore tests/house --durations $(if $(SLOW),25,5) tests

# Types and tests in parallel, each with its output in one piece (where make can do that, from 4.0 on).
check: $(CHECK_READY)  ## Format, lint, types, and the tests of the repository itself
	@$(MAKE) --no-print-directory --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) check-house check-source

check-source: $(CHECK_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check-house: $(CHECK_READY)
	$(BIN)/pytest tests/house

# Three at a time on two cores: some tests spend seconds waiting for a heartbeat or the end of a process.
test-all: $(READY)  ## All tests, also those that take many minutes; each command by its command line
	$(BIN)/pytest --cold -n 2 --dist worksteal tests

# make test-python VERSION=3.12, or VERSION=3.12 TORCH=2.15.0 for another torch than the pinned one.
VERSION ?= 3.12
TORCH ?=
VENV_VERSION := build/python-$(VERSION)$(if $(TORCH),-torch-$(TORCH))
INTERPRETER = $(firstword $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/$(VERSION).*/bin/python) \
	python$(VERSION))

test-python: $(VENV_VERSION)/.ready  ## Unit, property and end-to-end tests on another Python: VERSION=3.12 [TORCH=2.15.0]
	$(VENV_VERSION)/bin/pytest -n 2 --dist worksteal -m "not long" tests/unit tests/property tests/e2e

bench: $(READY)  ## The benchmarks: cost of observing and learning, transfer of rules, detection
	$(BIN)/python -m benchmarks.overhead --keep
	$(BIN)/python -m benchmarks.transfer
	$(BIN)/python -m benchmarks.detection
	$(BIN)/python -m benchmarks.ranks
	$(BIN)/python -m benchmarks.verification
	$(BIN)/python -m benchmarks.detection --live
	$(BIN)/python -m benchmarks.inference
	$(BIN)/python -m benchmarks.scale

bench-detection: $(READY)  ## The silent-error benchmark; CASES=A or CASES=id,... for a part of it
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.detection --cases "$(CASES)"

bench-overhead: $(READY)  ## The cost of a step, plain, recorded and checked; fails if a ratio is worse than the published one
	$(BIN)/python -m benchmarks.overhead $(ARGS)

bench-public: $(VENV_PUBLIC)/.ready  ## Public training programs, plain and checked; SRC=DIR of clones, ONLY=id,... for a part
	$(VENV_PUBLIC)/bin/python -m benchmarks.public --src "$(SRC)" --only "$(ONLY)"

stacks: $(VENV_STACKS)/.ready  ## The packages that people train with, clean and with their silent errors; ONLY=trl,peft for a part
	$(VENV_STACKS)/bin/python -m benchmarks.stacks --only "$(ONLY)"

bench-mutants: $(READY)  ## The mutation score of the corpus (hours, goes on where it stopped); ARGS="--programs 20 ..." for a part
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mutants $(or $(ARGS),--keep)

corpus: $(READY)  ## Write, run and check the programs of the corpus: SEEDS=0:1000
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.corpus check --seeds $(or $(SEEDS),0:1000)

transfer: $(READY)  ## Do the packs hold under another torch? OTHER=/path/to/python of an environment that has it
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.versions --other "$(OTHER)"

corruption: $(READY)  ## Detection of injected hardware faults (some twenty minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.corruption

packs: $(READY)  ## Build the shipped packs again from the examples and the corpus (half an hour; goes on where it stopped)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.packs

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)  ## Write the reference pages from the source, and build the site in build/site
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html; with a search: $(BIN)/python -m http.server --directory build/site"

dist: $(READY)  ## Build the wheel and the source archive in dist/, and check their contents
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tests/distribution/archives.py dist

clean:  ## Remove what was built; recorded runs stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# PyTorch goes first and by itself, so that the pin in constraints.txt decides which build is fetched.
$(DEMO_READY): pyproject.toml constraints.txt
	@echo "Creating $(VENV): PyTorch (some 800 MB on disk), then what the demo needs. This takes a few minutes once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PINNED) torch
	$(BIN)/python -m pip install $(PINNED) -e ".[demo]"
	touch $@

$(CHECK_READY): $(DEMO_READY)
	@echo "Adding what \`make check\` needs to $(VENV)."
	$(BIN)/python -m pip install $(PINNED) -e ".[check]"
	touch $@

$(READY): $(CHECK_READY)
	@echo "Adding what the tests need to $(VENV): every extra of TrainCheck (some 2 GB on disk)."
	$(BIN)/python -m pip install $(PINNED) -e ".[examples,test,dev]"
	touch $@

# A torch that is named goes in without constraints.txt; the index decides whether it comes with CUDA libraries.
$(VENV_VERSION)/.ready: pyproject.toml constraints.txt
	$(INTERPRETER) -m venv $(VENV_VERSION)
	$(VENV_VERSION)/bin/python -m pip install $(PIP_FLAGS) \
		$(if $(TORCH),torch==$(TORCH),-c constraints.txt torch)
	$(VENV_VERSION)/bin/python -m pip install $(PIP_FLAGS) $(if $(TORCH),,-c constraints.txt) \
		$(if $(TORCH),torch==$(TORCH)) -e ".[examples,test,dev]"
	touch $@

# The public programs have an environment of their own: what they need is no dependency of TrainCheck.
$(VENV_PUBLIC)/.ready: pyproject.toml constraints.txt benchmarks/public/requirements.txt
	$(PYTHON) -m venv $(VENV_PUBLIC)
	$(VENV_PUBLIC)/bin/python -m pip install -q $(PINNED) torch
	$(VENV_PUBLIC)/bin/python -m pip install -q $(PINNED) -e .
	$(VENV_PUBLIC)/bin/python -m pip install -q $(PINNED) -r benchmarks/public/requirements.txt
	touch $@

# The packages that people train with have one as well. deepspeed compiles nothing at its installation.
$(VENV_STACKS)/.ready: pyproject.toml constraints.txt $(wildcard benchmarks/stacks/requirements*.txt)
	$(PYTHON) -m venv $(VENV_STACKS)
	$(VENV_STACKS)/bin/python -m pip install -q $(PINNED) torch
	$(VENV_STACKS)/bin/python -m pip install -q $(PINNED) -e .
	DS_BUILD_OPS=0 $(VENV_STACKS)/bin/python -m pip install -q $(PINNED) -r benchmarks/stacks/requirements.txt
	for name in timm torchtune; do \
		$(VENV_STACKS)/bin/python -m pip install -q --no-deps --upgrade --target $(VENV_STACKS)/$$name \
			-r benchmarks/stacks/requirements-$$name.txt || exit 1; \
	done
	touch $@
