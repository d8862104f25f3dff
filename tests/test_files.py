"""No unpickling anywhere in the source, cost files cut anywhere, and nothing written but what was named."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dcpack
from dcpack.cost import cost_to_json, get_cost
from dcpack.errors import ArgumentError

ROOT = Path(dcpack.__file__).parent
BACKENDS = ROOT.parent / "backends"
SOURCES = sorted([*ROOT.rglob("*.py"), *BACKENDS.rglob("*.py")])

# Modules that build objects out of bytes, and functions that run text.
UNPICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
RUNNERS = {"eval", "exec", "compile"}


def faults(source: str) -> list[str]:
    """What could run or build something that a file or a message holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [
                f"line {node.lineno}: {item.name}" for item in node.names if item.name.split(".")[0] in UNPICKLERS
            ]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
            found.append(f"line {node.lineno}: {node.module}")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {item.arg: ast.unparse(item.value) for item in node.keywords}
            if name in RUNNERS or name.endswith(("_object_list", "all_gather_object", "gather_object")):
                found.append(f"line {node.lineno}: {name}")
            if keywords.get("allow_pickle", "False") != "False":
                found.append(f"line {node.lineno}: {name} with allow_pickle")
            if name in ("np.load", "numpy.load") and "allow_pickle" not in keywords:
                found.append(f"line {node.lineno}: {name} does not say allow_pickle=False")
            if name == "torch.load" and keywords.get("weights_only") != "True":
                found.append(f"line {node.lineno}: torch.load")
    return found


def test_the_walk_sees_the_sources() -> None:
    assert len(SOURCES) > 100
    assert {"plans.py", "numpy_files.py", "c10d.py"} <= {path.name for path in SOURCES}


def test_nothing_is_ever_unpickled_or_run() -> None:
    assert {str(path): found for path in SOURCES if (found := faults(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from cloudpickle import loads",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "torch.load(path)",
        "eval(text)",
        "dist.all_gather_object(out, x)",
        "torch.distributed.broadcast_object_list(x)",
    ],
)
def test_the_walk_tells_right_from_wrong(source: str) -> None:
    assert len(faults(source)) == 1
    assert faults("np.load(path, allow_pickle=False)\nre.compile(text)\njson.loads(text)") == []


def test_a_cost_file_that_was_cut_is_named(tmp_path: Path) -> None:
    text = cost_to_json(get_cost("llama3-8b@h100"))
    path = tmp_path / "a cost file.json"
    for length in range(len(text)):
        path.write_text(text[:length])
        with pytest.raises(ArgumentError) as caught:
            get_cost(path)
        assert str(path) in str(caught.value)
    path.write_text(text)
    assert get_cost(path) == get_cost("llama3-8b@h100")


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"[]", b"3", b"null", b'{"model": NaN}', b"{" * 100_000, b"\0" * 9])
def test_a_cost_file_of_anything_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a cost file.json"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="a cost file"):
        get_cost(str(path))


def test_only_what_was_named_is_written(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("home", "work here", "temp", "out put")}
    for folder in folders.values():
        folder.mkdir()
    lengths = folders["out put"] / "some lengths.npy"
    np.save(lengths, np.array([4, 2, 6, 3, 16, 7]))
    named = {"--save": "a plan.npz", "--trace": "a trace.json", "--html": "a page.html"}
    options = [part for flag, name in named.items() for part in (flag, str(folders["out put"] / name))]
    environment = {
        **os.environ,
        "HOME": str(folders["home"]),
        "TMPDIR": str(folders["temp"]),
        "PYTHONPATH": os.pathsep.join([str(ROOT.parent), str(BACKENDS)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    small = ["--ranks", "2", "--capacity", "16", "--global-batch-size"]
    for command in (
        ["plan", str(lengths), *small, "4", *options],
        ["tune", str(lengths), *small, "3"],
        ["lengths", str(lengths)],
        ["backends"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "dcpack", *command],
            cwd=folders["work here"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert written == sorted(Path("out put") / name for name in ("some lengths.npy", *named.values()))
