# make demo | make test work on a fresh clone: the first use creates .venv and installs pinned packages.
PYTHON ?= python3
DEVICE ?= cpu
# Much of the time of the tests is waiting for processes to start, so two run at once.
PYTEST ?= -n 2 --dist loadgroup
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready-$(DEVICE)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# A CPU test or demo also runs on a host prepared with DEVICE=cuda.
READY := $(firstword $(wildcard $(VENV)/.ready-*) $(STAMP))

.PHONY: demo bench test test-fast lint types docs setup clean help
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## / - /'

demo: $(READY) ## TorchRec's fp32 exchange against the thin exchange on the demo preset, on two local Ray workers
	$(BIN)/thinwire compare --preset demo

bench: $(READY) ## what the exchange costs: the table of the README; as root, half an hour
	$(BIN)/thinwire bench exchange --grid 2048x16,2048x32 --json exchange.json

test: $(READY) ## all tests
	$(BIN)/python -m pytest $(PYTEST)

test-fast: $(READY) ## the tests without the slow ones
	$(BIN)/python -m pytest $(PYTEST) -m "not slow"

lint: $(READY) ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy
	$(BIN)/mypy

docs: $(READY) ## write the reference of the configuration
	$(BIN)/python -c "from app import config, config_text; print(config_text.reference_page(config.RunConfig()), end='')" \
	  > docs/configuration.md

setup: $(STAMP) ## prepare .venv; DEVICE=cuda on a GPU host

$(STAMP): pyproject.toml requirements/constraints.txt requirements/$(DEVICE)-nodeps.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "thinwire needs Python 3.11 to 3.13, $(PYTHON) is $$($(PYTHON) -V); set PYTHON=python3.11"; exit 1; }
	@case "$(DEVICE)" in cpu|cuda) ;; *) echo "DEVICE is cpu or cuda, not '$(DEVICE)'"; exit 1;; esac
	@echo "setting up $(VENV) for $(DEVICE): some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade "pip>=25" "setuptools>=77" wheel
	$(PIP) install --quiet -c requirements/constraints.txt -e ".[dev,bench]"
	@# The two builds of fbgemm share a folder: the other one must go first.
	@$(PIP) uninstall --quiet --yes fbgemm-gpu fbgemm-gpu-cpu 2>/dev/null || true
	$(PIP) install --quiet --no-deps -r requirements/$(DEVICE)-nodeps.txt
	@if [ "$(DEVICE)" = cuda ]; then $(PIP) install --quiet "cupy-cuda13x==14.*"; fi
	@rm -f $(VENV)/.ready-*; touch $@
	@echo "ready: $(BIN)/thinwire --help"

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build *.egg-info
