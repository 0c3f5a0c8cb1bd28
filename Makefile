# The two commands of the README are `make demo` and `make test`; the others are for contributors.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test docs lab bench

# Install, then rebuild the main tables and figures on the shipped policy.
demo: $(BIN)/rl-oodkit
	$(BIN)/rl-oodkit reproduce --profile quick

# Install, then all that continuous integration runs.
test:
	PYTHON=$(PYTHON) bash .ci/run

# The documentation site, in _docs/.
docs: $(BIN)/sphinx-build
	$(BIN)/python docs/build.py

# The notebooks, in a browser.
lab: $(BIN)/sphinx-build
	$(BIN)/jupyter lab nbs

# Our vectorised statistics against their references.
bench: $(BIN)/rl-oodkit
	$(BIN)/rl-oodkit bench speed

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(BIN)/rl-oodkit: $(BIN)/python settings.ini setup.py
	@echo "Installing into .venv; this takes some minutes the first time."
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(BIN)/sphinx-build: $(BIN)/python settings.ini setup.py
	@echo "Installing into .venv, with the tools for development; this takes some minutes the first time."
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@
