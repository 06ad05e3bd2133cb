# Verbs of this repository; each installs what it needs. See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_WORKERS ?= 2

.PHONY: help venv demo up test lint bench soak lock proto clean test-packages

help: ## show the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

venv: $(STAMP) ## a virtual environment with everything, and .venv/bin/belay

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Belay needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || ./deploy/debian-packages.sh python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked requirements into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: venv ## the main job on the embedded default, step by step; ends by itself
	@$(BIN)/belay demo

up: venv ## the sandbox, kept running until Ctrl-C
	@$(BIN)/belay up

test-packages: ## Debian packages that the tests need (kubectl, redis-server, git, gnupg, ssh-keygen)
	@./deploy/debian-packages.sh kubectl:kubernetes-client redis-server:redis-server git:git gpg:gnupg ssh-keygen:openssh-client \
	  ipmi_sim:openipmi ipmitool:ipmitool ipmi-raw:freeipmi-tools libopenipmi-dev gcc:gcc libc6-dev containerd:containerd runc:runc busybox:busybox-static \
	  prometheus:prometheus promtool:prometheus openssl:openssl ip:iproute2 nft:nftables dockerd:docker.io

test: venv test-packages ## every test but soaks and benchmarks
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup

lint: venv ## style, types, import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: venv ## benchmarks; writes tests/bench/RESULTS.md
	@$(BIN)/python -m tests.bench

soak: venv ## random histories against the invariants; SEED=, SIMULATED=, STUCK=, HISTORIES=, CROWD=, MINUTES= are read; resumable
	@$(BIN)/python -m tests.soak

lock: ## renew requirements.lock (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --extra test --extra lint --extra build --extra bench --extra proto pyproject.toml -o requirements.lock

proto: venv ## renew the checked-in code of every .proto file
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $$(git ls-files '*.proto')

clean: ## remove what the other verbs made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
