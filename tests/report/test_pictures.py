from __future__ import annotations

import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colors, figure, pyplot

import dcpack
from dcpack.cost import QuadraticCost, get_cost
from dcpack.errors import ArgumentError, BackendError
from dcpack.plans import Plan
from dcpack.report import save_length_picture, save_plan_picture, timeline_of

COST = QuadraticCost()


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved, instead of files."""
    saved: list[Any] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path, **options: saved.append(self))
    return saved


def _plan() -> Plan:
    """CP sizes 1, 2 and 4 in several micro-batches on four ranks."""
    return dcpack.plan([39, 15, 9, 8, 4, 3, 19, 10], num_ranks=4, capacity=10, cost=COST, scheduler="packing_aware")


def _hand() -> Plan:
    """Rank 0 works 16, rank 1 4; then rank 0 9, and rank 1 has a dummy."""
    return dcpack.plan([4, 2, 3], num_ranks=2, capacity=4, scheduler="in_order", on_empty="dummy", cost=COST)


def _bars(axes: Any) -> list[tuple[float, float, float, float]]:
    """Left, width, bottom and height of each bar."""
    found = [(bar.get_x(), bar.get_width(), bar.get_y(), bar.get_height()) for bar in axes.patches]
    return sorted(tuple(round(float(value), 9) for value in bar) for bar in found)  # type: ignore[misc]  # four each


def _legend(drawn: Any) -> list[str]:
    (legend,) = drawn.legends
    return [text.get_text() for text in legend.get_texts()]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_png_of_the_size_that_was_drawn(tmp_path: Path) -> None:
    plan_file, lengths_file = tmp_path / "a step.png", str(tmp_path / "lengths.png")
    open_before = pyplot.get_fignums()
    save_plan_picture(plan_file, _plan(), COST, title="a step")
    save_length_picture(lengths_file, [3, 5, 900], title="lengths")
    for file, size in ((plan_file, (1650, 825)), (Path(lengths_file), (1350, 750))):
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", data[16:24]) == size
        assert len(data) > 10_000
        pixels = pyplot.imread(file)
        assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 20
    assert pyplot.get_fignums() == open_before


def test_no_figure_is_left_open_where_it_cannot_be_saved(tmp_path: Path) -> None:
    open_before = pyplot.get_fignums()
    for draw in (partial(save_plan_picture, plan=_hand(), cost=COST), partial(save_length_picture, lengths=[1])):
        with pytest.raises(Exception, match="no folder"):
            draw(tmp_path / "no folder" / "a.png")
    assert pyplot.get_fignums() == open_before


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_other_formats_by_the_ending(suffix: str, magic: bytes, tmp_path: Path) -> None:
    save_plan_picture(tmp_path / f"a{suffix}", _plan(), COST)
    save_length_picture(tmp_path / f"b{suffix}", [3, 5])
    for name in ("a", "b"):
        assert (tmp_path / f"{name}{suffix}").read_bytes().startswith(magic)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_by_hand(figures: list[Any]) -> None:
    save_plan_picture("a.png", _hand(), COST, title="in order")
    (drawn,) = figures
    (axes,) = drawn.axes
    # Left, width, bottom, height; a rank is one high, less a gap.
    assert _bars(axes) == [(0, 4, 1.075, 0.85), (0, 16, 0.075, 0.85), (16, 0, 1.075, 0.85), (16, 9, 0.075, 0.85)]
    # The bound is the mean of all work, 29 / 2; in CP 2 the longest takes 8.
    assert axes.get_title() == f"in order: 2 micro-batches, step 25 cost units, {25 / 16 - 1:.1%} above the lower bound"
    assert axes.get_xlabel() == "simulated time (cost units); dashed: all ranks wait for the slowest"
    assert axes.get_ylabel() == "rank"
    assert axes.get_ylim() == (0, 2)
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] >= 25
    assert [float(line.get_xdata()[0]) for line in axes.lines] == [16]
    assert _legend(drawn) == ["CP 1", "CP 1 (dummy)"]
    assert drawn.legends[0].get_title().get_text() == "ranks that\nshare a bin"
    (hollow,) = (bar for bar in axes.patches if bar.get_hatch())
    assert hollow.get_facecolor()[3] == 0
    solid = [bar for bar in axes.patches if bar is not hollow]
    assert {hollow.get_edgecolor()} == {bar.get_facecolor() for bar in solid}
    assert {bar.get_edgecolor() for bar in solid} == {colors.to_rgba("black")}


def test_ranks_that_wait_at_the_end_only(figures: list[Any]) -> None:
    plan = dcpack.plan([3, 4, 2, 1], num_ranks=2, capacity=4, scheduler="in_order", cost=COST)
    save_plan_picture("a.png", plan, COST, sync="step")
    (axes,) = figures[0].axes
    assert _bars(axes) == [(0, 9, 0.075, 0.85), (0, 16, 1.075, 0.85), (9, 4, 0.075, 0.85), (16, 1, 1.075, 0.85)]
    assert list(axes.lines) == []
    assert axes.get_title().startswith("2 micro-batches, step 17 cost units")
    with pytest.raises(ArgumentError, match="sync must be one of"):
        save_plan_picture("a.png", plan, COST, sync="never")


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_one_bar_a_bin_coloured_by_cp_size(sync: str, figures: list[Any]) -> None:
    plan = _plan()
    assert set(plan.cp_size.tolist()) == {1, 2, 4}
    save_plan_picture("a.png", plan, COST, sync=sync)
    (drawn,) = figures
    (axes,) = drawn.axes
    timeline = timeline_of(plan, COST, sync=sync)
    expected = zip(
        timeline.starts.tolist(),
        timeline.durations.tolist(),
        (plan.first_rank + 0.075).tolist(),
        (plan.cp_size - 0.15).tolist(),
        strict=True,
    )
    assert _bars(axes) == sorted(tuple(round(value, 9) for value in bar) for bar in expected)
    shades = {
        size: {bar.get_facecolor() for bar in axes.patches if round(bar.get_height()) == size} for size in (1, 2, 4)
    }
    assert all(len(found) == 1 for found in shades.values())
    assert len(set.union(*shades.values())) == 3
    assert _legend(drawn) == ["CP 1", "CP 2", "CP 4"]
    shown = [handle.get_facecolor() for handle in drawn.legends[0].get_patches()]
    assert [{shade} for shade in shown] == list(shades.values())
    assert len(axes.lines) == (plan.num_microbatches - 1 if sync == "microbatch" else 0)


def test_more_cp_sizes_than_colours(figures: list[Any]) -> None:
    lengths = [100 * size for size in range(1, 10)]
    plan = dcpack.plan(lengths, num_ranks=45, capacity=100, cp_sizes="any", cost=COST, scheduler="packing_aware")
    assert len(set(plan.cp_size.tolist())) == 9
    save_plan_picture("a.png", plan, COST)
    names = _legend(figures[0])
    assert names == [f"CP {size}" for size in range(1, 10)]
    shown = [colors.to_hex(handle.get_facecolor()) for handle in figures[0].legends[0].get_patches()]
    assert len(set(shown)) == 8
    assert shown[0] == shown[8]  # the palette has eight


@pytest.mark.parametrize(
    ("scale", "unit", "shown"),
    [(1e-6, "ms", 1e3), (5e-3, "ms", 1e3), (1.0, "s", 1.0)],
)
def test_seconds_and_milliseconds(scale: float, unit: str, shown: float, figures: list[Any]) -> None:
    class Seconds(QuadraticCost):
        @property
        def unit(self) -> str:
            return "s"

        def bin_time(self, column_sums: Any, cp_size: Any, crosses_node: Any) -> Any:
            return scale * super().bin_time(column_sums, cp_size, crosses_node)

    save_plan_picture("a.png", _hand(), Seconds())
    (axes,) = figures[0].axes
    assert axes.get_xlabel().startswith(f"simulated time ({unit});")
    assert max(left + width for left, width, _, _ in _bars(axes)) == pytest.approx(25 * scale * shown)
    assert f"step {25 * scale * shown:.4g} {unit}" in axes.get_title()


@pytest.mark.parametrize(
    ("length", "unit", "shown"),
    [(99, "cost units", 99**2), (100, "x 10^3 cost units", 10), (4000, "x 10^6 cost units", 16)],
)
def test_cost_units_by_thousands(length: int, unit: str, shown: float, figures: list[Any]) -> None:
    plan = dcpack.plan([length], num_ranks=1, capacity=5000, cost=COST)
    save_plan_picture("a.png", plan, COST)
    (axes,) = figures[0].axes
    assert axes.get_xlabel().startswith(f"simulated time ({unit});")
    assert axes.get_title() == f"1 micro-batches, step {shown:.4g} {unit}, 0.0% above the lower bound"
    assert axes.patches[0].get_width() == pytest.approx(shown)


def test_times_of_the_default_cost_model(figures: list[Any]) -> None:
    cost = get_cost("llama3-8b@h100")
    plan = dcpack.plan([4000, 3000, 9000], num_ranks=2, capacity=8192, cost=cost)
    save_plan_picture("a.png", plan, cost, title="three")
    above = plan.simulate(cost) / plan.bounds["step_time"] - 1
    title = figures[0].axes[0].get_title()
    assert title.startswith("three: ")
    assert title.endswith(f"step {1e3 * plan.simulate(cost):.4g} ms, {above:.1%} above the lower bound")


def test_a_plan_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    save_plan_picture(file, dcpack.plan([], num_ranks=2, capacity=4), COST)
    assert file.read_bytes().startswith(b"\x89PNG")


# ---- lengths ---------------------------------------------------------------------------------------------------------


def test_lengths_by_hand(figures: list[Any]) -> None:
    save_length_picture("a.png", [1, 1, 2, 0, 4, 8], title="some")
    (axes,) = figures[0].axes
    assert axes.get_title() == "some: 5 sequences, 16 tokens"
    assert axes.get_xlabel() == "length (tokens)"
    assert axes.get_ylabel() == "share (%)"
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["share of sequences", "share of tokens"]
    sequences, tokens = (
        {bar.get_x(): bar.get_height() for bar in group if bar.get_height()} for group in axes.containers
    )
    # Empty ones have no place on a logarithmic axis.
    assert sequences == pytest.approx({1: 40, 2: 20, 4: 20, 8: 20})
    assert tokens == pytest.approx({1: 100 * 2 / 16, 2: 100 * 2 / 16, 4: 25, 8: 50})


@pytest.mark.parametrize(
    "lengths", [[1], [5], [7, 7, 7], [1, 2**40], list(range(1, 200)), [2**62, 2**62, 3], [2**63 - 1]]
)
def test_shares_of_lengths_sum_to_all(lengths: list[int], figures: list[Any]) -> None:
    save_length_picture("a.png", np.array(lengths))
    (axes,) = figures[0].axes
    for group in axes.containers:
        heights = [bar.get_height() for bar in group]
        assert min(heights) >= 0
        assert sum(heights) == pytest.approx(100)
    assert axes.get_title() == f"{len(lengths):,} sequences, {sum(lengths):,} tokens"


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_lengths_can_be_drawn_too(lengths: list[int], tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    save_length_picture(file, np.array(lengths, np.int32), title="none")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_what_is_no_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"lengths must be at least 0: lengths\[1\] = -3"):
        save_length_picture(tmp_path / "a.png", [1, -3])
    assert not (tmp_path / "a.png").exists()


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    for draw in (
        lambda: save_plan_picture(tmp_path / "a", _hand(), COST),
        lambda: save_length_picture(tmp_path / "a", [1]),
    ):
        with pytest.raises(BackendError, match=r"^pictures need matplotlib: pip install 'dcpack\[plot\]'$") as caught:
            draw()
        assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.parametrize("title", ["caf\udce9.txt", "nul \0", "$x^{$ and $\\frac$", "two\nlines"])
def test_a_title_may_be_the_name_of_any_file(title: str, tmp_path: Path) -> None:
    for ending in ("svg", "png"):
        save_length_picture(tmp_path / f"a.{ending}", [3, 5], title=title)
        save_plan_picture(tmp_path / f"b.{ending}", _plan(), COST, title=title)
        assert (tmp_path / f"b.{ending}").stat().st_size > 1000
