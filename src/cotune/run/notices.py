"""What a reader should be told of a batch: truncated rollouts, outages, no gradient; each with its fix."""

from collections import Counter
from collections.abc import Mapping, Sequence

from cotune.types import Trajectory
from cotune.utils.text import one_line

TRUNCATED_SHARE = "truncated_share"
ENVIRONMENT_ERROR_SHARE = "environment_error_share"
FAILED_SEARCH_SHARE = "failed_search_share"
FAILED_CALLS = "actions_failed/"
_BY_LIMIT = "truncated/"
_MOST = 0.1  # of a batch
# Of a tool's calls. A policy that has not learned to call a tool also makes many wrong ones.
_NEARLY_ALL = 0.9
_WARNED_AFTER = 3  # steps without any gradient
_EXAMPLES = 3  # of answers without a reward


class Notices:
    """What a reader should be told about the metrics of the steps so far, each once."""

    def __init__(self) -> None:
        self._without_gradient = 0  # steps in a row
        self._truncated = self._in_outage = False

    def after(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the notices after a step, as plain text."""
        notices: list[str] = []
        truncation = truncation_notice(metrics)
        if truncation and not self._truncated:
            self._truncated = True
            notices.append(truncation)
        outage = _outage_notice(metrics)
        if outage and not self._in_outage:
            notices.append(outage)
        self._in_outage = bool(outage)
        # A teacher's loss has a gradient all the same.
        distilled = metrics.get("distil/share", 0) > 0
        flat = metrics.get("zero_advantage_share", 0) == 1 and not distilled
        self._without_gradient = self._without_gradient + 1 if flat else 0
        if self._without_gradient == _WARNED_AFTER:
            notices.append(
                f"the rewards of every group were equal in {_WARNED_AFTER} steps in a row: "
                "there is nothing to learn from; look at rollouts in trajectories/"
            )
        return notices


def equal_rewards_notice(trajectories: Sequence[Trajectory]) -> str:
    """Return what the answers of a run's first batch look like if all rewards are equal; "" otherwise.

    A reward that never matches, or an answer that is not read from the text, is seen here and nowhere else.
    """
    judged = [t for t in trajectories if t.judged]
    rewards = {t.reward for t in judged}
    if len(rewards) != 1:
        return ""
    unanswered = sum(t.answer is None for t in judged)
    examples = list(dict.fromkeys(map(_answer_and_expected, judged)))[:_EXAMPLES]
    return (
        f"all {len(judged)} rollouts of the first step have the reward {rewards.pop():.3g}, {unanswered} of them "
        f"without an answer; such as {', '.join(examples)}; if any should score otherwise, check the reward functions"
    )


def _answer_and_expected(trajectory: Trajectory) -> str:
    """Return a rollout's answer, or the end of its text if it has none, beside the first expected one."""
    if trajectory.answer is None:
        return f'no answer in "…{one_line(trajectory.own_text)[-80:]}"'
    expected = [f' (expected "{one_line(a)[:80]}")' for a in trajectory.task.answers[:1]]
    return f'"{one_line(trajectory.answer)[:80]}"' + "".join(expected)


def truncation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of truncated rollouts, and that of each limit that cut any off."""
    limits = Counter(filter(None, (t.truncated_by for t in trajectories)))
    count = len(trajectories)
    shares = {_BY_LIMIT + limit: limits[limit] / count for limit in sorted(limits)}
    return {TRUNCATED_SHARE: limits.total() / count, **shares}


def truncation_notice(metrics: Mapping[str, float]) -> str:
    """Return a notice if more than half of a batch was truncated, with what to change; "" otherwise."""
    by_limit = {name: value for name, value in metrics.items() if name.startswith(_BY_LIMIT)}
    if metrics.get(TRUNCATED_SHARE, 0.0) <= 0.5 or not by_limit:
        return ""
    limit = max(by_limit, key=by_limit.__getitem__).removeprefix(_BY_LIMIT)
    fix = f"raise limits.{limit}"
    if limit == "context":
        fix = "lower limits.prompt_tokens or choose a policy with a longer context"
    return f"{metrics[TRUNCATED_SHARE]:.0%} of the rollouts were truncated, most of them by {limit_name(limit)}; {fix}"


def limit_name(limit: str) -> str:
    """Return the name of a limit: its field in a run file, or the policy's context."""
    return "the policy's context" if limit == "context" else f"limits.{limit}"


def _outage_notice(metrics: Mapping[str, float]) -> str:
    """Return a notice if the environment fails in more than a tenth of a batch, or a tool nearly always."""
    if (share := metrics.get(FAILED_SEARCH_SHARE, 0.0)) > _MOST:
        return f"a search failed in {share:.0%} of the rollouts; check environment.retriever"
    if (share := metrics.get(ENVIRONMENT_ERROR_SHARE, 0.0)) > _MOST:
        return (
            f"{share:.0%} of the rollouts ended in an error of the environment or its tools; read the "
            "errors in trajectories/"
        )
    for name, share in metrics.items():
        tool = name.removeprefix(FAILED_CALLS)
        if tool != name and share > _NEARLY_ALL and metrics[f"actions/{tool}"] > _MOST:
            return f"{share:.0%} of the calls of {tool} failed; read the errors in trajectories/"
    return ""
