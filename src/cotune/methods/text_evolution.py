"""Evolve texts with `gepa.optimize` (arXiv 2507.19457), through its public adapter and strategies.

The text is P²O's hint or FST's whole instruction, each a subclass of `TextSearch`. gepa is given nothing that
outlives the phase: no run folder, no cache, no pickle. The same inputs and the same replies of policy and LLM make the
same calls in the same order, so that an interrupted phase is resumed by replaying both.
"""

import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import fmean
from typing import Any, Literal

from cotune.errors import EngineError
from cotune.methods.contract import TextRules
from cotune.methods.method import SOLVED_AT, Evolution, check_least
from cotune.methods.proposals import Draft, ProposalAccount, Request, without_reasoning
from cotune.types import Assignment, Prompt, Section, StopReason, Task, Trajectory
from cotune.utils.text import shorten_middle

MINIBATCH = 3
"""Questions shown to the reflector, on which a child must beat its parent: gepa's default, as in the papers."""
Scoring = Literal["greedy", "sampled"]
"""The way a text is scored, by one rollout per question: greedily, or sampled as in training."""
_REFLECTION_CHARS = 72_000
"""Characters of the responses in a reflection prompt, together: a context of 32,768 tokens takes about as many
of mathematics, with a reply of 2,048."""
Record = Mapping[str, str]
"""One example as gepa's reflection prompt shows it: headings and their contents."""

_PART = "text"  # gepa's name for the one text that evolves
_ROLLOUT = "rollout"

Candidate = dict[str, str]
Dataset = Mapping[str, Sequence[Mapping[str, Trajectory]]]
Job = tuple[Candidate, Dataset, list[str]]

_ANSWER_CHARS = 500  # of an answer in feedback; the response is shown besides


@dataclass(frozen=True, kw_only=True)
class GepaSearchOptions(Section):
    """What all searches by gepa share.

    Attributes:
        dev_size: training questions that texts are scored on; the others are reflected on.
            Half of the training questions if there are fewer than 1.5 times as many.
        scoring: how texts are scored, by one rollout for each question: greedy, or sampled as in
            training. Greedily, a policy that rarely succeeds finds no text.
        beam: parents that texts are derived from in one iteration, drawn from the Pareto front.
        show_answers: whether the reflector is shown the ground truth.
    """

    dev_size: int = 300
    scoring: Scoring = "greedy"
    beam: int = 1
    show_answers: bool = False

    def __post_init__(self) -> None:
        check_least(self, 1, "dev_size", "beam")


def feedback(trajectory: Trajectory, show_answers: bool) -> str:
    """Tell the reflector what was wrong, the answer or its form; the truth only if it is shown.

    The reward functions' own feedback follows.
    """
    if trajectory.reward >= SOLVED_AT:
        return f"Correct.\n{trajectory.feedback}".rstrip()
    if trajectory.answer is None:
        parts = ["Wrong: no final answer in the expected format was found."]
    else:
        answer = shorten_middle(trajectory.answer, _ANSWER_CHARS)  # it may be the whole response
        parts = [f"Wrong: the final answer {answer} is not correct."]
    if trajectory.stop is not StopReason.ANSWERED:
        parts.append(f"The response was ended by: {trajectory.stop.value}.")
    if errors := list(dict.fromkeys(turn.error for turn in trajectory.turns if turn.error)):
        parts.append(f"Errors on the way: {'; '.join(errors)}.")
    if show_answers and trajectory.task.answers:
        parts.append(f"The correct answer is {' or '.join(trajectory.task.answers)}.")
    return f"{' '.join(parts)}\n{trajectory.feedback}".rstrip()


def example(trajectory: Trajectory, show_answers: bool, chars: int) -> Record:
    """Return a rollout as the reflector sees it, in gepa's form, the response in about `chars` characters."""
    return {
        "Inputs": trajectory.task.question,
        "Generated Outputs": shorten_middle(trajectory.full_text, chars),
        "Feedback": feedback(trajectory, show_answers),
    }


