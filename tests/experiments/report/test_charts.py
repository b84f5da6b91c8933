from hypothesis import given
from hypothesis import strategies as st

from cotune.experiments.report.charts import Series, average, line_chart, ticks


def test_ticks_are_round_and_cover_the_range() -> None:
    assert ticks(0, 0.62) == [0, 0.2, 0.4, 0.6, 0.8]
    assert ticks(0, 200, 6) == [0, 50, 100, 150, 200]
    assert ticks(-0.011, 0.02)[0] <= -0.011
    assert len(ticks(3, 3)) >= 2


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_always_cover(low: float, span: float) -> None:
    values = ticks(low, low + span)
    step = values[1] - values[0]
    assert 2 <= len(values) <= 8
    assert values[0] <= low + step * 1e-6
    assert values[-1] >= low + span - step * 1e-6


def test_long_lines_are_averaged() -> None:
    points = [(float(x), float(x % 5)) for x in range(1, 21)]
    line = average("x", points, "s0")
    assert line.raw == points
    assert line.points[:2] == [(1, 1), (2, 1.5)]
    assert line.points[4:] == [(float(x), 2) for x in range(5, 21)]
    assert average("x", points[:19], "s0").points == points[:19]


def test_a_chart_puts_points_where_they_belong() -> None:
    chart = line_chart("A & B", [Series("x", [(0, 0), (10, 1)], "s0")], share=True)
    assert chart is not None
    (line,) = chart.series
    assert chart.path(line.points) == "44.0,162.0 438.0,14.0"
    assert line.dots == line.points
    assert (chart.x_ticks[0], chart.x_ticks[-1]) == (0, 10)
    assert [chart.y_text(chart.y_ticks[i]) for i in (0, -1)] == ["0\u2009%", "100\u2009%"]
    assert line_chart("empty", [Series("x", [], "s0")]) is None
