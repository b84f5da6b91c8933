"""Question answering with a search engine over the tag protocol, as in Search-R1 and INSPO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from cotune.data.corpus import Language, format_passage, join_for_index, read_corpus, split_contents
from cotune.environments.base import TaskEnvironment, without_answer
from cotune.environments.environment_kind import EnvironmentKind, Tasks
from cotune.environments.tag_protocol import CALL_TAGS, SEARCH_R1, STOP, TAGS, Parsed, TagProtocol
from cotune.errors import ConfigError, RetrievalError
from cotune.protocols import Retriever
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever
from cotune.rewards import Reward, exact_match
from cotune.rollout.batched_calls import parallel_calls
from cotune.types import SEARCH_FAILED, Action, Response, Section, Task, Trajectory
from cotune.utils.text import named

SEARCH_R1_INSTRUCTION = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every "
    "time you get new information. After reasoning, if you find you lack some knowledge, you can "
    "call a search engine by <search> query </search> and it will return the top searched results "
    "between <information> and </information>. You can search as many times as you want. If you "
    "find no further external knowledge needed, you can directly provide the answer inside "
    "<answer> and </answer>, without detailed illustrations. For example, <answer> Beijing "
    "</answer>."
)
"""The initial instruction of Search-R1 and of INSPO's search experiments (INSPO, appendix)."""

_DESCRIPTION = (
    "The agent writes turn after turn. It may think inside <think> and </think>. A turn ends with "
    "one action: <search> query </search> asks the search engine, which returns the "
    "{} best passages for it between <information> and </information>; "
    "<answer> text </answer> gives the final answer and ends the episode. There is no other tool."
)
OUT_OF_TURNS = "out of turns"
_TITLE_WEIGHT = 3  # times that a passage's title is repeated before its text in the index

ProtocolName = Literal["tags", "search-r1"]
PROTOCOLS: Mapping[ProtocolName, TagProtocol] = {"tags": TAGS, "search-r1": SEARCH_R1}
"""The forms of the protocol, by name."""


