# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""From what group_vars say to what every role reads: instances united, defaults filled in, mistakes told all at once."""

from __future__ import annotations

import ipaddress
import posixpath
import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils import _flag_facts, _flag_rules, _flag_rules_host, _flags, _systemd

PREFIX = "sglang_instance_"

# How an instance is written: key -> type. A key that is not here is a mistake.
_KEYS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "release": str,
    "variant": str,
    "model": dict,
    "served_model_name": str,
    "gpus": list,
    "allow_unequal_gpus": bool,
    "host": str,
    "port": int,
    "nccl_port": int,
    "api_key_variable": str,
    "allow_open_network": bool,
    "args": dict,
    "extra_args": list,
    "environment": dict,
    "verify": dict,
    "catalogue": dict,
}
_MODEL_KEYS: dict[str, type | tuple[type, ...]] = {"name": str, "revision": str, "path": str, "build": str, "config": dict}
# What people read of an entry; nothing follows from it on a host. docs/catalogue.md is made of it.
_CATALOGUE_KEYS: dict[str, type | tuple[type, ...]] = {
    "licence": str,
    "gpus": list,
    "revision_source": str,
    "run": str,
    "notes": str,
}
_VERIFY_KEYS: dict[str, type | tuple[type, ...]] = {
    "questions": list,
    "thinking": bool,
    "ready_timeout_s": int,
    "warmup_timeout_s": int,
}
_TYPE_WORDS = {str: "a string", dict: "a dictionary", list: "a list", int: "a whole number", bool: "true or false"}

# Flags that follow from the instance's own keys, and what to set instead.
RESERVED = {
    "model_path": "set model",
    "served_model_name": "set served_model_name",
    "host": "set host",
    "port": "set port",
    "nccl_port": "set nccl_port",
    "api_key": "set api_key_variable (a key in args would be seen in `ps` and in the unit)",
    "admin_api_key": "this release of the collection has no place for an admin key: on a command line it would be seen by everybody",
    "config": "the service's own configuration file carries the key",
}
VARIANTS = ("cuda", "cpu")


class Settings(t.NamedTuple):
    """What holds for all instances of a host: defaults and places (absolute paths)."""

    release: str
    variant: str
    root: str
    config_dir: str
    state_dir: str
    cache_dir: str
    models_dir: str
    unit_dir: str
    user: str
    cuda_home: str | None = None
    unpinned: str = "refuse"  # or allow: the plan needs no checkpoint


class Catalogue(t.NamedTuple):
    """What the collection knows about releases; functions, so that only what is asked for is read from disk."""

    flag_table: t.Callable[[str], _flags.FlagTable | None]
    lock_sha256: t.Callable[[str], str | None]
    build_script: t.Callable[[str], tuple[str, str] | None]
    environments: tuple[str, ...]


def _check_keys(where: str, data: t.Mapping[str, t.Any], keys: t.Mapping[str, t.Any]) -> list[str]:
    """Problems of one level: unknown keys and wrong types. null counts as not given."""
    problems = []
    for key, value in data.items():
        if key not in keys:
            problems.append(f"{where}{key}: unknown key; known are {', '.join(keys)}")
        elif value is not None and (not isinstance(value, keys[key]) or (isinstance(value, bool) and keys[key] is not bool)):
            problems.append(f"{where}{key}: expected {_TYPE_WORDS[keys[key]]}, {_flags.found(value)}")
    return problems


