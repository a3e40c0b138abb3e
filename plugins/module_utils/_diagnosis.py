# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Says what a log means: a table of rules, line pattern -> code, severity, what to do.

PRIVATE to the collection. Pure: text in, data out. SGLang ends nearly every failure with exit code 137, and some with 0, so the
class of a failure is read off the log lines and never off the code.

Severities: C(error) ends the engine or keeps it from working; C(warning) works, but worse than asked for; C(harmless) looks
frightening and is not; C(consequence) follows from another problem, and is shown only when nothing else was found.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.firstlight.sglang.plugins.module_utils._engine_log import LogLine, clean_line, hide_secrets, shorten


class Rule(t.NamedTuple):
    code: str
    severity: str
    pattern: re.Pattern[str]
    advice: str
    phases: tuple[str, ...] = ()  # only when the engine was in one of these phases at that line; empty: always


class Problem(t.TypedDict):
    code: str
    severity: str
    found: str
    advice: str
    count: int


def _rule(code: str, severity: str, pattern: str, advice: str, phases: tuple[str, ...] = ()) -> Rule:
    return Rule(code, severity, re.compile(pattern), advice, phases)


_BEFORE_GRAPHS = ("starting", "importing", "connecting_ranks", "loading_weights", "allocating_pools")
_SERVING = ("warming_up", "ready", "draining")
_FFMPEG = r"lib(?:avutil|avcodec|avformat|avdevice|avfilter|swscale|swresample)\.so"

_DAMAGED = "The environment is damaged: remove {environment}/.firstlight.json and run site.yml again, it rebuilds."
# A frame of a traceback, or a file that could not be loaded: where the environment is.
_ENVIRONMENT = re.compile(r"(?P<path>/[^\s'\"(]+)/lib(?:64)?/python3\.\d+/")

