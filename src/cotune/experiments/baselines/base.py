"""Base of the baselines: the steps of a question, and `solve`, which runs many questions together.

A baseline is a generator over one question, in the order of its paper: it yields requests to the
model, the retriever or the environment, and receives the answers. `solve` takes the next step of all
questions together, so that a step of a batch is one call.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cotune.environments.base import TaskEnvironment
from cotune.environments.math import MathEnvironment
from cotune.environments.search import SearchEnvironment
from cotune.environments.tag_protocol import render_information
from cotune.errors import ConfigError, RetrievalError
from cotune.experiments.baselines.chat import Ask, Chat, Reply
from cotune.protocols import Environment, Retriever
from cotune.types import Action, Limits, Prompt, Response, Task, Turn
from cotune.utils.text import named

UNSCORED = ("reason", "condense", "retrieve")
"""Actions of turns that are the method's own notes; no answer is read from them."""
IN_TAGS = "Give the answer inside <answer> and </answer>, for example <answer> Beijing </answer>."


@dataclass(frozen=True, slots=True)
class Search:
    """A query for the retriever."""

    query: str


@dataclass(frozen=True, slots=True)
class Found:
    """The passages found, best first; if the search failed, the reason."""

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
class AnswerForm:
    """The form in which a single response gives an answer that the environment can score.

    Attributes:
        instruction: the task, and the form of the answer.
        brief: only the form; "" if the run file's instruction states it.
        stop: strings that end the response.
    """

    instruction: str
    brief: str = ""
    stop: tuple[str, ...] = ()


def answer_form(environment: Environment, instruction: str, kind: str) -> AnswerForm:
    """Return the answer form of an environment.

    For the tag protocol: the answer's tags, without the search that its instruction offers. For an
    environment of one turn: the run file's instruction.

    Args:
        kind: `environment.kind`, for the error.

    Raises:
        ConfigError: it cannot score a single response.
    """
    if isinstance(environment, SearchEnvironment):
        return AnswerForm(f"Answer the given question. {IN_TAGS}", IN_TAGS, ("</answer>",))
    one_turn = getattr(type(environment), "respond", None) is TaskEnvironment.respond
    if isinstance(environment, MathEnvironment) or (one_turn and not environment.tools):
        return AnswerForm(instruction)
    raise ConfigError(
        f"environment.kind is {kind}; baselines of one response need questions that one response "
        "answers, without tools, such as search, math or single_turn (cotune baseline agent runs any)"
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """The model, tools and limits of a baseline.

    Attributes:
        environment: has the questions and lays out prompts.
        instruction: the run file's initial one.
        form: how a single response gives its answer.
        limits: the run file's; `turns` bounds the model's replies to a question.
        chat: the model; only `solve` sends it requests, baselines use it to count tokens.
    """

    environment: Environment
    instruction: str
    form: AnswerForm
    limits: Limits
    chat: Chat


class Baseline:
    """A method without training; subclasses write `steps`.

    Attributes:
        description: one line about it.
        retrieves: whether it needs an environment with a retriever.
    """

    description: ClassVar[str] = ""
    retrieves: ClassVar[bool] = False

    def __init__(self, bench: Bench) -> None:
        self.bench, self.limits = bench, bench.limits

    @property
    def instruction(self) -> str:
        """The instruction that goes with question and passages, for run records."""
        return self.bench.form.instruction

    def steps(self, task: Task) -> Steps:
        """Solve one question."""
        raise NotImplementedError

    def prompt(
        self,
        task: Task,
        instruction: str,
        passages: Sequence[str] = (),
        rest: str = "",
        stop: tuple[str, ...] = (),
    ) -> Ask:
        """Return a request about a question, laid out as the run file's prompts are.

        Args:
            passages: the most important first; as many as fit are kept, the last of them cut.
            rest: the text after the passages.
            stop: strings that end the reply.
        """

        def built(kept: Sequence[str]) -> Ask:
            parts = [instruction, render_information(kept).strip() if kept else "", rest]
            text = "\n\n".join(part for part in parts if part)
            messages = self.bench.environment.messages(task, Prompt(text))
            return Ask(tuple(messages), stop)

        return fitted(self.bench.chat, built, passages)


def fitted(chat: Chat, built: Callable[[Sequence[str]], Ask], passages: Sequence[str]) -> Ask:
    """Return a request with as many passages as fit, the most important first, the last one cut."""
    kept = list(passages)
    while kept and chat.size(built(kept)) > chat.room:
        # A passage is halved until nothing of it is left, then the one before it.
        kept[-1] = kept[-1][: len(kept[-1]) // 2]
        if not kept[-1].strip():
            kept.pop()
    return built(kept)


def cut(chat: Chat, text: str, tokens: int) -> str:
    """Return the beginning of a text, at most the given number of tokens."""
    while (found := chat.count(text)) > tokens:
        text = text[: min(len(text) - 1, len(text) * tokens // found)]
    return text


def shown(found: Found) -> str:
    """Return what was retrieved as an episode's policy would read it."""
    return render_information(found.passages)


def retrieved(found: Found) -> Turn:
    """Return a turn in which the model wrote nothing: a search before its first reply."""
    return Turn("", shown(found), "retrieve", found.error)


@dataclass(frozen=True, slots=True)
class Solved:
    """A question's turns, and all replies of the model."""

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
    """Solve questions together, one step of each at a time.

    Args:
        top_k: passages per query.
        tell: called after each call of the model with the number of finished questions and of
            requests in the call.

    Raises:
        ValueError: the baseline searches, and there is no retriever.
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
        # Searches and actions first, so that the model is called with as many requests as possible.
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
    """Search; a failed search finds nothing and gives the reason."""
    if retriever is None:
        raise ValueError("a baseline that searches was given no retriever")
    try:
        found = retriever.search(queries, top_k)
    except (OSError, RetrievalError) as error:
        return [Found(error=f"search failed: {named(error, 180)}")] * len(queries)
    return [Found(tuple(passages)) for passages in found]
