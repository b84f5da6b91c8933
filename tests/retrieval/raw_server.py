"""A server that answers a connection by a function of its socket: any way a server can misbehave."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[[socket.socket, dict[str, Any]], None]
"""Writes to a connection what it answers to a request's JSON; the connection is closed after it."""


@dataclass
class RawServer:
    """`url` takes requests; `asked` holds those that came; `over` is set when the test is."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def raw_server(*answers: Answer) -> Iterator[RawServer]:
    """Each connection is answered by the next of `answers`, those beyond by the last one."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = RawServer(f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve")
    lock, threads = threading.Lock(), list[threading.Thread]()

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head, request = _read(connection)
            with lock:
                answer = answers[min(len(server.asked), len(answers) - 1)]
                server.asked.append(request)
                server.heads.append(head)
            answer(connection, request)

    def accept() -> None:
        while True:
            connection, _ = listening.accept()
            if server.over.is_set():
                connection.close()
                return
            threads.append(threading.Thread(target=one, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        server.over.set()
        socket.create_connection(listening.getsockname()).close()
        for thread in [accepting, *threads]:
            thread.join()
        listening.close()


def _read(connection: socket.socket) -> tuple[str, dict[str, Any]]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    while len(body) < int(fields[b"content-length"]):
        body += _received(connection)
    return head.decode().lower(), json.loads(body)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(2**16)
    if not data:
        raise ConnectionError("the client is gone")
    return data


def head(status: str, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *fields, "", ""]).encode()


def body(data: bytes, status: str = "200 OK", *fields: str) -> Answer:
    """Answers by these bytes."""
    sent = head(status, f"Content-Length: {len(data)}", *fields) + data
    return lambda connection, _: connection.sendall(sent)


def as_json(value: object) -> Answer:
    return body(json.dumps(value).encode())


def found(connection: socket.socket, request: dict[str, Any]) -> None:
    """Answers as Search-R1's server does, with documents that name their query."""
    rows = [
        [
            {"document": {"id": f"{q}-{i}", "contents": f'"{q}"\ntext {i}'}, "score": 2.0 - i}
            for i in range(request["topk"])
        ]
        for q in request["queries"]
    ]
    as_json({"result": rows})(connection, request)
