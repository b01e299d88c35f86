# `make demo` installs the program and trains a small Table 3. `make test` also installs the tools for tests, and runs
# the everyday tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROGRAM := $(VENV)/.program
PYTEST := $(BIN)/python -m pytest
# Optional dependencies to install for tests and checks. With DEV=dev,tensorboard,wandb,slurm all tests but those of
# test-ray can run; test-ray also needs ray. A test is skipped, with a message, if its library is missing.
DEV ?= dev
comma := ,
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(DEV))
ELSEWHERE := nightly or gpu or browser or latex or slurm or ray

.PHONY: setup compiled demo test test-system test-slow test-processes test-avx2 test-nightly test-extras test-slurm test-ray smoke smoke-pythons nightly chaos check check-types check-imports bench clean

setup: $(STAMP)

# constraints.txt pins the versions with which the tests ran.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Set another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv --upgrade-deps $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable $(1)
endef

# Installs everything that tests and checks need.
$(STAMP): pyproject.toml setup.py constraints.txt
	$(call install,'.[$(DEV)]')
	@touch $(PROGRAM) $(STAMP)

# Installs only the program.
$(PROGRAM): pyproject.toml setup.py constraints.txt
	$(call install,.)
	@touch $(PROGRAM)

# Compiles all modules to bytecode. Otherwise, if PYTHONDONTWRITEBYTECODE is set, each of the thousands of processes
# would compile them again.
compiled: setup
	$(BIN)/python -m compileall -q ablations experiments model reports tests

demo: $(PROGRAM)
	$(BIN)/ablations run table3 --profile demo --paper
	@echo
	@echo "The runs in MLflow:        ablations ui"
	@echo "The table as LaTeX:        ablations report table3 --format latex"
	@echo "The same on your corpus:   ablations run table3 --profile small --corpus DIR"

# Everyday tests, which start no processes except for a few smoke runs. loadfile gives all tests of a file to one
# worker, so that the stores of module fixtures are built once.
test: setup
	$(PYTEST) -n 2 --dist loadfile

# Tests that start processes as users do: commands, children, git, other interpreters. The order of the folders is kept,
# so that the long files come first.
test-system: compiled
	$(PYTEST) -m "process and not (slow or $(ELSEWHERE))" -n 2 --dist loadfile --no-loadscope-reorder

# Tests that train real models and kill processes. Three workers run on two cores, because most of these tests wait for
# a child process.
test-slow: compiled
	$(PYTEST) -m "slow and not nightly" -n 3 --dist loadfile --no-loadscope-reorder

# The tests of the two targets above in one session, for .ci/run. The stores of module fixtures are built once for both.
test-processes: compiled
	$(PYTEST) -m "(process or slow) and not ($(ELSEWHERE))" -n 3 --dist loadfile --no-loadscope-reorder

# The everyday tests as on a CPU without bf16 and AMX.
test-avx2: setup
	ABLATIONS_TEST_CPU=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -n 2 --dist loadfile

# Repetitions of other tests with more seeds, kills, formats and kinds of tasks, and long tests of clusters.
test-nightly: compiled
	$(PYTEST) -m nightly -n 2 --dist loadfile

# The tests that .ci/run leaves out. Run `make setup DEV=dev,tensorboard,wandb,slurm,ray` first.
nightly: test-nightly test-avx2 test-ray smoke-pythons chaos

# Tests with Chromium and TeX Live, which .ci/packages installs. Without these programs the tests are skipped, with a
# message.
test-extras: setup
	$(PYTEST) -m "(browser or latex) and not nightly" -rs -n 2 --dist loadfile

# Tests with a real Slurm (Debian's slurm-wlm and munge, as root) or a real Ray, with two nodes each on this machine.
test-slurm test-ray: test-%: setup
	$(PYTEST) tests/conformance tests/system ablations/extras -m "$* and not nightly" -rs

# Checks that the program can be imported and runs without the tools for tests: two steps and two sentences of a row.
smoke: $(PROGRAM)
	$(BIN)/ablations run table3 --smoke --rows base

# Runs `make smoke` with every Python version of pyproject.toml, each in a separate environment (several GB).
PYTHONS ?= python3.11 python3.12 python3.13
smoke-pythons:
	@for python in $(PYTHONS); do \
	  $$python --version || { echo "No $$python here. Set the interpreters: make smoke-pythons PYTHONS='python3.11 /path/to/python3.12 …'"; exit 2; }; \
	  $(MAKE) smoke PYTHON=$$python VENV=build/$$(basename $$python) || exit; \
	done

# Kills processes at random moments: 100 times in a table of 400 stub runs, 20 times in a table of six trained rows of
# Table 3, then in every command, which takes an hour.
chaos: setup
	$(BIN)/python -m tests.chaos stub --runs 400 --slots 8 --kills 100
	$(BIN)/python -m tests.chaos table --kills 20
	$(BIN)/python -m tests.chaos verbs --kills 20

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.house
	$(MAKE) -j 2 check-types check-imports

check-types: setup
	$(BIN)/mypy

check-imports: setup
	$(BIN)/lint-imports

bench: setup
	@ls benchmarks/*.py

clean:
	rm -rf $(VENV) runs
