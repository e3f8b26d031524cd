# Every target sets itself up first: a virtual environment in .venv, with the versions that constraints.txt names.

PYTHON ?= $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/base
READY := $(VENV)/ready

# compiled programs, kept between runs
export FOEDUS_CACHE ?= $(CURDIR)/$(VENV)/cache

.PHONY: help demo test test-all test-browser mutants docs picture package lint format bench clean

help:
	@echo "make demo      compare algorithms on data that comes with scikit-learn; ARGS='--help' shows the options"
	@echo "make test      check style and run the tests, without the slow ones"
	@echo "make test-all  run all tests, also those over real sites, for which NVIDIA FLARE is installed"
	@echo "make test-browser  open the report in a headless Chromium, which is installed if apt can"
	@echo "make mutants   change each line that a guarantee rests on, and see a test fail; ARGS='word' takes some of them"
	@echo "make docs      build the documentation into out/docs"
	@echo "make picture   make the picture of a report that README and the first page show; it needs Chromium"
	@echo "make package   build wheel and sdist, and try them in environments of their own"
	@echo "make lint      check style and types"
	@echo "make format    rewrite the sources in the project's style"
	@echo "make bench     measure the speed of this machine's rounds, gradients and start-up"
	@echo "make clean     remove .venv and everything that was generated"

demo: $(BASE)
	@$(BIN)/foedus demo $(ARGS)

test: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pytest -n 2 -m "not slow and not browser" $(ARGS)

test-all: $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[flare]'
	XLA_FLAGS= $(BIN)/pytest -n 2 $(ARGS)

test-browser: $(READY)
	@command -v chromium >/dev/null || apt-get install -y -qq chromium >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	$(BIN)/pytest -m browser tests/app/test_browser.py $(ARGS)

mutants: $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[flare]'
	XLA_FLAGS= $(BIN)/python tests/pages/mutants.py $(ARGS)

docs: $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir out/docs

CHROMIUM ?= $(firstword $(shell command -v chromium chromium-browser google-chrome))
SHOT := $(CHROMIUM) --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1000
picture: $(BASE)
	rm -rf out/picture && mkdir -p out/picture
	cd out/picture && $(abspath $(BIN))/foedus init --example
	cd out/picture && $(abspath $(BIN))/foedus run --quiet hospital.toml
	$(SHOT) --screenshot=docs/report.png out/picture/runs/hospital/report.html
	$(SHOT) --blink-settings=preferredColorScheme=0 --screenshot=docs/report-dark.png out/picture/runs/hospital/report.html

package: $(READY)
	$(BIN)/python tests/pages/package.py

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --pythonpath $(BIN)/python --level error

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)
	@$(BIN)/foedus bench $(ARGS)

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# a half-made .venv has no pip and is made anew
$(BASE): pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error foedus needs Python 3.11 or newer; none was found. Name one with make PYTHON=/path/to/python))
	@echo "setting up $(VENV); this takes a minute or two, once"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[plot]'
	@touch $@

$(READY): $(BASE) lab/pyproject.toml
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[test,lint]' -e lab
	@touch $@
