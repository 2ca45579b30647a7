# Needs Python 3.11 or newer and make, nothing else. Another Python: make test PYTHON=python3.12
PYTHON ?= python3
# Test processes, for two cores: many tests wait for a page or for another process. Further options of pytest:
# make test PYTEST="-p randomly --durations=50"
JOBS ?= 3
PYTEST ?=
# How many trials `make attack` makes of each attack, the seed of their random choices, and which (-k of pytest).
TRIALS ?= 200
SEED ?= 0
ONLY ?=
# Address of the repository and tag of the version, for `make release`; recipes get them by the environment, not as text
# of the shell. It goes on where it stopped on the same commit; AGAIN=1 starts anew. SKIP="audit speed" leaves checks out.
REPOSITORY ?=
TAG ?=
SKIP ?=
AGAIN ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Marks that the environment holds what the program needs, and what its development needs as well.
RUNTIME := .venv/.runtime
DEVELOPMENT := .venv/.development

# Packages are installed without bytecode, which each module gets when it is first imported: most never are. Where
# Python is told not to write it, every process would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test thorough attack audit sbom docs release lowest picture browser format clean

help:
	@echo "make demo     discover classes among handwritten digits"
	@echo "make test     check style, types, imports, and run the quick tests"
	@echo "make thorough run the other tests, which repeat at length what the quick ones show"
	@echo "make attack   try to break it for hours (TRIALS=200 SEED=0 ONLY=kills)"
	@echo "make audit    compare the pinned versions with published advisories"
	@echo "make sbom     write the bill of materials of the installed program to sbom.json"
	@echo "make docs     build the documentation into site/"
	@echo "make release  make every check, build the distributions into dist/, and stop before the upload"
	@echo "make lowest   run tests with the lowest versions that pyproject.toml allows"
	@echo "make picture  take the pictures of README and docs again, from the digits and from drawings"
	@echo "make format   format the code and apply safe fixes"
	@echo "make clean    remove caches, built packages and documentation (.venv stays)"

demo: $(RUNTIME)
	$(BIN)/sortal demo

# mypy uses one core, so the tests start beside it; what it says comes last.
test: $(DEVELOPMENT) browser
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	@mkdir -p build; \
	$(BIN)/mypy >build/types.txt 2>&1 & types=$$!; \
	trap 'kill $$types 2>/dev/null' INT TERM; \
	(set -x; $(BIN)/pytest -m "not thorough" -n $(JOBS) --dist worksteal $(PYTEST)); tests=$$?; \
	wait $$types; typed=$$?; \
	cat build/types.txt; \
	exit $$((tests ? tests : typed))

thorough: $(DEVELOPMENT) browser
	$(BIN)/pytest -m thorough -n $(JOBS) --dist worksteal $(PYTEST)

# A trial that failed is repeated by its id: .venv/bin/pytest "tests/attacks/test_kills.py::test_review[seed0-trial17]"
attack: $(DEVELOPMENT) browser
	$(BIN)/pytest -m attack --attack-trials $(TRIALS) --attack-seed $(SEED) -n $(JOBS) --dist worksteal \
	  $(if $(ONLY),-k "$(ONLY)") $(PYTEST)

# Asks the package index for each version, so it is no part of `make test`.
audit: $(DEVELOPMENT)
	$(PIP) install --quiet pip-audit -c constraints.txt
	$(BIN)/python supply/audit.py constraints.txt

sbom: $(RUNTIME)
	$(BIN)/python supply/sbom.py >sbom.json
	@echo "Written: sbom.json"

# Any warning fails the build (mkdocs.yml).
docs: $(DEVELOPMENT)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Built: site/index.html"

# Everything that is checked before a version is published (REPOSITORY=ADDRESS TAG=v1.2.3), the tests included.
release: $(DEVELOPMENT)
	$(PIP) install --quiet uv
	$(BIN)/python supply/release.py --repository "$$REPOSITORY" --tag "$$TAG" \
	  $${SKIP:+--skip $$SKIP} $${AGAIN:+--again}

lowest: $(DEVELOPMENT)
	$(PIP) install --quiet uv
	$(BIN)/python supply/release.py --only lowest

picture: $(DEVELOPMENT) browser
	$(BIN)/sortal demo
	$(BIN)/python docs/picture.py digits-run/report.html docs/report.png
	mkdir -p build/home/pictures && $(BIN)/sortal sample digits build/home/pictures/digits
	$(BIN)/python docs/app_pictures.py build/home docs
	$(BIN)/python docs/review_film.py digits-run docs
	rm -rf build/gallery && $(BIN)/python docs/gallery.py build/gallery docs

browser:
	@sh tests/install_chromium.sh

format: $(DEVELOPMENT)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Install the package with the pinned versions. Without an NVIDIA GPU, take the CPU builds of torch that
# constraints-cpu.txt names for this platform, if pip can find them, or else those nearest to them.
define install
@pins="-c constraints.txt"; \
if ! command -v nvidia-smi >/dev/null 2>&1; then \
  if $(PIP) install --quiet --dry-run --no-deps -r constraints-cpu.txt >/dev/null 2>&1; then \
    pins="$$pins -c constraints-cpu.txt"; \
  elif $(BIN)/python supply/cpu_build.py >.venv/pins.txt; then \
    pins="-c .venv/pins.txt"; \
  else \
    echo "So although there is no NVIDIA GPU here, the CUDA builds of torch and torchvision are installed," >&2; \
    echo "several gigabytes. To avoid that, add PyTorch's index of CPU builds, which has both:" >&2; \
    echo "PIP_EXTRA_INDEX_URL=<its address> make $(MAKECMDGOALS)" >&2; \
  fi; \
fi; \
set -x; $(PIP) install --no-compile -e "$(1)" $$pins
endef

# Each is installed again when a requirement changes, and only then.
$(RUNTIME): pyproject.toml constraints.txt constraints-cpu.txt | $(BIN)/python
	$(call install,.)
	@touch $@

$(DEVELOPMENT): pyproject.toml constraints.txt constraints-cpu.txt | $(BIN)/python
	$(call install,.[dev])
	@touch $@ $(RUNTIME)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Sortal needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there). Name another: make PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }
