# `make run`: set up and run the demonstration, or CORPUS=path: text to vectors.
# `make test`: set up, then lint, types and tests. Nothing else is needed first.
# `make docs`: the site, in build/site. The tests build it, too.
# `make gpu-test`: the tests that need a CUDA device, on a machine that has one.

VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
OUT ?= work
GPU_TESTS ?= $(addprefix tests/test_,backends_gpu.py backends_triton.py backends_triton_cells.py counting_gpu.py training_triton.py)

.PHONY: run test test-all gpu-test lint types docs setup clean crashes

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

run: setup
ifdef CORPUS
	$(BIN)/swivel run $(CORPUS) --output $(OUT)
else
	$(BIN)/swivel demo --output $(OUT)/demo
endif

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: lint types
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint types
	$(BIN)/pytest -n 2

# What runs on a GPU. Installs nothing: takes the venv if there is one, else a Python that has torch for CUDA, Triton,
# numba and pytest of its own.
gpu-test:
	PYTHONPATH=src $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m pytest -p no:cacheprovider $(GPU_TESTS)

# Commands killed 300 times at random moments, and started again; CRASHES="--count 30 --seed 2" for a short look.
crashes: setup
	$(BIN)/python benchmarks/crashes.py $(CRASHES)

clean:
	rm -rf $(VENV) build dist src/*.egg-info
