from __future__ import annotations

import pathlib

import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _diagnosis as diagnosis
from ansible_collections.firstlight.sglang.plugins.module_utils._engine_log import lines_of

FIXTURES = pathlib.Path(__file__).parent / "fixtures/logs"


def codes(text, severity="error"):
    return [problem["code"] for problem in diagnosis.diagnose(lines_of(text)) if problem["severity"] == severity]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("B_q27_mtp_default", []),
        ("J_q06_default", []),
        ("K01_unknown_flag", ["unknown_flag"]),
        ("K02_context_too_long", ["context_too_long"]),
        ("K03_bad_backend_name", ["invalid_flag_value"]),
        ("K04_backend_wrong_gpu", ["attention_backend_not_for_gpu"]),
        ("K05_fraction_too_small", ["state_does_not_fit"]),
        ("K06_fraction_too_large", ["memory_fraction_too_large"]),
        ("K09_tp2_on_one_gpu", ["gpu_index_out_of_range"]),
        ("K10_no_gpu_visible", ["no_gpu"]),
        ("K11_gpu_occupied", ["gpu_occupied"]),
        ("K12_sigterm_while_loading", []),
        ("K13_kill_scheduler", ["process_killed"]),
        ("K15_topk_without_steps", ["speculation_flags_incomplete"]),
        ("K16_nobuffer_overlap_mtp", ["speculation_needs_extra_buffer"]),
        ("K17_bad_model_path", ["model_path_missing"]),
        ("K18_port_taken", ["port_in_use"]),
        ("K19_path_without_smi_and_binutils", ["linker_missing"]),
        ("K20_mtp_with_lazy_extra_buffer", ["speculation_lazy_extra_buffer"]),
        ("L7_q06_sigterm_all", []),
        ("L8_q06_ctx_over_model_allowed", []),
    ],
)
def test_real_logs_have_one_cause_each(name, expected):
    assert codes((FIXTURES / f"{name}.log").read_text()) == expected


LOADING = "Load weight begin. avail mem=46.65 GB\n"
CAPTURING = LOADING + "Load weight end. \nCapture target decode CUDA graph begin. backend=full\n"
SERVING = CAPTURING + "INFO:     Application startup complete.\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 7 has a total capacity of 95.00 GiB"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # the same words, another cure: it depends on how far the start had got
        (LOADING + OOM, "gpu_out_of_memory"),
        (CAPTURING + OOM, "graph_out_of_memory"),
        (SERVING + OOM, "run_time_out_of_memory"),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB.", "graph_out_of_memory"),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.2",
            "memory_fraction_too_small",
        ),
        (
            "ValueError: Speculative decoding for Qwen3_5MoeForConditionalGeneration is not compatible with radix cache when using "
            "--mamba-scheduler-strategy no_buffer. To use radix cache",
            "speculation_needs_extra_buffer",
        ),
        (
            "AssertionError: Only {'trtllm_mha', 'triton', 'fa4'} backends are supported on Blackwell GPUs for hybrid GDN models.",
            "attention_backend_not_for_gpu",
        ),
        ('ValueError("type fp8e4nv not supported in this architecture.', "fp8_not_on_this_gpu"),
        ("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", "nvcc_missing"),
        ("/bin/sh: 1: /nonexistent/bin/nvcc: not found", "nvcc_missing"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "ninja_missing"),
        ("fatal error: curand_kernel.h: No such file or directory", "header_missing"),
        ("x.c:1:10: fatal error: Python.h: No such file or directory", "header_missing"),
        ("nvcc fatal : cicc Killed", "compiler_killed"),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "library_missing_at_link"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "libcuda_missing"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "libcuda_missing"),
        ("ImportError: libnuma.so.1: cannot open shared object file: No such file or directory", "library_missing"),
        ("ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found", "glibc_too_old"),
        ("The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "memory_unbalanced"),
        ("PermissionError: [Errno 13] Permission denied: '/nonexistent/.triton'", "not_writable"),
        ("OSError: [Errno 30] Read-only file system: '/opt/sglang'", "not_writable"),
        (
            "Error while creating shared memory segment /dev/shm/nccl-97p6hH (size 9637888), error: No space left on device (28)",
            "nccl_shared_memory",
        ),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12080).", "driver_too_old"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "fabric_manager"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "driver_mismatch"),
        ("Error 804: forward compatibility was attempted on non supported HW", "cuda_compat_library"),
        (
            "DistNetworkError: The server socket has failed to listen on any local network address. code: -98, name: EADDRINUSE",
            "internal_port_in_use",
        ),
        ("RuntimeError: Cannot find any model weights with `/srv/m`", "weights_missing"),
        ("FileNotFoundError: No such file or directory: /srv/m/model-00002-of-00003.safetensors", "shard_missing"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "shard_broken"),
        ("requests.exceptions.ProxyError: HTTPConnectionPool(host='10.0.0.1', port=3128)", "warm_up_through_proxy"),
        ("Initialization failed. warmup error: Traceback", "warm_up_failed"),
        (
            "Initialization failed. warmup error: Traceback (most recent call last):\n"
            'AssertionError: res=<Response [401]>, res.text=\'{"error":"Unauthorized"}\'',
            "own_key_refused",
        ),
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "output_not_a_number"),
        ("ModuleNotFoundError: No module named 'orjson'", "environment_damaged"),
        ("ImportError: cannot import name 'a' from 'b' (/e/lib/python3.12/site-packages/b/__init__.py)", "environment_damaged"),
        ("ImportError: /e/lib/python3.12/site-packages/b/_c.so: undefined symbol: _ZN3c10", "environment_damaged"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "libcuda_missing"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_fault"),
        ("sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --x", "ambiguous_flag"),
        ("API key is not supported in multi-tokenizer mode", "key_with_many_tokenizers"),
        ("sglang-demo.service: A process of this unit has been killed by the OOM killer.", "host_out_of_memory"),
    ],
)
def test_texts_from_the_field(text, code):
    assert codes(text) == [code]


