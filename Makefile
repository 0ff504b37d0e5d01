# Two commands do everything on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
CASES ?= 100000

.PHONY: demo test lint types docs bench fuzz clean

demo: $(VENV)/core.installed
	$(BIN)/labelwise demo --force

test: $(VENV)/full.installed lint types
	$(BIN)/python -m pytest -n 2 -m "not fuzz and not scale"

lint: $(VENV)/full.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests configs benchmarks

types: $(VENV)/full.installed
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

# Broken files by the ten thousand, thrown at every reader and every file of a model folder.
fuzz: $(VENV)/full.installed
	LABELWISE_FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -m fuzz -n 2 --timeout 7200

# Speed and memory. PEERS names a Python that has the packages to compare with, if there is one.
bench: $(VENV)/full.installed
	$(BIN)/python benchmarks/read_sparse.py $(if $(PEERS),--peers $(PEERS))
	$(BIN)/python benchmarks/metrics_scale.py
	$(if $(PEERS),$(BIN)/python benchmarks/metrics_peers.py --peers $(PEERS))

docs: $(VENV)/docs.installed
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build

clean:
	rm -rf $(VENV) demo docs/_build build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --upgrade "pip>=25.1"

$(VENV)/core.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[report]"
	touch $@

$(VENV)/full.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[report]" --group dev
	touch $(VENV)/core.installed $@

$(VENV)/docs.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[report]" --group docs
	touch $@
