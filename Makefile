# SPDX-License-Identifier: Apache-2.0
# make demo   train real data on two emulated hosts: no Docker, no AWS
# make test   the everyday proof of every feature, in several processes; TEST_WORKERS=1 for one
# make test-slow  more of what the same tests prove: whole grids, the biggest models; CASES=first for
#             one case of each
# make test TESTS=all  those of both, the sample of pipelines and a thousand random programs in one
#             run
# make long   what takes longer than CI has: docs/testing.md has the last figures
# make test-v3  the tests of ModelTrainer again, with SageMaker's SDK v3
# make test-tf216  the tests of TensorFlow again, with the oldest that the same binary serves
# make test-docker  the tests that need Docker; .ci/docker makes what they take
# make programs  a thousand random programs of collectives
# make device-programs  the same on the device of the tests
# make stream-bugs  bugs in the order of streams, and whether random schedules find each
# make split-matrix  ten models split in thirteen uses, for docs/models.md
# make pipeline-sample  some of them, as tests
# make gpu    all that needs a GPU, without a network; PART="collectives training" for some of it
# make torch-suite  what Gloo passes of torch's own tests of torch.distributed, with smdist
# make pipeline-matrix  the ten models on real ranks, beside one process, for docs/pipelines.md
# make tensor-matrix  fifteen models with layers split over real ranks, for docs/tensor_models.md
# make fuzz   every fuzz target, for hours; goes on where it was stopped
# make fuzz-sample SECONDS=30  those in C++, for so long together
# make fuzz-corpus  what they have found, as small corpora in the repository
# make blips  interruptions of the network of up to 40 s, in all directions; as root
# make faults  faults of hosts, networks, processes and scripts, for docs/reliability.md; as root
# make soak   half an hour of training and faults, in which nothing may grow; MINUTES=10 for less
# make docs   the tables of docs/ that are written from the code
# make schema  docs/job.schema.json alone, after a docstring of an option changed
# make site   the documentation as a site, in build/site; a broken link is an error
# make lint   what pre-commit and CI check
# Each sets up all it needs in .venv and build/, and does it once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TOOLS := $(VENV)/.tools
SDK := $(VENV)/.sdk
RUNTIME := $(VENV)/.runtime
LINT := $(VENV)/.lint
SITE := $(VENV)/.site
FUZZ := $(VENV)/.fuzz
V3 := build/venv-v3
TF216 := build/venv-tf216
# Processes that run tests, on 2 processors: each waits part of its time for sleeps and deadlines.
TEST_WORKERS ?= 4
CASES ?= all
SHARED_OUT = $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadscope --no-loadscope-reorder --durations=40 \
  --durations-min=5 --ignore=tests/docker --ignore=$(TORCH_SUITE) --ignore=$(KERAS_MATRIX)
SAMPLE := tests/runtime/modelparallel/torch/test_run_matrix.py
TORCH_SUITE := tests/torch_suite
KERAS_MATRIX := tests/runtime/modelparallel/tensorflow/test_keras_matrix.py
# Thousands of interpreters start in the tests: none compiles modules that another has compiled.
unexport PYTHONDONTWRITEBYTECODE
RUNTIME_FILES := $(shell find container -type f -not -path '*/__pycache__/*' -not -path '*/build/*' \
  -not -path '*/image/*' -not -name 'Dockerfile*')

.PHONY: demo test test-device test-slow long gpu test-v3 test-tf216 test-docker programs device-programs stream-bugs split-matrix pipeline-sample blips resumable-jobs tensor-sequences faults soak \
  torch-suite keras-matrix pipeline-matrix tensor-matrix native fuzz fuzz-sample fuzz-corpus fuzz-program docs schema site \
  lint clean

demo: $(RUNTIME)
	$(BIN)/python notebooks/digits/demo.py

# With TESTS=all, each process collects all tests once, and tests that wait leave the processors to
# others.
test: $(RUNTIME) native-address test-device
	$(if $(filter all,$(TESTS)),SMDIST_TEST_PROGRAMS=1000 $(SHARED_OUT), \
	  $(SHARED_OUT) --ignore=$(SAMPLE) -m "not slow")

