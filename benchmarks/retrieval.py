"""Measure the cost of an index on disk, and of a server compared with the same index in process.

    python benchmarks/retrieval.py --passages 18000 200000
    python benchmarks/retrieval.py --index dense --model MODEL --passages 18000

Passages have about 100 words (`--words`) drawn by Zipf's law, like those of Search-R1's Wikipedia dump;
queries are six words of a passage. For each size an index is built in a separate process, then searched
alternately in this process and through `cotune serve-retriever` and `RemoteRetriever` on loopback, with
batches of 512 queries, top 3. Rates are medians; compare only those of the same run.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from cotune.retrieval.dense import EncoderOptions
from cotune.retrieval.index import IndexOptions, build_index, open_index
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever

_VOCABULARY, _TOP_K = 200_000, 3


def write_corpus(path: Path, count: int, length: int) -> None:
    draw = np.random.default_rng(7)
    with path.open("w", encoding="utf-8") as file:
        for i in range(count):
            words = [f"w{w}" for w in np.minimum(draw.zipf(1.3, length), _VOCABULARY)]
            text = f'"{words[0]} {words[1]} {i}"\n{" ".join(words)}'
            file.write(json.dumps({"id": str(i), "contents": text}) + "\n")


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


def rate(search: Callable[[list[str]], object], queries: list[str]) -> float:
    started = time.perf_counter()
    search(queries)
    return len(queries) / (time.perf_counter() - started)


def measure(
    count: int, options: IndexOptions, length: int, repeats: int, batch: int, folder: Path
) -> str:
    corpus, index = folder / "corpus.jsonl", folder / "index"
    write_corpus(corpus, count, length)
    seconds, peak = build(corpus, index, options)
    disk = sum(path.stat().st_size for path in index.rglob("*") if path.is_file()) / 2**20
    arguments = ["--corpus", corpus, "--folder", index, "--port", "0", "--index", options.kind]
    if options.kind == "dense":
        arguments += ["--model", options.encoder.model]
    command = [sys.executable, "-m", "cotune", "serve-retriever", *map(str, arguments)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = next(row for row in server.stdout if row.startswith("serving "))
        url = line.split(" on ")[1].split(";")[0]
        start = memory(server.pid)
        inside = open_index(index, corpus, options)
        remote = RemoteRetriever(RemoteOptions(url=url, batch_size=batch, timeout_s=600))
        rows = batches(corpus, repeats + 1, batch)
        if inside.search(rows[0], _TOP_K) != remote.search(rows[0], _TOP_K):  # and warms both up
            raise SystemExit("server and process disagree")
        pairs = [
            (
                rate(lambda q: inside.search(q, _TOP_K), some),
                rate(lambda q: remote.search(q, _TOP_K), some),
            )
            for some in rows[1:]
        ]
        after = memory(server.pid)
    finally:
        server.terminate()
        server.wait()
    here, there = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    size = corpus.stat().st_size / 2**20
    return (
        f"| {options.kind} | {count} | {size:.0f} | {seconds:.0f} | {peak:.0f} | {disk:.0f} | "
        f"{start['RssAnon']:.0f} / {start['RssFile']:.0f} | "
        f"{after['RssAnon']:.0f} / {after['RssFile']:.0f} | {here:.0f} | {there:.0f} | {ratio:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=[18_000, 200_000])
    parser.add_argument("--words", type=int, default=100, help="words of a passage, at least six")
    parser.add_argument("--index", choices=["bm25", "dense"], default="bm25")
    parser.add_argument("--model", default="intfloat/e5-base-v2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    options = IndexOptions(kind=args.index, encoder=EncoderOptions(model=args.model))
    used = ["bm25s", "fastapi", "uvicorn", "httpx"]
    used += ["sentence-transformers", "faiss-cpu", "torch"] if args.index == "dense" else []
    versions = ", ".join(f"{name} {version(name)}" for name in used)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
    )
    print(
        "| index | passages | corpus MiB | build CPU s | build peak MiB | index MiB | server MiB, "
        "own / mapped | after searching | in process, queries/s | server, queries/s | ratio |"
    )
    print("| --- |" + " ---: |" * 10, flush=True)
    for count in args.passages:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(count, options, args.words, args.repeats, args.batch, Path(folder))
            print(row, flush=True)


if __name__ == "__main__":
    main()
