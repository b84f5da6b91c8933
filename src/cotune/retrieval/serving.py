"""What `cotune serve-retriever` does."""

import os
import time
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cotune.errors import ConfigError, Stopped
from cotune.retrieval.dense import DEFAULT_MODEL, EncoderOptions
from cotune.retrieval.index import (
    IndexOptions,
    StoredIndex,
    build_index,
    default_folder,
    open_index,
)

_EXTRAS = {
    "retrieval-server": ("fastapi", "uvicorn"),
    "dense": ("sentence_transformers", "faiss"),
}


def serve_retriever(
    corpus: Path,
    folder: Path | None,
    options: IndexOptions,
    console: Console,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    top_k: int = 3,
) -> None:
    """Serves an index of a corpus, built first where it is not there, until a signal ends it.

    Args:
        corpus: the JSONL file (`read_corpus`).
        folder: the index; None is `default_folder`.
        options: how the corpus is indexed.
        console: where to show.
        host, port: the address; port 0 takes a free one.
        top_k: passages of a query where a request does not say.

    Raises:
        ConfigError: a fault of the corpus, the index, the address or what is installed.
        Stopped: Ctrl-C.
    """
    require("retrieval-server", "cotune serve-retriever")
    if options.kind == "dense":
        require("dense", "--index dense")
    from cotune.retrieval.server import BACKLOG, ServerLimits, create_app, reserve, serve

    limits = ServerLimits()
    if not 1 <= top_k <= limits.top_k:
        raise ConfigError(f"--topk is {top_k}; expected 1 to {limits.top_k}")
    try:
        with reserve(host, port) as listening:
            index = _index(corpus, folder or default_folder(corpus, options.kind), options, console)
            listening.listen(BACKLOG)  # from here on requests wait and are not refused
            shown = f"[{host}]" if ":" in host else host
            console.print(
                f"serving {len(index)} passages ({options.kind}) on "
                f"http://{shown}:{listening.getsockname()[1]}/retrieve; Ctrl-C ends it",
                markup=False,
                soft_wrap=True,
                highlight=False,
            )
            serve(create_app(index, top_k, limits), listening)
    except KeyboardInterrupt:
        raise Stopped("stopped") from None


def index_options(
    kind: str,
    title_weight: int,
    model: str | None,
    query_prefix: str | None,
    passage_prefix: str | None,
) -> IndexOptions:
    """Options of the command line.

    Raises:
        ConfigError: an unknown kind, or an option of a dense index for another.
    """
    if kind == "dense":
        encoder = EncoderOptions(
            model=model or DEFAULT_MODEL, query_prefix=query_prefix, passage_prefix=passage_prefix
        )
        return IndexOptions(kind="dense", encoder=encoder)
    if kind != "bm25":
        raise ConfigError(f"--index is {kind!r}; expected bm25 or dense")
    given = {"model": model, "query-prefix": query_prefix, "passage-prefix": passage_prefix}
    names = ", ".join(f"--{name}" for name, value in given.items() if value is not None)
    if names:
        raise ConfigError(f"{names}: only for --index dense; add that or drop it")
    return IndexOptions(title_weight=title_weight)


def require(extra: str, what: str) -> None:
    """ConfigError with the pip command where a package of an extra is not installed."""
    lacking = [name for name in _EXTRAS[extra] if find_spec(name) is None]
    if lacking:
        raise ConfigError(
            f"{what} needs {' and '.join(lacking)}, not installed; pip install 'cotune[{extra}]'"
        )


def _index(corpus: Path, folder: Path, options: IndexOptions, console: Console) -> StoredIndex:
    """The index of a folder, built where there is none."""
    if options.kind == "dense":
        _quiet_transformers()
    if not folder.exists():
        started = time.monotonic()
        console.print(f"indexing {escape(str(corpus))} into {escape(str(folder))}", soft_wrap=True)
        with console.status("reading") as status:
            build_index(
                corpus,
                folder,
                options,
                lambda done, count: status.update(f"{done} of {count} passages"),
            )
        console.print(f"indexed in {time.monotonic() - started:.0f} s", highlight=False)
    return open_index(folder, corpus, options)


def _quiet_transformers() -> None:
    """No bar for each file of a model; read when the library is imported."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
