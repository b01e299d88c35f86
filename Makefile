# make demo: the program + Table 3 in miniature.  make test: what tests it too + the everyday tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROGRAM := $(VENV)/.program
PYTEST := $(BIN)/python -m pytest
# what is installed for tests and checks. DEV=dev,tensorboard,wandb,slurm: also for test-extras and test-slurm; with ray:
# for test-ray. Tests whose library is missing say so and are skipped
DEV ?= dev
comma := ,
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(DEV))
ELSEWHERE := nightly or gpu or browser or latex or slurm or ray

.PHONY: setup compiled demo test test-system test-slow test-processes test-avx2 test-nightly test-extras test-slurm test-ray smoke smoke-pythons nightly chaos check check-types check-imports bench clean

setup: $(STAMP)

# pip honours constraints.txt, so a fresh clone gets the versions the tests ran with
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Set another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv --upgrade-deps $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable $(1)
endef

# all that tests and checks need
$(STAMP): pyproject.toml setup.py constraints.txt
	$(call install,'.[$(DEV)]')
	@touch $(PROGRAM) $(STAMP)

# the program alone
$(PROGRAM): pyproject.toml setup.py constraints.txt
	$(call install,.)
	@touch $(PROGRAM)

# modules as bytecode: where PYTHONDONTWRITEBYTECODE is set, each of the thousands of processes would compile them anew
compiled: setup
	$(BIN)/python -m compileall -q ablations experiments model reports tests

demo: $(PROGRAM)
	$(BIN)/ablations run table3 --profile demo --paper
	@echo
	@echo "The runs in MLflow:        ablations ui"
	@echo "The table as LaTeX:        ablations report table3 --format latex"
	@echo "The same on your corpus:   ablations run table3 --profile small --corpus DIR"

# everyday tests: no processes beside a few smoke runs. File by file: a file's stores are made once
test: setup
	$(PYTEST) -n 2 --dist loadfile

# the same code in processes as users start them: commands, children, git, other interpreters. In the order of the
# folders, so that the long files come first
test-system: compiled
	$(PYTEST) -m "process and not (slow or $(ELSEWHERE))" -n 2 --dist loadfile --no-loadscope-reorder

# trains for real, kills processes. Three at once on two cores: most of these tests wait for a child
test-slow: compiled
	$(PYTEST) -m "slow and not nightly" -n 3 --dist loadfile --no-loadscope-reorder

# the two tiers above in one session, for .ci/run: a file's stores are made once for both
test-processes: compiled
	$(PYTEST) -m "(process or slow) and not ($(ELSEWHERE))" -n 3 --dist loadfile --no-loadscope-reorder

# what depends on the processor, on one without bf16 and AMX
test-avx2: setup
	ABLATIONS_TEST_CPU=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -n 2 --dist loadfile

# repetitions: more seeds, kills, formats, kinds of tasks; long cases of clusters
test-nightly: compiled
	$(PYTEST) -m nightly -n 2 --dist loadfile

# what .ci/run leaves out. `make setup DEV=dev,tensorboard,wandb,slurm,ray` comes before it
nightly: test-nightly test-avx2 test-ray smoke-pythons chaos

# the system's Chromium and TeX Live (.ci/packages installs them); without them the tests say so and are skipped
test-extras: setup
	$(PYTEST) -m "(browser or latex) and not nightly" -rs -n 2 --dist loadfile

# a real Slurm (Debian's slurm-wlm and munge, as root) or a real Ray, two nodes each, on this machine
test-slurm test-ray: test-%: setup
	$(PYTEST) tests/conformance tests/system ablations/extras -m "$* and not nightly" -rs

# two steps and two sentences of a row, by the program alone: it imports and runs
smoke: $(PROGRAM)
	$(BIN)/ablations run table3 --smoke --rows base

# the same with every Python that pyproject.toml names, each in an environment of its own (several GB)
PYTHONS ?= python3.11 python3.12 python3.13
smoke-pythons:
	@for python in $(PYTHONS); do \
	  $$python --version || { echo "No $$python here. Set the interpreters: make smoke-pythons PYTHONS='python3.11 /path/to/python3.12 …'"; exit 2; }; \
	  $(MAKE) smoke PYTHON=$$python VENV=build/$$(basename $$python) || exit; \
	done

# kills at random moments: 400 stub runs 100 times, six rows of Table 3 trained for real 20 times; then every verb, which
# takes an hour
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
