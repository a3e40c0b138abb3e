"""What must agree across files, checked so that it cannot drift apart."""

from __future__ import annotations

import ast
import configparser
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODEL_GROUPS = sorted(path.name for path in (ROOT / "group_vars").iterdir() if path.is_dir() and path.name != "all")
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))
BIN = pathlib.Path(sys.executable).parent


def load(path):
    return yaml.safe_load((ROOT / path).read_text()) or {}


def specs(role):
    return load(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]


def lookup_variables():
    """The host variables that the instances lookup reads."""
    source = (ROOT / "plugins/lookup/instances.py").read_text()
    documentation = next(
        node.value.value for node in ast.parse(source).body if isinstance(node, ast.Assign) and node.targets[0].id == "DOCUMENTATION"
    )
    options = yaml.safe_load(documentation)["options"].values()
    return {variable["name"] for option in options for variable in option.get("vars", [])}


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_specs_have_the_same_keys(role):
    options = specs(role)["options"]
    defaults = load(f"roles/{role}/defaults/main.yml")
    assert set(defaults) == {name for name, option in options.items() if not option.get("required")}


@pytest.mark.parametrize("role", ROLES)
def test_every_option_has_a_type_a_sentence_and_the_role_as_prefix(role):
    def check(options, prefix):
        for name, option in options.items():
            assert name.startswith(prefix), name
            assert option.get("type"), name
            assert option.get("description"), name
            assert option["type"] != "list" or option.get("elements"), name
            check(option.get("options", {}), "")

    check(specs(role)["options"], f"{role}_")


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_of_a_role_names_every_variable(role):
    readme = (ROOT / f"roles/{role}/README.md").read_text()
    missing = [name for name in specs(role)["options"] if f"`{name}`" not in readme]
    assert missing == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_a_short_table_of_contents(role):
    assert len(load(f"roles/{role}/tasks/main.yml")) <= 9


@pytest.mark.parametrize("group", MODEL_GROUPS)
def test_a_model_group_sets_exactly_its_own_instance(group):
    variables = {}
    for path in (ROOT / "group_vars" / group).iterdir():
        variables.update(yaml.safe_load(path.read_text()))
    assert list(variables) == [f"sglang_instance_{group}"]


def test_every_variable_of_the_site_is_declared_somewhere():
    declared = lookup_variables().union(*(specs(role)["options"] for role in ROLES))
    files = (ROOT / "group_vars/all").iterdir()
    used = {name for path in files for name in yaml.safe_load(path.read_text()) if not name.startswith("ansible_")}
    for path in (ROOT / "inventory").glob("*.yml"):
        used |= set(re.findall(r"^\s+(sglang_\w+):", path.read_text(), re.MULTILINE))
    assert used - declared == set()


def test_a_play_sees_the_group_vars_of_the_checkout(tmp_path):
    """ansible-playbook reads group_vars beside the inventory only: the link inventory/group_vars must not rot."""
    play = [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.debug": {"msg": "release={{ sglang_release }}"}}]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    result = subprocess.run(
        [BIN / "ansible-playbook", "-i", "inventory/ct129.example.yml", tmp_path / "play.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"release={load('group_vars/all/sglang.yml')['sglang_release']}" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda path: path.name)
def test_a_play_is_hosts_and_roles(playbook):
    for play in yaml.safe_load(playbook.read_text()):
        allowed = {"name", "hosts", "become", "gather_facts", "roles", "serial", "any_errors_fatal", "ansible.builtin.import_playbook"}
        assert set(play) <= allowed, set(play) - allowed


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda path: path.name)
def test_the_hardware_is_looked_at_before_an_instance_is_resolved(playbook):
    """What group_vars of its groups set must count in every playbook, or verify.yml would expect another instance than site.yml made."""
    for play in yaml.safe_load(playbook.read_text()):
        names = [role["role"].rpartition(".")[2] for role in play.get("roles", [])]
        assert not any(name.startswith("sglang_") for name in names) or names[0] in ("gpu_inventory", "sglang_preflight")
    steps = [step.get("ansible.builtin.include_role", {}).get("name", "") for step in load("roles/sglang_preflight/tasks/main.yml")]
    assert next(name for name in steps if name) == "firstlight.sglang.gpu_inventory"


def test_the_collection_links_are_committed():
    home = ROOT / "collections/ansible_collections/firstlight/sglang"
    assert {path.name: str(path.readlink()) for path in home.iterdir()} == {
        name: f"../../../../{name}" for name in ("galaxy.yml", "meta", "playbooks", "plugins", "roles")
    }


def test_no_inventory_is_used_by_default():
    config = configparser.ConfigParser()
    config.read(ROOT / "ansible.cfg")
    assert "inventory" not in config["defaults"]
    assert config["defaults"]["inject_facts_as_vars"] == "false"


def test_every_requirement_is_pinned():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"^[\w.-]+==[\w.]+(; .*)?$", line) for line in lines), lines