# The first rule that matches a line wins, so a special case stands before the general one. `{name}` in an advice is a group of the pattern,
# `{environment}` the environment that the lines so far speak of.
RULES: tuple[Rule, ...] = (
    # --- looks bad, is not ---
    _rule(
        "optional_video_decoder",
        "harmless",
        _FFMPEG + r"|[Cc]ould not load libtorchcodec|torchcodec is not installed",
        "Nothing, unless the model is to take video or audio: then install the distribution's FFmpeg libraries.",
    ),
    _rule(
        "optional_model_class",
        "harmless",
        r"Ignore import error when loading ",
        "Nothing: another model's class needs a package that this one does not.",
    ),
    _rule(
        "optional_kernel",
        "harmless",
        r"allreduce_fusion API is not available|Triton is not supported on current platform, roll back to CPU",
        "Nothing: the engine takes its standard implementation.",
    ),
    _rule("nofile_limit", "harmless", r"Fail to set RLIMIT_NOFILE", "Nothing; LimitNOFILE=65536 or more in the unit makes it silent."),
    _rule(
        "not_destroyed_process_group", "harmless", r"destroy_process_group\(\) was not called", "Nothing: printed at the end of every run."
    ),
    # --- the flags ---
    _rule(
        "unknown_flag",
        "error",
        r"error: unrecognized arguments: (?P<flags>.+)",
        "This release does not know {flags}. Correct or remove it in the instance's args or extra_args.",
    ),
    _rule(
        "ambiguous_flag",
        "error",
        r"error: ambiguous option: (?P<flag>\S+) could match (?P<flags>.+)",
        "Write one of {flags} in full instead of {flag}.",
    ),
    _rule(
        "invalid_flag_value",
        "error",
        r"error: argument (?P<flag>[^:]+): (?P<why>.+)",
        "Correct the value of {flag} in the instance's args.",
    ),
    _rule("missing_flag", "error", r"error: the following arguments are required: (?P<flags>.+)", "Give {flags}."),
    _rule(
        "context_too_long",
        "error",
        r"Error: .*User-specified context_length \((?P<wanted>\d+)\) is greater than the derived context_length \((?P<most>\d+)\)",
        "Set args.context_length to {most} or less (the model was made for {most}), or leave it out.",
    ),
    _rule(
        "context_over_model",
        "warning",
        r"User-specified context_length \((?P<wanted>\d+)\) is greater than the derived context_length \((?P<most>\d+)\)",
        "The model was made for {most} tokens; answers to longer prompts may be wrong.",
    ),
    _rule(
        "attention_backend_not_for_gpu",
        "error",
        r"Error: (?:.*backend.* only supported on |Only \{.*\} backends are supported on )",
        "Remove args.attention_backend (the release then chooses by the GPU), or name one that this GPU supports.",
    ),
    _rule(
        "speculation_needs_extra_buffer",
        "error",
        r"not compatible with radix cache when using --mamba-(?:scheduler|radix-cache)-strategy no_buffer"
        r"|no_buffer do not support overlap schedule",
        "Set mamba_radix_cache_strategy (before 0.5.20: mamba_scheduler_strategy) to extra_buffer, or disable_radix_cache to true.",
    ),
    _rule(
        "speculation_lazy_extra_buffer",
        "error",
        r"extra_buffer_lazy unsupported with spec",
        "With speculation set mamba_radix_cache_strategy to extra_buffer.",
    ),
    _rule(
        "speculation_flags_incomplete",
        "error",
        r"^\s*(?:assert )?.*speculative_(?:eagle_topk|num_draft_tokens|num_steps) (?:is None|==)",
        "Give speculative_num_steps, speculative_eagle_topk and speculative_num_draft_tokens together, or none of them.",
    ),
    _rule(
        "tp_size_does_not_divide",
        "error",
        r"Error: .*(?:is not divisible by|must be divisible by)",
        "Choose a tp_size that divides the model's heads.",
    ),
    _rule(
        "key_with_many_tokenizers",
        "error",
        r"API key is not supported in multi-tokenizer mode",
        "Set args.tokenizer_worker_num to 1, or serve without a key behind an edge that checks it. The engine ends with 0 here.",
    ),
    # --- the model ---
    _rule(
        "model_path_missing",
        "error",
        r"Repo id must be in the form|does not appear to have a file named config\.json"
        r"|Can't load the configuration of|is not a valid model identifier",
        "The model directory is missing or has no config.json: stage the model again, or correct model.path.",
    ),
    _rule(
        "shard_missing",
        "error",
        r"(?i:missing shards?\b)|No such file or directory: .*\.(?:safetensors|bin)|IncompleteSnapshotError",
        "The checkpoint is incomplete: stage the model again.",
    ),
    _rule(
        "shard_broken",
        "error",
        r"SafetensorError|MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeaderDeserialization",
        "A weight file is cut short, or is a Git LFS pointer: stage the model again.",
    ),
    _rule("weights_missing", "error", r"Cannot find any model weights with", "The directory holds no weight files: stage the model again."),
    _rule(
        "weights_do_not_match",
        "error",
        r"Missing keys .* in|size mismatch for |The size of tensor .* must match|Parameter \S+ not found in",
        "The weights do not belong to this config.json (or this release reads them differently): check the model's revision.",
    ),
    _rule(
        "model_not_offline",
        "error",
        r"OfflineModeIsEnabled|LocalEntryNotFoundError|GatedRepoError|RepositoryNotFoundError",
        "The engine looked for a file on the hub: the staged model lacks it, or an argument names a hub model. Stage it and give its path.",
    ),
    _rule(
        "architecture_unknown",
        "error",
        r"Model architectures .* (?:are not supported|failed)|model type `\S+` but Transformers does not recognize",
        "This release cannot serve this model, or lacks a package of its class: see the import errors above, or take a newer release.",
    ),
    _rule(
        "output_not_a_number",
        "error",
        r"probability tensor contains either .inf., .nan. or element < 0",
        "The model computes inf or nan: its weights are damaged (stage it again), or overflow in this data type (args.dtype: bfloat16).",
    ),
    # --- memory ---
    _rule(
        "state_does_not_fit",
        "error",
        r"Not enough GPU memory for hybrid|state cache is too small to serve any requests",
        "Too little memory is left for one request's state: raise mem_fraction_static, lower max_running_requests, or drop speculation.",
    ),
    _rule(
        "memory_fraction_too_small",
        "error",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "The weights leave nothing for the KV cache: raise mem_fraction_static, use more GPUs, or a smaller (quantised) model.",
    ),
    _rule(
        "memory_fraction_too_large",
        "error",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED",
        "Lower mem_fraction_static: the pools took the memory that the kernels need, though the message does not say so.",
    ),
    _rule(
        "gpu_occupied",
        "error",
        r"out of memory.*Process (?P<pid>\d+) has (?P<size>[\d.]+ [KMGT]iB) memory in use",
        "Process {pid} holds {size} of this GPU: end it (ps -p {pid}), or give the instance another GPU.",
        _BEFORE_GRAPHS,
    ),
    _rule(
        "graph_out_of_memory",
        "error",
        r"Capture \w+ graph failed: .*out of memory",
        "Lower cuda_graph_max_bs_decode (before 0.5.15: cuda_graph_max_bs) first, then mem_fraction_static.",
    ),
    _rule(
        "graph_out_of_memory",
        "error",
        r"(?:CUDA|HIP) out of memory|torch\.OutOfMemoryError",
        "Lower cuda_graph_max_bs_decode (before 0.5.15: cuda_graph_max_bs) first, then mem_fraction_static.",
        ("capturing_graphs",),
    ),
    _rule(
        "run_time_out_of_memory",
        "error",
        r"(?:CUDA|HIP) out of memory|torch\.OutOfMemoryError",
        "Lower mem_fraction_static or chunked_prefill_size: serving needs more working memory than was left.",
        _SERVING,
    ),
    _rule(
        "gpu_out_of_memory",
        "error",
        r"(?:CUDA|HIP) out of memory|torch\.OutOfMemoryError",
        "The model does not fit: use more GPUs, or a smaller (quantised) model; and see with nvidia-smi that nothing else is on the GPU.",
    ),
    _rule(
        "memory_unbalanced",
        "error",
        r"memory capacity is unbalanced",
        "The GPUs of one instance must have equal free memory: end the process that holds some of one, and do not mix sizes.",
    ),
    _rule(
        "host_out_of_memory",
        "error",
        r"killed by the OOM killer|Failed with result 'oom-kill'|DefaultCPUAllocator: can't allocate memory|MemoryError$",
        "The host (or MemoryMax= of the unit) ran out of RAM: see journalctl -k, then free memory, or lower what the flags keep in RAM.",
    ),
    # --- GPU and driver ---
    _rule(
        "gpu_index_out_of_range",
        "error",
        r"invalid device ordinal",
        "The instance asks for more GPUs than it sees: compare gpus and args.tp_size with nvidia-smi -L.",
    ),
    _rule(
        "no_gpu",
        "error",
        r"No accelerator \(CUDA|No CUDA GPUs are available|no CUDA-capable device is detected",
        "The service sees no GPU: run nvidia-smi as the service user; in a container check the bound /dev/nvidia* nodes (nvidia-uvm too).",
    ),
    _rule(
        "driver_too_old",
        "error",
        r"NVIDIA driver on your system is too old|driver version is insufficient for CUDA runtime version|CUDA 13 requires a newer driver",
        "Install a newer driver (CUDA 13 wheels, 0.5.11 and later, need branch 580 or newer), or an older release.",
    ),
    _rule(
        "fabric_manager",
        "error",
        r"(?i:error 802|system not yet initialized)",
        "Start nvidia-fabricmanager, of exactly the driver's version.",
    ),
    _rule(
        "driver_mismatch",
        "error",
        r"(?i:error 803|driver/library version mismatch|unsupported display driver / cuda driver combination)",
        "The loaded kernel module and the driver's libraries differ: reboot (in a container: install the host's exact version).",
    ),
    _rule(
        "cuda_compat_library",
        "error",
        r"(?i:error 804|forward compatibility was attempted)",
        "Remove the cuda-compat package: it works on data-centre GPUs only.",
    ),
    _rule(
        "libcuda_missing",
        "error",
        r"libcuda\.so(?:\.1)?: cannot open shared object file|cannot find -lcuda\b",
        "Install the driver's user-space libraries (libcuda.so.1), of the version of the loaded kernel module.",
    ),
    _rule(
        "fp8_not_on_this_gpu",
        "error",
        r"fp8e4nv not supported in this architecture",
        "This GPU has no fp8_e4m3: use fp8_e5m2 for the KV cache, BF16, AWQ or GPTQ weights.",
    ),
    _rule(
        "nccl_shared_memory",
        "error",
        r"shared memory segment /dev/shm/.*No space left|/dev/shm.*No space left on device",
        "The shared memory file system is full or too small: NCCL needs 1 GiB or more; remove nccl-* files left by dead processes.",
    ),
    _rule(
        "nccl_failed",
        "error",
        r"nccl(?:Unhandled\w+|System|Internal|Remote)Error|NCCL error|unhandled system error",
        "The GPUs cannot talk to each other: try NCCL_DEBUG=WARN in environment, then NCCL_P2P_DISABLE=1 with disable_custom_all_reduce.",
    ),
    _rule(
        "cuda_fault",
        "error",
        r"illegal memory access|CUDA error: (?:unspecified launch failure|an illegal instruction)|Xid",
        "A kernel crashed: with speculation use fewer draft tokens or none; empty the JIT cache after an upgrade; see dmesg for Xid.",
    ),
    # --- compilers, libraries, files ---
    _rule(
        "nvcc_missing",
        "error",
        r"Could not find nvcc|nvcc: (?:command )?not found|default cuda_home=.* doesn't exist|CUDA_HOME environment variable is not set",
        "Install the CUDA toolkit's compiler (nvcc) and set CUDA_HOME in the instance's environment.",
    ),
    _rule(
        "ninja_missing",
        "error",
        r"No such file or directory: 'ninja'",
        "The unit's PATH must begin with the environment's bin directory, which has ninja.",
    ),
    _rule(
        "header_missing",
        "error",
        r"fatal error: (?P<header>\S+\.(?:h|hpp|cuh)): No such file",
        "Install the development package that has {header}.",
    ),
    _rule(
        "linker_missing",
        "error",
        r"cannot find .?ld.?$|cannot execute .?(?:as|ld|cc1plus).?\b",
        "Install binutils and g++: Triton compiles and links at run time.",
    ),
    _rule(
        "library_missing_at_link",
        "error",
        r"cannot find -l(?P<library>\S+?):?(?: No such file.*)?$",
        "Install the library lib{library} (with its .so link), or correct CUDA_HOME.",
    ),
    _rule(
        "compiler_killed",
        "error",
        r"(?:nvcc|cicc|ptxas|cc1plus).*Killed",
        "The compiler ran out of RAM: set MAX_JOBS (RAM in GB / 4) in the instance's environment.",
    ),
    _rule(
        "compiler_failed",
        "error",
        r"CalledProcessError: Command '\['?(?P<command>[^',]+)",
        "{command} failed: its own message stands above this line in the journal.",
    ),
    _rule(
        "library_missing",
        "error",
        r"(?P<library>lib[\w+-]+\.so[\w.]*): cannot open shared object file",
        "Install the package that has {library}.",
    ),
    _rule(
        "environment_damaged",
        "error",
        r"^\s*ModuleNotFoundError: No module named '(?P<module>(?!transformers_modules)[^']+)'",
        _DAMAGED + " If only a backend that args names wants {module}, name another one.",
    ),
    _rule(
        "environment_damaged",
        "error",
        r"^\s*ImportError: (?:cannot import name .*/site-packages/|/\S+/site-packages/\S+: undefined symbol)",
        _DAMAGED,
    ),
    _rule(
        "glibc_too_old",
        "error",
        r"version `GLIBC(?:XX)?_[\d.]+' not found",
        "The host's C library is too old for this release: use a newer distribution or an older release.",
    ),
    _rule(
        "not_writable",
        "error",
        r"Error: \[Errno (?:13|30)\] [^:]+: '(?P<path>[^']+)'",
        "The service user cannot write {path}: check its owner, HOME and the unit's ReadWritePaths.",
    ),
    _rule(
        "disk_full",
        "error",
        r"No space left on device",
        "A file system is full: df -h, then free space (the JIT caches and the journal grow).",
    ),
    _rule("too_many_files", "error", r"Too many open files", "Raise LimitNOFILE in the unit."),
    # --- ports and start ---
    _rule(
        "port_in_use",
        "error",
        r"\[Errno 98\].*bind on address \('(?P<address>[^']*)', (?P<port>\d+)",
        "Another process listens on port {port} (ss -ltnp 'sport = :{port}'): stop it, or give the instance another port.",
    ),
    _rule(
        "internal_port_in_use",
        "error",
        r"EADDRINUSE|server socket has failed to listen|(?i:address already in use)",
        "An internal port is taken: give the instance its own nccl_port, outside net.ipv4.ip_local_port_range.",
    ),
    _rule(
        "warm_up_through_proxy",
        "error",
        r"ProxyError|Cannot connect to proxy|Tunnel connection failed",
        "The engine's warm-up went through a proxy: add NO_PROXY and no_proxy (127.0.0.1,localhost) to the instance's environment.",
    ),
    _rule(
        "own_key_refused",
        "error",
        r"(?:AssertionError|warmup error): .*Response \[401\]",
        "The engine refuses its own key: the key file does not hold what the engine was started with. Set the key again.",
    ),
    _rule(
        "warm_up_failed",
        "error",
        r"Initialization failed\. warmup error",
        "The engine's own first request failed: the lines above say why; with a proxy in its environment set NO_PROXY.",
    ),
    _rule(
        "watchdog",
        "error",
        r"[Ww]atchdog timeout",
        "A batch made no progress in time: see what the GPU does (nvidia-smi), and raise watchdog_timeout only when it works.",
    ),
    _rule(
        "process_killed",
        "error",
        r"Subprocess (?P<name>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code -9",
        "{name} was killed from outside, most often by the kernel for memory: see journalctl -k.",
    ),
    _rule(
        "stopped_as_group",
        "consequence",
        r"crashed with exit code -15",
        "SIGTERM reached every process: the unit needs KillMode=mixed, so that requests can end.",
    ),
    _rule(
        "process_crashed",
        "error",
        r"Subprocess (?P<name>\S+) \(pid=\d+\) crashed with exit code (?P<exit>-?\d+)",
        "{name} crashed ({exit}): the lines above say why.",
    ),
    # --- works, but less than asked for ---
    _rule(
        "fewer_requests_than_wanted",
        "warning",
        r"max_running_requests was reduced from the requested (?P<wanted>\d+) to (?P<got>\d+)",
        "{got} requests run at once, not {wanted}: for more, raise mem_fraction_static or max_mamba_cache_size.",
    ),
    _rule("health_slow", "warning", r"Health check failed\. Server couldn't get a response", "One such line means busy; many mean stuck."),
    _rule(
        "import_hint",
        "warning",
        r"CUTE_DSL - WARNING - \[handle_import_error\]",
        "If the start stands still at the graphs after this line, set disable_cuda_graph or update the toolkit.",
    ),
    # --- follows from something above ---
    _rule("child_failed", "consequence", r"Received sigquit from a child process|SIGQUIT received\.", "The lines above say why."),
)

