# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Downloads one commit of a model repository of the Hugging Face Hub into a directory; files of an earlier run are kept.

Runs with the engine environment's own Python and its huggingface_hub, which reads the token (HF_TOKEN), the address of the Hub
(HF_ENDPOINT) and the proxy from the environment. Before anything is downloaded it says how much it will be and checks that there is room.
A connection that breaks is tried again; within one file the client goes on where it was, after a new start with the files that are missing.

    python hub_download.py --output DIR --repo ORG/NAME --revision COMMIT [--allow PATTERN ...] [--ignore PATTERN ...]
        [--attempts 5]
"""

from __future__ import annotations

import argparse
import errno
import fnmatch
import os
import shutil
import sys
import time
import typing as t
from pathlib import Path

# The same weights in formats that the engine does not need when there are safetensors.
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.ot", "*.tflite")
# Second copies of the weights, and what is for people only.
COPIES = ("original/*", "metal/*", "onnx/*", "openvino/*", "coreml/*", "flax/*", "consolidated*.safetensors")
FOR_PEOPLE = ("*.png", "*.jpg", "*.jpeg", "*.gif", "*.mp4", "*.pdf", ".gitattributes")
RESERVE_BYTES = 2**30
# Certificates that the system trusts (Debian and Ubuntu, RHEL), among them the operator's own; the client brings only public ones.
SYSTEM_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def is_weights(name: str) -> bool:
    return "/" not in name and name.endswith(".safetensors") and not name.startswith("consolidated")


def wanted_files(names: t.Iterable[str], allow: t.Sequence[str], ignore: t.Sequence[str]) -> list[str]:
    """What has to be downloaded of a repository: the checkpoint in safetensors if there are any, and no second copy of it."""
    names = sorted(names)
    leave = [*FOR_PEOPLE, *ignore]
    if any(is_weights(name) for name in names):
        leave += [*OTHER_FORMATS, *COPIES]
    if allow:
        names = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in allow)]
        leave = list(ignore)
    return [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in leave)]


def room_problem(total: int, there: int, free: int, output: Path) -> str | None:
    """Why the download does not fit, None when it does."""
    needed = max(0, total - there) + RESERVE_BYTES
    if free >= needed:
        return None
    return (
        f"expected {needed / 1e9:.1f} GB free for {output} (1.1 GB of it in reserve), found {free / 1e9:.1f} GB. "
        "Free some space there, or keep models elsewhere (sglang_models_dir)"
    )


def tree_bytes(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0


def is_passing(error: Exception) -> bool:
    """Whether trying again can help: the connection broke, or the server has a problem of its own."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status == 429 or status >= 500
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
    return not full and not isinstance(error, (TypeError, ValueError, LookupError, ImportError))


def explain(error: Exception, repo: str, revision: str, endpoint: str) -> str:
    """One sentence for the operator."""
    kind = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if kind == "GatedRepoError":
        return f"{repo} is gated: accept its terms on the Hub, and name the variable with your token in sglang_model_hub_token_variable"
    if kind == "RevisionNotFoundError":
        return f"{repo} has no commit {revision}. Set model.revision to one of its commits"
    if kind == "RepositoryNotFoundError" or status in (401, 403):
        token = "the token has no access" if os.environ.get("HF_TOKEN") else "it needs a token (sglang_model_hub_token_variable)"
        return f"{repo} was not found at {endpoint} (HTTP {status}): its name is wrong, or it is private and {token}"
    if status is not None:
        return f"{endpoint} answered with HTTP {status} for {repo}: {error}"
    text = str(error).strip() or repr(error)
    return f"downloading {repo} from {endpoint} failed: {kind}: {text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--repo", required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("--ignore", action="append", default=[])
    parser.add_argument("--attempts", type=int, default=5, help="how often to try when the connection breaks")
    arguments = parser.parse_args()
    output = arguments.output.absolute()

    os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HOME=str(output.parent / "hub"))
    os.environ.pop("HF_HUB_OFFLINE", None)
    bundle = next((path for path in SYSTEM_CA_BUNDLES if Path(path).is_file()), None)
    if bundle:
        os.environ.setdefault("SSL_CERT_FILE", bundle)
    from huggingface_hub import HfApi, constants, snapshot_download  # noqa: PLC0415  # after its settings

    try:
        info = HfApi().model_info(arguments.repo, revision=arguments.revision, files_metadata=True)
        if info.sha != arguments.revision:
            print(f"error: expected commit {arguments.revision} of {arguments.repo}, found {info.sha}", flush=True)
            return 1
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        names = wanted_files(sizes, arguments.allow, arguments.ignore)
        if not names:
            print(f"error: expected files in {arguments.repo}, none of its {len(sizes)} matches the patterns allow and ignore", flush=True)
            return 1
        total = sum(sizes[name] for name in names)
        print(f"plan: {total} bytes in {len(names)} files", flush=True)
        output.mkdir(parents=True, exist_ok=True)
        for rest in output.glob(".cache/huggingface/download/**/*.incomplete"):
            rest.unlink()  # of a client that was killed; nobody will go on with it
        problem = room_problem(total, tree_bytes(output), shutil.disk_usage(output).free, output)
        if problem:
            print(f"error: {problem}", flush=True)
            return 1
        # Names, not patterns: a file name can hold characters that a pattern would take for something else.
        exact = ["".join(f"[{char}]" if char in "*?[" else char for char in name) for name in names]
        for attempt in range(1, arguments.attempts + 1):
            try:
                snapshot_download(arguments.repo, revision=arguments.revision, local_dir=output, allow_patterns=exact)
                break
            except Exception as error:
                if attempt == arguments.attempts or not is_passing(error):
                    raise
                print(
                    f"{explain(error, arguments.repo, arguments.revision, constants.ENDPOINT)}; attempt {attempt + 1} follows", flush=True
                )
                time.sleep(5 * 2 ** (attempt - 1))
    except Exception as error:  # whatever it was, the operator gets one sentence
        print(f"error: {explain(error, arguments.repo, arguments.revision, constants.ENDPOINT)}", flush=True)
        return 1
    print(f"done: {output}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
