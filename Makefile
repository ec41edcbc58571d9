# Everything here sets up its own environment first: a fresh machine needs Python 3.11 or 3.12,
# make and a C compiler. BUILD=gpu takes the CUDA builds instead of the CPU ones.
BUILD ?= cpu
PYTHON ?= python3
# What `make serve` runs the target on: native, or vllm.
TARGET ?= native
# The default model, and what is served in its place where it cannot be fetched.
CACHE := $(or $(SPINDLE_CACHE),$(HOME)/.cache/spindle)
DEFAULT_MODEL := $(CACHE)/SmolLM2-135M-Instruct/quantized.blocks
DEFAULTS_native := cluster.yaml cluster/zoo.yaml
DEFAULTS_vllm := cluster/vllm.yaml cluster/vllm.yaml
DEFAULTS = $(or $(DEFAULTS_$(TARGET)),$(error TARGET is native or vllm, and not $(TARGET)))
# Any other file: `make serve TOPOLOGY=cluster/fleet.yaml`; any other model, as planned for this
# machine: `make serve MODEL=org/name`.
PLAN := $(CACHE)/plan.yaml
TOPOLOGY = $(if $(MODEL),$(PLAN),$(DEFAULT_TOPOLOGY))
DEFAULT_TOPOLOGY = $(word $(if $(shell test -f $(DEFAULT_MODEL) && echo yes),1,2),$(DEFAULTS))
# Loops are compiled anew for each processor and each change, else by the first start.
COMPILED := $(CACHE)/compiled/.done
COMPILED_FOR_TESTS := $(CACHE)/compiled/.done-built-in
LOOPS := $(shell grep -rl --include='*.py' 'from numba import' policies engine actors)
VENV := .venv
BIN := $(VENV)/bin
# Three layers of one environment: serving on the native backend, vLLM, and tests with their tools.
INSTALLED := $(VENV)/.installed-$(BUILD)
WITH_VLLM := $(VENV)/.installed-vllm-$(BUILD)
WITH_TESTS := $(VENV)/.installed-test-$(BUILD)
SERVED := $(if $(filter vllm,$(TARGET)),$(WITH_VLLM),$(INSTALLED))
# Idle OpenMP threads that spin cost up to 10x when several torch processes share the cores.
RUN := OMP_WAIT_POLICY=PASSIVE $(BIN)

TORCH := $(shell grep '^torch==' constraints/$(BUILD).txt)
NO_TORCH := No build of $(TORCH) found: set PIP_EXTRA_INDEX_URL to the index that \
the page "Get started" of PyTorch names for $(BUILD), or PIP_FIND_LINKS to a folder with the wheel, and run make again.
# Required by vLLM, and needed by nothing here on a CPU: the CUDA builds of the first
# break imports beside a CPU torch, the last has 1 GB. speculators limits datasets for its training.
LEFT_OUT := torchvision|torchaudio|torchcodec|requires triton|speculators .* datasets

NOT_FREE := vLLM for CPUs requires intel-openmp, which is under a licence of Intel and not free software.

define install
@echo 'Installing the packages of $(1) into $(VENV), 1 to 3 minutes ...'
@$(BIN)/pip install -qq --no-deps -r $(1)
@! $(BIN)/pip check | grep -v -E '$(LEFT_OUT)|No broken requirements'
@touch $@
endef

.PHONY: model serve test test-fast test-lab lint bench bench-lab docs screenshots clean

$(INSTALLED): constraints/$(BUILD).txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 13) \
	  else f"Python 3.11 or 3.12 is needed, $(PYTHON) is {v[0]}.{v[1]}: set PYTHON=...")'
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --no-deps '$(TORCH)' || { echo '$(NO_TORCH)' >&2; exit 1; }
	@cp cluster/spindle.pth $(VENV)/lib/python3*/site-packages
	$(call install,constraints/$(BUILD).txt)

$(WITH_VLLM): constraints/vllm-$(BUILD).txt $(INSTALLED)
	@test "$$(uname -m)" != x86_64 || ! grep -q '^intel-openmp' $< || echo '$(NOT_FREE)'
	$(call install,$<)

