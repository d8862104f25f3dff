"""What a person sees: the page in headless Chromium (Debian's package `chromium`)."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

import dcpack.cli
from dcpack.report import STRATEGIES

LENGTHS = [4, 2, 6, 3, 16, 7, 30, 9, 1, 5, 5, 12]
SIZE = (1100, 3200)
TIMEOUT_S = 100

# Runs in the page: what is at the middle of each bar, and the text of each row of the table.
PROBE = """
<pre id="probe" hidden></pre><script>
const seen = element => {
  const box = element.getBoundingClientRect();
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const top = document.elementFromPoint(x, y);
  const title = top && top.querySelector("title");
  return {x, y, width: box.width, height: box.height, left: box.left, right: box.right,
          fill: top && top.getAttribute("fill"), is_on_top: top === element, hover: title && title.textContent};
};
const all = (selector, look) => [...document.querySelectorAll(selector)].map(look);
document.getElementById("probe").textContent = JSON.stringify({
  width: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
  bins: all("svg.plan", svg => [...svg.querySelectorAll("rect.bin")].map(seen)),
  lengths: all("rect.length", seen),
  rows: all("tr.strategy", row => row.innerText),
  bars: all("tr.strategy .bar", seen),
  text: document.body.innerText,
});
</script></body>"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run headless Chromium on a file and return what it prints."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("this test opens a page in a browser: apt-get install chromium")
    profile = tmp_path_factory.mktemp("profile")

    def run(path: Path, *arguments: str) -> str:
        command = [
            *(found, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            *(("--no-sandbox",) if os.geteuid() == 0 else ()),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--force-device-scale-factor=1"),
            *(f"--window-size={SIZE[0]},{SIZE[1]}", *arguments, path.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        return done.stdout

    return run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that the command writes for twelve lengths in one step."""
    folder = tmp_path_factory.mktemp("a folder")
    file = folder / "some <b>lengths<b>.npy"
    np.save(file, np.array(LENGTHS))
    path = folder / "a report.html"
    arguments = ["--ranks", "4", "--capacity", "16", "--cost", "quadratic", "--html", str(path)]
    assert dcpack.cli.main(dcpack.cli._parser().parse_args(["plan", str(file), *arguments])) == 0
    assert sorted(folder.iterdir()) == sorted([file, path])
    return path


@pytest.fixture(scope="module")
def seen(chromium: Callable[..., str], report: Path) -> dict[str, Any]:
    """What the probe finds in a copy of the page whose policy lets the probe run."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text())
    copy = report.with_name("probed.html")
    copy.write_text(text.replace("</body>", PROBE))
    dom = chromium(copy, "--dump-dom")
    found = re.search(r'<pre id="probe" hidden="">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1]))


def test_the_numbers_are_there(seen: dict[str, Any], report: Path) -> None:
    assert seen["text"].startswith(f"dcpack plan {report.parent}/some <b>lengths<b>.npy")
    for fact in ("12", "100", "30 tokens", "16 tokens a rank", "quadratic", "microbatch"):
        assert fact in seen["text"].splitlines()
    assert [row.split("\t")[0] for row in seen["rows"]] == list(STRATEGIES)
    rows = {row.split("\t")[0]: row.split("\t")[1:] for row in seen["rows"]}
    assert "sequence 6 has 30" in rows["in_order"][0]
    # All 100 tokens on 4 ranks of 16: two micro-batches hold 128.
    assert rows["packing_aware"][:2] == ["2", "0"]
    assert rows["packing_aware"][3] == "78.1%"


def test_bars_are_in_view_and_say_what_they_are(seen: dict[str, Any]) -> None:
    assert seen["width"] <= SIZE[0]
    assert seen["height"] <= SIZE[1]
    assert len(seen["bins"]) == len(STRATEGIES) - 1  # in_order has no plan
    for plan in seen["bins"]:
        assert len(plan) >= 2
        wide = [bar for bar in plan if bar["width"] >= 2]
        assert len(wide) >= 2
        for bar in wide:
            assert bar["is_on_top"], bar
            assert bar["height"] > 10
            assert 0 <= bar["left"] < bar["right"] <= SIZE[0]
            assert re.fullmatch(
                r"micro-batch \d+, ranks? \d+( to \d+ \(CP \d+\))?: \d+ sequences?, "
                r"\d+ tokens( \(\d+ with padding\))?, [\d.]+ cost units of [\d.]+",
                bar["hover"],
            )
    assert any(": 1 sequence, 30 tokens (32 with padding), " in bar["hover"] for bar in seen["bins"][0])


def test_the_histogram_is_in_view(seen: dict[str, Any]) -> None:
    assert len(seen["lengths"]) == 2 * 5
    assert all(bar["is_on_top"] for bar in seen["lengths"])
    assert seen["lengths"][0]["hover"] == "1 token: 1 sequence, 8.3% of all"
    assert seen["lengths"][-1]["hover"] == "16 to 31 tokens: 46 tokens, 46.0% of all"


def test_the_slowest_strategy_has_the_longest_bar(seen: dict[str, Any]) -> None:
    widths = [bar["width"] for bar in seen["bars"]]
    assert len(widths) == len(STRATEGIES) - 1
    assert max(widths) == widths[0] == pytest.approx(100, abs=20)
    assert min(widths) >= 5


def test_the_picture_has_the_colours_of_the_bars(
    chromium: Callable[..., str], seen: dict[str, Any], report: Path, tmp_path: Path
) -> None:
    shot = tmp_path / "shot.png"
    chromium(report, f"--screenshot={shot}")  # the page as it was written, with its policy
    pixels = np.round(plt.imread(shot)[..., :3] * 255).astype(int)
    assert pixels.shape == (SIZE[1], SIZE[0], 3)
    bars = [bar for plan in seen["bins"] for bar in plan if bar["width"] >= 6] + seen["lengths"]
    checked = 0
    for bar in bars:
        if bar["height"] >= 4:
            wanted = [int(bar["fill"][k : k + 2], 16) for k in (1, 3, 5)]
            found = pixels[int(bar["y"]), int(bar["x"])].tolist()
            assert np.abs(np.subtract(found, wanted)).max() <= 3, (bar, found)
            checked += 1
    assert checked >= 15
