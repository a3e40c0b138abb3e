# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# PRIVATE to the collection.
"""Is a checkpoint complete? Found out from file names, sizes and headers alone: of the weights only a few KiB are read."""

from __future__ import annotations

import json
import re
import typing as t

# name -> what stat says. Directories do not appear.
Listing = t.Mapping[str, "Entry"]
# (name, offset, length) -> up to that many bytes. Raises OSError.
Reader = t.Callable[[str, int, int], bytes]

RECORD_VERSION = 1
# A pointer of Git LFS is at most 1024 bytes long and begins like this (git-lfs specification).
LFS_MARK = b"version https://git-lfs.github.com/spec/"
LFS_MAX_BYTES = 1024
# The safetensors library refuses longer headers.
HEADER_MAX_BYTES = 100_000_000
JSON_MAX_BYTES = 400_000_000
TOKENIZER_SETS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("tekken.json",),
    ("tiktoken.model",),
)
# Bits per element, for the check that a tensor's bytes are what its shape says.
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    "F4": 4,
}
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.(?P<kind>safetensors|bin)")


class Entry(t.NamedTuple):
    """One file, as the file system tells it."""

    size: int
    mtime_ns: int
    readable: bool  # by the user that the service runs as


class Problem(t.NamedTuple):
    """One thing that is wrong: what was expected, what was found, what to do."""

    code: str
    file: str
    expected: str
    found: str
    action: str

    def text(self) -> str:
        return f"{self.file}: expected {self.expected}, found {self.found}. {self.action}"


class Report(t.NamedTuple):
    """Problems make the checkpoint unusable; warnings do not. The facts are complete when there are no problems."""

    problems: list[Problem]
    warnings: list[Problem]
    facts: dict[str, t.Any]


class HeaderError(Exception):
    """A safetensors file whose header cannot be used; says what was expected and what was found."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


class Tensor(t.NamedTuple):
    dtype: str
    bytes: int


class Header(t.NamedTuple):
    """What a safetensors file says about itself."""

    tensors: dict[str, Tensor]
    file_bytes: int  # how long the file must be


def _natural(value: t.Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def header_length(first: bytes, size: int) -> int:
    """Length of the JSON header from the first eight bytes (little endian)."""
    if len(first) < 8:
        raise HeaderError("at least 8 bytes", f"{len(first)}")
    length = int.from_bytes(first[:8], "little")
    if not 2 <= length <= HEADER_MAX_BYTES:
        raise HeaderError("a safetensors header", f"a header length of {length} (not a safetensors file, or damaged)")
    if 8 + length > size:
        raise HeaderError(f"a header of {length} bytes", f"a file of {size} bytes: it is cut off within its header")
    return length


def parse_header(text: bytes) -> Header:
    """The header of a safetensors file, without its eight length bytes."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HeaderError("a header in JSON", f"{type(error).__name__}: {error}") from error
    if not isinstance(body, dict):
        raise HeaderError("a header that is a JSON object", type(body).__name__)
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int]] = []
    for name, tensor in body.items():
        if name == "__metadata__":
            continue
        parts = tensor if isinstance(tensor, dict) else {}
        dtype, shape, offsets = parts.get("dtype"), parts.get("shape"), parts.get("data_offsets")
        good = isinstance(offsets, list) and len(offsets) == 2 and all(_natural(offset) for offset in offsets) and offsets[0] <= offsets[1]
        if not good or not isinstance(shape, list) or not all(_natural(number) for number in shape) or not isinstance(dtype, str):
            raise HeaderError(f"dtype, shape and data_offsets of tensor {name!r}", "something else")
        begin, end = t.cast("list[int]", offsets)
        elements = 1
        for number in shape:
            elements *= number
        if elements >= 2**63 or end >= 2**63:
            raise HeaderError(f"a size of tensor {name!r} that a file can have", "more than 2^63")
        bits = DTYPE_BITS.get(dtype)
        if bits is not None and elements * bits != (end - begin) * 8:
            raise HeaderError(f"{elements * bits // 8} bytes for tensor {name!r} ({dtype} {shape})", f"{end - begin} bytes")
        tensors[name] = Tensor(dtype, end - begin)
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise HeaderError("tensors without gaps and overlaps", f"data at {begin} where {position} was expected")
        position = end
    return Header(tensors, 8 + len(text) + position)


