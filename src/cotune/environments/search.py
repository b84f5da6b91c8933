"""Question answering with a search engine over Search-R1's tags, as in INSPO's experiments (arXiv 2503.09516).

The policy writes `<think>`, `<search>` and `<answer>`, the environment `<information>`. The policy's text is data: it
is searched for tags and never compiled, formatted or evaluated.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from cotune.data.cells import list_names, plain_text
from cotune.data.rows import json_lines
from cotune.environments.base import PromptFormat, TaskEnvironment, without_answer
from cotune.environments.registry import EnvironmentKind, Tasks
from cotune.errors import ConfigError, RetrievalError
from cotune.protocols import Retriever
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever, format_passage
from cotune.rewards.qa import Reward, exact_match
from cotune.types import SEARCH_FAILED, Action, Response, Section, Task, Trajectory
from cotune.utils.text import encodable, named, shorten

SEARCH_R1_INSTRUCTION = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> "
    "query </search> and it will return the top searched results between <information> and </information>. You can "
    "search as many times as your want. If you find no further external knowledge needed, you can directly provide "
    "the answer inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing "
    "</answer>."
)
"""The initial instruction, to the letter as in Search-R1's data, which its checkpoints were trained on."""


_DESCRIPTION = (
    "The agent writes turn after turn. It may think inside <think> and </think>. A turn ends with "
    "one action: <search> query </search> asks the search engine, which returns the "
    "{} best passages for it between <information> and </information>; "
    "<answer> text </answer> gives the final answer and ends the episode. There is no other tool."
)
OUT_OF_TURNS = "out of turns"
_TITLE_WEIGHT = 3  # times that a passage's title is indexed before its text
_INFORMATION_TAG = re.compile(r"<(/?)information>")
# Looser than the parser: a passage must not even appear to close its block.
_FOREIGN_TAG = re.compile(r"<(?=[\s/]*(?:think|search|information|answer)\b)", re.IGNORECASE)
_CLOSING = re.compile(r"</(search|answer)>")

Language = Literal[
    "english", "danish", "dutch", "french", "german", "italian", "norwegian", "portuguese", "russian",
    "spanish", "swedish", "turkish", "none",
]  # fmt: skip
"""Languages that BM25 stems and has stop words of; "none" is neither."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The action of a turn: its query or answer, stripped, or why it is invalid, in a few words."""

    action: Literal["search", "answer", "invalid"]
    argument: str = ""
    error: str = ""


class TagProtocol:
    """The protocol as github.com/PeterGriffinJin/Search-R1 has it.

    It follows generation.py, qa_em.py and the data scripts there; docs/how-to/retrieval.md says where it differs on
    purpose: Search-R1 takes the last `<answer>` of prompt and response together, if there are two or more.
    """

    # One user message: the instruction, a space, "Question: ", the question and a line break.
    prompt_format: ClassVar[PromptFormat] = PromptFormat(
        question_prefix="Question: ", question_suffix="\n", separator=" "
    )
    block: ClassVar[str] = "\n\n<information>{}</information>\n\n"

    def phrase(self, task: Task) -> Task:
        """Return the task with a question mark at its end, as in Search-R1's data scripts."""
        question = task.question.strip()
        return replace(task, question=question if question.endswith("?") else f"{question}?")

    def parse(self, text: str) -> Parsed:
        """Parse the action of a turn: the first closing tag decides. Never raises.

        Text after that tag does not count. The argument starts at the first opening tag of the same
        name, and may be empty or hold other tags.
        """
        closing = _CLOSING.search(text)
        if closing is None:
            return Parsed("invalid", error="no action is closed")
        name = "search" if closing[1] == "search" else "answer"
        _, opening, argument = text[: closing.start()].partition(f"<{name}>")
        if not opening:
            return Parsed("invalid", error=f"stray </{name}>")
        return Parsed(name, argument.strip())

    def answer(self, turn_texts: Sequence[str]) -> str | None:
        """Return the final answer in an episode's turns, or None if it has none or more than one.

        It is the answer of the only turn with `<answer>` and `</answer>` outside forged blocks, if that turn is valid.
        An episode cannot hedge with several answers; an answer that was left unclosed may be repeated in a later turn.
        """
        texts = [without_forged(text) for text in turn_texts]
        closed = [text for text in texts if "<answer>" in text.rpartition("</answer>")[0]]
        if len(closed) != 1:
            return None
        parsed = self.parse(closed[0])
        return parsed.argument or None if parsed.action == "answer" else None

    def correction(self, error: str) -> str:
        """Return exactly the text that Search-R1's policies were trained on, which gives no error."""
        return (
            "\nMy previous action is invalid. If I want to search, I should put the query between "
            "<search> and </search>. If I want to give the final answer, I should put the answer "
            "between <answer> and </answer>. Let me try again.\n"
        )

    def information(self, passages: Sequence[str]) -> str:
        """Return the observation of a search: `Doc 1(Title: "Oslo") …`, one passage a line.

        A passage is `(Title: "Oslo") …`; an empty title is added if there is none.
        """
        titled = [p if p.startswith("(Title: ") else f"(Title: ) {p}" for p in passages]
        body = "\n".join(f"Doc {i}{escape(passage)}" for i, passage in enumerate(titled, 1))
        return self.block.format(body.strip())


