# Every target sets up .venv first, where it is missing or older than the lists of what goes into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VENV_PUBLIC ?= build/public-venv

.DEFAULT_GOAL := help
.PHONY: help demo test check test-all bench bench-detection bench-public transfer corruption packs docs dist clean

help:  ## Tell what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Two tests run at a time, each with training of its own: one thread for each is fastest.
test test-all: export OMP_NUM_THREADS := 1

demo: $(READY)  ## Learn from good examples, then catch four silent errors in others
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: $(READY)  ## The tests, without the slow ones and those of `make check`
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --ignore tests/house tests

check: $(READY)  ## Format, lint, types, and the tests of the repository itself
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/house

test-all: $(READY)  ## All tests, also those that take many minutes
	$(BIN)/pytest -n 2 --dist worksteal tests

bench: $(READY)  ## The benchmarks: cost of observing and of learning, how far learned rules carry, what is detected
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.transfer
	$(BIN)/python -m benchmarks.detection
	$(BIN)/python -m benchmarks.ranks
	$(BIN)/python -m benchmarks.replays
	$(BIN)/python -m benchmarks.detection --live
	$(BIN)/python -m benchmarks.inference
	$(BIN)/python -m benchmarks.scale

bench-detection: $(READY)  ## The silent-error benchmark; CASES=A or CASES=id,... for a part of it
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.detection --cases "$(CASES)"

bench-public: $(VENV_PUBLIC)/.ready  ## Public training programs, plain and checked; SRC=DIR of clones, ONLY=id,... for a part
	$(VENV_PUBLIC)/bin/python -m benchmarks.public --src "$(SRC)" --only "$(ONLY)"

transfer: $(READY)  ## Do the packs hold under another torch? OTHER=/path/to/python of an environment that has it
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.versions --other "$(OTHER)"

corruption: $(READY)  ## Which injected hardware faults are found, by what, and how soon (some ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.corruption

packs: $(READY)  ## Make the packs that come with TrainCheck anew from the examples (some ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.packs

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)  ## Write the reference pages anew from the source, and build the site in build/site
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html; with a search: $(BIN)/python -m http.server --directory build/site"

dist: $(READY)  ## Build the wheel and the source archive in dist/, and look at what they contain
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tests/distribution/archives.py dist

clean:  ## Remove what was built; recorded runs stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# PyTorch goes first and by itself, so that the pin in constraints.txt decides which build is fetched.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[examples,test,dev]"
	touch $@

# The public programs have an environment of their own: what they need is no dependency of TrainCheck.
$(VENV_PUBLIC)/.ready: pyproject.toml constraints.txt benchmarks/public/requirements.txt
	$(PYTHON) -m venv $(VENV_PUBLIC)
	$(VENV_PUBLIC)/bin/python -m pip install -q -c constraints.txt torch
	$(VENV_PUBLIC)/bin/python -m pip install -q -c constraints.txt -e .
	$(VENV_PUBLIC)/bin/python -m pip install -q -c constraints.txt -r benchmarks/public/requirements.txt
	touch $@
