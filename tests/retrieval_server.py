"""A server with Search-R1's `/retrieve` on loopback that answers by a function."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def server(find: Callable[[str], list[str]]) -> Iterator[str]:
    """The address to post queries to while it answers.

    Args:
        find: the `contents` of the passages of a query.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            result = [
                [{"document": {"id": "0", "contents": text}, "score": 1.0} for text in found]
                for found in (find(query)[: request["topk"]] for query in request["queries"])
            ]
            sent = json.dumps({"result": result}).encode()
            self.send_response(200 if self.path == "/retrieve" else 404)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}/retrieve"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
