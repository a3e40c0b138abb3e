from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.firstlight.sglang.plugins.module_utils import _instances
from ansible_collections.firstlight.sglang.plugins.plugin_utils import flag_tables
from instance_settings import SETTINGS

ROOT = pathlib.Path(__file__).parents[4]
TABLE = flag_tables.table("0.5.23")
CATALOGUE = _instances.Catalogue(
    flag_table={"0.5.23": TABLE}.get,
    lock_sha256={"0.5.23-cuda.txt": "c" * 64, "0.5.23-cpu.txt": "a" * 64}.get,
    build_script={"tiny_qa.py": ("/x/tiny_qa.py", "b" * 64)}.get,
    environments=("0.5.23-cpu", "0.5.23-cuda"),
)
MODEL = {"name": "org/name", "path": "/srv/name"}


def resolve(**raw):
    return _instances.resolve({f"sglang_instance_{group}": value for group, value in raw.items()}, SETTINGS, CATALOGUE)


def instance(**raw):
    """The one resolved instance of group g, with a model and a GPU unless given."""
    instances, problems = resolve(g={"model": MODEL, "gpus": [0], **raw})
    assert problems == []
    return instances[0]


def problems(**raw):
    return resolve(g={"model": MODEL, "gpus": [0], **raw})[1]


def test_ct129_has_the_reference_command_line_word_by_word():
    raw = yaml.safe_load((ROOT / "group_vars/qwen3_6_27b/sglang_instance.yml").read_text())
    instances, found = _instances.resolve(raw, SETTINGS, CATALOGUE)
    assert found == []
    assert " ".join(instances[0]["argv"]) == (
        "/opt/sglang/instances/qwen3-6-27b/current/bin/sglang serve --model-type llm --model-path /var/lib/sglang/models/Qwen--Qwen3.6-27B "
        "--served-model-name qwen3.6-27b --host 127.0.0.1 --port 30000 --nccl-port 29000 --tp-size 2 --dtype bfloat16 "
        "--mamba-radix-cache-strategy extra_buffer --speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 2 --reasoning-parser qwen3"
    )
    assert instances[0]["unit_environment"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert instances[0]["unit_environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"name": "o/n", "path": "/srv/n"}, {"source": "local", "revision": None, "build": None, "path": "/srv/n"}),
        (
            {"name": "o/n", "revision": "0123456789" * 4},
            {"source": "hub", "revision": "0123456789" * 4, "build": None, "path": f"/var/lib/sglang/models/o--n/{'0123456789' * 4}"},
        ),
        (
            {"name": "o/n", "build": "tiny_qa.py"},
            {"source": "build", "revision": "b" * 12, "build": "/x/tiny_qa.py", "path": f"/var/lib/sglang/models/o--n/{'b' * 12}"},
        ),
    ],
)
def test_where_a_model_comes_from(model, expected):
    assert instance(model=model)["model"] == {"name": "o/n", "config": None, **expected}


def test_a_model_that_is_not_pinned_is_refused_with_the_way_to_pin_it():
    assert problems(model={"name": "o/n", "revision": None}) == [
        "sglang_instance_g: model: expected exactly one of revision (a commit of the Hub repository), path (a directory on the host) and "
        "build (a script), found none; `make pin MODEL=g` finds the repository's commit and writes it here"
    ]