def test_the_artifact_holds_the_collection_and_nothing_of_the_checkout(tmp_path):
    tree = shutil.copytree(
        ROOT,
        tmp_path / "tree",
        symlinks=True,
        ignore=shutil.ignore_patterns(".venv", ".hypothesis", ".cache", ".git", "reports", ".*_cache", ".ansible"),
    )
    subprocess.run([BIN / "ansible-galaxy", "collection", "build", "--output-path", tmp_path], cwd=tree, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as artifact:
        tops = {name.split("/")[0] for name in artifact.getnames()}
    assert tops == {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "FILES.json",
        "LICENSE",
        "MANIFEST.json",
        "README.md",
        "docs",
        "meta",
        "playbooks",
        "plugins",
        "roles",
    }


def test_nothing_is_ignored_or_slept_through():
    """Case D08: ignore_errors and pauses hide faults."""
    offenders = [
        str(path.relative_to(ROOT))
        for directory in ("roles", "playbooks")
        for path in (ROOT / directory).rglob("*.yml")
        if re.search(r"ignore_errors|ansible\.builtin\.pause", path.read_text())
    ]
    assert offenders == []


def test_the_hub_client_of_the_tests_is_the_one_of_the_locks():
    pin = re.compile(r"^huggingface-hub==([\d.]+)", re.MULTILINE)
    versions = {pin.search(path.read_text()).group(1) for path in (ROOT / "roles/sglang_venv/files/locks").glob("0.*-*.txt")}
    assert versions == {pin.search((ROOT / "requirements.txt").read_text()).group(1)}


@pytest.mark.parametrize("lock", sorted((ROOT / "roles/sglang_venv/files/locks").glob("0.*-cuda.txt")), ids=lambda path: path.stem)
def test_nvcc_and_its_headers_are_of_one_cuda_release(lock):
    """The newest nvcc beside the runtime that torch pins: CCCL refuses to be compiled, and with it the engine's kernels."""
    pins = re.findall(r"^nvidia-(?:cuda-nvcc|cuda-crt|cuda-runtime|nvvm)==(\d+\.\d+)\.\S+(.*)", lock.read_text(), re.MULTILINE)
    releases = [release for release, marker in pins if "== 'darwin'" not in marker]
    assert len(releases) == 4
    assert len(set(releases)) == 1


@pytest.mark.parametrize("role", ROLES)
def test_a_spec_holds_no_template(role):
    """Ansible evaluates it even when the variable is given, and a lookup in it may fail then."""
    assert "{{" not in (ROOT / f"roles/{role}/meta/argument_specs.yml").read_text()


def test_roles_trick_neither_the_interpreter_nor_the_facts():
    """Cases D06, D17, D18: no become_user (needs acl), no engine Python for Ansible's own modules, no faked distribution."""
    offenders = [
        f"{path.relative_to(ROOT)}: {found.group(0)}"
        for path in (ROOT / "roles").rglob("*.yml")
        for found in re.finditer(r"become_user|ansible_python_interpreter|ansible_distribution\w*", path.read_text())
    ]
    assert offenders == []


def test_facts_are_neither_gathered_nor_injected():
    """Cases D02 and D03: decisions come from our own modules' results."""
    for path in (ROOT / "roles").rglob("*.yml"):
        assert "ansible_facts" not in path.read_text(), path
    for playbook in PLAYBOOKS:
        plays = [play for play in yaml.safe_load(playbook.read_text()) if "hosts" in play]
        assert all(play["gather_facts"] is False for play in plays)


def test_every_scenario_is_run():
    lines = [line.split() for line in (ROOT / "tools/test.sh").read_text().splitlines() if "molecule test" in line]
    run = {word for line in lines for word in line}
    scenarios = {path.parent.name for path in ROOT.glob("molecule/*/molecule.yml") if not path.parent.name.startswith("gpu_")}
    assert (len(scenarios) > 3, scenarios - run) == (True, set())
