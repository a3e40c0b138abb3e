# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import io
import json
import zipfile

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.firstlight.sglang.plugins.module_utils import _checkpoint as core

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def safetensors(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        count = core.DTYPE_BITS[dtype] // 8
        for number in shape:
            count *= number
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + count]}
        position += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"\0" * position


def dumps(value: object) -> bytes:
    return json.dumps(value).encode()


# The keys that matter, as the configuration of Qwen3.5-27B has them (text_config of a model that also sees).
CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {"max_position_embeddings": 262144, "dtype": "bfloat16", "mtp_num_hidden_layers": 1},
}
SHARDS = {
    FIRST: {"model.embed_tokens.weight": ("BF16", [8, 4]), "model.norm.weight": ("F32", [4])},
    SECOND: {"lm_head.weight": ("BF16", [8, 4]), "mtp.fc.weight": ("BF16", [4, 8])},
}


def sharded() -> dict[str, bytes]:
    weights = {name: shard for shard, tensors in SHARDS.items() for name in tensors}
    return {
        "config.json": dumps(CONFIG),
        "tokenizer.json": dumps({"model": {"type": "BPE"}}),
        "tokenizer_config.json": dumps({"chat_template": "{{ messages }}"}),
        INDEX: dumps({"metadata": {"total_size": 64 + 16 + 64 + 64}, "weight_map": weights}),
        **{shard: safetensors(tensors) for shard, tensors in SHARDS.items()},
    }


def look(files: dict[str, bytes], unreadable: tuple[str, ...] = (), source: str = "local") -> core.Report:
    listing = {name: core.Entry(len(content), 1, name not in unreadable) for name, content in files.items()}

    def read(name: str, offset: int, length: int) -> bytes:
        assert name not in unreadable
        return files[name][offset : offset + length]

    return core.examine(listing, read, source)


def codes(report: core.Report) -> list[tuple[str, str]]:
    return [(problem.code, problem.file) for problem in report.problems]


def test_complete_checkpoint() -> None:
    report = look(sharded())
    assert report.problems == []
    assert report.warnings == []
    assert report.facts == {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "max_position_embeddings": 262144,
        "config_dtype": "bfloat16",
        "quantization": None,
        "mtp_layers": 1,
        "own_code": [],
        "has_chat_template": True,
        "index_total_bytes": 208,
        "format": "safetensors",
        "shards": 2,
        "file_bytes": sum(len(content) for name, content in sharded().items() if name in SHARDS),
        "weights_bytes": 208,
        "bytes_by_dtype": {"BF16": 192, "F32": 16},
        "tensors": 4,
        "has_mtp_weights": True,
    }
    assert core.summary("/m", report) == "/m: Qwen3_5ForConditionalGeneration, 208 bytes of weights in 2 files"


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4995456\n"
ONE_TENSOR = {"w": ("BF16", [2])}

# what is changed (None removes a file) -> the problems
CASES = [
    ({FIRST: None}, [("shard_missing", FIRST)]),
    ({FIRST: None, SECOND: None}, [("shard_missing", FIRST), ("shard_missing", SECOND)]),
    ({FIRST: b""}, [("empty", FIRST)]),
    ({FIRST: LFS}, [("lfs_pointer", FIRST)]),
    ({"tokenizer.json": LFS}, [("lfs_pointer", "tokenizer.json")]),
    ({SECOND: safetensors(SHARDS[SECOND])[:-1]}, [("shard_truncated", SECOND)]),
    ({SECOND: safetensors(SHARDS[SECOND])[:40]}, [("shard_damaged", SECOND)]),
    ({SECOND: safetensors(SHARDS[SECOND])[:5]}, [("shard_damaged", SECOND)]),
    ({SECOND: safetensors(SHARDS[SECOND]) + b"x"}, [("shard_damaged", SECOND)]),
    ({SECOND: b"<!DOCTYPE html><html>no such file</html>"}, [("shard_damaged", SECOND)]),
    ({SECOND: safetensors({"lm_head.weight": ("BF16", [8, 4])})}, [("tensor_missing", SECOND)]),
    ({"config.json": None}, [("config_missing", "config.json")]),
    ({"config.json": b"{"}, [("not_json", "config.json")]),
    ({"config.json": b"[]"}, [("not_json", "config.json")]),
    ({"config.json": b"\xff"}, [("not_json", "config.json")]),
    ({"config.json": dumps({"model_type": "qwen3"})}, [("config_incomplete", "config.json")]),
    ({"config.json": dumps({})}, [("config_incomplete", "config.json"), ("config_incomplete", "config.json")]),
    ({"tokenizer.json": None}, [("tokenizer_missing", "tokenizer.json")]),
    ({"tokenizer.json": None, "vocab.json": b"{}"}, [("tokenizer_missing", "tokenizer.json")]),
    ({"tokenizer.json": None, "vocab.json": b"{}", "merges.txt": b"a b"}, []),
    ({"tokenizer.json": None, "tokenizer.model": b"x"}, []),
    ({"tokenizer.json": None, "tiktoken.model": b"x"}, []),
    ({"tokenizer.json": b'{"model": '}, [("not_json", "tokenizer.json")]),
    ({INDEX: b"{}"}, [("index_incomplete", INDEX)]),
    ({INDEX: dumps({"weight_map": {"w": "../x.safetensors"}})}, [("index_incomplete", INDEX)]),
    ({INDEX: dumps({"weight_map": {"w": 3}})}, [("index_incomplete", INDEX)]),
    ({INDEX: None, FIRST: None, SECOND: None}, [("weights_missing", "model.safetensors")]),
    ({INDEX: None, FIRST: None}, [("shard_missing", FIRST)]),
    ({INDEX: None, FIRST: None, SECOND: None, "model.safetensors": safetensors(ONE_TENSOR)}, []),
]