def test_the_plan_takes_a_model_that_is_not_pinned_with_its_configuration():
    config = {"architectures": ["X"]}
    raw = {"model": {"name": "o/n", "revision": None, "config": config}, "gpus": [0], "catalogue": {"run": "planned only"}}
    instances, found = _instances.resolve({"sglang_instance_g": raw}, SETTINGS._replace(unpinned="allow"), CATALOGUE)
    assert found == []
    assert instances[0]["model"] == {"name": "o/n", "source": "hub", "revision": None, "build": None, "path": None, "config": config}
    assert "--model-path o/n" in " ".join(instances[0]["argv"])
    assert "catalogue" not in instances[0]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"modle": {}}, "modle: unknown key; known are name, release"),
        ({"model": "x"}, "model: expected a dictionary, found 'x' (str)"),
        ({"model": None}, "model: missing"),
        ({"model": {"name": "o/n", "path": "/x", "config": []}}, "model.config: expected a dictionary, found [] (list)"),
        ({"catalogue": {"license": "MIT"}}, "catalogue.license: unknown key; known are licence, gpus, revision_source, run, notes"),
        ({"catalogue": {"licence": 1}}, "catalogue.licence: expected a string, found 1 (int)"),
        ({"catalogue": {"gpus": ["1x h200", 2]}}, "catalogue.gpus: expected names such as 2x rtx-a6000, found 2 (int)"),
        ({"model": {"name": "o/n", "path": "/x", "build": "tiny_qa.py"}}, "found path and build"),
        ({"model": {"name": "n", "path": "/x"}}, "model.name: expected <org>/<name>, found 'n'"),
        ({"model": {"name": "o/n", "path": "x"}}, "expected an absolute path"),
        ({"model": {"name": "o/n", "revision": "main"}}, "expected a commit (40 hex digits"),
        ({"model": {"name": "o/n", "build": "no.py"}}, "no such script: 'no.py'"),
        ({"model": {"name": "o/n", "path": "/x", "sha": "1"}}, "model.sha: unknown key"),
        ({"port": "30000"}, "port: expected a whole number, found '30000' (str)"),
        ({"port": True}, "port: expected a whole number, found True (bool)"),
        ({"port": 80}, "port: expected 1024 to 65535"),
        ({"port": 70000}, "port: expected 1024 to 65535"),
        ({"port": 30000, "nccl_port": 30000}, "nccl_port: expected another port than the HTTP port, found 30000"),
        ({"host": "0.0.0.0"}, "reachable from the network and there is no key"),
        ({"host": "example"}, "reachable from the network and there is no key"),
        ({"release": "0.4.0"}, "there is no lock for SGLang 0.4.0 (cuda); there are locks for 0.5.23-cpu, 0.5.23-cuda"),
        ({"variant": "rocm"}, "there is no lock for SGLang 0.5.23 (rocm)"),
        ({"gpus": []}, "expected at least one GPU"),
        ({"name": "models"}, "would share /var/lib/sglang/models"),
        ({"gpus": [-1]}, "expected different indices"),
        ({"gpus": ["x y"]}, "expected different indices"),
        ({"args": {"tp_size": 2}}, "gpus: expected 2 or more for tp_size x pp_size, and dp_size without attention-DP, found 1"),
        ({"host": ""}, "host: expected an IP address"),
        ({"host": "127.0.0.1 "}, "host: expected an IP address"),
        ({"host": "[::1]"}, "without brackets"),
        ({"model": {"name": "../..", "path": "/x"}}, "model.name: expected <org>/<name>"),
        ({"model": {"name": "o/n", "path": "/x/../etc"}}, "without . and .."),
        ({"environment": {"A": None}}, "environment.A: expected text or a number"),
        ({"environment": {"A": "a\x01"}}, "environment.A: the value"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, "set gpus"),
        ({"environment": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}}, "is PCI_BUS_ID always"),
        ({"served_model_name": "a\nb"}, "served_model_name: "),
        ({"verify": {"ready_timeout_s": -5}}, "verify.ready_timeout_s: expected seconds greater than 0"),
        ({"verify": {"questions": [{"prompt": "x", "expect": " "}]}}, "verify.questions[0]: expected"),
        ({"variant": "cpu", "args": {"device": "cpu"}}, "gpus: expected none for variant cpu, found [0]"),
        ({"variant": "cpu", "gpus": []}, "args.device: expected cpu for variant cpu, found None"),
        ({"args": {"device": "cpuu"}}, "args.device: expected cuda, or nothing"),
        ({"gpus": [0, 0]}, "expected different indices"),
        ({"gpus": [0, "GPU-1a"]}, "expected either indices or UUIDs, found both"),
        ({"gpus": ["GPU-1a", "MIG-2b"]}, "expected either indices or UUIDs, found both"),
        ({"gpus": ["MIG-1a", "MIG-2b"]}, "expected one MIG device"),
        ({"allow_unequal_gpus": "yes"}, "allow_unequal_gpus: expected true or false"),
        ({"gpus": [0.5]}, "expected different indices"),
        ({"name": "Big Model"}, "expected lower-case letters"),
        ({"served_model_name": "a:b"}, "without ':'"),
        ({"args": {"tp_sise": 2}}, "args.tp_sise: is not a flag"),
        ({"args": {"api_key": "s"}}, "set api_key_variable"),
        ({"extra_args": ["--host", "0.0.0.0"]}, "extra_args: --host: this flag follows from the instance"),
        ({"args": {"chat_template": "a\0b"}}, "args: a NUL character cannot be part of a unit"),
        ({"environment": {"A-B": 1}}, "is no name of an environment variable"),
        ({"verify": {"question": []}}, "verify.question: unknown key"),
        ({"verify": {"questions": [{"prompt": "x"}]}}, "verify.questions[0]: expected {prompt: text, expect: text}"),
    ],
)
def test_a_mistake_is_one_clear_line(raw, message):
    found = problems(**raw)
    assert len(found) == 1, found
    assert found[0].startswith("sglang_instance_g: ")
    assert message in found[0]