def is_lfs_pointer(first: bytes, size: int) -> bool:
    return size <= LFS_MAX_BYTES and first.startswith(LFS_MARK)


class _Examination:
    """Collects what is found; one method per part of a checkpoint."""

    def __init__(self, listing: Listing, read: Reader, source: str) -> None:
        self.listing = listing
        self.read = read
        self.again = {
            "local": "Copy the file again from where it is complete",
            "hub": "Run the playbook again, which downloads what is missing",
            "build": "Run the playbook again, which builds the checkpoint anew",
        }[source]
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.facts: dict[str, t.Any] = {}
        self.judged: dict[str, bool] = {}

    def problem(self, code: str, file: str, expected: str, found: str, action: str | None = None) -> None:
        self.problems.append(Problem(code, file, expected, found, f"{action or self.again}."))

    def warning(self, code: str, file: str, expected: str, found: str, action: str) -> None:
        self.warnings.append(Problem(code, file, expected, found, f"{action}."))

    # Files

    def usable(self, name: str) -> bool:
        """Whether a file (which is there) has content of its own; says so (once) when not."""
        if name not in self.judged:
            self.judged[name] = self.judge(name, self.listing[name])
        return self.judged[name]

    def judge(self, name: str, entry: Entry) -> bool:
        if not entry.readable:
            self.problem(
                "unreadable", name, "a file that the service's user can read", "no permission", "Make it readable (chmod, chown or an ACL)"
            )
            return False
        if entry.size == 0:
            self.problem("empty", name, "content", "0 bytes")
            return False
        try:
            first = self.read(name, 0, len(LFS_MARK)) if entry.size <= LFS_MAX_BYTES else b""
        except OSError as error:
            self.problem("unreadable", name, "a readable file", error.strerror or str(error), "Repair the file or its file system")
            return False
        if is_lfs_pointer(first, entry.size):
            self.problem(
                "lfs_pointer",
                name,
                "the file itself",
                "a pointer of Git LFS",
                "Run `git lfs pull` where the repository was cloned, then copy again",
            )
            return False
        return True

    def json(self, name: str) -> dict[str, t.Any] | None:
        """A JSON object, None (with a problem) when the file is none."""
        if not self.usable(name):
            return None
        size = self.listing[name].size
        if size > JSON_MAX_BYTES:
            self.problem("not_json", name, f"at most {JSON_MAX_BYTES} bytes", f"{size} bytes")
            return None
        try:
            value = json.loads(self.read(name, 0, size).decode("utf-8"))
        except OSError as error:
            self.problem("unreadable", name, "a readable file", error.strerror or str(error), "Repair the file or its file system")
            return None
        except (ValueError, RecursionError) as error:
            self.problem("not_json", name, "valid JSON", f"{type(error).__name__}: {error}")
            return None
        if not isinstance(value, dict):
            self.problem("not_json", name, "a JSON object", type(value).__name__)
            return None
        return value

    # Parts

    def config(self) -> None:
        if "config.json" not in self.listing:
            self.problem(
                "config_missing",
                "config.json",
                "the model's configuration",
                "no such file",
                f"{self.again}; the path must be that of the checkpoint itself",
            )
            return
        config = self.json("config.json")
        if config is None:
            return
        architectures, model_type = config.get("architectures"), config.get("model_type")
        if not isinstance(architectures, list) or not architectures or not all(isinstance(name, str) for name in architectures):
            self.problem("config_incomplete", "config.json", "architectures, a list with a class name", f"{architectures!r}")
            architectures = []
        if not isinstance(model_type, str) or not model_type:
            self.problem("config_incomplete", "config.json", "model_type, a name", f"{model_type!r}")
            model_type = None
        text = config.get("text_config")
        text = text if isinstance(text, dict) else {}

        def get(*names: str) -> t.Any:
            return next((part[name] for part in (text, config) for name in names if part.get(name) is not None), None)

        quantization = get("quantization_config")
        length = get("max_position_embeddings", "max_sequence_length", "seq_length", "model_max_length")
        mtp = get("mtp_num_hidden_layers", "num_nextn_predict_layers")
        self.facts.update(
            architectures=architectures,
            model_type=model_type,
            max_position_embeddings=length if _natural(length) else None,
            config_dtype=get("dtype", "torch_dtype") if isinstance(get("dtype", "torch_dtype"), str) else None,
            quantization=quantization.get("quant_method") if isinstance(quantization, dict) else None,
            mtp_layers=mtp if _natural(mtp) else 0,
            own_code=sorted(name for name in self.listing if name.endswith(".py") and "/" not in name) if "auto_map" in config else [],
        )

    def tokenizer(self) -> None:
        complete = [files for files in TOKENIZER_SETS if all(name in self.listing for name in files)]
        vocabularies = sorted(name for name in self.listing if name.endswith(".tiktoken"))
        if not complete and not vocabularies:
            expected = " or ".join("+".join(files) for files in TOKENIZER_SETS)
            self.problem(
                "tokenizer_missing",
                "tokenizer.json",
                expected,
                "none of them",
                f"{self.again}; the files of the tokenizer belong to the checkpoint",
            )
        for name in sorted({name for files in complete for name in files} | set(vocabularies)):
            if name.endswith(".json"):
                self.json(name)
            else:
                self.usable(name)
        template = False
        for name in ("chat_template.jinja", "chat_template.json"):
            template = (name in self.listing and self.usable(name)) or template
        if "tokenizer_config.json" in self.listing:
            settings = self.json("tokenizer_config.json")
            template = template or bool((settings or {}).get("chat_template"))
        if "generation_config.json" in self.listing:
            self.json("generation_config.json")
        self.facts["has_chat_template"] = template

    def index(self, name: str) -> dict[str, str]:
        """tensor -> shard, as the index says."""
        body = self.json(name)
        if body is None:
            return {}
        weights = body.get("weight_map")
        if not isinstance(weights, dict) or not weights or not all(isinstance(shard, str) for shard in weights.values()):
            self.problem(
                "index_incomplete", name, "weight_map, which names the file of each tensor", "something else" if weights else "nothing"
            )
            return {}
        for shard in sorted(set(weights.values())):
            if "/" in shard or shard in ("", ".", ".."):
                self.problem("index_incomplete", name, "names of files beside it", repr(shard))
                return {}
        metadata = body.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        # Some tools write it as a floating-point number.
        self.facts["index_total_bytes"] = int(total) if isinstance(total, (int, float)) and abs(total) < 2**63 else None
        return t.cast("dict[str, str]", weights)

    def shard_names(self, kind: str, index_name: str) -> tuple[list[str], dict[str, str]]:
        """The weight files of one kind, and the index's map where there is one."""
        if index_name in self.listing:
            weights = self.index(index_name)
            return sorted(set(weights.values())), weights
        stem = index_name.partition(".")[0]
        found = [name for name in self.listing if name.endswith(f".{kind}") and "/" not in name]
        if f"{stem}.{kind}" in found:
            return [f"{stem}.{kind}"], {}
        series: dict[tuple[str, int], int] = {}
        for match in filter(None, map(_NUMBERED.fullmatch, found)):
            key = (match["stem"], int(match["total"]))
            series[key] = series.get(key, 0) + 1
        if series:
            # The usual name goes first, then the series of which most is there.
            first, total = max(series, key=lambda key: (key[0] == stem, series[key]))
            self.warning(
                "index_missing", index_name, "an index beside weights in several files", "none", "Copy it too; some loaders need it"
            )
            return [f"{first}-{number:05d}-of-{total:05d}.{kind}" for number in range(1, min(total, 999) + 1)], {}
        if kind == "bin":
            found = [name for name in found if name.startswith("pytorch_model")]
        return sorted(found), {}

    def weights(self) -> None:
        for kind, index_name in (("safetensors", "model.safetensors.index.json"), ("bin", "pytorch_model.bin.index.json")):
            shards, weights = self.shard_names(kind, index_name)
            if shards or index_name in self.listing:
                self.facts["format"] = kind
                self.shards(kind, shards, weights, index_name)
                return
        self.problem(
            "weights_missing",
            "model.safetensors",
            "weights (*.safetensors or pytorch_model*.bin)",
            "none",
            f"{self.again}; the path must be that of the checkpoint itself",
        )

    def shards(self, kind: str, shards: list[str], weights: dict[str, str], index_name: str) -> None:
        by_dtype: dict[str, int] = {}
        tensors: set[str] = set()
        intact = True
        for number, shard in enumerate(shards, 1):
            if shard not in self.listing:
                self.problem("shard_missing", shard, f"weight file {number} of {len(shards)}", "no such file")
                intact = False
            elif not self.usable(shard):
                intact = False
            elif kind == "bin":
                intact = self.bin(shard) and intact
            else:
                header = self.safetensors(shard)
                if header is None:
                    intact = False
                    continue
                wanted = {name for name, file in weights.items() if file == shard}
                missing = sorted(wanted - set(header.tensors))
                if missing:
                    some = f"{missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
                    self.problem(
                        "tensor_missing",
                        shard,
                        f"the {len(wanted)} tensors that {index_name} names",
                        f"{len(missing)} missing: {some}",
                        f"{self.again}; the index and this file are of different revisions",
                    )
                    intact = False
                tensors |= set(header.tensors)
                for tensor in header.tensors.values():
                    by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.bytes
        file_bytes = sum(self.listing[shard].size for shard in shards if shard in self.listing)
        total = sum(by_dtype.values())
        self.facts.update(
            shards=len(shards),
            file_bytes=file_bytes,
            weights_bytes=total if kind == "safetensors" else file_bytes,
            bytes_by_dtype=dict(sorted(by_dtype.items())),
            tensors=len(tensors or weights),
        )
        if not intact:
            return
        said = self.facts.get("index_total_bytes")
        if kind == "safetensors" and said is not None and said != total:
            # Not a problem: every file agrees with its own header and holds what the index names, and published indexes are wrong at times.
            self.warning(
                "total_size_differs",
                index_name,
                f"total_size {total}, the bytes of the tensors in the files",
                f"{said}",
                "Compare the files with the published ones if in doubt",
            )
        self.mtp(tensors or set(weights))

    def mtp(self, tensors: set[str]) -> None:
        """Heads for speculative decoding get lost when a checkpoint is quantised again; the configuration then still names them."""
        if self.facts.get("model_type", "") not in ("qwen3_5", "qwen3_5_moe", "qwen3_next") or not tensors:
            self.facts["has_mtp_weights"] = None
            return
        self.facts["has_mtp_weights"] = any(name.startswith("mtp.") or ".mtp." in name for name in tensors)
        if self.facts.get("mtp_layers") and not self.facts["has_mtp_weights"]:
            self.warning(
                "mtp_missing",
                "config.json",
                f"tensors mtp.* ({self.facts['mtp_layers']} layers by the configuration)",
                "none",
                "Speculative decoding (NEXTN) cannot work with it: take a checkpoint that has them, or remove speculative_* from args",
            )

    def safetensors(self, name: str) -> Header | None:
        size = self.listing[name].size
        try:
            length = header_length(self.read(name, 0, 8), size)
            text = self.read(name, 8, length)
            if len(text) != length:
                raise HeaderError(f"a header of {length} bytes", f"{len(text)} bytes")
            header = parse_header(text)
        except HeaderError as error:
            self.problem("shard_damaged", name, error.expected, error.found)
            return None
        except OSError as error:
            self.problem("unreadable", name, "a readable file", error.strerror or str(error), "Repair the file or its file system")
            return None
        if header.file_bytes != size:
            code, word = ("shard_truncated", "cut off") if size < header.file_bytes else ("shard_damaged", "too long")
            self.problem(code, name, f"{header.file_bytes} bytes (by its own header)", f"{size} bytes: it is {word}")
            return None
        return header

    def bin(self, name: str) -> bool:
        """torch.save writes a ZIP archive; its directory is at the end, so that a cut is seen. Older files are plain pickles."""
        size = self.listing[name].size
        try:
            first, last = self.read(name, 0, 4), self.read(name, max(0, size - 65_557), min(size, 65_557))
        except OSError as error:
            self.problem("unreadable", name, "a readable file", error.strerror or str(error), "Repair the file or its file system")
            return False
        if first == b"PK\x03\x04":
            if b"PK\x05\x06" in last:
                return True
            self.problem("shard_truncated", name, "a ZIP archive with its directory at the end", "no directory: it is cut off")
        elif first[:1] == b"\x80":
            return True
        else:
            self.problem("shard_damaged", name, "a file of torch.save", "something else")
        return False