def without_forged(text: str) -> str:
    """Cut `<information>` blocks out of a turn, nested ones included, unclosed ones to its end.

    A line break takes the place of each, so that the two sides cannot join to form a tag.
    """
    parts: list[str] = []
    depth = 0
    start = 0
    for tag in _INFORMATION_TAG.finditer(text):
        if depth == 0:
            parts.append(text[start : tag.start()])
        depth = max(depth - 1, 0) if tag[1] else depth + 1
        start = tag.end()
    if depth == 0:
        parts.append(text[start:])
    return "\n".join(parts)


def escape(passage: str) -> str:
    """Return a passage with its protocol tags made harmless."""
    return _FOREIGN_TAG.sub("‹", passage)


class SearchEnvironment(TaskEnvironment):
    """Questions that the policy answers with `<answer>` after searching with `<search>`; see also `TaskEnvironment`.

    Args:
        retriever: answers all searches of a batch in one call.
        reward: scores the final answer, or None, against a task's answers.
        top_k: passages in an observation, 1 or more.
    """

    stop = ("</search>", "</answer>")
    required = ("<search>", "</search>", "<answer>", "</answer>")
    protocol: ClassVar[TagProtocol] = TagProtocol()

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        retriever: Retriever,
        initial_instruction: str,
        reward: Reward,
        top_k: int = 3,
    ) -> None:
        super().__init__(self._phrase(tasks), initial_instruction, self.protocol.prompt_format)
        self.retriever = retriever
        # A class that answers in a way of its own says itself how many of its calls may overlap.
        if type(self).respond is SearchEnvironment.respond:
            self.parallel_responses = getattr(retriever, "parallel_searches", 0)
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
        phrase = self.protocol.phrase
        return {split: [phrase(task) for task in rows] for split, rows in tasks.items()}

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
            parsed = self.protocol.parse(action.text)
            responses.append(self._without_search(action, parsed))
            if responses[-1] is None:
                queries.append(parsed.argument)
        results = iter(self._retrieve(queries))
        return [next(results) if response is None else response for response in responses]

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the final answer in the policy's own text, and that answer."""
        answer = self.protocol.answer([turn.text for turn in trajectory.turns])
        return self._reward(answer, trajectory.task.answers), answer

    def _retrieve(self, queries: list[str]) -> list[Response]:
        """Return one response for each query; without queries the retriever is not called."""
        if not queries:
            return []
        try:
            passages = self.retriever.search(queries, self._top_k)
        except (OSError, RetrievalError) as error:
            # OSError includes TimeoutError and every connection error.
            observation = self.protocol.block.format("The search failed; nothing was retrieved.")
            reason = f"{SEARCH_FAILED}: {named(error, 180)}"
            return [Response(observation, action="search", error=reason)] * len(queries)
        if len(passages) != len(queries):
            raise ConfigError(
                f"{type(self.retriever).__name__}.search returned {len(passages)} lists for "
                f"{len(queries)} queries; expected one list of passages for each, in order"
            )
        return [Response(self.protocol.information(texts), action="search") for texts in passages]

    def _without_search(self, action: Action, parsed: Parsed) -> Response | None:
        """Respond to a turn for which nothing is searched; None for another one."""
        if parsed.action == "answer":
            return Response(done=True, action="answer")
        if action.last:
            error = parsed.error or OUT_OF_TURNS
            return Response(done=True, action=parsed.action, error=error)
        if parsed.action == "invalid":
            observation = self.protocol.correction(parsed.error)
            return Response(observation, action="invalid", error=parsed.error)
        if parsed.argument:
            return None
        # An empty query finds nothing.
        return Response(self.protocol.information(()), action="search", error="empty query")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Section):
    """The questions of `dataset` over Search-R1's tags, and a corpus or a retrieval server.

    Attributes:
        corpus: JSONL file of passages (`read_corpus`), searched by BM25.
        retriever: a server with Search-R1's `/retrieve`, instead of a corpus.
        top_k: passages in an observation.
        language: language of the stemmer and the stop words for corpus and queries; "none" for neither.
        description: description of the environment for the LLM that proposes; null: its tags and
            what a search returns, "": none, as in INSPO.
    """

    kind: Literal["search"] = "search"
    corpus: Path | None = None
    retriever: RemoteOptions | None = None
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


