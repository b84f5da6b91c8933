"""A chat and a retriever that answer from a script, and a bench over them."""

from collections.abc import Callable, Mapping, Sequence

from cotune.environments.search import SEARCH_R1_INSTRUCTION, SearchEnvironment
from cotune.errors import RetrievalError
from cotune.experiments.baselines import BASELINES
from cotune.experiments.baselines.base import Baseline, Bench, answer_form
from cotune.experiments.baselines.chat import Ask, Reply
from cotune.rewards import exact_match
from cotune.types import Limits, Task

TASK = Task("q1", "What is the currency of the country where Kota Tinggi is?", ("ringgit",))
PASSAGES = {
    TASK.question: ["Currency is money.", "A country is a place."],
    "Kota Tinggi": ["Kota Tinggi is a town in Malaysia."],
    "Kota Tinggi is in Malaysia.": ["Malaysia: currency ringgit.", "Currency is money."],
    "Malaysia": ["Malaysia: currency ringgit."],
}


class ScriptedChat:
    """Answers the first, second, … request of a question from a list, or by a function of it.

    Attributes:
        asked: all requests, in order.
        batches: how many requests each call had.
    """

    def __init__(self, replies: Sequence[str] | Callable[[Ask], str], room: int = 10**6) -> None:
        self.room = room
        self.asked: list[Ask] = []
        self.batches: list[int] = []
        self._replies = replies

    def count(self, text: str) -> int:
        return len(text)

    def size(self, ask: Ask) -> int:
        written = sum(len(reply.text) + len(shown) for reply, shown in ask.written)
        return written + sum(len(message["content"]) for message in ask.messages)

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        self.batches.append(len(asks))
        return [self._one(ask) for ask in asks]

    def prompts(self) -> list[str]:
        """The user's message of every request."""
        return [ask.messages[-1]["content"] for ask in self.asked]

    def _one(self, ask: Ask) -> Reply:
        self.asked.append(ask)
        if callable(self._replies):
            text = self._replies(ask)
        else:
            assert len(self.asked) <= len(self._replies), f"asked once more: {ask}"
            text = self._replies[len(self.asked) - 1]
        return Reply(text, len(text))


class ScriptedRetriever:
    """Knows some queries; another one finds nothing, and a broken one fails.

    Attributes:
        queries: in order.
    """

    def __init__(
        self, passages: Mapping[str, Sequence[str]] = PASSAGES, broken: bool = False
    ) -> None:
        self.queries: list[str] = []
        self._passages, self._broken = passages, broken

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        self.queries += queries
        if self._broken:
            raise RetrievalError("the service is down")
        return [list(self._passages.get(query, ()))[:top_k] for query in queries]


def world(tasks: Sequence[Task] = (TASK,)) -> SearchEnvironment:
    splits = {"train": tasks, "validation": tasks, "test": tasks}
    return SearchEnvironment(splits, ScriptedRetriever(), SEARCH_R1_INSTRUCTION, exact_match)


def built(name: str, chat: ScriptedChat, limits: Limits | None = None) -> Baseline:
    environment = world()
    instruction = environment.initial_instruction
    form = answer_form(environment, instruction, "search")
    return BASELINES[name](Bench(environment, instruction, form, limits or Limits(), chat))
