# Every target sets up what it needs; what is there already costs no time.
PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ifneq ($(shell id -u),0)
SUDO := $(shell command -v sudo >/dev/null && { id -nG | grep -qwE 'sudo|wheel|admin' || \
    sudo -n true 2>/dev/null; } && echo sudo)
PREFIX ?= $(if $(SUDO),/usr/local,$(HOME)/.local)
endif
PREFIX ?= /usr/local
PACKAGES := env "SUDO=$(SUDO)" tests/system-packages.sh
MAN_PAGE := tracelloc/docs/tracelloc.1
DEMO := $(VENV)/demo
DEMO_SECONDS ?= 120
PRELOADED_TESTS := allocators ends exact exec interrupts launch live stacks symbols waste
SKIPPED := $(VENV)/skipped.txt
PYTEST := $(SUDO) env "PATH=$$PATH" PYTHONDONTWRITEBYTECODE=1 "TEST_COMPLETE=$$TEST_COMPLETE" \
    TEST_SKIPPED=$(SKIPPED) $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install uninstall demo test long nightly capabilities preloaded fuzz soak lint bench \
    kernels screenshots docs release clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | \
	    awk -F': *' '{ printf "  make %-11s %s\n", $$1, $$2 }'

install: $(VENV)/.installed ## install bcc, .venv, and links in /usr/local or ~/.local (PREFIX)
	@test -L $(PREFIX)/bin/tracelloc || test ! -e $(PREFIX)/bin/tracelloc || { \
	    echo "$(PREFIX)/bin/tracelloc was not made by this: remove it, or choose a PREFIX" >&2; exit 1; }
	@$(SUDO) mkdir -p $(PREFIX)/bin $(PREFIX)/share/man/man1
	@$(SUDO) ln -sfn "$(CURDIR)/$(BIN)/tracelloc" $(PREFIX)/bin/tracelloc
	@$(SUDO) ln -sfn "$(CURDIR)/$(MAN_PAGE)" $(PREFIX)/share/man/man1/tracelloc.1
	@case ":$$PATH:" in \
	    *":$(PREFIX)/bin:"*) echo "installed: tracelloc" ;; \
	    *) echo "installed: $(PREFIX)/bin/tracelloc ($(PREFIX)/bin is not on PATH)" ;; \
	esac