# The harmless ones in the words of a report.
HARMLESS_WORDS = {
    "optional_video_decoder": "no video decoder is installed",
    "optional_model_class": "classes of other models lack their packages",
    "optional_kernel": "optional kernels are missing on this platform",
    "nofile_limit": "the limit of open files could not be raised",
    "not_destroyed_process_group": "a process group was not closed at the end",
}

# systemd's own exit statuses (systemd.exec(5)) for what went wrong before the engine's first line.
_EXEC_STATUS = {
    200: ("working_directory", "The unit's WorkingDirectory cannot be entered: check that it exists and that the service user may."),
    203: ("executable_missing", "The unit's executable cannot be run: check the instance's current link and its environment."),
    216: ("group_missing", "The unit's group does not exist."),
    217: ("user_missing", "The unit's user does not exist."),
    226: ("namespace", "systemd cannot set the unit's sandbox up: every path in ReadWritePaths must exist."),
    238: ("state_directory", "systemd cannot make the unit's StateDirectory."),
    239: ("cache_directory", "systemd cannot make the unit's CacheDirectory."),
}

_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)?(?::|$)")
_ERROR_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit)\b")
_DULL = re.compile(
    r"^\s|^$|^Traceback |^During handling|^The above exception|HTTP/1\.1\" \d|server_args=|kill_process_tree called|\[--|^usage: "
    r"|^CUDA kernel errors|^Compile with|^For debugging|^Context: |^Received sigquit from a child"
    r"|: (?:Killing process|Sending signal) "
)
_ORDER = {"error": 0, "warning": 1, "consequence": 2, "harmless": 3}


