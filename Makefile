# Each command sets up .venv by itself the first time, and again when the requirements change.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: sample test train lessons bench lint

sample: .venv/ready
	@$(BIN)/python sample.py "Once upon a time"

test: .venv/ready
	$(BIN)/python -m pytest

train: .venv/ready
	$(BIN)/python train_tiny.py

lessons: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[lessons]"
	$(BIN)/jupyter lab notebooks

bench: .venv/ready
	$(BIN)/python benchmarks/stage_costs.py --write
	$(BIN)/python benchmarks/speed.py --write
	$(BIN)/python benchmarks/memory.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.venv/ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -e .
	touch $@