def search_environment(options: SearchOptions, tasks: Tasks | None) -> SearchEnvironment:
    """Build the environment of a run file over the tasks of its `dataset`; exact match scores.

    A retrieval server is not contacted yet.

    Args:
        tasks: the tasks of each split, each with its accepted answers.

    Raises:
        ConfigError: a task has no answer, or the corpus cannot be read; names file and line.
    """
    retriever: Retriever
    if options.retriever is not None:
        retriever = RemoteRetriever(options.retriever)
    else:
        assert options.corpus is not None
        # Imported here so that reading a run file does not load an index library.
        from cotune.retrieval.bm25 import BM25Retriever

        corpus = read_corpus(options.corpus)
        indexed = [join_for_index(*split_contents(contents)) for contents in corpus]
        retriever = BM25Retriever(list(map(format_passage, corpus)), indexed, options.language)
    prepared = {split: [_prepare(task) for task in rows] for split, rows in (tasks or {}).items()}
    environment = SearchEnvironment(
        prepared, retriever, SEARCH_R1_INSTRUCTION, exact_match, options.top_k
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


def split_contents(contents: str) -> tuple[str, str]:
    """Return the title, without its quotes, and the text; contents of one line have the title ""."""
    title, newline, text = contents.partition("\n")
    return (title.strip().strip('"').strip(), text.strip()) if newline else ("", title.strip())


def join_for_index(title: str, text: str) -> str:
    """Return the text that BM25 indexes: the title three times, then the passage's text."""
    return f"{(title + ' ') * _TITLE_WEIGHT}{text}"


def read_corpus(path: Path) -> list[str]:
    """Read the contents of each passage, in file order: a title in quotes, a line break, and the text.

    A line is `{"id": …, "contents": "\\"Title\\"\\ntext"}`, or has `title` and `text` instead of `contents`.
    Contents of one line have no title. Blank lines are skipped and other fields are ignored.

    Raises:
        ConfigError: the file does not exist, is empty or not JSON Lines, or `contents` is missing or blank.
    """
    field = "environment.corpus"
    passages: list[str] = []
    for place, row in json_lines(path, field):
        name = "text" if "contents" not in row and "title" in row else "contents"
        text = row.get(name)
        if not isinstance(text, str) or not text.strip():
            value = shorten(text) if name in row else f"missing, beside {list_names(row)}"
            raise ConfigError(
                f'{place}: "{name}" is {value}; expected text, as in "contents": "\\"Title\\"\\ntext"'
            )
        text = encodable(text.strip())
        if name == "text":
            title = " ".join(plain_text(row["title"]).split())
            text = f'"{title}"\n{text}' if title else " ".join(text.split("\n"))
        passages.append(text)
    if not passages:
        raise ConfigError(f'{field}: {path} is empty; expected lines of {{"id": …, "contents": …}}')
    return passages


KIND = EnvironmentKind(options=SearchOptions, build=search_environment, dataset="required")
