"""Measure the cost of an index on disk, and of a server compared with the same index in process.

    python benchmarks/retrieval.py --passages 18000 200000
    python benchmarks/retrieval.py --world
    python benchmarks/retrieval.py --index dense --model MODEL --passages 18000

Passages have about 100 words (`--words`) drawn by Zipf's law, like those of Search-R1's Wikipedia dump;
queries are six words of a passage. `--world` takes the corpus and the questions of the bundled world
`geo` instead. For each size an index is built in a separate process, then searched, top 3, alternately in
this process and through `cotune serve-retriever` and `RemoteRetriever` on loopback: in batches of 512
(`--batch`), in batches of 32, and one by one from 16 clients in parallel. All questions differ.

Rates are questions per CPU second of the process that searches: this one, or the server, whose threads
share at most one core. So they depend neither on the clients nor on other load on the machine.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from cotune.retrieval.dense import EncoderOptions
from cotune.retrieval.index import IndexOptions, build_index, open_index
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever
from cotune.worlds.geo import STRATA, GeoWorld

_VOCABULARY, _TOP_K = 200_000, 3
_SMALL, _CLIENTS = 32, 16


def write_corpus(path: Path, count: int, length: int) -> None:
    draw = np.random.default_rng(7)
    with path.open("w", encoding="utf-8") as file:
        for i in range(count):
            words = [f"w{w}" for w in np.minimum(draw.zipf(1.3, length), _VOCABULARY)]
            text = f'"{words[0]} {words[1]} {i}"\n{" ".join(words)}'
            file.write(json.dumps({"id": str(i), "contents": text}) + "\n")


def write_world(path: Path, count: int) -> list[str]:
    """Write the corpus of the world `geo`; return this many of its questions."""
    world = GeoWorld()
    with path.open("w", encoding="utf-8") as file:
        for title, text in zip(world.titles, world.documents, strict=True):
            file.write(json.dumps({"title": title, "text": text}) + "\n")
    return [q.text for q in world.questions(count, "train", dict.fromkeys(STRATA, 1.0), seed=3)]


def batches(path: Path, count: int, size: int) -> list[list[str]]:
    """Return batches of queries made of a passage's distinct words, without those of its title."""
    draw = np.random.default_rng(11)
    with path.open(encoding="utf-8") as file:
        lines = [line for _, line in zip(range(5000), file, strict=False)]
    found: list[list[str]] = []
    for _ in range(count):
        rows = draw.choice(len(lines), size, replace=False)
        words = [json.loads(lines[row])["contents"].split()[3:] for row in rows]
        found.append([" ".join(draw.choice(sorted(set(some)), 6)) for some in words])
    return found


def build(corpus: Path, folder: Path, options: IndexOptions) -> tuple[float, float]:
    """Return CPU seconds and peak MiB of a process that builds the index."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            build_index(corpus, folder, options)
            status = 0
        finally:
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit("the index was not built")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**10


def memory(pid: int) -> dict[str, float]:
    """Return MiB of a process: its own, and of mapped file pages (which the kernel can drop)."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(rows[name].split()[0]) / 2**10 for name in ("RssAnon", "RssFile")}