def gepa_prompt(parent: str, examples: Sequence[Record], **more: str) -> str:
    """Return gepa's prompt for a new text; `prompt_template` replaces gepa's own."""
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    prompt = InstructionProposalSignature.prompt_renderer(
        {
            "current_instruction_doc": parent,
            "dataset_with_feedback": list(map(dict, examples)),
            **more,
        }
    )
    assert isinstance(prompt, str)  # it is a list only if examples contain images
    return prompt


_FENCE = "```"
_FENCED = re.compile(r"```[^`].*?```", re.DOTALL)


def read_fenced(reply: str) -> tuple[str, list[str]]:
    """Return the critique before the first ``` block of a reply, and the text within, by gepa's extraction.

    There is no text if the reply ends within its reasoning, or has no block or an open one; never raises.
    """
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    answer = without_reasoning(reply.strip(), _FENCED).strip()
    if not _FENCED.search(answer) or answer.count(_FENCE) % 2:
        return "", []
    text = InstructionProposalSignature.output_extractor(answer)["new_instruction"]
    return answer.partition(_FENCE)[0].strip(), [text] if text.strip() else []


DevScores = dict[str, tuple[float, ...]]
"""Rewards on the dev questions, by text or by id; one rollout each."""


def mean_scores(scores: DevScores) -> dict[str, float]:
    """Return the means over dev, in the same order."""
    return {key: fmean(row) for key, row in scores.items()}


def ranked(scores: DevScores) -> list[str]:
    """Return the keys, the highest mean first; ties go to the earliest."""
    means = mean_scores(scores)
    return sorted(means, key=means.__getitem__, reverse=True)


def greedy_cover(
    scores: Sequence[Sequence[float]], floor: float, ties: Sequence[float] = ()
) -> list[int]:
    """Return the texts that together score best on every question, by index, in order of choice.

    Each step takes the text that most raises the sum over questions of the best score, until none adds anything.

    Args:
        scores: texts × questions.
        floor: the score on a question without any text.
        ties: what decides between texts that add the same, the higher first; then the earlier one.
    """
    chosen: list[int] = []
    best = [floor] * len(scores[0])

    def covered(text: int) -> float:
        return sum(max(new, old) for new, old in zip(scores[text], best, strict=True))

    while True:
        first = max(
            range(len(scores)), key=lambda text: (covered(text), ties[text] if ties else 0, -text)
        )
        if covered(first) <= sum(best):
            return chosen
        chosen.append(first)
        best = [max(new, old) for new, old in zip(scores[first], best, strict=True)]


def least_budget(dev_size: int) -> int:
    """Return the least rollouts with which a search can propose: seed and child on a minibatch and on dev."""
    return 2 * (dev_size + MINIBATCH)


def dev_count(count: int, dev_size: int) -> int:
    """Return the number of dev questions of `count`: `dev_size`, or half if below 1.5 times that."""
    return dev_size if 2 * count >= 3 * dev_size else count // 2