@pytest.mark.parametrize(
    "text",
    [
        "OSError: libavutil.so.58: cannot open shared object file: No such file or directory",
        "RuntimeError: Could not load libtorchcodec. Likely causes: ... libavutil.so.59: cannot open shared object file",
        "Ignore import error when loading sglang.srt.models.inkling: No module named 'cutlass'",
        "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit",
    ],
)
def test_what_looks_bad_and_is_not(text):
    assert codes(text) == []
    assert len(codes(text, "harmless")) == 1


def test_four_traces_of_one_library_are_one_harmless_problem():
    text = "\n".join(f"OSError: libavutil.so.{number}: cannot open shared object file" for number in (60, 59, 58, 57))
    (problem,) = diagnosis.diagnose(lines_of(text))
    assert (problem["code"], problem["count"]) == ("optional_video_decoder", 4)


def test_a_general_word_gives_way_to_the_cause():
    text = (
        "fatal error: curand_kernel.h: No such file or directory\n"
        "ninja: build stopped: subcommand failed.\n"
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."
    )
    assert codes(text) == ["header_missing"]
    assert codes("Received sigquit from a child process. It usually means the child failed.", "consequence") == ["child_failed"]
    assert codes(OOM + "\nReceived sigquit from a child process.", "consequence") == []


def test_a_damaged_environment_is_named():
    text = '  File "/opt/sglang/releases/0.5.23-cuda-1a/lib/python3.12/site-packages/sglang/x.py", line 3, in <module>\n    import orjson\n'
    error = "ModuleNotFoundError: No module named 'orjson'"
    (problem,) = diagnosis.diagnose(lines_of(text + error))
    assert "remove /opt/sglang/releases/0.5.23-cuda-1a/.firstlight.json and run site.yml again" in problem["advice"]
    (problem,) = diagnosis.diagnose(lines_of(error))
    assert "remove <environment>/.firstlight.json" in problem["advice"]
    assert codes("ModuleNotFoundError: No module named 'transformers_modules.x'") == []


def test_fewer_requests_than_wanted_is_a_warning_with_both_numbers():
    (problem,) = diagnosis.diagnose(lines_of("max_running_requests was reduced from the requested 48 to 28 (per dp worker)"))
    assert problem["severity"] == "warning"
    assert "28 requests run at once, not 48" in problem["advice"]


def test_no_problem_shows_a_key():
    text = (
        "server_args=ServerArgs(api_key='SENTINEL') error: unrecognized arguments: --x\nOSError: [Errno 13] Permission denied: '/SENTINEL'"
    )
    assert "SENTINEL" not in str(diagnosis.diagnose(lines_of(text), secrets=["SENTINEL"]))
    assert "SENTINEL" not in str(diagnosis.telling_lines(lines_of(text), secrets=["SENTINEL"]))


def test_an_exception_that_no_rule_knows_is_shown():
    lines = lines_of("Traceback (most recent call last):\n  File x\ntorch.foo.BarError: it broke\nWaiting for shutdown.")
    assert diagnosis.last_exception(lines) == "torch.foo.BarError: it broke"
    assert diagnosis.last_exception(lines_of("INFO:     Started server process [1]")) == ""


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"result": "exit-code", "exit_code": "exited", "exit_status": 203}, "executable_missing"),
        ({"result": "exit-code", "exit_code": "exited", "exit_status": 226, "explained": True}, "namespace"),
        ({"result": "oom-kill", "exit_code": "killed", "exit_status": 9}, "host_out_of_memory"),
        ({"result": "signal", "exit_code": "killed", "exit_status": 9}, "killed_by_signal"),
        ({"result": "timeout", "exit_code": "", "exit_status": None}, "start_timeout"),
        ({"result": "success", "exit_code": "exited", "exit_status": 0}, "ended_with_0"),
        ({"result": "start-limit-hit", "exit_code": "exited", "exit_status": 1, "explained": True}, "start_limit_hit"),
        ({"result": "signal", "exit_code": "killed", "exit_status": 9, "exception": "XError: y"}, "unrecognised_failure"),
        ({"result": "signal", "exit_code": "killed", "exit_status": 9, "explained": True}, None),
        ({"result": "success", "exit_code": "", "exit_status": None, "failed": False}, None),
    ],
)
def test_what_systemd_adds(values, code):
    problems = diagnosis.diagnose_unit(**{"failed": True, "explained": False, "exception": "", **values})
    assert [problem["code"] for problem in problems] == ([code] if code else [])


def test_every_advice_can_be_filled_in():
    for rule in diagnosis.RULES:
        rule.advice.format(**dict.fromkeys([*rule.pattern.groupindex, "environment"], "x"))
