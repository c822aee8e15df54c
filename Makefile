# rivertwice: everything starts here. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
UV := .build/tools/bin/uv
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes
TEST_WORKERS ?= 2
FAULT_JOBS ?= 2
SEED ?= 1
PYTEST := $(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
BASE ?= $(shell git rev-parse --verify --quiet origin/main || echo HEAD)
SOURCES := src dags plugins spark_jobs examples tests lab scripts conftest.py
export RIVERTWICE_PROJECT := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-changed test-all test-spark test-live test-airflow test-lab test-share landing durations test-faults test-mutations iceberg-readers docs lint format lock pin-images bench clean

##@ Use
setup: ## build .venv, fetch Java if there is none, jars and data (quick and offline when nothing changed)
	@$(PYTHON) scripts/bootstrap.py

demo: setup ## the whole loop on real flights; stays up until stopped, with DEMO_EXIT=1 takes all down
	@$(BIN)/python -m lab.demo

##@ Develop
setup-dev: ## setup, and what tests, linters and benches need
	@$(PYTHON) scripts/bootstrap.py --dev

test: setup-dev ## linters, types, and the tests that prove each promise once: eight minutes on two cores
	@$(MAKE) --no-print-directory lint > .build/lint.log 2>&1 & lint=$$!; \
	$(PYTEST) -m quick; tests=$$?; wait $$lint; linted=$$?; cat .build/lint.log; exit $$((tests | linted))

test-changed: setup-dev ## the tests nearest to what differs from BASE, some minutes of them
	@files=$$($(BIN)/python scripts/changed_tests.py --base $(BASE)) && \
	if [ -n "$$files" ]; then $(PYTEST) -m "not faults" $$files; fi

test-all: setup-dev lint ## everything; whoever closes an issue runs it once
	@$(PYTEST)

test-spark: setup-dev ## what needs Spark alone
	@$(PYTEST) -m "spark and not kafka and not airflow" tests

test-live: setup-dev ## what needs the Kafka broker: drivers, agents and jobs that are killed and come back
	@$(PYTEST) -m "kafka and not airflow" tests

test-airflow: setup-dev ## what needs Airflow, and its pages in a browser
	@$(PYTEST) -m "airflow or browser" tests

test-lab: setup-dev ## the tests of the lab: fault cases, protocol model, oracle
	@$(PYTEST) lab/tests

test-share: setup-dev ## a seventh of what `make test` leaves out; `.ci/landing` says which
	@$(PYTEST) -m "not quick" --share $$(cat .ci/landing)

landing: ## the next seventh for `.ci/run`: part of the last commit before a landing
	@echo $$(($$(cat .ci/landing) + 1)) > .ci/landing

durations: setup-dev ## run everything and store how long each test took, by which the shares are cut
	@$(PYTEST) --store-durations --clean-durations

test-mutations: setup-dev ## sixty small changes of the decision modules, by SEED; each must turn one of its own unit tests red
	@$(BIN)/python scripts/mutate.py --seed $(SEED) --jobs $(TEST_WORKERS)

test-faults: setup-dev ## the fault campaign, three seeds of a case of every fault, and its report; goes on where it stopped
	@$(BIN)/rivertwice faults campaign --jobs $(FAULT_JOBS) --results lab/docs/fault-outcomes.jsonl
	@$(BIN)/rivertwice faults report --results lab/docs/fault-outcomes.jsonl --file lab/docs/fault-report.md

docs: setup-dev ## the site over docs/, into this version's folder of .build/site; a broken link ends it
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

iceberg-readers: ## DuckDB and Spark with Iceberg, as readers of tests: in folders of their own, beside our packages
	@$(UV) pip install --quiet --target .build/readers/duckdb duckdb==1.5.5 duckdb-extension-avro==1.5.5 duckdb-extension-httpfs==1.5.5 duckdb-extension-iceberg==1.5.5
	@$(UV) pip install --quiet --target .build/readers/spark pyspark==4.1.2
	@mvn -q dependency:copy -Dartifact=org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 -DoutputDirectory=$(CURDIR)/.build/readers/spark

bench: setup-dev ## CPU and latency against hand-written Spark; report only
	@$(BIN)/python -m lab.bench

clean: ## remove what can be rebuilt: environment, jars, data, caches; the home (.rivertwice) stays
	@rm -rf .venv .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	@find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
