# `make run`: set up and run the demonstration, or CORPUS=path: text to vectors.
# `make test`: set up, then lint, types and tests. Nothing else is needed first.

VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
OUT ?= work

.PHONY: run test test-all lint types setup clean

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
	$(BIN)/swivel demo
endif

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint types
	$(BIN)/pytest -n 2

clean:
	rm -rf $(VENV) build dist src/*.egg-info