def examine(listing: Listing, read: Reader, source: str = "local") -> Report:
    """Look at a checkpoint.

    listing: every file below its directory, by path relative to it. read: reads from one of them. source: local, hub or build; what
    to do about a problem depends on it.
    """
    examination = _Examination(listing, read, source)
    examination.config()
    examination.tokenizer()
    examination.weights()
    return Report(examination.problems, examination.warnings, examination.facts)


# The record of a complete checkpoint: a second look needs stat alone


def snapshot(listing: Listing) -> dict[str, list[int]]:
    """What must stay as it is for a record to hold: name -> [size, mtime_ns]. Bookkeeping of download clients does not count."""
    return {name: [entry.size, entry.mtime_ns] for name, entry in sorted(listing.items()) if not name.startswith(".")}


def make_record(path: str, listing: Listing, report: Report) -> dict[str, t.Any]:
    """What is kept about a checkpoint without problems."""
    warnings = [warning._asdict() for warning in report.warnings]
    return {"version": RECORD_VERSION, "path": path, "files": snapshot(listing), "facts": report.facts, "warnings": warnings}


def recall(record: t.Any, path: str, listing: Listing) -> Report | None:
    """The report that a record stands for, None when it does not hold (any more)."""
    if not isinstance(record, dict) or record.get("version") != RECORD_VERSION or record.get("path") != path:
        return None
    if record.get("files") != snapshot(listing) or not all(entry.readable for name, entry in listing.items() if not name.startswith(".")):
        return None
    facts, warnings = record.get("facts"), record.get("warnings")
    if not isinstance(facts, dict) or not isinstance(warnings, list):
        return None
    try:
        return Report([], [Problem(**warning) for warning in warnings], facts)
    except TypeError:
        return None