def _marker_phase(text: str, phase: str) -> str:
    for needle, name in (
        ("Load weight begin", "loading_weights"),
        ("Load weight end", "allocating_pools"),
        ("Application startup complete", "warming_up"),
    ):
        if needle in text:
            return name
    if "Capture " in text and "graph begin" in text:
        return "capturing_graphs"
    return phase


def diagnose(lines: t.Sequence[LogLine], *, secrets: t.Sequence[str] = ()) -> list[Problem]:
    """Every problem that the lines speak of, once each: errors first, in the order in which they appeared."""
    problems: dict[str, Problem] = {}
    phase = "starting"
    environment = "<environment>"
    for line in lines:
        text = clean_line(line.text)
        frame = _ENVIRONMENT.search(text) if "/site-packages/" in text else None
        if frame:
            environment = frame["path"]
        phase = _marker_phase(text, phase)
        if "server_args=" in text:
            continue  # names every flag, and the key
        for rule in RULES:
            match = rule.pattern.search(text) if not rule.phases or phase in rule.phases else None
            if not match:
                continue
            if rule.code in problems:
                problems[rule.code]["count"] += 1
            else:
                groups = {name: shorten(value or "?", 120) for name, value in match.groupdict().items()}
                groups["environment"] = environment
                problems[rule.code] = {
                    "code": rule.code,
                    "severity": rule.severity,
                    "found": shorten(hide_secrets(text.strip(), secrets)),
                    "advice": hide_secrets(rule.advice.format(**groups), secrets),
                    "count": 1,
                }
            break
    found = sorted(problems.values(), key=lambda problem: _ORDER[problem["severity"]])
    codes = {problem["code"] for problem in found}
    dropped = set()
    if codes - {"compiler_failed"} & {"linker_missing", "header_missing", "compiler_killed", "library_missing_at_link", "nvcc_missing"}:
        dropped.add("compiler_failed")  # says only that a command failed
    if codes & {"warm_up_through_proxy", "port_in_use", "own_key_refused"}:
        dropped.add("warm_up_failed")
    if any(problem["severity"] == "error" and problem["code"] not in dropped for problem in found):
        dropped.update(problem["code"] for problem in found if problem["severity"] == "consequence")
    return [problem for problem in found if problem["code"] not in dropped]


