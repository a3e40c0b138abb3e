"""The catalogue: every entry is valid, says where its commit comes from and why each flag is there, and the page shows it."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys

import model_fields
import pytest
from ansible_collections.firstlight.sglang.plugins.lookup.instances import CATALOGUE
from ansible_collections.firstlight.sglang.plugins.module_utils import _flags, _instances, _model_config, _plan, _plan_gpus
from instance_settings import SETTINGS

ROOT = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("catalogue", ROOT / "tools/catalogue.py")
catalogue = importlib.util.module_from_spec(spec)
sys.modules["catalogue"] = catalogue
spec.loader.exec_module(catalogue)

ENTRIES = catalogue.entries()
PUBLISHED = model_fields.load()
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.group)


def resolve(entry, **settings):
    return _instances.resolve_one(entry.group, entry.instance, SETTINGS._replace(**settings), CATALOGUE)


def test_there_is_something_for_most_owners():
    cards = {gpus for entry in ENTRIES for gpus in entry.about["gpus"]}
    assert len(ENTRIES) >= 22
    assert ENTRIES[0].group == "qwen3_6_27b"
    assert cards >= {"1x rtx-3090", "1x rtx-4090", "2x rtx-4090", "1x rtx-5090", "2x rtx-a6000", "1x l40s", "1x rtx-pro-6000", "8x h200"}


@every_entry
def test_an_entry_resolves(entry):
    instance, problems = resolve(entry, unpinned="allow")
    assert problems == []
    assert instance["model"]["config"]["architectures"]


@every_entry
def test_a_deployment_stops_where_the_commit_is_missing_and_only_there(entry):
    problems = resolve(entry)[1]
    if _instances.model_sources(entry.instance["model"]):
        assert problems == []
    else:
        assert len(problems) == 1
        assert f"`make pin MODEL={entry.group}`" in problems[0]


@every_entry
def test_the_flags_are_flags_of_the_release(entry):
    """Names, types and choices (so the parsers too) against the table of 0.5.23."""
    table = CATALOGUE.flag_table("0.5.23")
    words, problems = _flags.check_args(table, entry.instance["args"], _instances.RESERVED)
    assert (problems, bool(words), entry.instance.get("extra_args")) == ([], True, None)


@every_entry
def test_each_flag_has_its_reason_above_it(entry):
    lines = entry.path.read_text().splitlines()
    start = lines.index("  args:") + 1
    flags = [number for number, line in enumerate(lines[start:], start) if re.match(r"    \w+:", line)]
    flags = [number for number in flags if lines[number].split(":")[0].strip() in entry.instance["args"]]
    assert len(flags) == len(entry.instance["args"])
    assert [lines[number] for number in flags if not lines[number - 1].startswith("    # ")] == []


# Fine-tunes whose own config.json is not among the published ones at hand: whose fields the entry has.
BASES = {
    "google/gemma-4-26B-A4B-it": "google/gemma-4-26B-A4B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistralai/Mixtral-8x7B-v0.1",
}


@every_entry
def test_the_plan_reads_an_entry_as_it_reads_the_published_configuration(entry):
    """The shortened fields, globs in place of lists included, make the same model."""
    config, name = entry.instance["model"]["config"], entry.instance["model"]["name"]
    model, problems = _model_config.read(config)
    assert (problems, model is not None and model.known) == ([], True)
    if name == "Qwen/Qwen3-32B-FP8":  # not among the published ones: Qwen3-32B, quantised as Qwen's other FP8 releases
        config = {**config, "quantization_config": None}
        name, model = "Qwen/Qwen3-32B", _model_config.read(config)[0]
    published = PUBLISHED[BASES.get(name, name).replace("/", "--")]
    assert model == _model_config.read(published["config"], published.get("hf_quant_config"))[0]


@every_entry
def test_an_entry_starts_on_every_card_it_names(entry):
    """By the plan, with one request of the length that it sets, and room for the activations of a prompt."""
    model, _problems = _model_config.read(entry.instance["model"]["config"])
    args = entry.instance["args"]
    for gpus in entry.about["gpus"]:
        found = _plan_gpus.by_name(gpus)
        assert found.problems == ()
        cards = tuple(_plan.Gpu(gpu.index, gpu.name, gpu.memory_total_mib, gpu.compute_capability) for gpu in found.gpus)
        result = _plan.outcome(_plan.Request(model, "0.5.23", cards, args))
        # that a format is not the card's own is a warning of the rules; room is not
        warnings = [warning for warning in result.warnings if not warning.startswith("quantization: ")]
        assert (gpus, result.problems, warnings) == (gpus, (), [])
        assert result.pools.max_total_num_tokens >= args.get("context_length", 32768), gpus


def source_problem(name, revision, source):
    """Why a commit is not acceptable: it has no source, or one that is not about it. None when all is well."""
    if revision is None:
        return None if source is None else "a source without a commit"
    if not source:
        return "a commit without a source"
    quoted = source.startswith("https://") and f"/{name}/" in source and revision in source
    asked = re.fullmatch(rf"https?://[^ ]+/api/models/{re.escape(name)} on \d{{4}}-\d\d-\d\d", source)
    return None if quoted or asked else "a source that is not about this commit"


@pytest.mark.parametrize(
    ("revision", "source", "expected"),
    [
        (None, None, None),
        ("a" * 40, "https://hub/o/n/resolve/" + "a" * 40 + "/config.json", None),
        ("a" * 40, "https://hub/api/models/o/n on 2026-12-01", None),
        ("a" * 40, None, "a commit without a source"),
        ("a" * 40, "", "a commit without a source"),
        ("a" * 40, "somebody said so", "a source that is not about this commit"),
        ("a" * 40, "https://hub/o/n/resolve/main/config.json", "a source that is not about this commit"),
        ("a" * 40, "https://hub/o/other/resolve/" + "a" * 40, "a source that is not about this commit"),
        ("a" * 40, "https://hub/api/models/o/other on 2026-12-01", "a source that is not about this commit"),
        (None, "https://hub/api/models/o/n on 2026-12-01", "a source without a commit"),
    ],
)
def test_what_counts_as_a_source(revision, source, expected):
    assert source_problem("o/n", revision, source) == expected


@every_entry
def test_a_commit_has_its_source(entry):
    model = entry.instance["model"]
    assert source_problem(model["name"], model.get("revision"), entry.about["revision_source"]) is None


@every_entry
def test_an_entry_says_what_it_is_for(entry):
    """On cards whose number is that of its GPUs, with a licence and what was really run."""
    assert {int(gpus.split("x ")[0]) for gpus in entry.about["gpus"]} == {len(entry.instance["gpus"])}
    assert {gpus.split("x ")[1] for gpus in entry.about["gpus"]} <= set(catalogue.CARDS)
    assert entry.about["licence"]
    assert entry.about["run"]


@every_entry
def test_a_model_that_thinks_has_the_parser_for_it(entry):
    """A check that expects thinking would fail without."""
    assert not entry.instance.get("verify", {}).get("thinking") or entry.instance["args"].get("reasoning_parser")


def test_the_page_shows_the_catalogue_as_it_is():
    assert catalogue.PAGE.read_text() == catalogue.page(ENTRIES), "run python tools/catalogue.py"


def test_a_host_of_a_group_that_is_not_pinned(tmp_path):
    """Through Ansible: a deployment stops with the command that helps; the plan may ask all the same."""
    group = next(entry.group for entry in ENTRIES if entry.pinned == "no")
    (tmp_path / "group_vars").symlink_to(ROOT / "group_vars")
    (tmp_path / "hosts.yml").write_text(f"{group}: {{hosts: {{localhost: {{ansible_connection: local}}}}}}\n")

    def ask(options):
        (tmp_path / "play.yml").write_text(
            "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.debug:\n"
            f"""        msg: "{{{{ query('firstlight.sglang.instances'{options}) | map(attribute='model') }}}}"\n"""
        )
        command = [pathlib.Path(sys.executable).parent / "ansible-playbook", "-i", tmp_path / "hosts.yml", tmp_path / "play.yml"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    stopped = ask("")
    assert (stopped.returncode != 0, f"`make pin MODEL={group}`" in stopped.stdout + stopped.stderr) == (True, True), stopped.stdout
    taken = ask(", unpinned='allow'")
    assert (taken.returncode, "architectures" in taken.stdout) == (0, True), taken.stdout + taken.stderr