uninstall: ## remove the links that install made
	@for link in bin/tracelloc share/man/man1/tracelloc.1; do \
	    case "$$(readlink $(PREFIX)/$$link)" in \
	        "$(CURDIR)"/*) $(SUDO) rm $(PREFIX)/$$link ;; \
	    esac; \
	done

demo: $(VENV)/.installed $(DEMO)/leaky ## trace a small leaking program until its leak is proven, a minute; needs no root
	@DEMO_SECONDS=$(DEMO_SECONDS) tests/demo.sh $(DEMO)/leaky $(BIN)/tracelloc $(DEMO)/leaky.html

# Tests wait much of their time: more workers than processors keep these busy.
test: $(VENV)/.tools ## run the tests, those that trace real processes included
	@rm -f $(SKIPPED)
	$(PYTEST) --numprocesses 4 --dist loadfile -m "not long and not nightly" tests/unit tests/ui \
	    $(PYTEST_ARGS)
	$(PYTEST) --numprocesses 4 --dist worksteal -m "not alone and not long and not nightly" \
	    tests/integration $(PYTEST_ARGS)
	@cat $(SKIPPED)

long: $(VENV)/.long ## run the others: more compilers, rare and hostile programs, sanitizers, times
	@rm -f $(SKIPPED)
	tests/sanitized.sh $(VENV)/sanitized "$(CURDIR)/$(BIN)/python"
	$(PYTEST) --numprocesses 7 --dist worksteal -m "long and not alone and not nightly" \
	    tests/unit tests/ui tests/integration $(PYTEST_ARGS)
	$(PYTEST) -m "alone and not nightly" tests/integration $(PYTEST_ARGS)
	@cat $(SKIPPED)

nightly: $(VENV)/.nightly ## run what takes services, libraries of other releases of Debian, an emulated Arm, or an hour
	@rm -f $(SKIPPED)
	$(PYTEST) --numprocesses 4 --dist worksteal -m "nightly and not alone" \
	    tests/unit tests/ui tests/integration $(PYTEST_ARGS)
	$(PYTEST) -m "nightly and alone" tests/integration $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory kernels KERNELS=library
	@cat $(SKIPPED)

# Probing a process whose main thread has ended takes more than these capabilities.
capabilities: $(VENV)/.long ## run the tests that trace with the documented capabilities, not as root
	$(SUDO) env TEST_CAPABILITIES=1 "PATH=$$PATH" $(BIN)/python -m pytest \
	    -m "not alone and not nightly" --numprocesses 2 --dist worksteal \
	    --ignore tests/integration/test_leaderless.py tests/integration $(PYTEST_ARGS)

preloaded: $(VENV)/.long ## run the tests that trace with the preloaded library instead of probes
	$(SUDO) env TEST_PRELOAD=1 "PATH=$$PATH" $(BIN)/python -m pytest \
	    -m "not alone and not nightly" --numprocesses 2 --dist worksteal -k "not injected" \
	    $(addprefix tests/integration/test_,$(addsuffix .py,$(PRELOADED_TESTS))) $(PYTEST_ARGS)

fuzz: $(VENV)/.tools ## damage the input of every reader anew, for ten minutes (FUZZ_SECONDS)
	env FUZZ_SECONDS=$${FUZZ_SECONDS:-600} FUZZ_SEED=$$(date +%s%N) PYTHONDONTWRITEBYTECODE=1 \
	    $(BIN)/python -m pytest --numprocesses 2 tests/unit/test_fuzz.py $(PYTEST_ARGS)

soak: $(VENV)/.tools ## trace under load for half an hour: memory flat, figures exact (SOAK_SECONDS)
	$(SUDO) env SOAK_SECONDS=$${SOAK_SECONDS:-1800} "PATH=$$PATH" $(BIN)/python -m pytest -s \
	    tests/integration/test_soak.py $(PYTEST_ARGS)

lint: $(VENV)/.developer ## check types and style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.long ## measure the cost beside other tools' (BENCH_ARGS='--only storm')
	$(SUDO) tests/bench/peers.sh
	$(SUDO) env "PATH=$$PATH" PYTHONDONTWRITEBYTECODE=1 $(BIN)/python -m tests.bench $(BENCH_ARGS)

kernels: $(VENV)/.tools ## run tests on other kernels, in virtual machines (KERNELS='6.18 full' or arm64; hours)
	@$(PACKAGES) kernels
	$(SUDO) env "PATH=$$PATH" PYTHONDONTWRITEBYTECODE=1 $(BIN)/python -m tests.kernels $(KERNELS)

screenshots: $(VENV)/.long ## make the pictures in img/ again
	$(BIN)/python -m tests.screenshots

docs: $(VENV)/.developer ## write the man page and the JSON schema again, after a change of options or records
	COLUMNS=1000 $(BIN)/argparse-manpage --module tracelloc.command.parser \
	    --function whole_parser --project-name tracelloc --manual-title "User Commands" \
	    --description "live heap profiler for running Linux programs" \
	    --include $(MAN_PAGE).in \
	    --output $(MAN_PAGE)
	$(BIN)/python -m tests.schema

release: $(VENV)/.installed ## make packages in dist/, and install each in new Debian systems (RELEASES)
	@$(PACKAGES) release
	.github/packaging/release.sh $${RELEASES:-bookworm trixie}

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info

# bcc belongs to the distribution's own Python, so the environment is made from that one.
$(VENV)/.installed: pyproject.toml tests/system-packages.sh $(shell find tracelloc -name "*.p[xy][xd]") probes/event.h $(wildcard probes/preloaded/*.[ch])
	@$(PACKAGES) run
	$(PYTHON) -m venv --system-site-packages $(VENV)
	@printf '[build_ext]\nparallel = %s\n' "$$(nproc)" >$(VENV)/build.cfg
	@# pip keeps to itself what the build prints. A file would have two writers.
	@echo "fetching Python packages, then compiling"
	@test -f /proc/self/fd/2 || export BUILD_PROGRESS=/proc/$$$$/fd/2; \
	    export DIST_EXTRA_CONFIG="$(CURDIR)/$(VENV)/build.cfg"; \
	    $(PIP) --editable .
	@# Starts are twice as quick, also of users who may not write here.
	@$(BIN)/python -m compileall -q tracelloc ui
	@touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(BIN)/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	    print(*project['optional-dependencies']['dev'], sep='\n')" >$(VENV)/dev.txt
	$(PIP) --requirement $(VENV)/dev.txt
	@touch $@

$(VENV)/.tools: $(VENV)/.developer
	@$(PACKAGES) test
	@touch $@

$(VENV)/.long: $(VENV)/.tools
	@$(PACKAGES) long
	@touch $@

$(VENV)/.nightly: $(VENV)/.long
	@$(PACKAGES) nightly
	@touch $@

$(DEMO)/leaky: tests/targets/leaky.c $(VENV)/.installed
	@$(PACKAGES) demo
	@mkdir -p $(DEMO)
	$(CC) -O1 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -pthread -o $@ $<
