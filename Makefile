# One line each; every target calls what anyone could type. Another interpreter: make PYTHON=python3.12
PYTHON ?= python3
SECONDS ?= 60
COMPILED = $(wildcard engine/_native/*.pyx engine/_native/*.pxd engine/_native/*.h)
.PHONY: build up test bench check chaos ring fuzz asan lock sbom clean
build: .venv/built
# Nothing is installed but what the lock names, with its hashes; what compiles us is in it too.
.venv/built: requirements.lock pyproject.toml client/pyproject.toml setup.py $(COMPILED)
	$(PYTHON) engine/local/preflight.py && $(PYTHON) -m venv .venv
	@echo "installing what requirements.lock names into .venv, and compiling: a minute or more"
	.venv/bin/pip install -q --require-hashes -r requirements.lock
	.venv/bin/pip install -q --no-deps --no-build-isolation -e . -e client && .venv/bin/python .ci/sbom.py && touch .venv/built
up: build
	.venv/bin/secondzero up --demo
test: build
	.ci/tests
bench: build
	for name in cron wheel batch fire plan sustained peak rest; do .venv/bin/secondzero bench $$name; done
check: build
	.venv/bin/ruff check . && .venv/bin/mypy && cd client && ../.venv/bin/mypy
chaos: build
	.venv/bin/python -m tests.cluster.chaos $(SECONDS)
fuzz: build
	.venv/bin/python -m tests.fuzz $(SECONDS)
ring: build
	.venv/bin/python -m tests.history.ring
asan: build
	.ci/asan
lock: build
	.ci/lock
sbom: build
	.venv/bin/python .ci/sbom.py
clean:
	rm -rf .venv build *.egg-info engine/_native/*.c engine/_native/*.so
