# Two commands are all a fresh machine with Python 3.11 and make needs: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Bytecode is written when a module is first imported, not of every module at its installation; also where the environment
# says otherwise, because the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
PIP := $(INSTALL) --constraint constraints.txt
CASES ?= 100000
SUITE := -m "not fuzz and not scale and not slow"

.PHONY: demo install test test-slow test-matrix bytecode lint types docs bench fuzz clean

demo: $(VENV)/core.installed
	$(BIN)/labelwise demo --force

# What training on tables and `labelwise serve` need, without torch.
install: $(VENV)/serve.installed

test: $(VENV)/full.installed
	$(MAKE) --no-print-directory --jobs 2 bytecode types lint
	$(BIN)/python -m pytest -n 3 $(SUITE) --durations 25

# Minutes, or a cluster on this machine: real torchrun, ranks and nodes of a Ray cluster that are killed in the middle of training.
test-slow: $(VENV)/slow.installed
	PATH=$$PATH:$(abspath $(VENV))/schemathesis/bin $(BIN)/python -m pytest -m slow --timeout 1800 --durations 10

# All that tests import, once: each worker would compile the same bytecode, of torch and others too.
bytecode: $(VENV)/full.installed
	$(BIN)/python -m pytest --collect-only -qq $(SUITE) > $(VENV)/collected.txt || { cat $(VENV)/collected.txt; exit 1; }

lint: $(VENV)/full.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests configs benchmarks examples tools

types: $(VENV)/full.installed
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

# Wheel and sdist in empty environments, with the oldest and the newest supported Python and packages. PYTHONS: interpreters
# to try; not given, those on PATH and of pyenv are found.
test-matrix:
	$(PYTHON) tools/test_matrix.py $(if $(PYTHONS),--pythons $(PYTHONS))

# Tens of thousands of malformed files for every reader and every file of a model folder.
fuzz: $(VENV)/full.installed
	LABELWISE_FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -m fuzz -n 2 --timeout 7200