$(WITH_TESTS): constraints/test.txt $(WITH_VLLM)
	$(call install,$<)

model: $(COMPILED) $(DEFAULT_MODEL)

# Fetches the model as well, while loops are compiled that need none.
$(COMPILED): $(INSTALLED) $(LOOPS)
	@HF_HUB_DISABLE_PROGRESS_BARS=1 $(RUN)/python -m deployments.compile && \
	  mkdir -p $(@D) && touch $@ || echo 'make serve compiles what is missing when it starts.'

$(DEFAULT_MODEL): | $(COMPILED)
	@$(BIN)/python -m cluster.fetch || \
	  echo 'make serve takes the built-in models in its place (cluster/zoo.yaml).'

$(COMPILED_FOR_TESTS): $(COMPILED)
	@$(RUN)/python -m deployments.compile --built-in
	@mkdir -p $(@D) && touch $@

serve: $(SERVED) $(if $(MODEL),$(COMPILED),model)
	@$(if $(MODEL),$(BIN)/python -m cluster.fetch '$(MODEL)' && \
	  $(RUN)/python -m cluster.plan '$(MODEL)' --output $(PLAN))
	@echo 'Starting Ray and Serve with $(TOPOLOGY): 20 to 40 s until Spindle is ready.'
	@$(BIN)/serve run $(TOPOLOGY)

# Two processes, one of which runs what needs clusters (tests/conftest.py).
SHARED := -n 2 --dist loadscope --no-loadscope-reorder

test: $(WITH_TESTS) model $(COMPILED_FOR_TESTS)
	$(RUN)/python -m pytest $(SHARED) --ignore=tests/lab

test-lab: $(WITH_TESTS) model $(COMPILED_FOR_TESTS)
	$(RUN)/python -m pytest $(SHARED) tests/lab

# A verdict in a minute: each layer's main modules, without Ray, vLLM or large models.
FAST := test_docs.py test_dependencies.py policies/test_recorded.py policies/scheduling \
  policies/selection policies/speculation/planner/test_policy.py cluster/test_config.py \
  cluster/test_check.py actors/coordinator/test_loop.py engine/drafters \
  engine/sampling/test_sampler.py deployments/ingress/requests/test_completions.py \
  deployments/ingress/test_http.py

test-fast: $(WITH_TESTS)
	$(RUN)/python -m pytest -x -n 2 --dist loadfile $(addprefix tests/,$(FAST))

lint: $(WITH_TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(WITH_TESTS)
	$(RUN)/python -m benchmarks.step_time
	$(RUN)/python -m benchmarks.serving.local
	$(RUN)/python -m benchmarks.coordinator
	$(RUN)/python -m benchmarks.serving.overhead
	$(RUN)/python -m benchmarks.serving.chaos --rounds 1
	$(RUN)/python -m benchmarks.serving.soak --seconds 60

bench-lab: $(WITH_TESTS)
	$(RUN)/python -m lab.studies.comparison
	$(RUN)/python -m lab.papers --smoke

SITE := .cache/site

# The pages link to each other as they lie in this folder, so the site is built from links to them.
docs: $(SITE)/.installed
	@mkdir -p $(SITE)/pages/lab && ln -sfn $(addprefix $(CURDIR)/,docs cluster examples README.md \
	  CONTRIBUTING.md CHANGELOG.md) $(SITE)/pages && ln -sfn $(CURDIR)/lab/docs $(SITE)/pages/lab
	@NO_MKDOCS_2_WARNING=1 $(SITE)/venv/bin/mkdocs build --quiet --strict && echo 'The site: $(SITE)/html/index.html'

$(SITE)/.installed: constraints/docs.txt
	@$(PYTHON) -m venv $(SITE)/venv && $(SITE)/venv/bin/pip install -qq --no-deps -r $<
	@touch $@

# Pictures of a running application for the README and docs, in docs/images/, in Chromium (apt-get install chromium).
screenshots: $(WITH_TESTS) model
	$(RUN)/python -m lab.pictures

clean:
	rm -rf $(VENV) $(SITE) .mypy_cache .ruff_cache .pytest_cache .hypothesis