# Words


def size_words(count: int) -> str:
    """1727400 -> 1.7 MB (powers of ten, as disks and hubs count)."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def summary(path: str, report: Report) -> str:
    """One message about the checkpoint: every problem, or what it is."""
    if report.problems:
        lines = [f"The checkpoint {path} is not complete ({len(report.problems)} problem{'s' if len(report.problems) > 1 else ''}):"]
        return "\n".join([*lines, *(f"- {problem.text()}" for problem in report.problems)])
    facts = report.facts
    files = f"{facts['shards']} file{'s' if facts['shards'] != 1 else ''}"
    return f"{path}: {', '.join(facts['architectures'])}, {size_words(facts['weights_bytes'])} of weights in {files}"


def describe(progress: t.Mapping[str, t.Any]) -> str:
    """One line for people about a download or build that is going on."""
    words = str(progress.get("phase") or "starting")
    done, total = progress.get("bytes_done"), progress.get("bytes_total")
    if isinstance(done, int) and isinstance(total, int) and total > 0:
        words += f", {size_words(done)} of {size_words(total)} ({min(100, 100 * done // total)} %)"
        rate = progress.get("bytes_per_s")
        if isinstance(rate, int) and rate > 0:
            words += f", {size_words(rate)}/s"
    elif isinstance(done, int) and done > 0:
        words += f", {size_words(done)} written"
    line = progress.get("line")
    return f"{words}: {line}" if line else words


def full_disk_words(text: str, directory: str) -> str:
    """What an error means that says that a file system is full, whatever program says it; empty when it says something else."""
    if not re.search(r"No space left on device|os error 28\b|\[Errno (?:28|122)\]|ENOSPC|Disk quota exceeded", text):
        return ""
    return (
        f"the file system of {directory} is full, or its quota is. "
        f"Free space there (df -h {directory}), or keep the models elsewhere (sglang_models_dir)."
    )
