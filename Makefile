# rivertwice: everything starts here. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
UV := .build/tools/bin/uv
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes
TEST_WORKERS ?= 2
FAULT_JOBS ?= 2
SEED ?= 1
SOURCES := src dags plugins spark_jobs examples tests lab scripts conftest.py
export RIVERTWICE_PROJECT := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-unit test-faults test-mutations test-slow docs lint format lock pin-images bench clean

##@ Use
setup: ## build .venv, fetch Java if there is none, jars and data (quick and offline when nothing changed)
	@$(PYTHON) scripts/bootstrap.py

demo: setup ## the whole loop on real flights; stays up until stopped, with DEMO_EXIT=1 takes all down
	@$(BIN)/python -m lab.demo

##@ Develop
setup-dev: ## setup, and what tests, linters and benches need
	@$(PYTHON) scripts/bootstrap.py --dev

test: setup-dev lint ## linters, types, import rules and every test but the slow ones, of which CI takes a share
	@$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

test-unit: setup-dev ## the unit tests of all rooms but those marked airflow or long
	@$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -m "not airflow and not long" tests/unit lab/tests/unit

test-mutations: setup-dev ## sixty small changes of the decision modules, by SEED; each must turn one of its own unit tests red
	@$(BIN)/python scripts/mutate.py --seed $(SEED) --jobs $(TEST_WORKERS)

test-faults: setup-dev ## the fault campaign, three seeds of a case of every fault, and its report; goes on where it stopped
	@$(BIN)/rivertwice faults campaign --jobs $(FAULT_JOBS)
	@$(BIN)/rivertwice faults report --file docs/fault-report.md

test-slow: setup-dev ## the slow tests: every kind on Kafka with kills, a hundred histories of each, a year; docs/fault-report.md says when
	@status=0; $(BIN)/pytest -m faults --junitxml=.build/test-slow.xml || status=$$?; \
	$(BIN)/python scripts/slow_report.py .build/test-slow.xml docs/fault-report.md && exit $$status

docs: setup-dev ## the site over docs/, into .build/site; a broken link ends it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open .build/site/index.html"

lint: setup-dev ## ruff, mypy, import-linter
	@$(BIN)/ruff check $(wildcard $(SOURCES))
	@$(BIN)/ruff format --check $(wildcard $(SOURCES))
	@$(BIN)/lint-imports & imports=$$!; $(BIN)/mypy; types=$$?; wait $$imports && exit $$types

format: setup-dev ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix $(wildcard $(SOURCES))
	@$(BIN)/ruff format $(wildcard $(SOURCES))

lock: ## write the locks again from the direct pins; what is locked and still fits stays
	@$(PYTHON) scripts/bootstrap.py --tools
	@$(COMPILE) requirements-dev.txt -o requirements-dev.lock
	@$(COMPILE) requirements.txt -c requirements-dev.lock -o requirements.lock
	@for name in build java tools; do $(COMPILE) requirements-$$name.txt -o requirements-$$name.lock || exit 1; done

pin-images: ## write the digest of every image of others into compose, manifest and Dockerfile; needs docker and its registry
	@$(PYTHON) scripts/pin_images.py

bench: setup-dev ## CPU and latency against hand-written Spark; report only
	@$(BIN)/python -m lab.bench

clean: ## remove what can be rebuilt: environment, jars, data, caches; the home (.rivertwice) stays
	@rm -rf .venv .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	@find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
