VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
COVERAGE := 90
# The methods that `compare` trains: files configs/experiment/tiny_NAME.yaml.
HEADS := medusa eagle2 eagle3 vispec specflash tiger_head tiger_parallel
# The studies of `ablation`, and how many of its jobs run at once: two on cores, one per GPU where there are any.
STUDY ?= all
ABLATION_FLAGS ?= --workers $(shell nvidia-smi -L 2>/dev/null | grep -c . | awk '{print $$1 ? $$1 : 2}')
# Options given to every script in benchmarks/; empty for a full measurement.
BENCH_FLAGS ?= --quick

.DEFAULT_GOAL := help
.PHONY: help setup demo compare ablation test lint format types bench zoo tensorboard docs clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Touched only after a complete install, so an interrupted one is repeated.
# A machine without a GPU saves gigabytes with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.
$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PY) -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(STAMP) ## Create .venv with everything, tools included

demo: export OMP_NUM_THREADS := 1
demo: $(STAMP) ## Train both stages on the tiny pair and benchmark the drafters (CPU)
	$(PY) -m tiger fit --config configs/experiment/demo_kd.yaml
	# Side by side, so that both get the same time of one core.
	$(PY) -m tiger fit --config configs/experiment/demo_kd_continued.yaml > runs/demo/kd_continued.log 2>&1 & \
		control=$$!; $(PY) -m tiger fit --config configs/experiment/demo_align.yaml && wait $$control
	$(PY) -m tiger benchmark --config configs/experiment/demo_benchmark.yaml

compare: export OMP_NUM_THREADS := 1
compare: $(STAMP) ## Train every draft head alike on the tiny verifier and benchmark all methods (long)
	@mkdir -p runs/compare
	# Two at a time, each on a core; the first ones leave the verifier's answers to the others.
	@printf '%s\n' $(HEADS) | xargs -P 2 -I{} sh -c '$(PY) -m tiger fit \
		--config configs/experiment/tiny_{}.yaml --trainer.enable_progress_bar=false \
		--trainer.logger.init_args.save_dir=runs/compare --trainer.logger.init_args.name={} \
		> runs/compare/{}.log 2>&1 && echo "trained {}" || { echo "{} failed, see runs/compare/{}.log"; exit 255; }'
	$(PY) -m tiger benchmark --config configs/experiment/compare_benchmark.yaml

ablation: export OMP_NUM_THREADS := 1
ablation: $(STAMP) ## Rerun the paper's studies on the tiny pair (STUDY=sparsity for one)
	$(PY) -m tiger ablate $(STUDY) $(ABLATION_FLAGS)

test: export OMP_NUM_THREADS := 1
test: lint types ## Lint, types, then the tests with coverage of tiger/ (at least 90 %)
	$(PY) -m pytest -n 2 --dist loadfile --cov=tiger --cov-report=term --cov-fail-under=$(COVERAGE)

lint: $(STAMP) ## Check style and formatting with ruff
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(STAMP) ## Fix what ruff can fix and format every file
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(STAMP) ## Check types with mypy
	$(PY) -m mypy

bench: $(STAMP) ## Run every script in benchmarks/ with a short setting
	@set -e; for script in $(sort $(wildcard benchmarks/*.py)); do \
		echo "== $$script"; $(PY) $$script $(BENCH_FLAGS); \
	done

zoo: $(STAMP) ## Train the tiny verifier and the vanilla drafter again from the recipe (hours)
	$(PY) -m tiger.pairs.recipe verifier --output runs/zoo
	$(PY) -m tiger.pairs.recipe drafter --output runs/zoo

tensorboard: $(STAMP) ## Show the logs of all runs
	$(PY) -m tensorboard.main --logdir runs

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(STAMP) ## Build the documentation as a site: open site/index.html
	$(PY) -m mkdocs build --strict --quiet

clean: ## Remove caches, build leftovers and runs/ (checkpoints too), without asking; keeps .venv
	rm -rf build dist site *.egg-info .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis lightning_logs runs
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
