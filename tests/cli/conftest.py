"""The command in this process and in one of its own, and the same lengths in every format."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import dcpack.cli
from dcpack.data import write_megatron_idx

TIMEOUT_S = 100
LENGTHS = (4, 2, 6, 3, 16, 7)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `dcpack` with these arguments in this process."""

    def run(*arguments: Any) -> Outcome:
        capsys.readouterr()
        code = dcpack.cli.main(dcpack.cli._parser().parse_args([str(argument) for argument in arguments]))
        out, err = capsys.readouterr()
        return Outcome(code=code, out=out, err=err)

    return run


@pytest.fixture
def process() -> Callable[..., Outcome]:
    """Run `dcpack`, or other code that is given, in a process of its own, whose output is buffered as it is for people.

    `stdin` is what it reads, `stdout` a descriptor to write to instead of being read here.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    def run(*arguments: Any, code: str | None = None, stdin: bytes = b"", stdout: int | None = None) -> Outcome:
        command = [sys.executable, *(["-m", "dcpack"] if code is None else ["-c", code]), *map(str, arguments)]
        done = subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
        return Outcome(code=done.returncode, out=(done.stdout or b"").decode(), err=done.stderr.decode())

    return run


@pytest.fixture
def terminal() -> Callable[..., Outcome]:
    """Run `dcpack` in a process of its own whose standard error is a terminal of 80 columns; that is `err`."""

    def run(*arguments: Any) -> Outcome:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (25, 80))
        command = [sys.executable, "-m", "dcpack", *map(str, arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(ours, 4096):
                    shown += part
            except OSError:
                pass  # how Linux says that the other end was closed
            finally:
                os.close(ours)
            assert process.stdout is not None
            out = process.stdout.read()
            return Outcome(code=process.wait(TIMEOUT_S), out=out.decode(), err=shown.decode())

    return run


@pytest.fixture
def lengths_file(tmp_path: Path) -> Path:
    """The lengths 4, 2, 6, 3, 16, 7."""
    file = tmp_path / "some lengths.txt"
    file.write_text("".join(f"{length}\n" for length in LENGTHS))
    return file


@pytest.fixture
def length_files(tmp_path: Path) -> dict[str, Path]:
    """The same lengths in every format; the folder holds texts that are as long, their ends included."""
    formats = (".npy", ".npz", ".txt", ".csv", ".parquet", ".jsonl", ".idx")
    files = {suffix: tmp_path / f"a b{suffix}" for suffix in formats}
    np.save(files[".npy"], np.array(LENGTHS, np.uint16))
    np.savez(files[".npz"], np.array(LENGTHS))
    files[".txt"].write_text("".join(f"{length}\n" for length in LENGTHS))
    files[".csv"].write_text("name,length\n" + "".join(f"x,{length}\n" for length in LENGTHS))
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[1] * length for length in LENGTHS]}), files[".parquet"])
    files[".jsonl"].write_text("".join(f'{{"text": "{"x" * (length - 1)}"}}\n' for length in LENGTHS))
    write_megatron_idx(files[".idx"], LENGTHS, np.int32)
    files["folder"] = tmp_path / "texts"
    files["folder"].mkdir()
    for number, length in enumerate(LENGTHS):
        (files["folder"] / f"{number}.txt").write_text("x" * (length - 1))
    return files
