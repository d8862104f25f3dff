"""Every public name says what it is, takes, returns and raises, and shows it; and is in the reference of the API."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dcpack

ROOT = Path(dcpack.__file__).parents[1]
PAGES = ROOT / "docs" / "reference"

# What the pages of the reference show: the public modules, those of the back ends included.
MODULES = sorted(
    line.removeprefix("::: ")
    for page in PAGES.glob("*.md")
    for line in page.read_text().splitlines()
    if line.startswith("::: ")
)
NOT_SHOWN = {
    "dcpack.api": "its names are those of dcpack",
    "dcpack.cli": "the commands, which a page of their own describes",
}
NO_EXAMPLE = {
    "dcpack_torch.backend.TorchNcclBackend": "needs CUDA devices",
    "dcpack_torch.backend.TorchHcclBackend": "needs Ascend NPUs",
    "dcpack_torch.megatron.CPGroups": "needs several processes with a default group",
    "dcpack_torch.megatron.groups_of": "needs process groups of several processes",
    "dcpack_xla.backend.XlaBackend": "needs torch_xla",
}
LIKE_ANOTHER = {
    "dcpack.scheduling.driver.make_plan": "its arguments, results and errors are those of dcpack.plan",
}


def public() -> dict[str, Any]:
    """All functions and classes that the reference shows, by their full names."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for value in (getattr(module, public) for public in module.__all__):
            if inspect.isfunction(value) or inspect.isclass(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


PUBLIC = public()


def doc_of(value: Any) -> str:
    return inspect.cleandoc(value.__dict__.get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or "")


def section(doc: str, name: str) -> str:
    """The text under ``name:``, with its indentation; empty where there is none."""
    found = re.search(rf"(?ms)^{name}:\n(.*?)(?=^\S|\Z)", doc)
    return found[1] if found else ""


def unnamed(names: list[str], text: str) -> list[str]:
    """Those of `names` that no line of `text` begins with; ``a, b: both`` names two."""
    listed = re.findall(r"(?m)^    (\S[^:]*):", text)
    given = {name.strip(" *`") for entry in listed for name in re.sub(r"\(.*?\)", "", entry).split(",")}
    return [name for name in names if name not in given]


def arguments_of(value: Any) -> list[str]:
    """What the caller gives: parameters of a function, or of the ``__init__`` of a class, dataclasses too."""
    if inspect.isfunction(value):
        return list(inspect.signature(value).parameters)
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value) if field.init]
    if getattr(value, "_is_protocol", False) or "__init__" not in value.__dict__:
        return []
    named = [p for p in inspect.signature(value).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [parameter.name for parameter in named]


def raises_itself(function: Callable[..., Any]) -> bool:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def faults_of(name: str, value: Any) -> list[str]:
    doc, faults = doc_of(value), []
    first, *rest = doc.split("\n", 2)
    if not first.endswith((".", ":")) or (rest and rest[0]):
        faults.append("the first line is not a sentence of its own")
    if ">>> " not in section(doc, "Example") and name not in NO_EXAMPLE:
        faults.append("no example")
    if name in LIKE_ANOTHER:
        return faults
    if missing := unnamed(arguments_of(value), section(doc, "Args") + section(doc, "Attributes")):
        faults.append(f"nothing on {', '.join(missing)}")
    if inspect.isfunction(value):
        returns = inspect.signature(value).return_annotation not in (None, "None")
        if returns and not section(doc, "Returns") and not first.startswith(("Return", "Yield", "Tell")):
            faults.append("nothing on what it returns")
        if raises_itself(value) and not section(doc, "Raises"):
            faults.append("nothing on what it raises")
    return faults


def test_the_walk_sees_the_library() -> None:
    # A guard: an empty walk would let the test below pass.
    assert len(PUBLIC) > 270
    assert {"dcpack.api.plan", "dcpack.loader.build.build_distributed_dataloader"} <= PUBLIC.keys()
    assert {name.partition(".")[0] for name in PUBLIC} == {"dcpack", "dcpack_torch", "dcpack_jax", "dcpack_xla"}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_whole_docstring(name: str) -> None:
    assert faults_of(name, PUBLIC[name]) == []


def test_every_exception_to_the_rule_is_needed() -> None:
    for name in NO_EXAMPLE:
        assert ">>> " not in doc_of(PUBLIC[name]), name
    for name in LIKE_ANOTHER:
        assert not section(doc_of(PUBLIC[name]), "Args"), name


def test_the_reference_shows_every_room() -> None:
    rooms = {f"dcpack.{path.stem}" for path in (ROOT / "dcpack").glob("[!_]*") if path.is_dir() or path.suffix == ".py"}
    assert rooms - NOT_SHOWN.keys() <= set(MODULES)
    assert len(set(MODULES)) == len(MODULES)
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES.glob("*.md") if f"reference/{page.name}" not in nav] == []


def _undocumented(count: int, other: int) -> int:
    """Add numbers.

    Args:
        count: the first.
    """
    if count < 0:
        raise ValueError(count)
    return count + other


def test_the_check_finds_what_is_missing() -> None:
    assert faults_of("_undocumented", _undocumented) == [
        "no example",
        "nothing on other",
        "nothing on what it returns",
        "nothing on what it raises",
    ]
