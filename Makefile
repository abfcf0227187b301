# One line each; every target calls what anyone could type.
.PHONY: build up test bench check clean
build:
	python3 -m venv .venv && .venv/bin/pip install -q -e '.[test,bench]'
up: build
	.venv/bin/secondzero up --demo
test: build
	.venv/bin/python -m pytest
check: build
	.venv/bin/ruff check . && .venv/bin/mypy
clean:
	rm -rf .venv build *.egg-info engine/_native/*.c engine/_native/*.so