class SearchEnvironment(TaskEnvironment):
    """Questions that the policy answers with `<answer>` after searching with `<search>`.

    Args:
        tasks: the tasks of each split.
        retriever: answers all searches of a batch in one call.
        initial_instruction: the instruction that training starts from.
        reward: scores the final answer, or None, against a task's answers.
        top_k: passages in an observation, 1 or more.
        protocol: "tags", or "search-r1" for Search-R1's own form.

    Attributes:
        retriever: as in the arguments.

    Raises:
        ConfigError: a task id is repeated in a split.
    """

    stop = STOP
    required = CALL_TAGS

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        retriever: Retriever,
        initial_instruction: str,
        reward: Reward,
        top_k: int = 3,
        protocol: ProtocolName = "tags",
    ) -> None:
        self._protocol = PROTOCOLS[protocol]
        super().__init__(self._phrase(tasks), initial_instruction, self._protocol.prompt_format)
        self.retriever = retriever
        if type(self).respond is SearchEnvironment.respond:
            self.parallel_responses = parallel_calls(retriever, "search", "parallel_searches")
        self._reward = reward
        self._top_k = top_k
        self.description = _DESCRIPTION.format(top_k)

    @property
    def measure(self) -> str:
        """Return the name of the mean reward."""
        return "exact match" if self._reward is exact_match else "mean reward"

    def with_tasks(self, tasks: Mapping[str, Sequence[Task]]) -> Self:
        return super().with_tasks(self._phrase(tasks))

    def _phrase(self, tasks: Mapping[str, Sequence[Task]]) -> dict[str, list[Task]]:
        return {
            split: [self._protocol.phrase(task) for task in rows] for split, rows in tasks.items()
        }

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Respond to a batch of turns, with one call of the retriever for all searches.

        An answer ends the episode. The observation after an invalid turn is a correction; after a failed
        search it says that the search failed. After an episode's last turn there is no observation.

        Raises:
            ConfigError: the retriever does not return one list of passages for each query.
        """
        queries: list[str] = []
        responses: list[Response | None] = []
        for action in actions:
            parsed = self._protocol.parse(action.text)
            responses.append(self._without_search(action, parsed))
            if responses[-1] is None:
                queries.append(parsed.argument)
        results = iter(self._retrieve(queries))
        return [next(results) if response is None else response for response in responses]

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the final answer in the policy's own text, and that answer."""
        answer = self._protocol.answer([turn.text for turn in trajectory.turns])
        return self._reward(answer, trajectory.task.answers), answer

    def _retrieve(self, queries: list[str]) -> list[Response]:
        """Return one response for each query; without queries the retriever is not called."""
        if not queries:
            return []
        try:
            passages = self.retriever.search(queries, self._top_k)
        except (OSError, RetrievalError) as error:
            # OSError includes TimeoutError and every connection error.
            reason = f"{SEARCH_FAILED}: {named(error, 180)}"
            failure = Response(self._protocol.failure(), action="search", error=reason)
            return [failure] * len(queries)
        if len(passages) != len(queries):
            raise ConfigError(
                f"{type(self.retriever).__name__}.search returned {len(passages)} lists for "
                f"{len(queries)} queries; expected one list of passages for each, in order"
            )
        return [Response(self._protocol.information(texts), action="search") for texts in passages]

    def _without_search(self, action: Action, parsed: Parsed) -> Response | None:
        """Respond to a turn for which nothing is searched; None for another one."""
        if parsed.action == "answer":
            return Response(done=True, action="answer")
        if action.last:
            error = parsed.error or OUT_OF_TURNS
            return Response(done=True, action=parsed.action, error=error)
        if parsed.action == "invalid":
            observation = self._protocol.correction(parsed.error)
            return Response(observation, action="invalid", error=parsed.error)
        if parsed.argument:
            return None
        # An empty query finds nothing.
        return Response(self._protocol.information(()), action="search", error="empty query")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Section):
    """The questions of `dataset` over the tag protocol, and a corpus or a retrieval server.

    Attributes:
        corpus: JSONL file of passages (`read_corpus`), searched by BM25.
        retriever: a server with Search-R1's `/retrieve`, instead of a corpus.
        protocol: "tags", or "search-r1" for Search-R1's own prompt, messages and parsing of turns.
        top_k: passages in an observation.
        language: language of the stemmer and the stop words for corpus and queries; "none" for neither.
        description: description of the environment for the LLM that proposes; null: its tags and
            what a search returns, "": none, as in INSPO.
    """

    kind: Literal["search"] = "search"
    corpus: Path | None = None
    retriever: RemoteOptions | None = None
    protocol: ProtocolName = "tags"
    top_k: int = 3
    language: Language = "english"
    description: str | None = None

    def __post_init__(self) -> None:
        sources = [name for name in ("corpus", "retriever") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(
                f"environment has {' and '.join(sources) or 'neither corpus nor retriever'}; expected "
                "corpus: a JSONL file of passages, or retriever: {url: …}, one of the two"
            )
        if self.top_k < 1:
            raise ValueError(f"environment.top_k is {self.top_k}; expected at least 1")


def search_environment(
    options: SearchOptions, tasks: Tasks | None, retriever: Retriever | None = None
) -> SearchEnvironment:
    """Build the environment of a run file over the tasks of its `dataset`; exact match scores.

    A retrieval server is not contacted yet.

    Args:
        tasks: the tasks of each split, each with its accepted answers.
        retriever: replaces that of the options.

    Raises:
        ConfigError: a task has no answer, or the corpus cannot be read; names file and line.
    """
    instruction = SEARCH_R1_INSTRUCTION
    if options.protocol == "search-r1":
        # Exactly as in Search-R1's data, which its checkpoints were trained on.
        instruction = instruction.replace(" as you want.", " as your want.")
    environment = SearchEnvironment(
        {split: [_prepare(task) for task in rows] for split, rows in (tasks or {}).items()},
        retriever or _build_retriever(options),
        instruction,
        exact_match,
        options.top_k,
        options.protocol,
    )
    if options.description is not None:
        environment.description = options.description
    return environment


def _prepare(task: Task) -> Task:
    """Return a task of the user's data, which must have an answer."""
    if not task.answers:
        raise without_answer(task)
    # In the data sets of FlashRAG, and so in Search-R1's, this column holds whole passages.
    columns = {name: value for name, value in task.columns.items() if name != "metadata"}
    return replace(task, columns=columns)


def _build_retriever(options: SearchOptions) -> Retriever:
    """Return the client of the server, or the indexed corpus."""
    if options.retriever is not None:
        return RemoteRetriever(options.retriever, options.protocol)
    assert options.corpus is not None
    # Imported here so that reading a run file does not load an index library.
    from cotune.retrieval.bm25 import BM25Retriever

    corpus = read_corpus(options.corpus)
    passages = [format_passage(contents, options.protocol) for contents in corpus]
    indexed = [join_for_index(*split_contents(contents), _TITLE_WEIGHT) for contents in corpus]
    return BM25Retriever(passages, indexed, options.language)


KIND = EnvironmentKind(options=SearchOptions, build=search_environment, dataset="required")
