"""The pages name what is there, and leave nothing out that a reader would look for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {page.name: page.read_text() for page in DOCS.glob("*.md")}


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = set(re.findall(r"[\w./-]+\.md", nav))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if not page.name.startswith("00")}
    assert len(there) > 45
    assert named == there


def test_every_result_of_a_benchmark_is_in_the_table() -> None:
    table = PAGES["benchmarks.md"]
    results = {path.name for path in (ROOT / "benchmarks" / "results").iterdir()}
    assert results <= set(re.findall(r"`(\w+\.txt)`", table))
    scripts = set(re.findall(r"benchmarks/(\w+\.py)", table))
    assert sorted(script for script in scripts if not (ROOT / "benchmarks" / script).exists()) == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_on_pages_are_there(page: str) -> None:
    paths = re.findall(r"(?:docs/examples|docs/pictures|benchmarks|tests)/[\w./-]*\w", PAGES[page])
    # What a command of the page writes is not there before.
    missing = [path for path in paths if not (ROOT / path).exists() and "results" not in path]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "questions"),
    [
        ("failures.md", ["My job hangs", "Out of memory on one rank", "The loss changed"]),
        ("concepts.md", ["Packing", "Balancing", "Dynamic context parallelism", "Zigzag", "Routes"]),
        ("torch.md", ["A training loop with FSDP2"]),
        ("jax.md", ["Batches as global arrays", "Grain"]),
        ("huggingface.md", ["The batch sampler and the collator"]),
    ],
)
def test_readers_find_what_they_ask(page: str, questions: list[str]) -> None:
    headings = re.findall(r"^## (.*)$", PAGES[page], re.MULTILINE)
    assert set(questions) <= set(headings)


def test_every_concept_has_a_picture() -> None:
    sections = PAGES["concepts.md"].split("\n## ")[1:]
    pictures = [re.search(r"!\[.+\]\((pictures/\w+\.png)\)", section) for section in sections]
    assert len(sections) == 5
    for section, picture in zip(sections, pictures, strict=True):
        assert picture is not None, section[:30]
        assert (DOCS / picture[1]).exists()
