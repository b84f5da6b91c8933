"""How the policy behaves over a run: calls of tools, lengths of prompts and responses (INSPO Fig. 2)."""

from collections.abc import Sequence

from cotune.experiments.report.charts import Chart
from cotune.experiments.report.figures import smooth_chart, values
from cotune.experiments.report.reading import Arm
from cotune.run.json_files import Row

_ACTIONS = "actions/"
_NO_TOOL = frozenset({"answer", "invalid"})
_MOST_KINDS = 7
Curve = tuple[str, list[tuple[float, float]]]


def behaviour_charts(arms: Sequence[Arm]) -> list[Chart]:
    """Tool calls, response and prompt length; of older runs what they recorded of it."""
    drawn = (_calls_chart(arms), _response_chart(arms), _prompt_chart(arms))
    return [chart for chart in drawn if chart]


def _calls_chart(arms: Sequence[Arm]) -> Chart | None:
    """Turns that call a tool, by what they call, for one run; all of them together for several."""
    by_kind = [(arm, _calls(arm)) for arm in arms]
    if any(set(calls) - _NO_TOOL for _, calls in by_kind):
        if len(arms) == 1:
            return smooth_chart(
                "Turns per rollout, by action", _of_one(by_kind[0][1]), percent=False
            )
        curves = [(arm.name, _sum(calls)) for arm, calls in by_kind]
        return smooth_chart("Turns per rollout, by action", curves, percent=False)
    turns = [(arm.name, values(arm.metrics, "turns_mean")) for arm in arms]
    if any(y > 1 for _, points in turns for _, y in points):
        return smooth_chart("Turns per rollout", turns, percent=False)
    return None


def _calls(arm: Arm) -> dict[str, list[tuple[float, float]]]:
    """By kind of action its points, 0 at steps where others were taken."""
    rows = [row for row in arm.metrics if any(key.startswith(_ACTIONS) for key in row)]
    keys = sorted({key for row in rows for key in row if key.startswith(_ACTIONS)})
    return {
        key.removeprefix(_ACTIONS): values([{**row, key: row.get(key, 0.0)} for row in rows], key)
        for key in keys
    }


def _of_one(calls: dict[str, list[tuple[float, float]]]) -> list[Curve]:
    """The tools that are called most, and turns that could not be used."""
    tools = sorted(set(calls) - _NO_TOOL, key=lambda kind: -sum(y for _, y in calls[kind]))
    curves = [(kind, calls[kind]) for kind in tools[:_MOST_KINDS]]
    unusable = calls.get("invalid")
    return [*curves, ("unusable turns", unusable)] if unusable else curves


def _sum(calls: dict[str, list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The points of all tools together."""
    total: dict[float, float] = {}
    for kind, points in calls.items():
        for x, y in points if kind not in _NO_TOOL else [(x, 0.0) for x, _ in points]:
            total[x] = total.get(x, 0.0) + y
    return sorted(total.items())


def _response_chart(arms: Sequence[Arm]) -> Chart | None:
    def own(arm: Arm) -> list[tuple[float, float]]:
        # TRL's own log says the same of runs that were made before the name was.
        return _first(arm.metrics, "response_tokens_mean", "completions/mean_length")

    if len(arms) > 1:
        curves = [(arm.name, own(arm)) for arm in arms]
        return smooth_chart("Response length, own tokens", curves, percent=False)
    written, read = own(arms[0]), values(arms[0].metrics, "completion_tokens_mean")
    curves = [("written by the policy", written)]
    if read and written and any(a[1] > b[1] * 1.05 for a, b in zip(read, written, strict=False)):
        curves.append(("with observations", read))
    return smooth_chart("Response length in tokens", curves, percent=False)


def _prompt_chart(arms: Sequence[Arm]) -> Chart | None:
    curves = [(arm.name, values(arm.metrics, "prompt_tokens_mean")) for arm in arms]
    return smooth_chart("Prompt length in tokens", curves, percent=False)


def _first(rows: Sequence[Row], *keys: str) -> list[tuple[float, float]]:
    return next((found for key in keys if (found := values(rows, key))), [])