@pytest.mark.parametrize(("changes", "expected"), CASES)
def test_what_is_wrong(changes: dict[str, bytes | None], expected: list[tuple[str, str]]) -> None:
    files = {name: content for name, content in {**sharded(), **changes}.items() if content is not None}
    report = look(files)
    assert codes(report) == expected
    for problem in report.problems:
        assert problem.expected
        assert problem.found
        assert problem.action.endswith(".")


def test_all_problems_at_once() -> None:
    report = look({"config.json": b"{", INDEX: sharded()[INDEX]}, source="hub")
    assert codes(report) == [
        ("not_json", "config.json"),
        ("tokenizer_missing", "tokenizer.json"),
        ("shard_missing", FIRST),
        ("shard_missing", SECOND),
    ]
    text = core.summary("/m", report)
    assert "not complete (4 problems)" in text
    assert f"- {SECOND}: expected weight file 2 of 2, found no such file. Run the playbook again, which downloads what is missing." in text


def test_unreadable_files_are_not_read() -> None:
    assert codes(look(sharded(), unreadable=("config.json", FIRST))) == [("unreadable", "config.json"), ("unreadable", FIRST)]


def test_read_errors_are_problems() -> None:
    files = sharded()

    def read(name: str, offset: int, length: int) -> bytes:
        if name == SECOND:
            raise OSError(5, "Input/output error")
        return files[name][offset : offset + length]

    report = core.examine({name: core.Entry(len(content), 1, True) for name, content in files.items()}, read)
    assert [(problem.code, problem.file, problem.found) for problem in report.problems] == [("unreadable", SECOND, "Input/output error")]


def test_warnings_do_not_make_it_unusable() -> None:
    files = sharded()
    files[SECOND] = safetensors({"lm_head.weight": ("BF16", [8, 4])})
    files[INDEX] = dumps({"metadata": {"total_size": 1.0}, "weight_map": {"lm_head.weight": SECOND, "model.norm.weight": FIRST}})
    report = look(files)
    assert report.problems == []
    assert [warning.code for warning in report.warnings] == ["total_size_differs", "mtp_missing"]
    assert report.facts["has_mtp_weights"] is False


def torch_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data.pkl", b"x" * 70_000)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (torch_zip(), []),
        (torch_zip()[:-100], [("shard_truncated", "pytorch_model.bin")]),
        (b"\x80\x02}q\x00.", []),
        (b"hello", [("shard_damaged", "pytorch_model.bin")]),
        (b"", [("empty", "pytorch_model.bin")]),
    ],
)
def test_bin(content: bytes, expected: list[tuple[str, str]]) -> None:
    files = {"config.json": dumps(CONFIG), "tokenizer.json": b"{}", "pytorch_model.bin": content, "training_args.bin": b"x"}
    report = look(files)
    assert codes(report) == expected
    assert report.facts["format"] == "bin"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[]", "JSON object"),
        (b"{", "in JSON"),
        (b'{"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 3]}}', "expected 4 bytes for tensor 'w'"),
        (b'{"w": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}}', "without gaps"),
        (b'{"w": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 0]}}', "data_offsets of tensor 'w'"),
        (b'{"w": {"shape": [2], "data_offsets": [0, 4]}}', "data_offsets of tensor 'w'"),
        (b'{"w": {"dtype": "BF16", "shape": [9223372036854775808], "data_offsets": [0, 4]}}', "that a file can have"),
        (b'{"w": {"dtype": "BF16", "shape": [true], "data_offsets": [0, 2]}}', "data_offsets of tensor 'w'"),
    ],
)
def test_headers_that_are_none(text: bytes, message: str) -> None:
    with pytest.raises(core.HeaderError, match=message):
        core.parse_header(text)