def test_a_mistake_does_not_hide_the_next():
    found = problems(varant="x", port="30001", args={"tp_sise": 2}, verify={"thinking": "maybe"}, name="Big")
    assert [line.split(":")[1].strip() for line in found] == ["varant", "port", "verify.thinking", "name", "args.tp_sise"]


def test_a_host_without_an_instance_is_a_mistake():
    assert _instances.resolve({}, SETTINGS, CATALOGUE) == (
        [],
        [
            "this host has no instance: no variable sglang_instance_<group> is set for it. Put it into a model group, or set one. "
            "(Ansible reads the group_vars beside the inventory: keep yours in this repository's inventory/, which has the catalogue.)"
        ],
    )


def test_all_mistakes_of_all_instances_are_told_at_once():
    found = resolve(
        a={"model": MODEL, "gpus": [0], "args": {"x_y_z": 1, "tp_size": "two"}},
        b={"modle": 1},
        c=[],
    )[1]
    assert [line.split(":")[0] for line in found] == ["sglang_instance_a"] * 2 + ["sglang_instance_b"] * 3 + ["sglang_instance_c"]


def test_a_host_in_two_model_groups_serves_both():
    instances, found = resolve(a={"model": MODEL, "gpus": [0]}, b={"model": MODEL, "gpus": [1], "port": 30001, "name": "second"})
    assert found == []
    assert [one["unit"] for one in instances] == ["sglang-a.service", "sglang-second.service"]
    assert instances[0]["environment"] == instances[1]["environment"]


def test_what_rules_refuse_is_told_with_all_other_mistakes():
    args = {"speculative_algorithm": "NEXTN", "speculative_eagle_topk": 1, "tp_sise": 2, "mem_fraction_static": 1.5}
    found = resolve(a={"model": MODEL, "gpus": [0], "args": args, "served_model_name": "a:b"})[1]
    assert [problem.partition(": expected")[0].partition(": is not")[0] for problem in found] == [
        "sglang_instance_a: served_model_name",
        "sglang_instance_a: args.tp_sise",
        "sglang_instance_a: args.speculative_eagle_topk",
        "sglang_instance_a: args.mem_fraction_static",
    ]


def test_what_rules_warn_of_stands_in_the_instance():
    instances, found = resolve(a={"model": MODEL, "gpus": [0], "args": {"mem_fraction_static": 0.99}})
    assert found == []
    assert instances[0]["args"] == {"mem_fraction_static": 0.99, "port": 30000, "nccl_port": 29000}
    assert len(instances[0]["warnings"]) == 1
    assert instances[0]["warnings"][0].startswith("sglang_instance_a: args.mem_fraction_static: expected 0.97 or less, found 0.99; ")


