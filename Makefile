# Two commands for a fresh machine with Python 3.10+: `make demo` and `make test`.
# Each makes .venv and installs what it needs when that is missing.
PYTHON ?= python3
BIN := .venv/bin
# uv installs in an eighth of pip's time; if it is absent, pip brings it into .venv. It reads no pip.conf, but
# UV_DEFAULT_INDEX and the like: `make UV= demo` installs with pip alone.
UV := $(if $(shell uv --version 2>/dev/null),uv,$(BIN)/uv)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
# A line every 5 s, for minutes can pass without one: in a log, and where pip unpacks. On a terminal uv draws bars. The
# loop ends with its shell, also by a signal; its sleep must not keep the output open after that.
signs = began=$$(date +%s); while sleep 5 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
	$(1) echo "… $$(($$(date +%s) - began)) s, $$(du -sh .venv | cut -f1) in .venv"; done & trap "kill $$!" EXIT;
BRING_UV := $(if $(filter $(BIN)/%,$(UV)),[ -x $(UV) ] || $(PIP) -c constraints.txt uv;)
INSTALLER := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(PIP))
INSTALL := @$(call signs,$(and $(UV),[ -t 2 ] ||)) $(BRING_UV) $(INSTALLER) -c constraints.txt
WITHOUT_GPU := $(if $(wildcard /dev/nvidia0 /dev/kfd),,no GPU here: UV_TORCH_BACKEND=cpu make … takes the smaller torch for CPUs)
# Where Python may not keep what it compiles, as in many images of CI, each of a thousand programs compiles torch again.
unexport PYTHONDONTWRITEBYTECODE
# pytest-xdist workers. Half of the time tests wait, for processes of their own and for clocks.
JOBS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))

.PHONY: demo test test-docker torture lint format docs dist bench bench-check clean

demo: .venv/demo.stamp  ## train digits on two hosts, through a spot interruption
	$(BIN)/smddp demo

TESTS ?= not slow and not docker
test: .venv/dev.stamp lint  ## what is soon checked; `make test TESTS=` checks everything that this machine can, as CI does
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m '$(TESTS)' $(PYTEST_ARGS)

test-docker: .venv/dev.stamp  ## whole jobs in containers: images, Local Mode, every distribution on two hosts
	$(BIN)/python -m tests.docker.images
	SMDDP_REQUIRE=docker,$(SMDDP_REQUIRE) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m docker $(PYTEST_ARGS)

# How often is a variable for each option of `python -m tests.torture --help`: make torture KILLS=1000 SEED=7
TORTURES := SEED KILLS KILLS_OF_TWO KILLS_OF_SHARDED KILLED_SAVES KILLED_SHARDED_SAVES DAMAGES CRASHES FAILED_SAVES \
	S3_FAULTS RANK_FAILURES MEETINGS S3_MEETINGS INTERRUPTIONS RESHARDING_CHAINS PLATFORM_KILLS PLATFORM_RESTARTS \
	JOBS_AT_ONCE STOP_RACES FUZZED_REQUESTS HANGS UNDISTURBED_STEPS FLIPPED_BITS COMPARED_STEPS GOODPUT_LIVES \
	WARM_STARTS MEASUREMENTS
torture: .venv/dev.stamp  ## the long forms of what docs/explanation/reliability.md promises; 40 minutes on a busy machine
	$(BIN)/python -m tests.torture $(foreach name,$(TORTURES),$(if $($(name)),--$(shell echo $(name) | tr A-Z_ a-z-) $($(name))))

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev.stamp  ## the site of docs/, in ./site; needs no network to be read
	$(BIN)/zensical build --strict --clean

DIST ?= dist
dist: | $(BIN)/python  ## the wheel of the last commit: the same bytes on each machine, shown by SHA-256
	source=$$(mktemp -d) && trap "rm -rf $$source" EXIT && git archive HEAD | tar -x -C $$source && \
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PIP_CONSTRAINT=$(CURDIR)/constraints.txt \
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-cache-dir --no-deps -w $(DIST) $$source
	cd $(DIST) && sha256sum smddp-*.whl

bench: .venv/bench.stamp  ## the benchmarks, each against its peers in one run
	for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

bench-check: .venv/bench.stamp  ## the ratios of benchmarks/RESULTS.md, each against a limit with room for noise
	$(BIN)/python benchmarks/checking/check.py

clean:
	rm -rf .venv .cache site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "smddp needs Python 3.10 or newer; found " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 …")'
	@$(signs) $(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing torch, torchvision, sagemaker and moto into .venv (once; about 6 GB on disk) … $(WITHOUT_GPU)"
	$(INSTALL) -e '.[local,vision,console]'
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the tests need into .venv (once; about 6 GB on disk) … $(WITHOUT_GPU)"
	$(INSTALL) -e '.[dev]'
	@touch $@ .venv/demo.stamp

.venv/bench.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[benchmarks]'
	@touch $@ .venv/dev.stamp .venv/demo.stamp
