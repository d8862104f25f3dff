"""Charts as SVG that stands in an HTML page; what a shape means is its title, shown under the pointer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Float64Array
from dcpack.cost import CostModel
from dcpack.plans import Plan
from dcpack.report.lengths import LengthSummary
from dcpack.report.markup import Markup, tag
from dcpack.report.scales import COLOURS, shades, time_scale
from dcpack.report.timelines import Timeline, timeline_of

__all__ = ["length_chart", "plan_chart"]

_WIDTH, _LEFT, _BOTTOM = 960, 60, 40
_MAX_BARS = 4000
_SEQUENCES, _TOKENS = COLOURS[0], COLOURS[5]


def length_chart(summary: LengthSummary) -> Markup:
    """Return bars for each range of lengths: its share of all sequences, and of all tokens.

    Example:
        >>> from dcpack.report.lengths import summarise_lengths
        >>> chart = length_chart(summarise_lengths(np.array([1, 3]), capacities=[]))
        >>> "2 to 3 tokens: 1 sequence, 50.0% of all" in chart, "2 to 3 tokens: 3 tokens, 75.0% of all" in chart
        (True, True)
    """
    shown = [(edge, counts) for edge, counts in summary.histogram.items() if counts[0]]
    if not shown:
        return tag("p", "No sequences.", class_="note")
    height, room = 200, (_WIDTH - _LEFT) / len(shown)
    wholes = (max(summary.num_sequences, 1), max(summary.num_tokens, 1))
    top = max(counts[k] / wholes[k] for _, counts in shown for k in (0, 1))
    parts = [tag("line", x1=_LEFT, y1=height, x2=_WIDTH, y2=height, stroke="#888")]
    parts += [
        tag("text", f"{share:.0%}", x=_LEFT - 6, y=height - 180 * share / top + 4, text_anchor="end")
        for share in (0.0, top / 2, top)
    ]
    for k, (edge, counts) in enumerate(shown):
        last = max(2 * edge - 1, 0)
        span = f"{edge:,} to {last:,} tokens" if last > edge else f"{edge:,} token{'s' * (edge != 1)}"
        at = _LEFT + k * room
        for j, (colour, what) in enumerate(((_SEQUENCES, "sequence"), (_TOKENS, "token"))):
            share = counts[j] / wholes[j]
            title = f"{span}: {counts[j]:,} {what}{'s' * (counts[j] != 1)}, {share:.1%} of all"
            tall = 180 * share / top
            place = {"x": at + room * (0.1 + 0.4 * j), "y": height - tall, "width": room * 0.38, "height": tall}
            parts.append(tag("rect", tag("title", title), fill=colour, class_=f"length {what}", **place))
        parts.append(tag("text", f"{edge:,}", x=at + room / 2, y=height + 15, text_anchor="middle"))
    parts.append(tag("text", "length from (tokens)", x=_WIDTH / 2, y=height + 34, text_anchor="middle"))
    chart = tag("svg", *parts, viewBox=f"0 0 {_WIDTH} {height + _BOTTOM}", width=_WIDTH, role="img")
    return _legend([("sequences", _SEQUENCES), ("tokens", _TOKENS)]) + chart


def _legend(entries: list[tuple[str, str]]) -> Markup:
    parts = [tag("span", class_="swatch", style=f"background:{colour}") + name for name, colour in entries]
    return tag("p", *parts)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """How a step lies on the page.

    Attributes:
        num_microbatches: the first so many are drawn.
        scale: what times are multiplied by to be in `unit`.
        unit: of the times shown.
        per_time: width of one of them.
        per_rank: height of a rank.
        colours: by CP size.
    """

    num_microbatches: int
    scale: float
    unit: str
    per_time: float
    per_rank: float
    colours: dict[int, str]


def plan_chart(
    plan: Plan, cost: CostModel, *, sync: str = "microbatch", cp_sizes: Sequence[int] | None = None
) -> Markup:
    """Return one step: ranks downwards, time to the right, one bar a bin, coloured by CP size.

    At most 4,000 bars are drawn, in whole micro-batches, but at least one; what is left out is said.

    Args:
        plan: a plan with ranks.
        cost: the cost model that times it.
        sync: as in `Plan.simulate`.
        cp_sizes: sizes to tell apart by colour, where several plans share colours; default those of this plan.

    Example:
        >>> import dcpack
        >>> chart = plan_chart(dcpack.plan([4, 2], num_ranks=2, capacity=4), dcpack.QuadraticCost())
        >>> "micro-batch 0, rank 1: 1 sequence, 2 tokens, 4 cost units of 16" in chart
        True
    """
    timeline = timeline_of(plan, cost, sync=sync)
    sizes = set(plan.cp_size.tolist())
    frame = _frame_of(plan, timeline, sorted(sizes if cp_sizes is None else sizes.union(cp_sizes)))
    height = frame.per_rank * plan.num_ranks
    ends = timeline.microbatch_ends[: frame.num_microbatches] * frame.scale
    width = float(ends.max(initial=0.0)) * frame.per_time
    parts = [
        tag("rect", x=_LEFT, y=0, width=width, height=height, fill="#e4e4e4", class_="waiting"),
        *_bars(plan, timeline, frame),
        *_rank_axis(plan.num_ranks, frame.per_rank),
        *_time_axis(ends, frame, height, lines=sync == "microbatch"),
    ]
    step = plan.simulate(cost, sync=sync) * frame.scale
    bound = plan.bounds.get("step_time", 0.0) * frame.scale
    beyond = f", {step / bound - 1:.1%} above the lower bound" if bound else ""
    text = f"{plan.num_microbatches} micro-batches, step {step:.4g} {frame.unit}{beyond}"
    if frame.num_microbatches < plan.num_microbatches:
        text += f"; only the first {frame.num_microbatches} micro-batches are drawn"
    place = {"viewBox": f"0 -6 {_WIDTH} {height + _BOTTOM + 6:.0f}", "width": _WIDTH}
    chart = tag("svg", *parts, role="img", class_="plan", **place)
    legend = _legend([(f"CP {size}", frame.colours[size]) for size in sorted(sizes)])
    return tag("p", text) + legend + chart


def _frame_of(plan: Plan, timeline: Timeline, sizes: list[int]) -> _Frame:
    scale, unit = time_scale(float(timeline.microbatch_ends.max(initial=0.0)), timeline.unit)
    ends = np.cumsum(np.bincount(plan.microbatch, minlength=plan.num_microbatches))
    drawn = min(max(int(np.searchsorted(ends, _MAX_BARS, side="right")), 1), plan.num_microbatches)
    longest = float(timeline.microbatch_ends[:drawn].max(initial=0.0)) * scale
    return _Frame(
        num_microbatches=drawn,
        scale=scale,
        unit=unit,
        per_time=(_WIDTH - _LEFT - 10) / (longest or 1.0),
        per_rank=min(max(320 / plan.num_ranks, 3), 24),
        colours=dict(zip(sizes, shades(len(sizes)), strict=True)),
    )


def _bars(plan: Plan, timeline: Timeline, frame: _Frame) -> list[Markup]:
    counts, is_dummy = np.diff(plan.offsets).tolist(), plan.dummy.tolist()
    tokens = _tokens_of(plan)
    starts, durations = timeline.starts * frame.scale, timeline.durations * frame.scale
    whole = np.diff(timeline.microbatch_ends, prepend=0.0) * frame.scale
    bars = []
    for b in np.flatnonzero(plan.microbatch < frame.num_microbatches).tolist():
        first, cp, m = int(plan.first_rank[b]), int(plan.cp_size[b]), int(plan.microbatch[b])
        ranks = f"rank {first}" if cp == 1 else f"ranks {first} to {first + cp - 1} (CP {cp})"
        held = "dummy" if is_dummy[b] else f"{counts[b]:,} sequence{'s' * (counts[b] != 1)}, {tokens[b]}"
        took = f"{durations[b]:.4g} {frame.unit} of {whole[m]:.4g}"
        colour = frame.colours[cp]
        look = {"fill": "none" if is_dummy[b] else colour, "stroke": colour if is_dummy[b] else "#444"}
        place = {
            "x": _LEFT + float(starts[b]) * frame.per_time,
            "y": first * frame.per_rank + 0.5,
            "width": max(float(durations[b]) * frame.per_time, 0.5),
            "height": cp * frame.per_rank - 1.0,
        }
        title = tag("title", f"micro-batch {m}, {ranks}: {held}, {took}")
        bars.append(tag("rect", title, class_="bin", stroke_width="0.5", **look, **place))
    return bars


def _tokens_of(plan: Plan) -> list[str]:
    real = np.zeros(plan.num_bins, np.int64)
    np.add.at(real, plan.entry_bin, plan.entry_lengths)
    pairs = zip(real.tolist(), plan.bin_padded_tokens.tolist(), strict=True)
    return [f"{r:,} tokens" + (f" ({padded:,} with padding)" if padded != r else "") for r, padded in pairs]


def _rank_axis(num_ranks: int, per_rank: float) -> list[Markup]:
    every = max(1, -(-num_ranks // 16))
    return [
        tag("text", f"rank {rank}", x=_LEFT - 6, y=(rank + 0.5) * per_rank + 4, text_anchor="end")
        for rank in range(0, num_ranks, every)
    ]


def _time_axis(ends: Float64Array, frame: _Frame, height: float, *, lines: bool) -> list[Markup]:
    """Return the end of each micro-batch, as a line where ranks wait, and as a number where there is room."""
    parts, last = [], 0.0
    for m, end in enumerate(ends.tolist()):
        at = _LEFT + end * frame.per_time
        if lines:
            title = tag("title", f"micro-batch {m} ends at {end:.4g} {frame.unit}")
            look = {"stroke": "#222", "stroke_dasharray": "4 3", "class_": "end"}
            parts.append(tag("line", title, x1=at, y1=0, x2=at, y2=height, **look))
        if at - last >= 50:
            parts.append(tag("text", f"{end:.4g}", x=at, y=height + 15, text_anchor="end"))
            last = at
    label = (
        f"simulated time ({frame.unit}); dashed: all ranks wait for the slowest"
        if lines
        else f"simulated time ({frame.unit})"
    )
    return [*parts, tag("text", label, x=_WIDTH / 2, y=height + 32, text_anchor="middle")]
