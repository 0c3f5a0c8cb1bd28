# The two commands of the README are `make demo` and `make test`; the others are for contributors.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test docs lab bench

demo: $(BIN)/rl-oodkit  ## install, then rebuild the main tables and figures on the shipped checkpoint
	$(BIN)/rl-oodkit reproduce --profile quick

test:  ## install, then everything that continuous integration does
	PYTHON=$(PYTHON) bash .ci/run

docs: $(BIN)/sphinx-build  ## the documentation site, in _docs/
	$(BIN)/python docs/build.py

lab: $(BIN)/sphinx-build  ## the notebooks
	$(BIN)/jupyter lab nbs

bench: $(BIN)/rl-oodkit  ## our vectorised statistics against their references
	$(BIN)/rl-oodkit bench speed

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(BIN)/rl-oodkit: $(BIN)/python settings.ini setup.py
	$(BIN)/python -m pip install -q -e .
	touch $@

$(BIN)/sphinx-build: $(BIN)/python settings.ini setup.py
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@
