# Each command sets up .venv by itself the first time, with what it needs, and again when the
# requirements change.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: sample test train lessons bench lint

sample: .venv/ready
	@$(BIN)/python sample.py "Once upon a time"

test: .venv/ready-dev
	$(BIN)/python -m pytest

train: .venv/ready
	$(BIN)/python train_tiny.py

lessons: .venv/ready
	$(PIP) -e ".[lessons]"
	$(BIN)/jupyter lab notebooks

bench: .venv/ready-dev
	$(BIN)/python benchmarks/stage_costs.py --write
	$(BIN)/python benchmarks/speed.py --write
	$(BIN)/python benchmarks/memory.py

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) -r requirements.txt -e .
	touch $@

.venv/ready-dev: .venv/ready requirements-dev.txt
	$(PIP) -r requirements-dev.txt
	touch $@
