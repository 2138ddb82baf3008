# Two commands do everything: `make demo` trains a network with a plan found for this machine, `make test` checks castile.
PYTHON ?= python3
SEED ?= 0
WORKERS ?= 2
BIN := .venv/bin

# Open MPI refuses to start as root without these two; one thread per rank, because ranks share the cores.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes, each of which would else compile castile's modules and pytest's asserts anew.
unexport PYTHONDONTWRITEBYTECODE

# What takes long to compute and starts no process: where these wait, nothing else does.
FORMS := $(wildcard tests/test_kernels.py tests/test_ops.py tests/test_ops_*.py)

.PHONY: demo test test-first test-plain test-mpi test-beside test-numbers test-compiling test-forms
.PHONY: laws kernels gpu lint accept clean

demo: .venv/.castile-mpi
	$(BIN)/castile launch -n 2 train convnet --seed $(SEED) --out build/plan.json --trace build/trace.json
	@echo "next: open build/trace.json at ui.perfetto.dev, or $(BIN)/castile plan gpt --machine dgx-h100:nodes=1"

# Tests that wait for a process, and ranks that start or wait for each other, leave cores idle: there lint goes on,
# Triton interprets, and then compiles, and kernels of CPUs are held to their definitions, when nobody else wants them.
# That is to last for longer than the ranks do.
test:
	$(MAKE) --keep-going --jobs 2 test-first test-beside

test-first: .venv/.castile-test
	$(MAKE) --keep-going --jobs 1 test-plain test-mpi

# Its words come at its end, all at once: they would begin in the middle of lines of what is told meanwhile.
test-beside: .venv/.castile-test
	@mkdir -p build
	nice -n 19 $(MAKE) --keep-going --jobs 1 lint test-numbers test-compiling test-forms >build/beside.log 2>&1; status=$$?; \
		cat build/beside.log; exit $$status

test-plain: .venv/.castile-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not mpi" $(addprefix --ignore=,$(FORMS))

# Last, as other tests have compiled many of their loops by then.
test-forms: .venv/.castile-test
	nice -n 19 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(FORMS)

# Triton interprets or compiles in one process, never both.
test-numbers: .venv/.castile-test
	TRITON_INTERPRET=1 nice -n 19 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/triton_numerics.py

test-compiling: .venv/.castile-test
	nice -n 19 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" \
		tests/triton_compiling.py tests/triton_counting.py

# Tests that start ranks measure nothing and fail by timeout only, yet they want the cores before anybody else. Files
# without any are not read.
test-mpi: .venv/.castile-test
	$(BIN)/python -m pytest -m mpi $(shell grep -lr --include='test_*.py' 'mark\.mpi' tests)

# Laws that take long, of which `make test` tries a part, on all of the examples and cases that they are proved on.
TRIED = $(shell grep -lE '^from (tests.effort|hypothesis) import' tests/test_*.py)
laws: .venv/.castile-test
	LAWS=whole $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not mpi" $(TRIED)
	LAWS=whole $(BIN)/python -m pytest -m mpi $(shell grep -l 'mark\.mpi' $(TRIED))

# Every way to ask for a kernel and every setting, with the oldest and the newest Triton that castile works with: an hour
# of two cores. What was compiled is kept in build/triton-*/compiled.jsonl: a run that is cut off goes on there.
kernels: kernels-3.6.0 kernels-3.9.0
	@cat build/triton-*/table.txt

kernels-%: build/triton-%/.installed
	nice -n 19 $(<D)/bin/python -m tests.triton_every $(<D)/compiled.jsonl $(<D)/table.txt --workers $(WORKERS)
	TRITON_INTERPRET=1 $(<D)/bin/python -m pytest -n $(WORKERS) tests/triton_numerics.py
	$(<D)/bin/python -m pytest -n $(WORKERS) tests/triton_compiling.py tests/triton_counting.py tests/test_triton.py

.PRECIOUS: build/triton-%/.installed
build/triton-%/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable '.[test]'
	$(@D)/bin/python -m pip install --quiet triton==$*
	@touch $@

# On a machine with a GPU: what does not compute as it should is not timed. PyTorch is timed beside it where .venv has it.
# It ends in ten minutes, tells what it had no time for, and goes on there when it is called again.
gpu: .venv/.castile-gpu
	$(BIN)/python -m benchmarks.gpu

lint: .venv/.castile-test
	$(BIN)/ruff check .
	$(BIN)/mypy -p castile

# As `make accept ARGS=--with-tests`, or ARGS="--only helps simulator".
accept: .venv/.castile-bench
	$(BIN)/python benchmarks/accept.py $(ARGS)

.venv/.castile-mpi: pyproject.toml setup.py
	$(call install,mpi)

.venv/.castile-test: pyproject.toml setup.py
	$(call install,mpi,test)
	@touch .venv/.castile-mpi

.venv/.castile-gpu: pyproject.toml setup.py
	$(call install,mpi,test,gpu)
	@touch .venv/.castile-mpi .venv/.castile-test

.venv/.castile-bench: pyproject.toml setup.py
	$(call install,mpi,test,bench)
	@touch .venv/.castile-mpi .venv/.castile-test

define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "castile needs Python 3.11 or newer: make PYTHON=python3.11")'
@test -x $(BIN)/python || $(PYTHON) -m venv .venv
@echo "installing castile into .venv"
@$(BIN)/python -m pip install --quiet --editable '.[$(1)$(if $(2),$(comma)$(2))$(if $(3),$(comma)$(3))]'
@$(BIN)/castile doctor --write-mpi-settings
@touch $@
endef
comma := ,

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
