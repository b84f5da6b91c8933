"""Replies of a retrieval server: bytes that somebody else wrote, to documents."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cotune.data.documents import Document, join_contents


def read_reply(data: bytes, queries: int, top_k: int) -> list[list[Document]]:
    """The documents of each query.

    Read are Search-R1's `{"result": [[{"document": {"id", "contents"}, "score"}, …], …]}`, the same
    without scores (`[[{"id", "contents"}, …], …]`), and either list without the object around it. A
    document may have `title` and `text` in place of `contents`; one without `id` has the id "".
    Documents beyond `top_k` are dropped.

    Raises:
        ValueError: anything else, or not one list for each of `queries` queries; one short line.
    """
    try:
        reply: object = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the reply is not JSON ({type(error).__name__})") from error
    if isinstance(reply, dict):
        reply = cast("dict[str, object]", reply).get("result")
    if not isinstance(reply, list):
        raise ValueError('the reply has no list "result"')
    rows = cast("list[object]", reply)
    if len(rows) != queries:
        raise ValueError(f"the reply has {len(rows)} results for {queries} queries")
    return [_row(row, number, top_k) for number, row in enumerate(rows)]


def _row(row: object, number: int, top_k: int) -> list[Document]:
    if not isinstance(row, list):
        raise ValueError(f"result {number} of the reply is no list of documents")
    items = cast("Sequence[object]", row)[:top_k]
    try:
        return [_document(item) for item in items]
    except ValueError as error:
        raise ValueError(f"result {number} of the reply: {error}") from error


def _document(item: object) -> Document:
    if not isinstance(item, dict):
        raise ValueError("a document is no object")
    outer = cast("Mapping[str, Any]", item)
    inner: object = outer.get("document", outer)
    if not isinstance(inner, dict):
        raise ValueError("a document is no object")
    fields = cast("Mapping[str, Any]", inner)
    score, id = outer.get("score"), fields.get("id", "")
    if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
        raise ValueError("a score is no number")
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise ValueError("an id is neither text nor integer")
    try:
        number = None if score is None else float(score)
    except OverflowError as error:
        raise ValueError("a score is no number") from error
    return Document(_clean(str(id)), _clean(_contents(fields)), number)


def _contents(fields: Mapping[str, Any]) -> str:
    contents = fields.get("contents")
    if isinstance(contents, str):
        return contents
    title, text = fields.get("title", ""), fields.get("text")
    if contents is None and isinstance(title, str) and isinstance(text, str):
        return join_contents(title, text)
    raise ValueError('a document has no text "contents"')


def _clean(text: str) -> str:
    """Without lone surrogates ("\\ud800"): legal JSON, but no tokenizer and no file takes them."""
    return text.encode("utf-8", "replace").decode()