test-slow: $(RUNTIME) test-device
	$(SHARED_OUT) --ignore=$(SAMPLE) -m slow --cases=$(CASES)

long: test-slow split-matrix keras-matrix pipeline-matrix tensor-matrix device-programs stream-bugs blips resumable-jobs tensor-sequences

test-device: $(RUNTIME)
	@echo "building the device of torch on which tests run what GPUs do"
	@cd tests/support && $(abspath $(BIN))/python -c "from test_device.build import built_library; built_library()"

# The torch of PYTHON, or of wheels in the folder WHEELS; DEVICE=testdev tries it without a GPU.
gpu:
	@PYTHONPATH=tests/support:. $(PYTHON) -m gpu_run $(PART) $(if $(DEVICE),--device $(DEVICE)) \
	  $(if $(WHEELS),--wheels $(WHEELS))

test-v3: $(V3)/.made
	$(V3)/bin/python -m pytest tests/trainer

test-tf216: $(TF216)/.made
	$(TF216)/bin/python -m pytest tests/runtime/tensorflow

test-docker: $(RUNTIME)
	SMDIST_REQUIRE_DOCKER=1 $(BIN)/python -m pytest tests/docker --durations=10 --timeout=600

programs: $(RUNTIME)
	SMDIST_TEST_PROGRAMS=1000 $(BIN)/python -m pytest -n 2 tests/runtime/dataparallel/test_programs.py

device-programs: $(RUNTIME) test-device
	SMDIST_TEST_DEVICE_PROGRAMS=1000 $(BIN)/python -m pytest -n 2 tests/runtime/dataparallel/test_staging.py -k random_programs

tensor-sequences: $(RUNTIME)
	SMDIST_TEST_SEQUENCES=all $(BIN)/python -m pytest -n 2 tests/runtime/modelparallel/torch/tensor_parallel/test_sequence_parallel.py

resumable-jobs: $(RUNTIME)
	SMDIST_TEST_RESUMABLE_JOBS=all $(BIN)/python -m pytest tests/integration/test_resumable_jobs.py

blips: $(RUNTIME)
	SMDIST_TEST_BLIPS=all $(BIN)/python -m pytest tests/runtime/dataparallel/test_blips.py

stream-bugs: $(RUNTIME) test-device
	benchmarks/planted_stream_bugs/run

# Results that exist are kept; ROWS="partition link" runs rows again whose names have such a part.
faults: $(RUNTIME)
	$(BIN)/python -u -m benchmarks.faults $(ROWS)

MINUTES ?= 30
soak: $(RUNTIME)
	$(BIN)/python -u -m benchmarks.soak --minutes $(MINUTES)

split-matrix: $(RUNTIME)
	$(BIN)/python -m benchmarks.split_matrix

pipeline-sample: $(RUNTIME)
	$(BIN)/python -m pytest $(SAMPLE)

torch-suite: $(RUNTIME)
	$(BIN)/python -m pytest $(TORCH_SUITE)

keras-matrix: $(RUNTIME)
	$(BIN)/python -m pytest $(KERAS_MATRIX) --durations=0

pipeline-matrix: $(RUNTIME)
	$(BIN)/python -m benchmarks.pipeline_matrix

tensor-matrix: $(RUNTIME)
	$(BIN)/python -m benchmarks.tensor_matrix

native: native-address native-thread

native-%: $(SDK) native-programs-%
	@$(BIN)/cmake -S container -B build/native-$* -DSMDIST_TENSORFLOW_TEST=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python > /dev/null
	@$(BUILD_NATIVE)
	$(BIN)/ctest --test-dir build/native-$* --output-on-failure --parallel 3

# All of them but the test of TensorFlow's kernels, which takes TensorFlow.
native-programs-%: $(TOOLS)
	@[ -f build/native-$*/build.ninja ] || $(BIN)/cmake -S container -B build/native-$* -G Ninja \
	  -DSMDIST_CORE_ONLY=ON -DSMDIST_BUILD_TESTS=ON -DSMDIST_SANITIZE=$* -DSMDIST_TENSORFLOW_TEST=OFF \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja > /dev/null
	@echo "building the native tests with the $* sanitizer"
	@$(BUILD_NATIVE)