def split(
    questions: Sequence[Task], dev_size: int, key: str
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Shuffle questions into dev (`dev_count`) and train; the input order does not matter."""
    tasks = sorted(questions, key=lambda task: task.id)
    random.Random(f"{key}/split").shuffle(tasks)
    dev = dev_count(len(tasks), dev_size)
    return tuple(tasks[:dev]), tuple(tasks[dev:])


# ---- the search


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """The questions and the limits of a search.

    Attributes:
        dev: questions that texts are scored on, by one rollout each.
        train: questions that are reflected on.
        budget: rollouts of the search.
        barren: iterations in a row without a valid text that end it.
        key: seed of all draws.
    """

    options: GepaSearchOptions
    dev: Sequence[Task]
    train: Sequence[Task]
    budget: int
    barren: int
    key: str


class TextSearch(ABC):
    """Search for better texts under the current policy.

    It is all that gepa calls: adapter, reflection, sampling and selection strategy, stopper and logger.

    gepa checks a budget only between iterations, and one iteration of `beam` parents could exceed it by
    `beam` × dev, so the number of parents and of children is limited here. Progress is reported from here,
    since gepa swallows errors of its own callbacks. It also swallows errors of a reflection and retries one
    by one, so the first is kept, no request follows it, and `evolve` raises it when gepa has returned.

    Args:
        account: asks the LLM; its phase begins here.
        lineage: by text, the ids of the questions that it or an ancestor was derived from.

    Attributes:
        drafts: the valid texts.
        evaluations: rollouts made so far.
        lost: of these, rollouts that ended in an environment error; they count as their reward, 0.
    """

    propose_new_texts = None  # of an adapter; declared, or some versions of gepa propose nothing

    def __init__(
        self,
        plan: SearchPlan,
        evolution: Evolution,
        account: ProposalAccount,
        rules: TextRules,
        lineage: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.plan = plan
        self.account = account
        self.record = evolution.record
        self.drafts: dict[str, Draft] = {}
        self.evaluations = self.lost = 0
        self._rollout = evolution.rollout
        self._lineage = dict(lineage or {})
        self._scored: dict[str, dict[str, Trajectory]] = {}  # on dev, by text and question
        self._broken = False  # whether all rollouts to reflect on were environment errors once
        self._failure: BaseException | None = None
        self._barren = 0
        self._reported = 1  # texts that joined; the first is the seed
        account.begin(
            evolution.llm, self.record, rules.check, self.record_rejected, tried=self._lineage
        )

    # ---- what the texts are

    @abstractmethod
    def prompt(self, text: str) -> Prompt:
        """Return the prompt that tries a text."""

    @abstractmethod
    def reflection_prompt(self, parent: str, examples: Sequence[Record]) -> str:
        """Return the LLM's prompt for a text that is better than a parent on the examples."""

    @abstractmethod
    def record_accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        """Record that a text joined; the scores are the means of both over dev."""

    @abstractmethod
    def record_rejected(self, text: str, parent: str, reason: str, **scores: float) -> None:
        """Record that a text did not join.

        Args:
            scores: of a valid text, `score` and `parent_score`, the means of both over its minibatch.
        """

    @abstractmethod
    def record_progress(self, texts: int, best: float) -> None:
        """Record the texts with the seed, and the highest mean over dev, after every iteration."""

    # ---- rollouts under texts

    def roll_out(self, items: Sequence[tuple[str, Sequence[Task]]]) -> list[list[Trajectory]]:
        """Return the trajectories of each (text, questions), all made in one rollout call."""
        pairs = [
            (self.prompt(text), task)
            for text, tasks in items
            for task in tasks
            if task.id not in self._scored.get(text, ())
        ]
        assignments = [Assignment(task, p, p, "", i) for i, (p, task) in enumerate(pairs)]
        new: list[Trajectory] = []
        if assignments:
            greedy = self.plan.options.scoring == "greedy"
            new = self._rollout(assignments, purpose="evolve", greedy=greedy)
        self.evaluations += len(new)
        self.lost += sum(t.stop is StopReason.ENVIRONMENT_ERROR for t in new)
        in_order = iter(new)
        return [
            [self._scored.get(text, {}).get(task.id) or next(in_order) for task in tasks]
            for text, tasks in items
        ]

    def score(self, texts: Sequence[str]) -> DevScores:
        """Return the scores of texts on dev; the search does not repeat them."""
        rows = self.roll_out([(text, self.plan.dev) for text in texts])
        for text, row in zip(texts, rows, strict=True):
            self._scored[text] = {t.task.id: t for t in row}
        return {t: tuple(t.reward for t in row) for t, row in zip(texts, rows, strict=True)}

    def evaluate(
        self, batch: Sequence[Task], candidate: Candidate, capture_traces: bool = False
    ) -> Any:
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(
        self, items: Sequence[tuple[Candidate, Sequence[Task]]], capture_traces: bool = True
    ) -> list[Any]:
        """Return gepa's `EvaluationBatch` for each item; versions after 0.1.4 pass `capture_traces`."""
        batch_of: Any = import_module("gepa").EvaluationBatch
        rows = self.roll_out([(candidate[_PART], tasks) for candidate, tasks in items])
        return [
            batch_of(outputs=row, scores=[t.reward for t in row], trajectories=row) for row in rows
        ]

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]
    ) -> Dataset:
        """Return the rollouts as they are: `propose` writes their text."""
        return {_PART: [{_ROLLOUT: trajectory} for trajectory in eval_batch.trajectories]}

    # ---- reflection

    def propose(self, parent: str, rollouts: Sequence[Trajectory]) -> str | None:
        """Return a valid text from a parent with rollouts under it; those that are not `judged` are not shown.

        None if there are no others, the call failed or the reply breaks the contract.
        """
        judged = [t for t in rollouts if t.judged]
        if not judged:
            self._broken |= bool(rollouts)
            return None
        chars = _REFLECTION_CHARS // len(judged)
        examples = [example(t, self.plan.options.show_answers, chars) for t in judged]
        prompt = self.reflection_prompt(parent, examples)
        lineage = self._lineage.get(parent, ())
        drafts = self.account.ask(Request(prompt, parent, lineage, tuple(t.task for t in judged)))
        if not drafts:
            return None
        self.drafts[drafts[0].text] = drafts[0]
        self._lineage[drafts[0].text] = drafts[0].shown
        return drafts[0].text

    def reflect(
        self, candidate: Candidate, reflective_dataset: Dataset, components_to_update: list[str]
    ) -> tuple[Any, "TextSearch"]:
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: Sequence[Job]) -> list[tuple[Any, "TextSearch"]]:
        """Return gepa's proposal for each (candidate, rollouts under it); without a text it costs no evaluation."""
        reflection_lm: Any = import_module("gepa.proposer.reflective_mutation.reflection_lm")
        if self._failure is not None:
            raise self._failure
        try:
            texts = [
                self.propose(candidate[_PART], [row[_ROLLOUT] for row in rows[_PART]])
                for candidate, rows, _ in jobs
            ]
        except BaseException as error:
            self._failure = error
            raise
        if any(text is not None for text in texts):
            self._barren = 0
        elif texts:
            self._barren += 1
        proposals = [{} if text is None else {_PART: text} for text in texts]
        return [(reflection_lm.ReflectionProposal(new_texts=new), self) for new in proposals]

    def end_phase(self, last: bool = False) -> None:
        """End the account's phase.

        Raises:
            EngineError: the last phase could not ask, because the environment failed.
            EvolutionError: see `ProposalAccount.end_phase`.
        """
        if self.lost:
            self.record(
                "notice",
                text=f"{self.lost} of {self.evaluations} rollouts that score texts ended in an environment error "
                "and count as 0, so the scores may be too low",
            )
        account = self.account
        if account.asked or account.spent:
            account.end_phase(last)
            return
        why = "there was no failure to reflect on"
        if self._broken:
            why = "all rollouts to reflect on ended in an environment error or without a reward"
            if last and not getattr(account.llm, "optional", False):
                raise EngineError(f"no {account.what} was asked for: {why}; fix the environment")
        self.record("notice", text=f"no {account.what} was asked for: {why}")

    # ---- the search itself

    def evolve(self, seed: str) -> DevScores:
        """Return the seed and all that gepa accepted, with their scores on dev.

        An iteration draws `beam` parents from the instance-level Pareto front, reflects on a minibatch of train with
        each, and scores on dev the children that are strictly better on their minibatch. The search ends after `barren`
        iterations in a row without a valid text, or when the rest of the budget does not cover a parent and a child on
        a minibatch and the child on dev. Fewer parents than `beam` are drawn if the budget covers no more. The budget
        is never exceeded, except by the seed's scores on dev.

        Raises:
            Exception: any error of the rollout, the LLM (except LLMError) or the record.
        """
        # Untyped: its generics cannot be inferred from our arguments.
        gepa: Any = import_module("gepa")
        result: Any = gepa.optimize(
            seed_candidate={_PART: seed},
            trainset=list(self.plan.train),
            valset=list(self.plan.dev),
            adapter=self,
            reflection_strategy=self,
            reflection_minibatch_size=MINIBATCH,
            sampling_strategy=self,
            selection_strategy=self,
            acceptance_criterion="strict_improvement",
            perfect_score=1.0,  # a minibatch of these is not reflected on
            candidate_selection_strategy="pareto",
            frontier_type="instance",
            use_merge=False,
            cache_evaluation=False,
            track_best_outputs=False,
            display_progress_bar=False,
            run_dir=None,
            logger=self,
            stop_callbacks=[self],
            seed=int.from_bytes(hashlib.sha256(self.plan.key.encode()).digest()[:8], "big"),
            raise_on_exception=True,
        )
        if self._failure is not None:
            raise self._failure
        return {
            candidate[_PART]: tuple(row[i] for i in range(len(self.plan.dev)))
            for candidate, row in zip(result.candidates, result.val_subscores, strict=True)
        }

    def log(self, message: str) -> None:
        return  # gepa's messages: the run's events replace them

    @property
    def left(self) -> int:
        return self.plan.budget - self.evaluations

    @property
    def parents(self) -> int:
        """Return how many parents and children a minibatch each can be afforded, with dev for a child."""
        affordable = (self.left - len(self.plan.dev)) // (2 * MINIBATCH)
        return max(0, min(self.plan.options.beam, affordable))

    def sample_tasks(self, *arguments: Any) -> list[Any]:
        """Return parents and minibatches, as many as the budget covers."""
        sampling: Any = import_module("gepa.strategies.proposal_sampling")
        return sampling.IndependentSampling(self.parents).sample_tasks(*arguments)

    def select(self, proposals: list[Any], state: Any, acceptance_criterion: Any) -> list[Any]:
        """Return the improvements to score on dev, the largest first, as far as the budget reaches."""
        selection: Any = import_module("gepa.strategies.proposal_selection")
        improved: list[Any] = selection.AllImprovements().select(
            proposals, state, acceptance_criterion
        )
        # Ties keep their order.
        chosen = sorted(
            improved, key=lambda p: sum(p.subsample_scores_before) - sum(p.subsample_scores_after)
        )[: max(0, self.left // len(self.plan.dev))]
        texts = [candidate[_PART] for candidate in state.program_candidates]
        for proposal in proposals:
            if not any(proposal is improvement for improvement in chosen):
                beat_parent = any(proposal is improvement for improvement in improved)
                self.record_rejected(
                    proposal.candidate[_PART],
                    texts[proposal.parent_program_ids[0]],
                    "no budget left to score it" if beat_parent else "not above its parent",
                    score=fmean(proposal.subsample_scores_after),
                    parent_score=fmean(proposal.subsample_scores_before),
                )
        return chosen

    def __call__(self, gepa_state: Any) -> bool:
        """Report progress before every iteration and after the last one; return whether to stop."""
        texts = [candidate[_PART] for candidate in gepa_state.program_candidates]
        means: list[float] = [
            fmean(scores.values()) for scores in gepa_state.prog_candidate_val_subscores
        ]
        for i in range(self._reported, len(texts)):
            parent: int = gepa_state.parent_program_for_candidate[i][0]
            self.record_accepted(texts[i], texts[parent], means[i], means[parent])
        self._reported = len(texts)
        self.record_progress(len(texts), max(means))
        # Once the LLM's budget is spent, further rollouts would be wasted.
        over = self._failure is not None or bool(self.account.spent)
        return over or self._barren >= self.plan.barren or not self.parents
