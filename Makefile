# make demo   install and run a recipe over the demonstration corpus
# make test   install what the tests need and run them
# make faults the long fault suites
# make random 3,000 recipes drawn at random, and what must hold of each
# make docs   the site, into site/: no network, warnings are errors
# make pages  every how-to page, block by block
# make training  ablations of planted effects, and of none
# make screen the demo with nothing compiled: does something move all the time?
# make bench  every bench: writes docs/performance.md
# make interop  other projects read our builds, and we their files: writes docs/interop.md
# make lint   lint, format check, strict types
# make dist   wheel and sdist, into dist/; the wheel is installed by itself and tried
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/pip --disable-pip-version-check
RUNTIME := $(VENV)/.installed-runtime
TESTING := $(VENV)/.installed-testing
, := ,

.PHONY: demo test faults random recipes pages training screen docs lint format bench interop dist clean

demo: $(RUNTIME)
	$(VENV)/bin/tokmill demo --out demo

# kernels first: two tests that find none compile them twice, at the same time. Three processes, on two cores: a
# fifth of the time tests wait for what they have started
test: $(TESTING)
	$(VENV)/bin/tokmill doctor --warm
	$(VENV)/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# every kill, fault and flip, and what is largest: more than an hour
faults: $(TESTING)
	$(VENV)/bin/python -m pytest -m slow_faults tests

# recipes and corpora drawn at random: another seed each week; RANDOM_RECIPES_SEED names one. Hours
random: $(TESTING)
	$(VENV)/bin/python -m pytest -rP -m slow_random tests/random_recipes

# the recipes against a loopback hub, and on real text where it is at hand
recipes: $(TESTING)
	$(VENV)/bin/python -m pytest -m slow_recipes tests/recipes tests/docs/test_five_projects.py tests/scores tests/explorer

# every how-to page, block by block, and the page of figures from a few documents
pages: $(TESTING)
	$(VENV)/bin/python -m pytest -m slow_docs tests/docs tests/bench

# do ablations find what was planted, and nothing where nothing was? With PyTorch, on ../shared
training: $(TESTING)
	$(VENV)/bin/python -m pytest -m slow_training tests/proxy

# how long nothing moves, at most
screen: $(TESTING)
	$(VENV)/bin/python -m pytest -rP -m slow_screen tests/cli/test_screen.py

docs: $(TESTING)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

lint: $(TESTING)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The wheel is built from the sdist, so that both are whole. What it needs is lent from $(VENV), by a path file and
# not by an install of minutes; pip says whether its metadata asks for just that. Lent too is what numba has compiled for
# the checkout, where it has: of the same text, it serves an installed copy.
dist: $(TESTING)
	rm -rf dist build/dist
	PIP_CONSTRAINT=constraints.txt $(VENV)/bin/python -m build --outdir dist
	$(VENV)/bin/python -m venv --without-pip build/dist
	$(PIP) --python build/dist/bin/python install --quiet --no-deps --no-index dist/tokmill-*.whl
	$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(echo build/dist/lib/python3.*/site-packages)/lent.pth
	$(PIP) --python build/dist/bin/python check
	mkdir -p $$(echo build/dist/lib/python3.*/site-packages)/tokmill/kernels/__pycache__
	find src/tokmill/kernels/__pycache__ -name '*.nb?' -o -name '*.ready' | xargs -r cp -t $$(echo build/dist/lib/python3.*/site-packages)/tokmill/kernels/__pycache__
	build/dist/bin/python tests/installed.py dist

format: $(TESTING)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# every bench, peers beside us where they can be installed: writes docs/performance.md
bench: $(TESTING) .venv-plain/.installed
	-$(MAKE) .venv-peers/.installed
	-$(MAKE) .venv-loaders/.installed
	$(VENV)/bin/python bench/all.py --datatrove .venv-peers/bin/python --loader-peers .venv-loaders/bin/python

.venv-plain/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-plain
	.venv-plain/bin/pip install --quiet --constraint constraints.txt --editable ".[language]"
	touch $@

# the fastText library itself, which trains what the tests compare: its module has the name of fasttext-predict's,
# so it has a directory of its own
.venv-fasttext/.installed:
	$(VENV)/bin/pip install --quiet --no-deps --target .venv-fasttext fasttext-numpy2==0.10.4
	touch $@

.venv-peers/.installed:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet datatrove==0.10.1 spacy nltk regex tokenizers zstandard orjson "xxhash<4" fasttext-numpy2-wheel fasteners trafilatura lxml_html_clean warcio faust-cchardet python-magic \
		data-selection==1.0.3 kenlm==0.3.0
	touch $@

# extractors of web pages, and what trains ours; an old pip cannot resolve what readability-lxml asks of lxml
.venv-extractors/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-extractors
	.venv-extractors/bin/pip install --quiet --upgrade pip
	.venv-extractors/bin/pip install --quiet --constraint constraints.txt --editable ".[language,warc]" \
		"trafilatura==2.*" readability-lxml html-text lxml cssselect zstandard lightgbm==4.7.0
	touch $@

.venv-loaders/.installed:
	$(PYTHON) -m venv .venv-loaders
	.venv-loaders/bin/pip install --quiet torch==2.13.0 mosaicml-streaming datasets
	touch $@

# other projects' own readers and writers, each on what we write and read: writes docs/interop.md
interop: $(TESTING) .venv-interop/.installed
	$(VENV)/bin/python interop/all.py --python .venv-interop/bin/python

# what cannot be had is left out, and the page says so: all together if they agree, or else one by one
.venv-interop/.installed: interop/requirements.txt interop/requirements-alone.txt
	$(PYTHON) -m venv .venv-interop
	.venv-interop/bin/pip install --quiet -r interop/requirements.txt \
		|| grep -v '^#' interop/requirements.txt | while read -r package; do \
			.venv-interop/bin/pip install --quiet "$$package" torch==2.13.0 || echo "without $$package"; done
	-.venv-interop/bin/pip install --quiet --no-deps -r interop/requirements-alone.txt
	for name in karpathy/nanoGPT karpathy/llm.c stanford-crfm/levanter; do test -d .venv-interop/src/$${name#*/} \
		|| git clone --quiet --depth 1 https://github.com/$$name .venv-interop/src/$${name#*/} || echo "without $$name"; done
	touch $@

clean:
	rm -rf $(VENV) demo build dist site .venv-plain .venv-peers .venv-extractors .venv-loaders .venv-interop

# on a terminal the seconds count on while a command says nothing, as pip does where it unpacks
define counting
@echo '$(1)'
@if [ -t 2 ]; then \
	(n=0; while sleep 1 && kill -0 $$$$ 2>/dev/null; do n=$$((n + 1)); printf '\r%s s ' $$n; done) >&2 & \
	trap "kill $$! 2>/dev/null; printf '\r' >&2" EXIT INT TERM; \
fi; $(1)
endef

$(VENV)/bin/python:
	$(call counting,$(PYTHON) -m venv $(VENV))

$(RUNTIME): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call counting,$(PIP) install --constraint constraints.txt --editable .)
	@touch $@

$(TESTING): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call counting,$(PIP) install --quiet --constraint constraints.txt --editable ".[test$(,)dev$(,)docs]")
	@touch $@ $(RUNTIME)