BUILD_NATIVE = $(BIN)/cmake --build build/native-$* > build/native-$*.log || { cat build/native-$*.log; exit 1; }

SECONDS ?= 30
RUN_FUZZ := $(BIN)/python tests/fuzz/run_fuzz.py

fuzz: fuzz-program $(FUZZ)
	$(RUN_FUZZ) long

fuzz-sample: fuzz-program
	$(RUN_FUZZ) sample $(SECONDS)

fuzz-corpus: fuzz-program $(FUZZ)
	$(RUN_FUZZ) pack

fuzz-program: $(TOOLS)
	@$(BIN)/cmake -S container -B build/fuzz/native -G Ninja -DSMDIST_CORE_ONLY=ON -DSMDIST_FUZZ=ON \
	  -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja > /dev/null
	@echo "building the fuzz targets with clang-14"
	@$(BIN)/cmake --build build/fuzz/native > build/fuzz.log || { cat build/fuzz.log; exit 1; }

docs: $(RUNTIME) schema
	$(BIN)/python docs/distributions.py
	$(BIN)/python docs/planner.py

schema: $(SDK)
	$(BIN)/sagemaker-dist schema > docs/job.schema.json

site: $(RUNTIME) $(SITE)
	@TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky \
	  --conf-dir docs --doctree-dir build/site-cache . build/site
	@echo "the site is build/site/index.html"

lint: $(RUNTIME) $(LINT)
	$(BIN)/pre-commit run --all-files

clean:
	rm -rf $(VENV) build

# All that the native tests take, so that they can be compiled while the rest is downloaded.
$(TOOLS): pyproject.toml
	@echo "setting up $(VENV); the first time takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet --group build
	@touch $@

# torch first and by itself, so that nothing else chooses its version.
$(SDK): $(TOOLS)
	$(PIP) install --quiet torch==2.13.0
	$(PIP) install --quiet --group test --editable .[v2,docker]
	@touch $@

$(RUNTIME): $(SDK) $(RUNTIME_FILES)
	@echo "building the runtime against torch $$($(BIN)/python -c 'import torch; print(torch.__version__)')"
	@mkdir -p build
	$(PIP) install --quiet --no-build-isolation --no-deps --force-reinstall \
	  --config-settings=build-dir=$(abspath build/runtime) ./container
	@touch $@

# SageMaker's SDK v3 shares its name with v2. This part of 3.27.0 holds the ModelTrainer.
$(V3)/.made: pyproject.toml
	@echo "setting up $(V3) with SageMaker's SDK v3"
	$(PYTHON) -m venv $(V3)
	$(V3)/bin/python -m pip --disable-pip-version-check install --quiet sagemaker-train==1.27.0 \
	  "pytest>=8.4,<10" "pytest-timeout>=2.3" --editable .
	@touch $@

# The binary is that of $(VENV), built against a newer TensorFlow.
$(TF216)/.made: $(RUNTIME)
	@echo "setting up $(TF216) with TensorFlow 2.16"
	rm -rf build/wheels
	$(PIP) wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheels \
	  --config-settings=build-dir=$(abspath build/runtime) ./container
	$(PYTHON) -m venv $(TF216)
	$(TF216)/bin/python -m pip --disable-pip-version-check install --quiet --editable . \
	  "tensorflow-cpu==2.16.*" "hypothesis>=6.100" "pytest>=8.4,<10" "pytest-timeout>=2.3" psutil
	$(TF216)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps \
	  --force-reinstall build/wheels/sagemaker_dist_runtime-*.whl
	@touch $@

# atheris has wheels for Python 3.11 to 3.13.
$(FUZZ): $(SDK)
	$(PIP) install --quiet --group fuzz
	@touch $@

# In one go, since pip looks at all that is installed each time.
$(LINT) $(SITE) &: $(SDK)
	$(PIP) install --quiet --group lint --group docs --group build --group test --editable .[v2,docker]
	@touch $(LINT) $(SITE)
