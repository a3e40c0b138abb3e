# Firstlight: from a bare GPU host to a verified SGLang endpoint. `make` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv/bin
INVENTORY ?=
LIMIT ?=
ANSIBLE_ARGS ?=
# Make would expand the dollars of what is given on its command line, and so run a $(shell ...) of it, to hand it on.
unexport MODEL GPUS ARGS WANT RELEASE GIVEN OUT FORMAT EXPLAIN CHECK GROUP_VARS
export PATH := $(CURDIR)/$(VENV):$(PATH)
export MOLECULE_GLOB := molecule/*/molecule.yml
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
PLAYBOOK = ansible-playbook -i '$(INVENTORY)' $(if $(LIMIT),--limit '$(LIMIT)') $(ANSIBLE_ARGS)
needs-inventory = $(if $(INVENTORY),,$(error say which hosts: make $@ INVENTORY=inventory/<yours>.yml [LIMIT=<host>]))

.PHONY: help setup demo demo-destroy deploy proxmox verify gpu-inventory gpu-driver pin test test-full lint bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## make .venv with the pinned tools
	@tools/setup.sh

demo: ## make a container on this machine and take it to a verified completion
	@tools/demo.sh

demo-destroy: ## remove the demo's container and everything that belongs to it
	@tools/demo.sh destroy

.PHONY: plan
# From the environment, so that spaces, quotes and dollars of a value reach the program as they were written.
plan: export PLAN_MODEL := $(value MODEL)
plan: export PLAN_GPUS := $(value GPUS)
plan: export PLAN_ARGS := $(value ARGS)
plan: export PLAN_WANT := $(value WANT)
plan: export PLAN_RELEASE := $(value RELEASE)
plan: export PLAN_GIVEN := $(value GIVEN)
plan: export PLAN_OUT := $(value OUT)
plan: export PLAN_FORMAT := $(value FORMAT)
plan: ## what fits: make plan MODEL=qwen3-8b GPUS="1x rtx-4090" [ARGS="--tp-size 2"] [WANT="context=32768 concurrency=4"] [FORMAT=json|md|html]
	@tools/setup.sh >&2
	@bin/plan --args "$$PLAN_ARGS" --want "$$PLAN_WANT" --release "$$PLAN_RELEASE" --given "$$PLAN_GIVEN" --out "$$PLAN_OUT" \
	  --format "$${PLAN_FORMAT:-text}" $(if $(filter-out 0 no false,$(value EXPLAIN)),--explain) -- "$$PLAN_MODEL" "$$PLAN_GPUS"; \
	  code=$$?; [ $$code -eq 3 ] || [ $$code -eq 4 ] || exit $$code

deploy: setup ## run site.yml: make deploy INVENTORY=... [LIMIT=...]
	$(needs-inventory)$(PLAYBOOK) playbooks/site.yml

proxmox: setup ## run proxmox.yml (hypervisors, their guests, then site.yml): make proxmox INVENTORY=... [LIMIT=...]
	$(needs-inventory)$(PLAYBOOK) playbooks/proxmox.yml

verify: setup ## run verify.yml: make verify INVENTORY=... [LIMIT=...]
	$(needs-inventory)$(PLAYBOOK) playbooks/verify.yml

gpu-inventory: setup ## run gpu_inventory.yml: make gpu-inventory INVENTORY=... [LIMIT=...]
	$(needs-inventory)$(PLAYBOOK) playbooks/gpu_inventory.yml

gpu-driver: setup ## run gpu_driver.yml: make gpu-driver INVENTORY=... [LIMIT=...]
	$(needs-inventory)$(PLAYBOOK) playbooks/gpu_driver.yml

pin: export PIN_MODEL := $(value MODEL)
pin: export PIN_CHECK := $(value CHECK)
pin: export PIN_GROUP_VARS := $(value GROUP_VARS)
pin: setup ## pin a model to the newest commit of its repository: make pin MODEL=<model group or org/name> [CHECK=1]
	$(if $(value MODEL),,$(error say which model: make pin MODEL=<model group or org/name>))@python tools/pin.py $${PIN_CHECK:+--check} \
	  $${PIN_GROUP_VARS:+--group-vars "$$PIN_GROUP_VARS"} -- "$$PIN_MODEL"

lint: setup ## ansible-lint, yamllint, ruff, mypy
	yamllint --strict .
	ruff check .
	ruff format --check .
	mypy
	# its syntax check has no inventory, and ansible.cfg makes a play without hosts an error
	ANSIBLE_HOST_PATTERN_MISMATCH=ignore ansible-lint

test: lint ## what CI runs: lint, unit tests, sanity, Molecule and end-to-end on real containers
	tools/test.sh

test-full: lint ## the slow scenarios too: the cuda environment, the kernel driver, the driver with dnf
	tools/test.sh full

bench: setup ## measure and write docs/benchmarks.md
	python tools/bench.py

clean: ## remove what the targets made in this checkout (not reports, not the download cache)
	rm -rf .venv .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis firstlight-sglang-*.tar.gz
