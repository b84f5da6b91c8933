"""What the baselines share: steps that a question takes, and the lock-step of many questions.

A baseline is a generator over one question, in the order of its paper: it yields what it asks of
the model, of the retriever or of the environment, and is sent the answer. `solve` takes the next
step of all questions together, so that a step of a batch is one call.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cotune.environments.tag_protocol import render_information
from cotune.errors import RetrievalError
from cotune.experiments.baselines.answers import AnswerForm
from cotune.experiments.baselines.chat import Ask, Chat, Reply
from cotune.protocols import Environment, Retriever
from cotune.types import Action, Limits, Prompt, Response, Task, Turn

UNSCORED = ("reason", "condense", "retrieve")
"""Actions of turns that no answer is read from: what the method writes for itself."""


@dataclass(frozen=True, slots=True)
class Search:
    """A query for the retriever."""

    query: str


@dataclass(frozen=True, slots=True)
class Found:
    """What it gave: passages, best first; why there are none, where it failed."""

    passages: tuple[str, ...] = ()
    error: str = ""


Step = Ask | Search | Action
Steps = Generator[Step, Any, list[Turn]]
"""The steps of one question; returns its turns."""


def ask(request: Ask) -> Generator[Step, Any, Reply]:
    return (yield request)


def search(query: str) -> Generator[Step, Any, Found]:
    return (yield Search(query))


def act(action: Action) -> Generator[Step, Any, Response]:
    return (yield action)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a baseline works with.

    Attributes:
        environment: asks, and lays out prompts.
        instruction: the run file's initial one.
        form: how a single response is to give its answer.
        limits: of the run file; `turns` bounds the replies of the model to a question.
        chat: the model, to be asked by `solve` alone; baselines count tokens by it.
    """

    environment: Environment
    instruction: str
    form: AnswerForm
    limits: Limits
    chat: Chat


class Baseline:
    """A method without training; subclasses write `steps`.

    Attributes:
        description: in a line.
        retrieves: whether it needs an environment with a retriever.
    """

    description: ClassVar[str] = ""
    retrieves: ClassVar[bool] = False

    def __init__(self, bench: Bench) -> None:
        self.bench, self.limits = bench, bench.limits

    @property
    def instruction(self) -> str:
        """What the model is told besides question and passages, for the record."""
        return self.bench.form.instruction

    def steps(self, task: Task) -> Steps:
        """Solves one question."""
        raise NotImplementedError

    def prompt(
        self,
        task: Task,
        instruction: str,
        passages: Sequence[str] = (),
        rest: str = "",
        stop: tuple[str, ...] = (),
    ) -> Ask:
        """A request about a question, laid out as the run file lays out its prompts.

        Args:
            task: the question.
            instruction: what to do.
            passages: the most important first; as many as fit, the last of them cut.
            rest: what follows the passages.
            stop: ends the reply.
        """

        def built(kept: Sequence[str]) -> Ask:
            parts = [instruction, render_information(kept).strip() if kept else "", rest]
            text = "\n\n".join(part for part in parts if part)
            messages = self.bench.environment.messages(task, Prompt(text))
            return Ask(tuple(messages), stop)

        return fitted(self.bench.chat, built, passages)


def fitted(chat: Chat, built: Callable[[Sequence[str]], Ask], passages: Sequence[str]) -> Ask:
    """A request with as many passages as its room allows, the last one cut; without any at worst.

    Args:
        chat: counts.
        built: the request with some passages.
        passages: the most important first.
    """
    kept = list(passages)
    while kept and chat.size(built(kept)) > chat.room:
        # A passage is halved until nothing of it is left, then the one before it.
        kept[-1] = kept[-1][: len(kept[-1]) // 2]
        if not kept[-1].strip():
            kept.pop()
    return built(kept)


def cut(chat: Chat, text: str, tokens: int) -> str:
    """The beginning of a text that has at most so many tokens."""
    while (found := chat.count(text)) > tokens:
        text = text[: min(len(text) - 1, len(text) * tokens // found)]
    return text


def shown(found: Found) -> str:
    """What was retrieved, as the policy of an episode reads it."""
    return render_information(found.passages)


def retrieved(found: Found) -> Turn:
    """A turn in which nothing was written: what was looked up before."""
    return Turn("", shown(found), "retrieve", found.error)


@dataclass(frozen=True, slots=True)
class Solved:
    """A question's turns, and what the model replied to get there."""

    task: Task
    turns: tuple[Turn, ...]
    replies: tuple[Reply, ...]


def solve(
    baseline: Baseline,
    tasks: Sequence[Task],
    chat: Chat,
    retriever: Retriever | None = None,
    top_k: int = 3,
    tell: Callable[[int, int], None] = lambda finished, asked: None,
) -> list[Solved]:
    """Solves questions, the next step of all of them together.

    Args:
        baseline: the method.
        tasks: the questions.
        chat: the model.
        retriever, top_k: what is searched, and passages a query.
        tell: is called after each call of the model with how many questions are finished and how
            many it was asked.
    """
    environment = baseline.bench.environment
    going = {i: baseline.steps(task) for i, task in enumerate(tasks)}
    replies: list[list[Reply]] = [[] for _ in tasks]
    turns: list[list[Turn]] = [[] for _ in tasks]
    waiting: dict[int, Step] = {}

    def advance(i: int, answer: Any) -> None:
        try:
            waiting[i] = going[i].send(answer)
        except StopIteration as finished:
            turns[i] = finished.value
            waiting.pop(i, None)

    for i in going:
        advance(i, None)
    while waiting:
        # What needs no model first, so that as many as can be are ready for it.
        if rows := [i for i, step in waiting.items() if isinstance(step, Search)]:
            queries = [step.query for i in rows if isinstance(step := waiting[i], Search)]
            answers: Sequence[Any] = _looked_up(retriever, top_k, queries)
        elif rows := [i for i, step in waiting.items() if isinstance(step, Action)]:
            answers = environment.respond(
                [replace(step, row=i) for i in rows if isinstance(step := waiting[i], Action)]
            )
        else:
            rows = list(waiting)
            answers = chat.ask([step for step in waiting.values() if isinstance(step, Ask)])
            for i, reply in zip(rows, answers, strict=True):
                replies[i].append(reply)
        asked = isinstance(waiting[rows[0]], Ask)
        for i, answer in zip(rows, answers, strict=True):
            advance(i, answer)
        if asked:
            tell(len(tasks) - len(waiting), len(rows))
    return [Solved(task, tuple(turns[i]), tuple(replies[i])) for i, task in enumerate(tasks)]


def _looked_up(retriever: Retriever | None, top_k: int, queries: Sequence[str]) -> list[Found]:
    """The passages of some queries; a failed search finds none and says why."""
    if retriever is None:
        raise ValueError("a baseline that searches was given no retriever")
    try:
        found = retriever.search(queries, top_k)
    except (OSError, RetrievalError) as error:
        reason = " ".join(f"search failed: {type(error).__name__}: {error}".split())
        return [Found(error=reason[:200])] * len(queries)
    return [Found(tuple(passages)) for passages in found]
