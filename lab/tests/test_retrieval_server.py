"""The retrieval server answers as Search-R1's does."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cotune_lab.retrieval_server import Index, create_app, read_documents

ROWS = [
    {"id": "0", "contents": '"Oslo"\nOslo is the capital of Norway.'},
    {"id": 7, "title": "Bergen", "text": "Bergen lies between seven mountains."},
    {"contents": "A fjord is an inlet."},
]


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return TestClient(create_app(Index(read_documents(corpus)), top_k=3))


def test_documents_come_in_search_r1s_form(client: TestClient) -> None:
    queries = ["capital of Norway", "mountain", "zebra"]
    body = {"queries": queries, "topk": 2, "return_scores": True}
    oslo, bergen, nothing = client.post("/retrieve", json=body).json()["result"]
    assert oslo[0]["score"] > 0
    contents = '"Bergen"\nBergen lies between seven mountains.'
    assert bergen[0]["document"] == {"id": "7", "contents": contents}
    assert nothing == []
    plain = client.post("/retrieve", json={"queries": ["fjord"]}).json()
    assert plain == {"result": [[{"id": "2", "contents": "A fjord is an inlet."}]]}


def test_a_request_is_checked(client: TestClient) -> None:
    assert client.post("/retrieve", json={"queries": []}).json() == {"result": []}
    assert client.post("/retrieve", json={"queries": "Oslo"}).status_code == 422
    assert client.post("/retrieve", json={"queries": ["Oslo"], "topk": 101}).status_code == 422