def last_exception(lines: t.Sequence[LogLine], *, secrets: t.Sequence[str] = ()) -> str:
    """The last line that names an exception, for a failure that no rule knows; empty when there is none."""
    for line in reversed(lines):
        text = clean_line(line.text).strip()
        if _EXCEPTION.match(text) and _ERROR_NAME.search(text.split(":", 1)[0]):
            return shorten(hide_secrets(text, secrets))
    return ""


def telling_lines(lines: t.Sequence[LogLine], *, secrets: t.Sequence[str] = (), most: int = 8) -> list[str]:
    """The last lines that are worth a look: no frames of a traceback, no access log, no usage text, nothing that may hold a key."""
    kept: list[str] = []
    for line in reversed(lines):
        text = clean_line(line.text)
        if not _DULL.search(text):
            kept.append(shorten(hide_secrets(text, secrets)))
        if len(kept) == most:
            break
    return kept[::-1]


def diagnose_unit(*, result: str, exit_code: str, exit_status: int | None, failed: bool, explained: bool, exception: str) -> list[Problem]:
    """What systemd's own record of the unit adds. explained: the log already has an error."""
    status = "?" if exit_status is None else str(exit_status)
    found = f"systemd: result {result or 'unknown'}, main process {exit_code or '?'}, status {status}"

    def problem(code: str, advice: str, text: str = found) -> Problem:
        return {"code": code, "severity": "error", "found": text, "advice": advice, "count": 1}

    if not failed:
        return []
    if exit_code == "exited" and exit_status in _EXEC_STATUS:
        code, advice = _EXEC_STATUS[exit_status]
        return [problem(code, advice)]
    if result == "start-limit-hit":
        limit = problem(
            "start_limit_hit", "systemd gives it no more starts for now: mend the cause, then systemctl reset-failed and start."
        )
        return [limit]
    if explained:
        return []
    if result == "oom-kill":
        made = problem("host_out_of_memory", "The host (or MemoryMax= of the unit) ran out of RAM: see journalctl -k.")
    elif exception:
        made = problem("unrecognised_failure", "No rule knows this failure: read the unit's journal around this line.", exception)
    elif exit_code in ("killed", "dumped"):
        made = problem("killed_by_signal", f"Signal {status} ended the main process: see journalctl -k and who sent it.")
    elif result == "timeout":
        made = problem("start_timeout", "systemd ended it after TimeoutStartSec: raise it in the unit.")
    elif exit_code == "exited" and exit_status == 0:
        made = problem("ended_with_0", "The engine ended by itself with 0, which is no success for a server: read the unit's journal.")
    else:
        made = problem("unrecognised_failure", "No rule knows this failure: read the unit's journal.")
    return [made]