def is_loopback(host: str) -> bool:
    """True when nothing outside this host can connect to the address. Names other than localhost count as network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _given(raw: t.Mapping[str, t.Any], key: str, default: t.Any) -> t.Any:
    return default if raw.get(key) is None else raw[key]


def model_sources(model: t.Mapping[str, t.Any]) -> list[str]:
    """Which of the keys that say where a checkpoint comes from are given; none: the model is not pinned."""
    return [key for key in ("path", "revision", "build") if model.get(key) is not None]


def _model(group: str, raw: t.Mapping[str, t.Any], settings: Settings, catalogue: Catalogue) -> tuple[dict[str, t.Any], list[str]]:
    """The model of one instance: where it comes from and where it lies on the host."""
    problems = []
    name = _given(raw, "name", "")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        problems.append(f"model.name: expected <org>/<name>, found {name!r}")
    sources = model_sources(raw)
    if not sources and settings.unpinned != "allow":
        problems.append(
            "model: expected exactly one of revision (a commit of the Hub repository), path (a directory on the host) and "
            f"build (a script), found none; `make pin MODEL={group}` finds the repository's commit and writes it here"
        )
    elif len(sources) > 1:
        problems.append(f"model: expected exactly one of revision, path and build, found {' and '.join(sources)}")
    model: dict[str, t.Any] = {
        "name": name,
        "source": "local" if sources else "hub",
        "revision": None,
        "build": None,
        "path": raw.get("path"),
        "config": raw.get("config"),
    }
    directory = f"{settings.models_dir}/{name.replace('/', '--')}"
    if raw.get("revision") is not None:
        if not re.fullmatch(r"[0-9a-f]{40}", raw["revision"]):
            problems.append(f"model.revision: expected a commit (40 hex digits; a branch or tag can move), found {raw['revision']!r}")
        model.update(source="hub", revision=raw["revision"], path=f"{directory}/{raw['revision']}")
    elif raw.get("build") is not None:
        script = catalogue.build_script(raw["build"])
        if script is None:
            problems.append(f"model.build: no such script: {raw['build']!r} (neither one of the collection's nor a path on the controller)")
        else:
            model.update(source="build", revision=script[1][:12], build=script[0], path=f"{directory}/{script[1][:12]}")
    elif model["path"] is not None and not (model["path"].startswith("/") and posixpath.normpath(model["path"]) == model["path"]):
        problems.append(f"model.path: expected an absolute path on the host without . and .. and a last /, found {model['path']!r}")
    return model, problems


def _network(raw: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
    """Address, ports and who may talk to them."""
    problems = []
    host, port = _given(raw, "host", "127.0.0.1"), _given(raw, "port", 30000)
    # One port for the engine's own rendezvous, below the kernel's ephemeral range (32768-60999) when port is.
    nccl_port = _given(raw, "nccl_port", port - 1000 if port >= 2048 else port + 1000)
    for key, value in (("port", port), ("nccl_port", nccl_port)):
        follows = key == "nccl_port" and raw.get("nccl_port") is None
        if not follows and not 1024 <= value <= 65535:
            problems.append(f"{key}: expected 1024 to 65535 (the service is not root), found {value}")
    loopback = is_loopback(host)
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", host):
        problems.append(f"host: expected an IP address (IPv6 without brackets) or a host name, found {host!r}")
    elif not loopback and not raw.get("api_key_variable") and not raw.get("allow_open_network"):
        problems.append(
            f"host: {host} is reachable from the network and there is no key; set api_key_variable, or allow_open_network: true "
            "if everybody who reaches the port may use it"
        )
    reach = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # a comparison, not a bind
    url = f"http://[{reach}]:{port}" if ":" in reach else f"http://{reach}:{port}"
    return {"host": host, "port": port, "nccl_port": nccl_port, "loopback": loopback, "url": url}, problems


def _environment(raw: t.Mapping[str, t.Any], settings: Settings, catalogue: Catalogue) -> tuple[dict[str, t.Any], list[str]]:
    """The Python environment: one per release, variant and lock."""
    release, variant = _given(raw, "release", settings.release), _given(raw, "variant", settings.variant)
    lock = f"{release}-{variant}.txt"
    sha256 = catalogue.lock_sha256(lock)
    if sha256 is None:
        known = ", ".join(catalogue.environments)
        return {}, [f"release/variant: there is no lock for SGLang {release} ({variant}); there are locks for {known}"]
    identity = f"{release}-{variant}-{sha256[:8]}"
    path = f"{settings.root}/releases/{identity}"
    return {"id": identity, "release": release, "variant": variant, "lock": lock, "lock_sha256": sha256, "path": path}, []


def _unit_environment(instance: t.Mapping[str, t.Any], extra: t.Mapping[str, t.Any], cuda_home: str | None) -> dict[str, str]:
    """What the service finds in its environment. Sources: SGLANG environ.py (cache locations, core dumps), CUDA_DEVICE_ORDER
    makes indices mean PCI bus order as nvidia-smi prints it. cuda_home: None for the toolkit in the instance's own environment."""
    cpu = instance["environment"]["variant"] == "cpu"
    tools = "/usr/local/cuda" if cpu or cuda_home is None else cuda_home
    values = {
        "HOME": instance["state_dir"],
        "PATH": f"{instance['current']}/bin:{tools}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HOME": f"{instance['state_dir']}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "XDG_CACHE_HOME": instance["cache_dir"],
        "SGLANG_CACHE_DIR": f"{instance['cache_dir']}/sglang",
        "SGLANG_JIT_CACHE_DIR": f"{instance['cache_dir']}/sglang/jit",  # does not follow SGLANG_CACHE_DIR
        "NO_PROXY": "127.0.0.1,localhost,::1",
        "no_proxy": "127.0.0.1,localhost,::1",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in instance["gpus"]),
    }
    if cpu:
        values.update(SGLANG_USE_CPU_ENGINE="1", PYTHONPATH=f"{instance['current']}/shim")
    else:
        values.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_HOME=cuda_home or f"{instance['current']}/cuda")
    return {**values, **{str(key): str(value) for key, value in extra.items()}}