# Speed and memory. PEERS: one or more Pythons that have the packages to compare with, the first with omikuji, napkinxc and
# scikit-learn. DATA: a folder with eurlex57k/ and yso-en/. ENCODER: a folder of pretrained weights. VECTORS: a text file
# of word vectors. MEMBERS: models of eurlex57k for an ensemble. SERVED: a model of eurlex57k for the load on the service;
# ANNIF: a folder of Annif to compare it with.
# Benchmarks whose inputs are missing are skipped. See docs/benchmarks.md.
bench: $(VENV)/full.installed
	$(BIN)/python benchmarks/read_sparse.py $(if $(PEERS),--peers $(firstword $(PEERS)))
	$(BIN)/python benchmarks/metrics_scale.py
	$(BIN)/python benchmarks/cold_start.py
	$(BIN)/python benchmarks/attention_xml_scale.py
	$(BIN)/python benchmarks/mach_decoding.py
	$(BIN)/python benchmarks/mach_scale.py
	$(BIN)/python benchmarks/mach_shards.py
	$(BIN)/python benchmarks/hybrid_scale.py
	$(BIN)/python benchmarks/linear_scale.py --peers $(PEERS)
	$(if $(DATA),$(BIN)/python benchmarks/mach.py --data $(DATA)/eurlex57k --repartition)
	$(if $(DATA),$(BIN)/python benchmarks/mach.py --data $(DATA)/yso-en --buckets 500 2000)
	$(if $(PEERS),$(BIN)/python benchmarks/metrics_peers.py --peers $(firstword $(PEERS)))
	$(if $(and $(DATA),$(VECTORS)),$(BIN)/python benchmarks/attention_xml.py --data $(DATA)/eurlex57k --vectors $(VECTORS) \
		--peers $(PEERS))
	$(if $(DATA),$(BIN)/python benchmarks/tfidf.py --data $(DATA)/eurlex57k)
	$(if $(DATA),$(BIN)/python benchmarks/linear_tree.py --data $(DATA)/eurlex57k --peers $(PEERS))
	$(if $(and $(DATA),$(PEERS)),$(BIN)/python benchmarks/imported_models.py --data $(DATA)/eurlex57k --peers $(PEERS))
	$(if $(DATA),$(BIN)/python benchmarks/dense_block.py --data $(DATA)/eurlex57k)
	$(if $(DATA),$(BIN)/python benchmarks/linear_tree_end_to_end.py --data $(DATA)/yso-en --peers $(PEERS))
	$(if $(DATA),$(BIN)/python benchmarks/linear_tree_growth.py --data $(DATA)/yso-en)
	$(if $(DATA),$(BIN)/python benchmarks/linear_tree_defaults.py --data $(DATA)/eurlex57k $(DATA)/yso-en)
	$(if $(DATA),$(BIN)/python benchmarks/label_texts.py --data $(DATA)/eurlex57k --limit 15000)
	$(if $(DATA),$(BIN)/python benchmarks/label_texts.py --data $(DATA)/yso-en --limit 30000)
	$(if $(DATA),$(BIN)/python benchmarks/trees.py --data $(DATA)/eurlex57k $(DATA)/yso-en --peers $(PEERS))
	$(if $(DATA),$(BIN)/python benchmarks/learn.py --data $(DATA)/eurlex57k)
	$(if $(DATA),$(BIN)/python benchmarks/learn.py --data $(DATA)/yso-en --trees 1)
	$(if $(and $(DATA),$(MEMBERS)),$(BIN)/python benchmarks/ensemble.py --data $(DATA)/eurlex57k --members $(MEMBERS))
	$(if $(and $(DATA),$(SERVED)),$(BIN)/python benchmarks/serve_load.py $(SERVED) $(DATA)/eurlex57k/test_texts.txt.xz \
		$(if $(ANNIF),--annif $(ANNIF)))
	$(BIN)/python benchmarks/training_overhead.py
	$(if $(and $(DATA),$(ENCODER)),$(BIN)/python benchmarks/time_budget.py --encoder $(ENCODER) --data $(DATA)/eurlex57k)
	$(if $(and $(DATA),$(ENCODER)),$(BIN)/python benchmarks/encoding.py --encoder $(ENCODER) --data $(DATA)/eurlex57k $(DATA)/yso-en)
	$(if $(and $(DATA),$(ENCODER)),$(BIN)/python benchmarks/encoding.py --encoder $(ENCODER) --data $(DATA)/eurlex57k --ranker)
	$(if $(and $(DATA),$(ENCODER)),$(BIN)/python benchmarks/methods.py --encoder $(ENCODER) --data $(DATA)/eurlex57k \
		--runs build/methods --rows linear_tree linear_tree_pairs linear_tree_logistic hybrid_linear hybrid_linear_pairs \
		xr_transformer ensemble)
	$(BIN)/python benchmarks/flat_head_memory.py
	$(if $(and $(DATA),$(ENCODER)),$(BIN)/python benchmarks/text_encoder.py --encoder $(ENCODER) --long $(DATA)/eurlex57k --short $(DATA)/yso-en)
	$(if $(and $(DATA),$(ENCODER)),$(BIN)/python benchmarks/xr_transformer.py --encoder $(ENCODER) --data $(DATA)/eurlex57k --peers $(PEERS))

docs: $(VENV)/docs.installed
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build

clean:
	rm -rf $(VENV) demo docs/_build build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade "pip>=25.1"

$(VENV)/core.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[report]"
	touch $@

$(VENV)/serve.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[report,serve]"
	touch $(VENV)/core.installed $@

# torch by its exact version: with the range of `nn` alone, pip may download gigabytes of GPU libraries
$(VENV)/full.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch==2.13.0 --editable ".[report,nn,sweep,xlsx,serve]" --group dev
	touch $(VENV)/core.installed $(VENV)/serve.installed $@

$(VENV)/slow.installed: $(VENV)/full.installed
	$(PIP) torch==2.13.0 --editable ".[report,nn,sweep,xlsx,serve,ray]" --group dev
	$(PYTHON) -m venv $(VENV)/schemathesis # its own: it needs other versions
	$(VENV)/schemathesis/bin/python -m pip --disable-pip-version-check install --quiet schemathesis==4.32.5
	touch $@

$(VENV)/docs.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[report]" --group docs
	touch $@
