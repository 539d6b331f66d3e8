# `make run`: set up and run the demonstration, or CORPUS=path: text to vectors.
# `make test`: set up, then lint, types and tests. Nothing else is needed first.
# `make docs`: the site, in build/site. The tests build it, too.
# `make fuzz`: ten million hostile inputs to everything that reads, an hour or two on two cores; EXECUTIONS=, PROCESSES=.
# `make oracles`: the comparisons with independent implementations, on many random inputs, an hour or so; EXAMPLES=.
# `make figures`: the tables of the README and the docs, from the files in benchmarks/results.
# `make evidence`: measures anew, on two cores, what README and docs say of speed and quality; an hour and a half.
# `make evidence-gpu`: the same on a GPU, 25 minutes. `make opponents`: the other programs, once per release; hours.
# `make claims`: the results in benchmarks/results whose measured code has changed since; status 1 if there are any.
# `make long-run`: 100,000 checkpointed steps with memory, file handles and threads watched; ten minutes.
# `make test-variants`: the numerical tests as if on other machines: other numbers of threads, code for other CPUs.
# `make test-lowest`: the tests with the lowest versions that pyproject.toml allows, in 6 GB of disk; LOWEST_PYTHON=, TESTS=.
# `make mutants`: plants faults in copies of the code; status 1 if tests do not notice one; ten to twenty minutes.
# `make versions`: the numerical libraries, and which code they choose on this machine.
# `make gpu-test`: the tests that need a CUDA device, on a machine that has one.

VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
OUT ?= work
PYTHONS ?= python3.11 python3.12 python3.13

.PHONY: run test test-all oracles test-variants test-lowest mutants versions check kernels crashes containers limits write-failures damage fuzz claims evidence evidence-gpu opponents figures long-run gpu-test lint types docs setup lock licenses audit dist wheel-test clean

setup: $(VENV)/ready

# Everything with hashes, pip and what builds the package included; then torch, whose build is the machine's choice
# (constraints.txt says why); then the package itself, without asking anybody for anything.
$(VENV)/ready: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements.lock
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
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

# Three processes share two cores, because tests with a cluster, a browser or a server mostly wait; idle threads sleep
# instead of spinning. A process that crashes is not replaced: the tests end and name the test; xdist's scheduler by
# groups would wait for ever.
PYTEST = OMP_WAIT_POLICY=passive $(BIN)/pytest -n 3 --max-worker-restart 0

# What needs one core runs side by side.
check: setup
	$(MAKE) --jobs 2 types lint kernels

kernels: setup
	$(BIN)/python tools/compile_kernels.py

test: check
	$(PYTEST) -m "not slow"

test-all: check
	$(PYTEST)

# EXAMPLES=100000 is the number of random inputs of each test.
oracles: setup
	HYPOTHESIS_PROFILE=oracles EXAMPLES=$(EXAMPLES) $(PYTEST) -m oracle

test-variants: setup
	$(BIN)/python tools/variants.py $(VARIANTS)

# In an environment of its own in build/. LOWEST_PYTHON=python3.13 is for another Python, TESTS=tests/vectors for a part.
LOWEST_PYTHON ?= $(PYTHON)

test-lowest: setup
	$(BIN)/python tools/lowest.py $(LOWEST_PYTHON) -n 3 -m "not slow" $(TESTS)

# MUTANTS="--list" prints the faults, MUTANTS="ID ..." plants some of them.
mutants: setup
	$(BIN)/python tools/mutants.py $(MUTANTS)

versions: setup
	@$(BIN)/python tools/versions.py

# Coverage-guided, with atheris; its corpus stays in work/fuzz, so that the next run goes on. The last line is JSON.
fuzz: setup
	PYTHONPATH=src:. $(BIN)/python -m fuzz $(if $(EXECUTIONS),--executions $(EXECUTIONS)) $(if $(PROCESSES),--processes $(PROCESSES))

# What runs on a GPU; the last line is JSON. Installs nothing: takes the venv if there is one, else a Python that has
# torch for CUDA, Triton, numba, pytest and hypothesis of its own.
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

gpu-test:
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_tests.py $(GPU_TESTS)

# What is locked, anew from pyproject.toml: `make lock UPGRADE=--upgrade` takes the newest versions. Then the licenses.
lock: setup
	$(BIN)/python tools/lock.py $(UPGRADE)

licenses: setup
	$(BIN)/python tools/licenses.py

# Known vulnerabilities: status 1 where there are some, 2 where nobody could be asked.
audit: setup
	$(BIN)/python benchmarks/audit.py

dist: setup
	$(BIN)/python benchmarks/wheels.py --dist-only

# The wheel in new environments of these Pythons; on Linux each gets torch with what pip takes by itself.
wheel-test: setup
	$(BIN)/python benchmarks/wheels.py --pythons $(PYTHONS)

figures: setup
	$(BIN)/python tools/figures.py

claims: setup
	$(BIN)/python tools/claims.py

# Of tests of faults, `make crashes containers limits write-failures damage fuzz` do the same.
evidence: setup
	$(BIN)/python benchmarks/end_to_end.py --recipe fast --device cpu
	$(BIN)/python benchmarks/end_to_end.py --recipe default --device cpu
	$(BIN)/python benchmarks/end_to_end.py --recipe fast --device cpu --megabytes 40
	$(BIN)/python benchmarks/end_to_end.py --recipe default --device cpu --megabytes 40
	$(BIN)/python benchmarks/significance.py --methods default_cpu
	$(BIN)/python benchmarks/guessing.py --megabytes 16
	$(BIN)/python benchmarks/maps.py
	$(BIN)/python benchmarks/recommending.py
	$(BIN)/python benchmarks/splits.py
	$(BIN)/python tools/figures.py

evidence-gpu:
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/end_to_end.py --recipe fast --device cuda --seeds 1 2 3 4 5 --commands 3
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/end_to_end.py --recipe default --device cuda --seeds 1 2 3 4 5 --commands 3
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu.py
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/larger.py
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/millions.py
	$(MAKE) gpu-test

opponents: setup
	$(BIN)/python benchmarks/baselines.py
	$(BIN)/python benchmarks/baselines.py --megabytes 40

long-run: setup
	$(BIN)/python benchmarks/long_run.py

# Every write of every verb fails in turn; every file is damaged in every way. Long; each prints one JSON object last.
write-failures: setup
	$(BIN)/python benchmarks/write_failures.py

damage: setup
	$(BIN)/python benchmarks/damage.py

# Every verb killed before, halfway through and after each of its file operations (CRASH_POINTS="--every 20" for a short
# look); then commands killed 300 times at random moments (CRASHES="--count 30 --seed 2"). Each is started again.
crashes: setup
	$(BIN)/python benchmarks/crash_points.py $(CRASH_POINTS)
	$(BIN)/python benchmarks/crashes.py $(CRASHES)

# Every verb without a home folder, in an installation that nobody can write, with other umasks, on somebody's files.
containers: setup
	$(BIN)/python benchmarks/containers.py

# Every verb in control groups of less and less memory; then counting 286 and 900 MB of text within 100 MB. Needs root.
limits: setup
	$(BIN)/python benchmarks/limits.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
