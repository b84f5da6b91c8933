"""A Hugging Face hub on this machine's loopback: what an upload to a model repository needs of it."""

import base64
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_write_token_of_the_test"


@dataclass
class Repository:
    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass
class Hub:
    """Its requests and repositories.

    Attributes:
        address: its endpoint.
        repositories: by "owner/name".
        writable: owners that the token may write for.
        requests: method, path and body of each, in order.
        broken: a status with which every commit is answered; 0 for none.
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict[str, Repository])
    writable: tuple[str, ...] = ("me",)
    requests: list[tuple[str, str, bytes]] = field(default_factory=list[tuple[str, str, bytes]])
    broken: int = 0
    large: dict[str, bytes] = field(default_factory=dict[str, bytes])


@contextmanager
def running_hub() -> Generator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.split("?")[0].removeprefix("/api/models/")
        if self._read() is None:
            return
        name, _, tree = name.partition("/tree/")
        if tree and name in self.hub.repositories:
            files = self.hub.repositories[name].files.items()
            fields = [{"path": path, "size": len(content), "oid": "0"} for path, content in files]
            self._answer(200, [{"type": "file", **each} for each in fields])
            return
        if name not in self.hub.repositories:
            self._answer(404, {"error": "Repository not found"})
            return
        repository = self.hub.repositories[name]
        self._answer(
            200,
            {
                "id": name,
                "modelId": name,
                "private": repository.private,
                "siblings": [{"rfilename": file} for file in repository.files],
            },
        )

    def do_PUT(self) -> None:
        # As on the hub, the address itself allows it: no token is sent.
        body = self._body()
        self.hub.large[self.path.rpartition("/")[2]] = body
        self._answer(200, {})

    def do_POST(self) -> None:
        body = self._read()
        if body is None:
            return
        path = self.path.split("?")[0]
        if path == "/api/repos/create":
            self._create(json.loads(body))
            return
        if path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
            return
        if path == "/verified":
            self._answer(200, {})
            return
        if path.endswith(".git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
            return
        if "/preupload/" in path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
            return
        if "/commit/" in path:
            self._commit(path.removeprefix("/api/models/").partition("/commit/")[0], body)
            return
        self._answer(404, {"error": f"no such endpoint: {path}"})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        address = {"url": f"{self.hub.address}/{name}"}
        if asked["organization"] not in self.hub.writable:
            self._answer(403, {"error": "You don't have the rights to create a model here"})
            return
        if name in self.hub.repositories:
            self._answer(409, {"error": "You already created this model repo", **address})
            return
        self.hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        self._answer(200, address)

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = [
            {
                **wanted,
                "authenticated": True,
                "actions": {
                    "upload": {"href": f"{self.hub.address}/large/{wanted['oid']}"},
                    "verify": {"href": f"{self.hub.address}/verified"},
                },
            }
            for wanted in asked["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, name: str, body: bytes) -> None:
        if self.hub.broken:
            self._answer(self.hub.broken, {"error": "the disk is full"})
            return
        files = self.hub.repositories[name].files
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        address = f"{self.hub.address}/{name}/commit/{'a' * 40}"
        self._answer(200, {"success": True, "commitOid": "a" * 40, "commitUrl": address})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append((self.command, self.path, body))
        return body

    def _read(self) -> bytes | None:
        """The body of a request with the right token; answers others itself."""
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
            return None
        return body

    def _answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