def _argv(instance: t.Mapping[str, t.Any], flags: t.Sequence[str]) -> list[str]:
    """The command line; --model-type belongs to `sglang serve` and keeps it from asking the Hub what the model is."""
    model = instance["model"]
    words = [f"{instance['current']}/bin/sglang", "serve", "--model-type", "llm", "--model-path", model["path"] or model["name"]]
    words += ["--served-model-name", instance["served_model_name"], "--host", instance["host"], "--port", str(instance["port"])]
    return [*words, "--nccl-port", str(instance["nccl_port"]), *flags]


def _is_question(question: t.Mapping[str, t.Any]) -> bool:
    texts = {key: value for key, value in question.items() if key != "max_tokens"}
    limit = question.get("max_tokens", 1)
    right_limit = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
    return set(texts) == {"prompt", "expect"} and all(isinstance(text, str) and text.strip() for text in texts.values()) and right_limit


def _is_gpu(gpu: t.Any) -> bool:
    """An index, or a UUID as nvidia-smi prints it."""
    if isinstance(gpu, str):
        return bool(re.fullmatch(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+", gpu))
    return isinstance(gpu, int) and not isinstance(gpu, bool) and gpu >= 0


def _unit_text(key: str, write: t.Callable[..., str], *texts: str) -> list[str]:
    """The problem of a text that cannot be written into a unit, if it has one."""
    try:
        write(*texts)
    except _systemd.UnitTextError as error:
        return [f"{key}: {error}"]
    return []


def _check_places(name: str, settings: Settings) -> list[str]:
    """The service owns its state directory and what lies in it: nothing that belongs to root may be there."""
    state = f"{settings.state_dir}/{name}"
    for place in (settings.models_dir, settings.config_dir, settings.cache_dir, settings.root):
        if f"{place}/".startswith(f"{state}/") or f"{state}/".startswith(f"{place}/"):
            return [f"name: the state directory {state} would share {place}, which the service must not own; choose another name"]
    return []


def _check_cuda_home(path: str | None) -> list[str]:
    """Problems of the site's own toolkit: its path is written into units, into PATH, and into the command lines of compilers."""
    if path is None or (re.fullmatch(r"(/[A-Za-z0-9._+-]+)+", path) and posixpath.normpath(path) == path):
        return []
    return [f"sglang_cuda_home: expected an absolute path of letters, digits and . _ + - without a last / or a step up, found {path!r}"]


def _rules(raw: t.Mapping[str, t.Any], release: str, network: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], list[str], list[str]]:
    """The instance's flags with those that follow from its keys, and what the rules about flags refuse and warn of.

    What needs the model or the GPUs is looked at by the plan.
    """
    args = {**_given(raw, "args", {}), "port": network["port"], "nccl_port": network["nccl_port"]}
    if raw.get("api_key_variable"):
        args["api_key"] = raw["api_key_variable"]
    gpus = _given(raw, "gpus", [])
    findings = _flag_rules.check(release, args, gpus=[{}] * len(gpus) if gpus else None, environment=_given(raw, "environment", {}))
    errors = [finding.message for finding in findings if finding.severity == _flag_facts.ERROR]
    return args, errors, [finding.message for finding in findings if finding.severity != _flag_facts.ERROR]


def _check_device(raw: t.Mapping[str, t.Any], variant: str | None, wrong: t.Collection[str]) -> list[str]:
    """Problems between the variant, the engine's device and the GPUs."""
    problems = []
    gpus, device = _given(raw, "gpus", []), _given(raw, "args", {}).get("device")
    if variant == "cuda" and not gpus and "gpus" not in wrong:
        problems.append("gpus: expected at least one GPU for variant cuda, found none; or set variant: cpu")
    if variant == "cpu" and gpus:
        problems.append(f"gpus: expected none for variant cpu, found {gpus!r}")
    if variant == "cpu" and device != "cpu" and "args" not in wrong:
        problems.append(f"args.device: expected cpu for variant cpu, found {device!r}")
    if variant == "cuda" and device not in (None, "cuda"):
        problems.append(f"args.device: expected cuda, or nothing, for variant cuda, found {device!r}")
    return problems


def _check_lists(raw: t.Mapping[str, t.Any], variant: str | None, wrong: t.Collection[str]) -> list[str]:
    """Problems inside lists and free dictionaries: GPUs, environment, questions."""
    problems = _check_device(raw, variant, wrong)
    gpus = _given(raw, "gpus", [])
    if not all(_is_gpu(gpu) for gpu in gpus) or len({str(gpu) for gpu in gpus}) != len(gpus):
        problems.append(f"gpus: expected different indices (PCI bus order) or UUIDs (GPU-..., MIG-...), found {gpus!r}")
    elif len({str(gpu)[:4] if isinstance(gpu, str) and not gpu.isdigit() else "" for gpu in gpus}) > 1:
        problems.append(
            f"gpus: expected either indices or UUIDs, found both: {gpus!r} (torch ignores what follows the first of another kind)"
        )
    elif len(gpus) > 1 and str(gpus[0]).startswith("MIG-"):
        problems.append(f"gpus: expected one MIG device (CUDA shows a process no more than one), found {len(gpus)}")
    for name, value in _given(raw, "environment", {}).items():
        if name == "CUDA_VISIBLE_DEVICES":
            problems.append("environment.CUDA_VISIBLE_DEVICES: follows from the instance; set gpus")
        elif name == "CUDA_DEVICE_ORDER":
            problems.append("environment.CUDA_DEVICE_ORDER: is PCI_BUS_ID always, so that an index in gpus means what nvidia-smi prints")
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            problems.append(f"environment.{name}: expected text or a number, {_flags.found(value)}")
        else:
            problems += _unit_text(f"environment.{name}", _systemd.assignment, str(name), str(value))
    verify = _given(raw, "verify", {})
    for key in ("ready_timeout_s", "warmup_timeout_s"):
        if isinstance(verify.get(key), int) and verify[key] <= 0:
            problems.append(f"verify.{key}: expected seconds greater than 0, found {verify[key]}")
    for number, question in enumerate(_given(_given(raw, "verify", {}), "questions", [])):
        if not isinstance(question, dict) or not _is_question(question):
            problems.append(f"verify.questions[{number}]: expected {{prompt: text, expect: text}} (and max_tokens), found {question!r}")
    return problems


def resolve_one(group: str, raw: t.Any, settings: Settings, catalogue: Catalogue) -> tuple[dict[str, t.Any] | None, list[str]]:
    """Fill in one instance.

    group: what follows sglang_instance_. raw: the operator's dictionary.
    Returns (the resolved instance, or None when it cannot be one; problems in words, each with the key it is about).
    """
    if not isinstance(raw, dict):
        return None, [f"expected a dictionary, found {raw!r}"]
    problems = _check_keys("", raw, _KEYS)
    for key, keys in (("model", _MODEL_KEYS), ("verify", _VERIFY_KEYS), ("catalogue", _CATALOGUE_KEYS)):
        if isinstance(raw.get(key), dict):
            problems += _check_keys(f"{key}.", raw[key], keys)
    # What is wrong in itself counts as not given from here on, so that the rest is checked all the same.
    wrong = {problem.partition(":")[0].partition(".")[0] for problem in problems}
    raw = {key: value for key, value in raw.items() if key not in wrong}
    if raw.get("model") is None and "model" not in wrong:
        problems.append("model: missing; expected {name: <org>/<name>, and one of revision, path, build}")
    name = _given(raw, "name", group.replace("_", "-"))
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
        problems.append(f"name: expected lower-case letters, digits and '-' (it names the unit and directories), found {name!r}")
    problems += _check_places(name, settings)
    model: dict[str, t.Any] = {"name": "-"}
    if raw.get("model") is not None:
        model, found = _model(group, raw["model"], settings, catalogue)
        problems += found
    environment, found = _environment(raw, settings, catalogue)
    problems += found
    network, found = _network(raw)
    problems += found
    variant = None if "variant" in wrong else _given(raw, "variant", settings.variant)
    problems += _check_lists(raw, variant, wrong)
    cards = _given(_given(raw, "catalogue", {}), "gpus", [])
    problems += [
        f"catalogue.gpus: expected names such as 2x rtx-a6000, {_flags.found(card)}" for card in cards if not isinstance(card, str)
    ]
    served = _given(raw, "served_model_name", model["name"].rpartition("/")[2])
    if ":" in served or not served:
        problems.append(f"served_model_name: expected a name without ':' (the engine refuses it), found {served!r}")
    problems += _unit_text("served_model_name", _systemd.quote_value, served) if served else []
    flags: list[str] = []
    table = catalogue.flag_table(_given(raw, "release", settings.release))
    if table is not None:
        flags, found = _flags.check_args(table, _given(raw, "args", {}), RESERVED)
        extra = _given(raw, "extra_args", [])
        problems += found + _flags.check_extra_args(table, extra, RESERVED)
        flags += extra
        problems += [problem for word in flags if isinstance(word, str) for problem in _unit_text("args", _systemd.quote_word, word)]
    args, refused, warnings = _rules(raw, _given(raw, "release", settings.release), network)
    problems += refused
    if problems:
        return None, problems
    key_variable = raw.get("api_key_variable")
    key_path = f"{settings.config_dir}/{name}.api_key.yaml"
    verify: dict[str, t.Any] = {"questions": [], "thinking": None, "ready_timeout_s": 1800, "warmup_timeout_s": 300}
    verify.update({key: value for key, value in _given(raw, "verify", {}).items() if value is not None})
    instance: dict[str, t.Any] = {
        "name": name,
        "group": group,
        "unit": f"sglang-{name}.service",
        "unit_path": f"{settings.unit_dir}/sglang-{name}.service",
        "environment": environment,
        "current": f"{settings.root}/instances/{name}/current",
        "model": model,
        "served_model_name": served,
        "gpus": _given(raw, "gpus", []),
        "allow_unequal_gpus": _given(raw, "allow_unequal_gpus", False),
        **network,
        "api_key_variable": key_variable,
        "api_key_path": key_path if key_variable else None,
        "api_key_path_unused": None if key_variable else key_path,
        "user": settings.user,
        "state_dir": f"{settings.state_dir}/{name}",
        "cache_dir": f"{settings.cache_dir}/{environment['id']}",
        "verify": verify,
        "args": args,
        "warnings": [f"{PREFIX}{group}: {text}" for text in warnings],
    }
    instance["argv"] = _argv(instance, flags)
    instance["unit_environment"] = _unit_environment(instance, _given(raw, "environment", {}), settings.cuda_home)
    return instance, []


def _shared(instances: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """Problems between instances of one host: the same name or GPU twice, or a port, hidden ones included."""
    problems = []
    owners: dict[tuple[str, str], str] = {}
    for number, instance in enumerate(instances):
        variable = f"{PREFIX}{instance['group']}"
        for what, value in [("name", instance["name"]), *(("GPU", str(gpu)) for gpu in instance["gpus"])]:
            if (what, value) in owners:
                problems.append(f"{variable}: {what} {value} is already taken by {PREFIX}{owners[what, value]}")
            owners.setdefault((what, value), instance["group"])
        others = [{"name": f"{PREFIX}{other['group']}", "args": other["args"]} for other in instances[:number]]
        problems += [f"{variable}: {text}" for text in _flag_rules_host.conflicts(instance["args"], others)]
    return problems


def resolve(raw: t.Mapping[str, t.Any], settings: Settings, catalogue: Catalogue) -> tuple[list[dict[str, t.Any]], list[str]]:
    """Unite and fill in the instances of one host.

    raw: variable name (sglang_instance_<group>) -> the operator's dictionary. Returns (instances in the order of their
    groups' names, problems in words). The instances are complete only when there are no problems.
    """
    instances, problems = [], _check_cuda_home(settings.cuda_home)
    if not raw:
        problems.append(
            f"this host has no instance: no variable {PREFIX}<group> is set for it. Put it into a model group, or set one. "
            "(Ansible reads the group_vars beside the inventory: keep yours in this repository's inventory/, which has the catalogue.)"
        )
    for variable in sorted(raw):
        instance, found = resolve_one(variable[len(PREFIX) :], raw[variable], settings, catalogue)
        problems += [f"{variable}: {problem}" for problem in found]
        if instance is not None:
            instances.append(instance)
    return instances, problems + _shared(instances)
