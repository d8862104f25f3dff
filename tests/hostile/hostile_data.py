"""`dcpack.data`: each public callable, and arguments that it takes."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hostile_calls import Call

from dcpack import data

FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER)
OUT = FOLDER / "out"
OUT.mkdir()

(FOLDER / "a.jsonl").write_text(json.dumps({"input_ids": [1, 2]}) + "\n")
(FOLDER / "a.csv").write_text("name,length\nx,3\n")
(FOLDER / "a.txt").write_text("3\n4\n")
pq.write_table(pa.table({"input_ids": [[1, 2], [3]]}), FOLDER / "a.parquet")
data.write_megatron_index(FOLDER / "a", [[1, 2], [3]], np.uint16)

CALLS = {
    "ArraySource": Call(data.ArraySource, lambda: {"tokens": np.arange(5), "offsets": [0, 2, 5]}),
    "JsonlSource": Call(data.JsonlSource, lambda: {"path": FOLDER / "a.jsonl", "key": "input_ids"}),
    "ParquetSource": Call(data.ParquetSource, lambda: {"path": FOLDER / "a.parquet", "column": "input_ids"}),
    "MegatronIndexedSource": Call(data.MegatronIndexedSource, lambda: {"path_prefix": FOLDER / "a"}),
    "read_lengths": Call(
        data.read_lengths,
        lambda: {"path": FOLDER / "a.jsonl", "key": "input_ids", "column": None, "tokenizer": "bytes"},
    ),
    "read_lengths csv": Call(
        lambda column: data.read_lengths(FOLDER / "a.csv", column=column), lambda: {"column": "length"}
    ),
    "write_megatron_index": Call(
        data.write_megatron_index,
        lambda: {
            "path_prefix": OUT / "b",
            "sequences": [[1, 2], [3]],
            "dtype": np.uint16,
            "document_bounds": [0, 1, 2],
        },
    ),
    "write_megatron_idx": Call(
        data.write_megatron_idx,
        lambda: {"path": OUT / "c.idx", "lengths": [2, 1], "dtype": np.uint16, "document_bounds": [0, 1, 2]},
    ),
    "TextDocuments": Call(
        data.TextDocuments,
        lambda: {"tokens": np.arange(5, dtype=np.int32), "offsets": np.array([0, 2, 5]), "num_unreadable": 0},
    ),
    "TextDocuments.of": Call(data.TextDocuments.of, lambda: {"documents": [b"ab", b"c"], "num_unreadable": 0}),
    "TextDocuments.read": Call(data.TextDocuments.read, lambda: {"files": [FOLDER / "a.txt"], "max_documents": 1}),
    "byte_tokens": Call(data.byte_tokens, lambda: {"data": b"ab"}),
    "count_tokens": Call(data.count_tokens, lambda: {"text": "ab", "tokenizer": "bytes"}),
    "find_text_files": Call(data.find_text_files, lambda: {"paths": [FOLDER]}),
    **{
        f"{name} {what}": Call(lambda index, source=source: source[index], lambda: {"index": 0})
        for name, what, source in (
            ("ArraySource", "item", data.ArraySource([[1, 2], [3]])),
            ("JsonlSource", "item", data.JsonlSource(FOLDER / "a.jsonl")),
            ("ParquetSource", "item", data.ParquetSource(FOLDER / "a.parquet")),
            ("MegatronIndexedSource", "item", data.MegatronIndexedSource(FOLDER / "a")),
        )
    },
}

LEFT_OUT = {"DataSource": "a protocol"}

# What of the values has a meaning there.
TAKES = {
    "JsonlSource.key": "none, text, surrogate",
    "ParquetSource.column": "none, zero",
    "read_lengths.key": "none",
    "read_lengths.column": "none",
    "read_lengths csv.column": "none",
    "write_megatron_index.path_prefix": "text",
    "write_megatron_index.sequences": "ragged, 2-d",
    "write_megatron_index.document_bounds": "none",
    "write_megatron_idx.path": "text",
    "write_megatron_idx.document_bounds": "none",
    "write_megatron_idx.lengths": "unsigned",
    "TextDocuments.num_unreadable": "zero, huge, number of an enum",
    "TextDocuments.of.documents": "list",
    "TextDocuments.of.num_unreadable": "zero, huge, number of an enum",
    "TextDocuments.read.files": "list, texts",
    "TextDocuments.read.max_documents": "none, zero, huge, number of an enum",
    "byte_tokens.data": "bytes",
    "count_tokens.text": "text",
    "ArraySource item.index": "zero",
    "JsonlSource item.index": "zero",
    "ParquetSource item.index": "zero",
    "MegatronIndexedSource item.index": "zero",
}
