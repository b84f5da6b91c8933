"""Train INSPO with an endpoint that answers late, to see how long the run waits for it.

    python benchmarks/slow_endpoint.py --delay 6

The endpoint is a local server with the offline rules behind it. It is asked early (the default), then only when its
replies are due, and once without a delay. All three runs must have the same population.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cotune.errors import LLMError
from cotune.worlds.rules_llm import RulesLLM

RUN_FILE = Path(__file__).parents[1] / "configs" / "ladder-inspo.yaml"


def endpoint(delay: float) -> ThreadingHTTPServer:
    """Serve the offline rules, each reply `delay` seconds after its request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(delay)
            try:
                said = RulesLLM().complete(asked["messages"][-1]["content"]).text
            except LLMError:  # the first call, which asks for a word
                said = "OK"
            choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            body = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def trained(folder: Path, delay: float, at_once: int, steps: int) -> dict[str, Any]:
    """Run INSPO against such an endpoint; return what it waited, what was hidden, and its population."""
    server = endpoint(delay)
    llm = {
        "kind": "openai",
        "model": "rules",
        "base_url": f"http://127.0.0.1:{server.server_address[1]}/v1",
        "calls_at_once": at_once,
    }
    fields = {
        "output": folder, "llm": llm, "threads": 1, "training.steps": steps, "training.save_every": 0,
        "evaluation.every": 0, "environment.test": 10, "environment.validation": 10,
        "strategy.evolve_until": steps,
    }  # fmt: skip
    sets = [part for name, value in fields.items() for part in ("--set", f"{name}={_yaml(value)}")]
    command = [sys.executable, "-m", "cotune", "train", str(RUN_FILE), *sets]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OPENAI_API_KEY": "none"}
    )
    server.shutdown()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {
        **{
            name: sum(line.get(f"llm/{name}_seconds", 0) for line in lines)
            for name in ("waited", "hidden")
        },
        "born": [event["text"] for event in events if event["kind"] == "instruction_born"],
    }


def _yaml(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="How long a run waits for a slow endpoint.")
    parser.add_argument("--delay", type=float, default=6.0, help="seconds of each reply")
    parser.add_argument("--steps", type=int, default=24)
    given = parser.parse_args()
    print(
        "| endpoint | asked | waited, s | hidden behind other work, s |\n| --- | --- | ---: | ---: |"
    )
    born = []
    for delay, at_once in ((given.delay, 8), (given.delay, 0), (0.0, 8)):
        with tempfile.TemporaryDirectory() as folder:
            found = trained(Path(folder) / "run", delay, at_once, given.steps)
        asked = "early" if at_once else "where due"
        print(
            f"| {delay:g} s | {asked} | {found['waited']:.1f} | {found['hidden']:.1f} |", flush=True
        )
        born.append(found["born"])
    print(
        f"{len(born[0])} instructions, {'the same' if born[0] == born[1] == born[2] else 'NOT THE SAME'} in all"
    )
    sys.exit(not born[0] == born[1] == born[2])


if __name__ == "__main__":
    main()
