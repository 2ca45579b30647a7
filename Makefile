# Needs Python 3.11 or newer and make, nothing else. Another Python: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test docs browser format clean

help:
	@echo "make demo     discover classes among handwritten digits"
	@echo "make test     check style, types, imports, and run the tests"
	@echo "make docs     build the documentation into site/"
	@echo "make format   format the code and apply safe fixes"
	@echo "make clean    remove caches, built packages and documentation (.venv stays)"

demo: $(INSTALLED)
	$(BIN)/sortal demo

test: $(INSTALLED) browser
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

# Any warning fails it (mkdocs.yml).
docs: $(INSTALLED)
	$(BIN)/mkdocs build --quiet
	@echo "Built: site/index.html"

# The report is tested in Chromium. Where there is none and none can be installed, those tests skip and say so.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null 2>&1 && exit 0; done; \
	if command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ]; then \
	  echo "installing chromium"; \
	  { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null 2>&1 && exit 0; \
	fi; \
	echo "There is no Chromium: tests of the report in a browser will be skipped."

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Installed again when a requirement changes, and only then.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[dev]" -c constraints.txt
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Sortal needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there). Name another: make PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }
