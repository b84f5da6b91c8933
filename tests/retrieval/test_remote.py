"""The client of a retrieval server, against servers that misbehave in every way."""

import socket
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cotune.data.corpus import format_passage
from cotune.environments.search import SEARCH_R1_INSTRUCTION, SearchEnvironment
from cotune.errors import ConfigError, RetrievalError
from cotune.retrieval import remote
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever
from cotune.rewards import exact_match
from cotune.rollout.episode import new_episodes, run_episodes
from cotune.rollout.metrics import trajectory_metrics
from cotune.types import Assignment, Limits, Prompt, Sampling, Task, Trajectory
from tests.retrieval.raw_server import Answer, RawServer, as_json, body, found, head, raw_server
from tests.scripted import CharacterCodec, ScriptedSampler


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No attempt waits for the one before; these are the seconds that it would have."""
    seconds: list[float] = []
    monkeypatch.setattr(remote, "sleep", seconds.append)
    return seconds


def retriever(
    server: RawServer | str, protocol: str = "tags", retries: int = 0, **options: Any
) -> RemoteRetriever:
    url = server if isinstance(server, str) else server.url
    return RemoteRetriever(RemoteOptions(url=url, **options), protocol, retries=retries)


def test_passages_and_their_two_written_forms() -> None:
    with raw_server(found) as server:
        ours, theirs = retriever(server), retriever(server, "search-r1")
        assert ours.search(["a"], 2) == [['(Title: "a") text 0', '(Title: "a") text 1']]
        assert theirs.search(["a"], 2) == [['(Title: "a") text 0', '(Title: "a") text 1']]
        assert format_passage("one line", "search-r1") == "(Title: one line) "
        assert format_passage("one line", "tags") == "one line"
    assert server.asked[0] == {"queries": ["a"], "topk": 2, "return_scores": True}


def test_equal_queries_are_sent_once() -> None:
    with raw_server(found) as server:
        queries = [f"q{i % 3}" for i in range(7)]
        expected = [[f'(Title: "{query}") text 0'] for query in queries]
        assert retriever(server).search(queries, 1) == expected
    assert [request["queries"] for request in server.asked] == [["q0", "q1", "q2"]]


def test_what_a_model_writes_and_a_server_sends_is_data() -> None:
    query = 'a"}], "topk": 9\r\nHost: x\x00\x1b[31m \ud800 '
    reply = {"result": [[{"document": {"contents": text}} for text in ("\ud800 x", "b")]]}
    with raw_server(as_json(reply)) as server:
        assert retriever(server).search([query], 1) == [["? x"]]
    assert server.asked == [
        {"queries": [query.replace("\ud800", "?")], "topk": 1, "return_scores": True}
    ]


def test_no_query_makes_no_request() -> None:
    assert retriever("http://127.0.0.1:1/retrieve").search([], 3) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "JSONDecodeError: the reply begins b''; expected"),
        (b"[" * 100_000, "RecursionError"),
        (b"null", "begins b'null'; expected"),
        (b"[[]]", "expected"),
        (b'{"result": {}}', "0 results for 1 queries"),
        (b'{"result": [[], []]}', "2 results for 1 queries"),
        (b'{"result": [7]}', "expected"),
        (b'{"result": [[{"document": 3}]]}', "expected"),
        (b'{"result": [[{"document": {"contents": null}}]]}', "expected"),
        (b'{"result": [[{"document": {"contents": "' + b"x" * 9999 + b'"}}, 1]]}', "expected"),
    ],
)
def test_garbage_is_one_line(data: bytes, message: str) -> None:
    with raw_server(body(data)) as server, pytest.raises(RetrievalError) as caught:
        retriever(server, retries=3).search(["a"], 2)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert len(server.asked) == 1  # the same would come again


def test_overload_is_tried_again_after_waits_that_double(waits: list[float]) -> None:
    overloaded = body(b"", "429 Too Many Requests")
    with raw_server(body(b"oops", "500 Oops"), overloaded, body(b"", "503 No"), found) as server:
        client = retriever(server, retries=3)
        assert client.search(["a"], 1) == [['(Title: "a") text 0']]
    assert waits == [0.5, 1, 2]
    assert len(server.asked) == 4


def half(connection: socket.socket, _: dict[str, Any]) -> None:
    connection.sendall(head("200 OK", "Content-Length: 1000") + b'{"result": [')


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (body(b"", "500 Oops"), "status 500"),
        (half, "RemoteProtocolError"),
    ],
)
def test_what_does_not_get_better_ends_after_the_retries(
    answer: Answer, message: str, waits: list[float]
) -> None:
    with raw_server(answer) as server:
        client = retriever(server, retries=8)
        with pytest.raises(RetrievalError, match=rf"{message}.*, in 9 attempt\(s\)"):
            client.search(["a", "b"], 1)
    assert len(server.asked) == 9
    assert waits[-2:] == [30.0, 30.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (body(b"", "302 Found", "Location: http://127.0.0.1:1/"), "redirects are not followed"),
        (body(b"", "404 Not Found"), r"status 404 \(is the address right"),
    ],
)
def test_what_is_final_is_not_tried_again(answer: Answer, message: str) -> None:
    with raw_server(answer) as server, pytest.raises(RetrievalError, match=message):
        retriever(server, retries=3).search(["a"], 1)
    assert len(server.asked) == 1


def test_nobody_listens() -> None:
    with raw_server(found) as server:
        retriever(server).check()
    assert server.asked == [{"queries": ["test"], "topk": 1, "return_scores": True}]
    client = retriever(server, retries=1)
    with pytest.raises(RetrievalError, match=r"ConnectError: .* in 2 attempt"):
        client.search(["a"], 1)
    with pytest.raises(ConfigError, match=r"environment\.retriever\.url: .*; start the server"):
        client.check()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", head("200 OK") + b'{"result": '])
def test_a_silent_server_ends_by_the_timeout(sent: bytes) -> None:
    def stall(connection: socket.socket, _: dict[str, Any]) -> None:
        connection.sendall(sent)
        server.over.wait()

    with raw_server(stall) as server:
        with pytest.raises(RetrievalError, match=r"no reply within 0\.2 s, in 2 attempt"):
            retriever(server, timeout_s=0.2, retries=1).search(["a"], 1)
        server.over.set()


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_server(as_json([])) as proxy, raw_server(found) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/retrieve"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        retriever(server).search(["a"], 1)
        assert not proxy.asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://x/retrieve"}, "not of the form"),
        ({"url": "http://me:secret@x/retrieve"}, "not of the form"),
        ({"url": "http://x/retrieve?key=secret"}, "not of the form"),
        ({"url": "http://x/", "timeout_s": 0}, "timeout_s is 0"),
        ({"url": "http://x/", "timeout_s": float("nan")}, "timeout_s is nan"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        TypeAdapter(RemoteOptions).validate_python(options)
    assert "secret" not in str(caught.value.errors()[0]["msg"])


def roll_out(client: RemoteRetriever) -> list[Trajectory]:
    """Four episodes, each of one search and the answer "Norway"."""
    tasks = [Task(f"t{i}", f"Where is Oslo, {i}?", ("Norway",)) for i in range(4)]
    environment = SearchEnvironment(
        {"train": tasks}, client, SEARCH_R1_INSTRUCTION, exact_match, top_k=1
    )
    prompt = Prompt(SEARCH_R1_INSTRUCTION)
    codec = CharacterCodec()
    episodes = new_episodes(
        [Assignment(task, prompt, prompt, "i0", 0) for task in tasks],
        environment,
        codec,
        Limits(turns=3, turn_tokens=200),
    )
    turns = ["<search> Oslo </search>", "<answer> Norway </answer>"]
    return run_episodes(episodes, environment, ScriptedSampler(codec, turns).open(Sampling()))


def test_a_batch_goes_on_where_its_searches_fail() -> None:
    with raw_server(body(b"", "500 Oops")) as server:
        client = retriever(server, retries=1)
        failed = roll_out(client)
    for trajectory in failed:
        search, answer = trajectory.turns
        assert search.error.startswith("search failed: RetrievalError: the retrieval server http:")
        assert "The search failed; nothing was retrieved." in search.observation
        assert (answer.action, trajectory.answer) == ("answer", "Norway")
    assert len(server.asked) == 2  # one query, since all ask the same; and its retry
    assert trajectory_metrics(failed, 2)["turn_error_share"] == 1
    with raw_server(found) as server:
        assert trajectory_metrics(roll_out(retriever(server)), 2)["turn_error_share"] == 0
