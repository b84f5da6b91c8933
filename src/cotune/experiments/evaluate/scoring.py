"""Score a policy under instructions by name: what every evaluation, quadrant and measurement reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, cast

from cotune.config.run_checks import check_prompts
from cotune.experiments.evaluate.metrics import Values
from cotune.experiments.evaluate.question_sets import QuestionSet
from cotune.rollout.coordinator import Coordinator
from cotune.types import Assignment, Prompt, Trajectory

REWARD: Mapping[str, Values] = {"reward": lambda rollouts: [rollout.reward for rollout in rollouts]}
_ROWS = 2048  # rolled out at a time: the trajectories of a set need not fit into memory


@dataclass(eq=False)
class PromptScores:
    """What a policy scored under a prompt, question by question.

    Attributes:
        values: by metric and decoding ("greedy", "sampled"), the values of each question's rollouts.
        divergences: of one sampled rollout of each question, the sum of KL(policy ‖ initial policy) over its own
            tokens, in nats, and the number of these tokens; [] without an initial policy.
        rollouts, generated_tokens: what it cost.
    """

    values: dict[str, dict[str, list[list[float]]]]
    divergences: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    rollouts: int = 0
    generated_tokens: int = 0

    @property
    def rewards(self) -> dict[str, list[float]]:
        """By decoding, the mean reward of each question's rollouts."""
        by_decoding = self.values["reward"]
        return {name: [fmean(row) for row in rows] for name, rows in by_decoding.items()}


def score(
    policy: Coordinator,
    prompts: Mapping[str, Prompt],
    questions: QuestionSet,
    samples: int = 0,
    metrics: Mapping[str, Values] = REWARD,
    initial: Coordinator | None = None,
    greedy_rewards: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, PromptScores]:
    """Score a policy under prompts by name, greedily and sampled; equal prompts once, as the same object.

    Draws depend on the seed, a question's place in the set, and the number of the sample; not on the
    other prompts.

    The divergence is exact over the vocabulary at every position of the policy's own rollouts, at their temperature.
    Its sum over a rollout's own tokens is an unbiased estimate for the sequence. Unlike Schulman's k1 and k3
    (http://joschu.net/blog/kl-approx.html) it has no noise from the tokens that were drawn (Rao-Blackwellized: Amini,
    Vieira and Cotterell, arXiv 2504.10637), at the same two forward passes.

    Args:
        samples: sampled rollouts of each question; 0 for none.
        metrics: functions that give a batch of rollouts its values, by name.
        initial: the policy to compute the divergence from, which needs a sample; None for none.
        greedy_rewards: by the name of a prompt, its questions' greedy rewards if they are known already, in place of
            rollouts; only with the metric `REWARD`.

    Raises:
        ConfigError: a prompt is too long; before any rollout.
    """
    distinct = list(dict.fromkeys(prompts.values()))
    for prompt in distinct:
        check_prompts(
            questions.environment, policy.codec, prompt.instruction, policy.settings.limits,
            [questions.name], strategy="static",
        )  # fmt: skip
    measured = {prompts[name]: rewards for name, rewards in (greedy_rewards or {}).items()}
    scores = {
        prompt: _score_prompt(
            policy, prompt, questions, samples, metrics, initial, measured.get(prompt)
        )
        for prompt in distinct
    }
    return {name: scores[prompt] for name, prompt in prompts.items()}


def _score_prompt(
    policy: Coordinator,
    prompt: Prompt,
    questions: QuestionSet,
    samples: int,
    metrics: Mapping[str, Values],
    initial: Coordinator | None,
    greedy_rewards: Sequence[float] | None,
) -> PromptScores:
    # Draws are keyed by the number of calls: each prompt has a coordinator of its own.
    coordinator = Coordinator(
        strategy=policy.strategy, environment=questions.environment, codec=policy.codec,
        sampler=policy.sampler, llm=policy.llm, record=policy.record,
        settings=policy.settings, rewards=questions.rewards,
    )  # fmt: skip
    decodings = {"greedy": 1, "sampled": samples} if samples else {"greedy": 1}
    scores = PromptScores({name: {decoding: [] for decoding in decodings} for name in metrics})
    for decoding, k in decodings.items():
        size = max(1, _ROWS // k)
        for start in range(0, len(questions.tasks), size):
            assignments = [
                Assignment(task, prompt, prompt, "", group)
                for group, task in enumerate(questions.tasks[start : start + size], start)
                for _ in range(k)
            ]
            greedy = decoding == "greedy"
            if greedy and greedy_rewards is not None:
                # A call is counted all the same, so that the samples' draws do not change.
                coordinator.next_sampling("evaluate", greedy)
                rows = greedy_rewards[start : start + size]
                scores.values["reward"][decoding] += [[reward] for reward in rows]
                continue
            rollouts = coordinator.rollout(assignments, purpose="evaluate", greedy=greedy)
            scores.rollouts += len(rollouts)
            scores.generated_tokens += sum(rollout.generated_tokens for rollout in rollouts)
            for name, values_of in metrics.items():
                values = values_of(rollouts)
                rows = [values[first : first + k] for first in range(0, len(values), k)]
                scores.values[name][decoding] += rows
            if initial is not None and not greedy:
                scores.divergences += _divergences(policy, initial, rollouts[::k])
    return scores


def _divergences(
    policy: Coordinator, initial: Coordinator, rollouts: Sequence[Trajectory]
) -> list[tuple[float, int]]:
    from cotune.policy.divergence import rollout_divergences

    samplers = cast(Any, policy.sampler), cast(Any, initial.sampler)
    with samplers[0].model() as p, samplers[1].model() as q, samplers[0].casts():
        return rollout_divergences(p, q, rollouts, policy.settings.temperature)