def test_an_api_key_counts_among_the_flags_but_is_not_one():
    key = {"api_key_variable": "vault_key"}
    instances, found = resolve(a={"model": MODEL, "gpus": [0], **key})
    assert (instances[0]["args"]["api_key"], found) == ("vault_key", [])
    assert "vault_key" not in instances[0]["argv"]
    found = resolve(a={"model": MODEL, "gpus": [0], "args": {"tokenizer_worker_num": 2}, **key})[1]
    assert len(found) == 1
    assert "args.tokenizer_worker_num: expected 1 with an API key" in found[0]


def test_hidden_ports_of_two_instances_are_different():
    hidden = {"model": MODEL, "gpus": [0, 1], "port": 29768, "nccl_port": 28000, "args": {"tp_size": 2, "attn_dp_size": 2}}
    found = resolve(a=hidden, b={"model": MODEL, "gpus": [2], "port": 30001, "nccl_port": 27000})[1]
    assert found == [
        "sglang_instance_b: port: expected a port of its own, found 30001, which is a socket of attention-DP of sglang_instance_a; "
        "set another"
    ]


def test_what_two_instances_may_not_share():
    found = resolve(a={"model": MODEL, "gpus": [0, 1], "name": "x"}, b={"model": MODEL, "gpus": [1], "name": "x", "nccl_port": 31000})[1]
    assert found == [
        "sglang_instance_b: name x is already taken by sglang_instance_a",
        "sglang_instance_b: GPU 1 is already taken by sglang_instance_a",
        "sglang_instance_b: port: expected a port of its own, found 30000, which is port of sglang_instance_a; set another",
    ]


@pytest.mark.parametrize(
    ("host", "loopback", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:30000"),
        ("localhost", True, "http://localhost:30000"),
        ("::1", True, "http://[::1]:30000"),
        ("0.0.0.0", False, "http://127.0.0.1:30000"),
        ("::", False, "http://[::1]:30000"),
        ("192.0.2.1", False, "http://192.0.2.1:30000"),
    ],
)
def test_addresses(host, loopback, url):
    one = instance(host=host, allow_open_network=True)
    assert (one["loopback"], one["url"]) == (loopback, url)


def test_the_key_is_named_but_never_in_the_resolved_instance():
    one = instance(host="0.0.0.0", api_key_variable="vault_key")
    assert one["api_key_variable"] == "vault_key"
    assert one["api_key_path"] == "/etc/sglang/g.api_key.yaml"
    assert "--api-key" not in one["argv"]


def test_a_cpu_instance_needs_no_gpu_and_finds_the_shim():
    one = instance(variant="cpu", gpus=None, args={"device": "cpu"})
    assert one["environment"]["id"] == "0.5.23-cpu-aaaaaaaa"
    assert one["unit_environment"]["PYTHONPATH"] == "/opt/sglang/instances/g/current/shim"
    assert one["unit_environment"]["CUDA_VISIBLE_DEVICES"] == ""


def test_a_toolkit_of_the_site():
    raw = {
        "sglang_instance_g": {"model": MODEL, "gpus": [0]},
        "sglang_instance_h": {"model": MODEL, "variant": "cpu", "port": 32000, "args": {"device": "cpu"}},
    }
    (cuda, cpu), found = _instances.resolve(raw, SETTINGS._replace(cuda_home="/usr/local/cuda-13.1"), CATALOGUE)
    assert found == []
    assert cuda["unit_environment"]["CUDA_HOME"] == "/usr/local/cuda-13.1"
    assert cuda["unit_environment"]["PATH"].split(":")[:2] == [f"{cuda['current']}/bin", "/usr/local/cuda-13.1/bin"]
    assert cpu["unit_environment"] == resolve(h=raw["sglang_instance_h"])[0][0]["unit_environment"]


@pytest.mark.parametrize("path", ["cuda", "/", "/opt/cuda/", "/opt/../cuda", "/opt/a:b", "", "/opt/\n"])
def test_a_toolkit_of_the_site_that_cannot_be_one(path):
    _, found = _instances.resolve({"sglang_instance_g": {"model": MODEL, "gpus": [0]}}, SETTINGS._replace(cuda_home=path), CATALOGUE)
    assert [problem.partition(":")[0] for problem in found] == ["sglang_cuda_home"]