def server_seconds(pid: int) -> float:
    """Return a process's CPU seconds so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_by_one(remote: RemoteRetriever, queries: Sequence[str]) -> None:
    """Ask each question on its own, from this many clients at a time; each waits for its last reply."""
    waiting = iter(queries)

    async def client() -> None:
        for query in waiting:
            await remote.asearch([query], _TOP_K)

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(_CLIENTS)))

    asyncio.run(clients())


def in_batches(search: Callable[[list[str], int], object], queries: list[str], size: int) -> None:
    for start in range(0, len(queries), size):
        search(queries[start : start + size], _TOP_K)


def measure(corpus: Path, rows: list[list[str]], options: IndexOptions) -> str:
    """Return a row of the table; the first batch of queries warms up."""
    index, batch = corpus.with_name("index"), len(rows[0])
    seconds, peak = build(corpus, index, options)
    disk = sum(path.stat().st_size for path in index.rglob("*") if path.is_file()) / 2**20
    arguments = ["--corpus", corpus, "--folder", index, "--port", "0", "--index", options.kind]
    if options.kind == "dense":
        arguments += ["--model", options.encoder.model]
    elif options.language is not None:
        arguments += ["--language", options.language]
    command = [sys.executable, "-m", "cotune", "serve-retriever", *map(str, arguments)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = next(row for row in server.stdout if row.startswith("serving "))
        url = line.split(" on ")[1].split(";")[0]
        start = memory(server.pid)
        inside = open_index(index, corpus, options)
        remote = RemoteRetriever(RemoteOptions(url=url, batch_size=batch, timeout_s=600))
        if inside.search(rows[0], _TOP_K) != remote.search(rows[0], _TOP_K):
            raise SystemExit("server and process disagree")
        ways: list[tuple[Callable[[], float], Callable[[list[str]], None]]] = [
            (time.process_time, lambda some: in_batches(inside.search, some, _SMALL)),
            *(
                (lambda: server_seconds(server.pid), ask)
                for ask in (
                    lambda some: in_batches(remote.search, some, batch),
                    lambda some: in_batches(remote.search, some, _SMALL),
                    lambda some: one_by_one(remote, some),
                )
            ),
        ]
        spent = [0.0] * len(ways)
        for some in rows[1:]:
            for way, (clock, ask) in enumerate(ways):
                begun = clock()
                ask(some)
                spent[way] += clock() - begun
        after = memory(server.pid)
    finally:
        server.terminate()
        server.wait()
    size = corpus.stat().st_size / 2**20
    rates = " | ".join(f"{batch * (len(rows) - 1) / used:.0f}" for used in spent)
    return (
        f"| {options.kind} | {len(inside)} | {size:.0f} | {seconds:.0f} | {peak:.0f} | {disk:.0f} | "
        f"{start['RssAnon']:.0f} / {start['RssFile']:.0f} | "
        f"{after['RssAnon']:.0f} / {after['RssFile']:.0f} | {rates} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=[18_000, 200_000])
    parser.add_argument("--world", action="store_true", help="the corpus of the world geo instead")
    parser.add_argument("--words", type=int, default=100, help="words of a passage, at least six")
    parser.add_argument("--index", choices=["bm25", "dense"], default="bm25")
    parser.add_argument("--model", default="intfloat/e5-base-v2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    # The world's names are indexed as they are, as in a run.
    language = "none" if args.world and args.index == "bm25" else None
    options = IndexOptions(
        kind=args.index, language=language, encoder=EncoderOptions(model=args.model)
    )
    used = ["bm25s", "fastapi", "uvicorn", "httpx"]
    used += ["sentence-transformers", "faiss-cpu", "torch"] if args.index == "dense" else []
    versions = ", ".join(f"{name} {version(name)}" for name in used)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
    )
    print(
        "| index | passages | corpus MiB | build CPU s | build peak MiB | index MiB | server MiB, "
        f"own / mapped | after searching | in process, by {_SMALL} | server, by {args.batch} | "
        f"by {_SMALL} | one by one, {_CLIENTS} clients |"
    )
    print("| --- |" + " ---: |" * 11, flush=True)
    for count in [0] if args.world else args.passages:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder, "corpus.jsonl")
            if args.world:
                queries = write_world(corpus, (args.repeats + 1) * args.batch)
                rows = [queries[i :: args.repeats + 1] for i in range(args.repeats + 1)]
            else:
                write_corpus(corpus, count, args.words)
                rows = batches(corpus, args.repeats + 1, args.batch)
            print(measure(corpus, rows, options), flush=True)


if __name__ == "__main__":
    main()
