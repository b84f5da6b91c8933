import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.experiments.report.charts import (
    Series,
    column_chart,
    line_chart,
    moving_average,
    spread,
    thinned,
    ticks,
)


def test_ticks_are_round_and_cover_the_range() -> None:
    assert ticks(0, 0.62) == [0, 0.2, 0.4, 0.6, 0.8]
    assert ticks(0, 200, 6) == [0, 50, 100, 150, 200]
    assert ticks(-0.011, 0.02)[0] <= -0.011
    assert len(ticks(3, 3)) >= 2


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_always_cover(low: float, span: float) -> None:
    found = ticks(low, low + span)
    step = found[1] - found[0]
    assert 2 <= len(found) <= 8
    assert found[0] <= low + step * 1e-6
    assert found[-1] >= low + span - step * 1e-6


def test_whole_ticks_by_hand() -> None:
    assert ticks(-3.5, 1.2, 6, 1) == [-4, -3, -2, -1, 0, 1, 2]
    assert ticks(-12, 0, 6, 1) == [-12, -10, -8, -6, -4, -2, 0]
    assert ticks(0, 0, 6, 1) == [0, 1]


@given(st.floats(-12, 0), st.floats(0, 12))
def test_whole_ticks_cover_and_hold_zero(low: float, high: float) -> None:
    found = ticks(low, high, 6, 1)
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9
    assert 0 in found
    assert all(tick == int(tick) for tick in found)
    assert 2 <= len(found) <= 9


def test_powers_of_ten_are_written_as_such() -> None:
    chart = line_chart("ratio", [Series("min", [(1, -2.0), (2, 1.0)], "s0")], unit="power")
    assert chart is not None
    svg = chart.svg
    assert ">10⁻²<" in svg
    assert ">10⁰<" in svg
    assert ">10¹<" in svg


def test_moving_average_by_hand() -> None:
    assert moving_average([(1, 1), (2, 3), (3, 8)], 2) == [(1, 1), (2, 2), (3, 5.5)]


def test_labels_are_spread() -> None:
    assert spread([50, 52, 10], 15, 0, 100) == [50, 65, 10]
    assert spread([99, 98], 15, 0, 100) == [100, 85]


def test_a_chart_puts_points_where_they_belong() -> None:
    chart = line_chart("A & B", [Series("x", [(0, 0), (10, 1)], "s0")], unit="share")
    assert chart is not None
    svg = chart.svg
    assert "<title>A &amp; B</title>" in svg
    assert 'points="52.0,256.0 626.0,12.0"' in svg
    assert "100\u2009%" in svg
    assert chart.legend == (("s0", "x"),)
    assert line_chart("empty", [Series("x", [], "s0")]) is None


def test_a_histogram_puts_columns_where_they_belong() -> None:
    counts = [1, 0, 10, 100, 7, 2]  # below 10⁻², four bins, from 10² on
    svg = column_chart("A & B", counts, -2.0, 2.0, (-1.0, 1.0))
    assert "<title>A &amp; B</title>" in svg
    columns = re.findall(
        r'<g class="(\w+)"><title>([^<]+)</title><path class="column" d="M([\d.]+) 256.0V([\d.]+)H',
        svg,
    )
    assert [(css, name) for css, name, _, _ in columns] == [
        ("muted", "below 0.01: 1"), ("s0", "from 0.1 to 1: 10"), ("s0", "from 1 to 10: 100"),
        ("muted", "from 10 to 100: 7"), ("muted", "from 100: 2"),
    ]  # fmt: skip
    xs, tops = [float(c[2]) for c in columns], [float(c[3]) for c in columns]
    assert xs == sorted(xs)
    # A power of ten more is a line of the grid more, and a count of 1 can be seen.
    lines = {float(y) for y in re.findall(r'class="grid"[^>]* y1="([\d.]+)"', svg)}
    assert {tops[0], tops[1], tops[2]} <= lines
    assert 256 > tops[0] > tops[1] > tops[2]
    assert svg.count('class="guide"') == 2
    assert ">10⁻²<" in svg
    assert "s0" in column_chart("all", counts, -2.0, 2.0)
    with pytest.raises(ValueError, match="counts nothing"):
        column_chart("empty", [0, 0, 0], 0.0, 1.0)


def test_long_curves_are_thinned_to_their_end() -> None:
    points = [(float(i), 0.0) for i in range(1, 1001)]
    kept = thinned(points, 300)
    assert len(kept) == 250
    assert kept[-1] == points[-1]
    assert thinned(points[:300], 300) == points[:300]
    assert thinned([], 300) == []
