# Everything a newcomer or a CI machine runs. `make demo` shows the product, `make check` and `make test` judge it.
#
# The environment lives in .venv and is installed once: a stamp file makes later runs take no time, and a change of
# pyproject.toml or of the constraints installs again. PYTHON names the interpreter to make it with; VENV_FLAGS may be
# --system-site-packages on a machine whose image brings its own torch; TORCH_INDEX is where to take torch from.

PYTHON ?= python3
VENV_FLAGS ?=
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: compiling all of torch's and transformers' here takes longer than that.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --no-compile
PYTEST := $(BIN)/python -m pytest
ARGS ?=

# Without an NVIDIA GPU the versions of constraints-cpu.txt are installed; with one, those pip chooses for it.
ifeq ($(shell command -v nvidia-smi 2>/dev/null),)
CONSTRAINTS := -c constraints-cpu.txt
TORCH := torch
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo serve stack check format test test-clients coverage test-gpu bench soak protos clean
.PHONY: formatted lint types imports protos-lint breaking drift spelling deployment

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)

# torch first and by itself: a range asked for later never replaces it by a larger build.
$(VENV)/.torch: constraints-cpu.txt | $(BIN)/python
	$(if $(TORCH),$(INSTALL) $(CONSTRAINTS) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH))
	@touch $@

$(VENV)/.runtime: pyproject.toml $(VENV)/.torch
	$(INSTALL) $(CONSTRAINTS) -e '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(INSTALL) $(CONSTRAINTS) -e '.[dev]'
	@touch $@

# The scheduler runs from its source where its hot modules cannot be compiled.
$(VENV)/.compiled: $(wildcard scheduler_svc/*.py scheduler_svc/core/*.py) $(VENV)/.dev
	-$(BIN)/python -m scheduler_svc.compilation
	@touch $@

setup: $(VENV)/.compiled ## make .venv and install everything into it

demo: $(VENV)/.runtime ## start the whole stack, stream a chat and eight completions, stop it
	@$(BIN)/python -m pagewire_client.cli demo $(ARGS)

serve: $(VENV)/.runtime ## serve a model until Ctrl-C (ARGS="MODEL --port ...")
	@$(BIN)/python -m pagewire_client.cli serve $(ARGS)

stack: $(VENV)/.dev ## the services of docker-compose.yml as processes of this machine, until Ctrl-C
	@test -f deploy/secrets/tokens.yaml || deploy/secrets/make.sh
	@$(BIN)/python deploy/run_stack.py $(ARGS)

check: $(VENV)/.dev ## format, lint, types, import rules, protos, generated code, spelling, deployment files
	@$(MAKE) --no-print-directory --keep-going formatted lint types imports protos-lint breaking drift spelling deployment

formatted: $(VENV)/.dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

protos-lint: $(VENV)/.dev
	$(BIN)/buf lint protos

spelling: $(VENV)/.dev
	$(BIN)/codespell

# Envoy's own check wants the files where its container has them; promtool comes with the system's prometheus.
deployment: $(VENV)/.dev
	$(BIN)/hadolint scheduler_svc/Dockerfile gpu_worker/Dockerfile
	@found=$$($(BIN)/compose-lint docker-compose.yml 2>&1) || { echo "$$found"; exit 1; }
	$(BIN)/kubernetes-validate --strict --quiet $(filter-out %/kustomization.yaml,$(wildcard deploy/k8s/*.yaml))
	@config=$$(mktemp --suffix .yaml) && trap 'rm -f "$$config"' EXIT \
	&& sed 's#/etc/envoy/pagewire.binpb#protos/pagewire/v1/pagewire.binpb#; s#/etc/envoy/chat.html#clients/web/chat.html#' deploy/envoy/envoy.yaml \
	  >"$$config" \
	&& $(BIN)/envoy --mode validate --log-level error --config-path "$$config"
	@if command -v promtool >/dev/null; then cd deploy/prometheus && promtool check config prometheus.yml; \
	else echo "promtool: not on this machine, the alert rules are not checked"; fi

format: $(VENV)/.dev ## rewrite files as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Protos are compared with the last release, else with the main branch; a checkout that knows neither has nothing to compare with.
breaking: $(VENV)/.dev
	@base=$$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null \
	  || git rev-parse --quiet --verify origin/main || git rev-parse --quiet --verify main || true); \
	if [ -n "$$base" ] && git cat-file -e "$$base:protos/buf.yaml" 2>/dev/null; then \
	  echo "buf breaking protos (against $$base)"; \
	  old=$$(mktemp -d) && trap 'rm -rf "$$old"' EXIT && git archive "$$base" protos | tar -x -C "$$old" \
	  && $(BIN)/buf breaking protos --against "$$old/protos"; \
	else echo "buf breaking: no earlier protos to compare with"; fi

drift: $(VENV)/.dev
	$(BIN)/python protos/generate.py --check

protos: $(VENV)/.dev ## generate the Python stubs beside the protos
	$(BIN)/python protos/generate.py

# Two lanes beside each other, for two cores: properties and the whole stack; everything else. Kernel tests are a process of
# their own: Triton's interpreter is chosen before Triton is imported. Threads of several workers on few cores must sleep at
# barriers, not spin.
test: export OMP_WAIT_POLICY = PASSIVE
test: $(VENV)/.dev ## all tests; those for a GPU join where there is one
	@status=0; log=$$(mktemp); trap 'rm -f $$log' EXIT; \
	( stack=0; $(PYTEST) tests/property || stack=1; $(PYTEST) tests/e2e || stack=1; exit $$stack ) >$$log 2>&1 & stack=$$!; \
	$(PYTEST) tests/kernel || status=1; \
	$(PYTEST) --ignore=tests/kernel --ignore=tests/property --ignore=tests/e2e || status=1; \
	wait $$stack || status=1; \
	cat $$log; \
	exit $$status

test-clients: $(VENV)/.dev ## build and test the clients in other languages whose toolchains are here
	$(PYTEST) -m languages -rs tests/e2e/test_other_languages_e2e.py $(ARGS)

test-gpu: $(VENV)/.dev ## the tests for a GPU alone, and the stack on it against transformers
	@status=0; \
	$(PYTEST) tests/gpu $(ARGS) || status=1; \
	PAGEWIRE_TEST_DEVICE=cuda $(PYTEST) tests/e2e/test_greedy_e2e.py tests/e2e/test_tiny_llama_e2e.py $(ARGS) || status=1; \
	exit $$status

# Every branch of the pure core, by the core's own unit tests; a branch that none of them takes fails the target.
coverage: $(VENV)/.dev ## branch coverage of the scheduler core; fails below 100 %
	$(BIN)/coverage run --branch --include='scheduler_svc/core/*' -m pytest tests/unit -k core $(ARGS)
	$(BIN)/coverage report --show-missing --skip-covered --fail-under=100

bench: $(VENV)/.dev ## measure Pagewire on the workloads A to E
	$(BIN)/python -m benchmarks.run --engine pagewire --workload A,B,C,D,E --json $(ARGS)

soak: export OMP_WAIT_POLICY = PASSIVE
soak: export HYPOTHESIS_PROFILE = soak
soak: $(VENV)/.dev ## the long tests: full fuzzing, endurance
	$(PYTEST) tests/property --timeout=3600 $(ARGS)
	$(PYTEST) -m soak --timeout=3600 $(ARGS)

clean: ## remove the environment and everything generated outside git
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage build dist
	rm -rf scheduler_svc/__compiled__
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
