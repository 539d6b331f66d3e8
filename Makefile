# `make run`: set up and run the demonstration, or CORPUS=path: text to vectors.
# `make test`: set up, then lint, types and tests. Nothing else is needed first.
# `make docs`: the site, in build/site. The tests build it, too.
# `make gpu-test`: the tests that need a CUDA device, on a machine that has one.

VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
OUT ?= work
GPU_TESTS ?= $(addprefix tests/test_,backends_gpu.py backends_triton.py backends_triton_cells.py counting_gpu.py training_triton.py)

.PHONY: run test test-all gpu-test lint types docs setup clean write-failures damage

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

# Every write of every verb fails in turn; every file is damaged in every way. Long; each prints one JSON object last.
write-failures: setup
	$(BIN)/python benchmarks/write_failures.py

damage: setup
	$(BIN)/python benchmarks/damage.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