def test_unknown_dtypes_and_packed_ones() -> None:
    header = core.parse_header(
        b'{"a": {"dtype": "NEW", "shape": [9], "data_offsets": [0, 5]}, "b": {"dtype": "F4", "shape": [4], "data_offsets": [5, 7]}}'
    )
    assert header.tensors == {"a": core.Tensor("NEW", 5), "b": core.Tensor("F4", 2)}


# The record


def listing_of(files: dict[str, bytes]) -> dict[str, core.Entry]:
    return {name: core.Entry(len(content), 1, True) for name, content in files.items()}


def test_record_holds_until_something_changes() -> None:
    files = sharded()
    listing = listing_of(files)
    report = look(files)
    record = json.loads(json.dumps(core.make_record("/m", listing, report)))
    assert core.recall(record, "/m", listing) == report
    assert core.recall(record, "/other", listing) is None
    for change in (
        {name: entry for name, entry in listing.items() if name != SECOND},
        {**listing, SECOND: listing[SECOND]._replace(size=3)},
        {**listing, SECOND: listing[SECOND]._replace(mtime_ns=2)},
        {**listing, SECOND: listing[SECOND]._replace(readable=False)},
        {**listing, "new.json": core.Entry(1, 1, True)},
    ):
        assert core.recall(record, "/m", change) is None
    assert core.recall(record, "/m", {**listing, ".lock": core.Entry(1, 1, True)}) == report


@pytest.mark.parametrize(
    "record", [None, [], {}, {"version": 1}, {"version": 1, "path": "/m", "files": {}, "facts": {}, "warnings": [{"x": 1}]}]
)
def test_records_that_are_none(record: object) -> None:
    assert core.recall(record, "/m", {}) is None


# Whatever the bytes are, the answer is a report

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def change(value: dict[str, object], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(value)))
    inner = value[key]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        change(inner, data)
    elif data.draw(st.booleans()):
        value[key] = data.draw(JSON)
    else:
        del value[key]


def mutate(content: bytes, data: st.DataObject) -> bytes:
    kind = data.draw(st.sampled_from(["cut", "flip", "insert", "bytes", "json", "value"]))
    position = data.draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut":
        return content[:position]
    if kind == "flip" and content:
        return content[:position] + bytes([data.draw(st.integers(0, 255))]) + content[position + 1 :]
    if kind == "insert":
        return content[:position] + data.draw(st.binary(max_size=4)) + content[position:]
    if kind == "json":
        return json.dumps(data.draw(JSON)).encode()
    if kind == "value":
        # One value at any depth, in the header of a safetensors file too.
        first = b"" if content.startswith(b"{") else content[:8]
        end = 8 + int.from_bytes(first, "little") if first else len(content)
        value = json.loads(content[len(first) : end])
        change(value, data)
        text = json.dumps(value).encode()
        return (len(text).to_bytes(8, "little") if first else b"") + text + content[end:]
    return data.draw(st.binary(max_size=64))


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(st.data())
def test_random_mutations_never_raise(data: st.DataObject) -> None:
    files = sharded()
    for name in data.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=3, unique=True)):
        if data.draw(st.booleans()):
            files[name] = mutate(files[name], data)
        else:
            del files[name]
    report = look(files)
    json.dumps(report)
    assert core.summary("/m", report)
    # A shard that is shorter than the whole one is always told.
    for shard, tensors in SHARDS.items():
        whole = safetensors(tensors)
        if (
            INDEX in files
            and files[INDEX] == sharded()[INDEX]
            and (shard not in files or (whole.startswith(files[shard]) and files[shard] != whole))
        ):
            assert any(problem.file == shard for problem in report.problems)


@hypothesis.given(st.binary(max_size=200))
def test_any_header_is_parsed_or_refused(text: bytes) -> None:
    try:
        core.parse_header(text)
    except core.HeaderError as error:
        assert error.expected
        assert error.found


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ({}, "starting"),
        ({"phase": "downloading", "bytes_done": 2_500_000_000, "bytes_total": 55_600_000_000, "bytes_per_s": 110_000_000},
         "downloading, 2.5 GB of 55.6 GB (4 %), 110.0 MB/s"),
        ({"phase": "building", "bytes_done": 0, "line": "train: step 50/900"}, "building: train: step 50/900"),
    ],
)  # fmt: skip
def test_describe(progress: dict[str, object], line: str) -> None:
    assert core.describe(progress) == line


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("OSError: [Errno 28] No space left on device: '/srv/models/x.partial/a'", True),
        ("safetensors_rust.SafetensorError: I/O error: No space left on device (os error 28)", True),
        ("OSError: [Errno 122] Disk quota exceeded", True),
        ("OSError: [Errno 13] Permission denied: '/srv/models'", False),
        ("", False),
    ],
)
def test_a_full_disk_is_told_in_words(text, full):
    words = core.full_disk_words(text, "/srv/models")
    assert bool(words) is full
    assert not full or words.startswith("the file system of /srv/models is full")
