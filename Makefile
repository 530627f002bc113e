# A thin front of the CMake build. `make help` lists what there is.

NP     ?= 8
CONFIG ?= inputs/config.ini
ARGS   ?=
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
# A visible GPU and its compiler choose the CUDA build.
GPU    := $(shell nvidia-smi -L >/dev/null 2>&1 && command -v nvcc >/dev/null && echo yes)
PRESET ?= $(if $(GPU),cuda,cpu)
BUILD  := $(if $(filter cuda,$(PRESET)),build-cuda,build)
CORPUS := data/corpus.txt

# Hundreds of lines "Entering directory" help nobody.
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test test-all build deps corpus configure bench bench-checkpoint format lint clean

help: ## this list
	@echo 'PotatoChat. Targets:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'Variables (value): NP ($(NP)) ranks, CONFIG ($(CONFIG)), ARGS ($(ARGS)) more arguments of the program,'
	@echo '  JOBS ($(JOBS)) compile jobs, PRESET ($(PRESET)), SKIP_DEPS=1 installs nothing.'
	@echo 'For example: make run NP=4 ARGS="--checkpoint.resume=latest"'

run: deps build corpus ## install what is missing, build, and train on NP ranks
	. scripts/env.sh && mpirun -np $(NP) $(BUILD)/potatochat $(CONFIG) $(ARGS)

test: deps build corpus ## the tests of tier 1
	. scripts/env.sh && ctest --test-dir $(BUILD) -L tier1 --no-tests=error --output-on-failure

test-all: deps build corpus ## all tests, the long ones too
	. scripts/env.sh && ctest --test-dir $(BUILD) --no-tests=error --output-on-failure

build: deps configure ## the program, at build/potatochat (build-cuda/ with a GPU), and the tests
	cmake --build $(BUILD) -j $(JOBS)

deps:
	@scripts/install_deps.sh

corpus:
	@scripts/get_corpus.sh $(CORPUS)

# Only once: afterwards the build itself runs CMake again where it must. A failed first run leaves a cache but no Makefile.
configure:
	@if [ -f $(BUILD)/CMakeCache.txt ] && { [ -f $(BUILD)/Makefile ] || [ -f $(BUILD)/build.ninja ]; }; then \
	  echo 'configure: $(BUILD)/ is configured already'; \
	else \
	  echo "configure: preset $(PRESET) ($(if $(GPU),a GPU and nvcc are there,no GPU with nvcc is visible))"; \
	  cmake --preset $(PRESET); \
	fi

bench: deps build ## tokens/s of GPT-2 124M beside a PyTorch peer
	BUILD=$(BUILD) scripts/bench.sh

bench-checkpoint: deps build ## GB/s of checkpoints beside plain writes and reads
	scripts/bench_checkpoint.sh $(BUILD)

format: ## format all C++ sources in place
	scripts/format.sh

lint: ## room check, format check, clang-tidy
	scripts/install_deps.sh --lint
	$(MAKE) --no-print-directory configure
	scripts/check_rooms.sh
	scripts/format.sh --check
	scripts/lint.sh

clean: ## remove the build folders (not data/ and run/)
	rm -rf $(BUILD) build-sanitize
