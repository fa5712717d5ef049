# Two commands do everything on a fresh Debian or Ubuntu machine: make demo, make test.
.PHONY: demo test check fix bench docs help

demo:  ## the whole story on simulated GPUs, in its own virtual environment
	@.ci/setup
	@.venv/bin/gpuctl demo

test:  ## all tests, on real parts (sshd, tmux, fuser), which are installed where that is possible
	@.ci/test

check:  ## what CI checks before the tests: lint, format, types, floors
	@.ci/check

fix:  ## mends what can be mended
	@.ci/setup dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench:  ## measures (tests/bench): never part of the tests
	@.ci/setup dev
	.venv/bin/python -m tests.bench

docs:  ## redraws the pictures from real runs, and rewrites the page of commands
	@.ci/setup dev
	.venv/bin/python docs/pictures/make.py
	.venv/bin/python docs/commands.py

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
