# Firstlight: from a bare GPU host to a verified SGLang endpoint. `make` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv/bin
INVENTORY ?=
LIMIT ?=
ANSIBLE_ARGS ?=
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

pin: setup ## pin a model to the newest commit of its repository: make pin MODEL=<model group or org/name> [CHECK=1]
	$(if $(MODEL),,$(error say which model: make pin MODEL=<model group or org/name>))@python tools/pin.py $(if $(CHECK),--check) $(if $(GROUP_VARS),--group-vars '$(GROUP_VARS)') -- '$(MODEL)'

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
