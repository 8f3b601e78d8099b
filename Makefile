PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && echo python3.11 || echo python3)
BIN := .venv/bin

.PHONY: demo test test-cluster quick durations machines fuzz bench coverage results lint docs wheel clean

demo: .venv/.stamp
	$(BIN)/compound demo

THREADS ?= 1
test: lint
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -n 2 --dist loadgroup --ignore tests/cluster

# what runs on Ray, on clusters of two nodes that the tests start here, two at a time: under three minutes on two cores
test-cluster: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile tests/cluster -rs

# the tests to run all day, under a minute on two cores: all that tests/slow.txt does not list
quick: .venv/.stamp
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -n 2 --dist loadgroup -m 'not slow' --durations 5 --ignore tests/cluster

# records in tests/slow.txt which tests are slow, by processor time; in one process, about seven minutes
durations: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/pytest --record-slow --ignore tests/cluster
	OMP_NUM_THREADS=1 $(BIN)/pytest --record-slow -m 'not slow' --ignore tests/cluster

# the tests with the arithmetic of other processors, and with two threads
machines:
	ATEN_CPU_CAPABILITY=default $(MAKE) test
	ATEN_CPU_CAPABILITY=avx2 $(MAKE) test
	NUMBA_CPU_NAME=generic $(MAKE) test
	OMP_WAIT_POLICY=passive $(MAKE) test THREADS=2  # more threads than cores: none may wait in a loop

# about 100,000 damaged models and checkpoints, in two processes
fuzz: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz_files.py --part 0/2 & first=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz_files.py --part 1/2; second=$$?; wait $$first && exit $$second

bench: .venv/.stamp
	$(BIN)/compound bench

# of 90% intervals and sets, 200 synthetic tables of each kind: about 15 minutes
coverage: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python tests/conformal.py

# everything under results/ from this commit: prints its plan first; about a night on two cores, and resumes. Some steps only: STEPS="toy pbp"
results: .venv/.stamp
	OMP_NUM_THREADS=1 $(BIN)/python tests/regenerate.py $(STEPS)

lint: .venv/.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the site, into build/docs; no network, warnings are errors. Pictures of the gallery are made on the way: about a minute
docs: .venv/.stamp
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

# source archive and wheel, into dist/
wheel: .venv/.stamp
	$(BIN)/python -m build --no-isolation --outdir dist .

clean:
	rm -rf build dist runs report docs/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -print | xargs -r rm -rf

# torch first and by its exact version: a looser wish brings several gigabytes of CUDA packages
# oracles without what they wish for: that would bring torchvision, whose presence breaks laplace-torch, and an older pandas
.venv/.stamp: pyproject.toml constraints.txt constraints-oracles.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -r constraints-oracles.txt
	touch $@
