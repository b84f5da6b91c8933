"""An index of a corpus, built once on disk and memory-mapped.

A folder holds `manifest.json`, `offsets.npy` (the byte at which each passage's line starts in the
corpus) and `ranking/`, the files of bm25s or faiss. Passages are read from the corpus itself, so
neither they nor the index's arrays have to fit in memory. No file is a pickle.
"""

import json
import mmap
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np

from cotune.data.corpus import (
    STYLES,
    Document,
    Language,
    corpus_rows,
    indexed_text,
    parse_passage,
)
from cotune.errors import ConfigError
from cotune.retrieval.dense import Encoder, EncoderOptions, model_identity
from cotune.run.json_files import write_json_atomic
from cotune.utils.files import sha256_of
from cotune.utils.text import named

SCHEMA_VERSION = 1
Kind = Literal["bm25", "dense"]
_MANIFEST, _OFFSETS, _RANKING = "manifest.json", "offsets.npy", "ranking"
_FIELD = "--corpus"


class Ranker(Protocol):
    """Rank the rows of a corpus for queries: `BM25Ranker` or `DenseRanker`."""

    count: int

    def rank(self, queries: Sequence[str], top_k: int) -> list[list[tuple[int, float]]]: ...


TITLE_WEIGHT = 3
"""How often a title is repeated before its text in an index for BM25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """The options of an index.

    Attributes:
        kind: "bm25", or "dense" for a sentence-transformers model and faiss.
        title_weight: BM25 only; how often a title is repeated before its text.
        language: BM25 only; None is English for a new index, and that of an index that is opened.
        encoder: dense only; the model.
    """

    kind: Kind = "bm25"
    title_weight: int = TITLE_WEIGHT
    language: Language | None = None
    encoder: EncoderOptions = field(default_factory=EncoderOptions)


class CorpusFile:
    """The passages of a corpus by row, read from its memory-mapped file.

    Args:
        path: the JSONL file; it must not change while it is open.
        offsets: the byte at which each passage's line starts.
    """

    def __init__(self, path: Path, offsets: Any) -> None:
        self._path, self._offsets = path, offsets
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def document(self, row: int, score: float | None = None) -> Document:
        """Return the passage of a row."""
        start = int(self._offsets[row])
        end = self._bytes.find(b"\n", start)
        line = self._bytes[start : end if end >= 0 else len(self._bytes)]
        where = f"{_FIELD}: {self._path}, byte {start}"
        found = parse_passage(line.decode("utf-8-sig"), where, str(row))
        return Document(found.id, found.contents, score)

    def __iter__(self) -> Iterator[Document]:
        return map(self.document, range(len(self)))


class StoredIndex:
    """A `Retriever` over an index folder. Can be used by several threads at once.

    Args:
        corpus: the passages.
        ranker: ranks the rows of the corpus.
        manifest: the contents of `manifest.json`.
    """

    def __init__(
        self,
        corpus: CorpusFile,
        ranker: Ranker,
        manifest: dict[str, Any],
    ) -> None:
        self._corpus, self._ranker, self.manifest = corpus, ranker, manifest

    def __len__(self) -> int:
        return len(self._corpus)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """Return the passages of each query as text, best first, at most `top_k`."""
        return [STYLES["cotune"](found) for found in self.documents(queries, top_k)]

    def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """Return the documents of each query with scores, best first, at most `top_k`.

        With BM25 a query that shares no term with the corpus finds nothing.
        """
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; expected at least 1")
        distinct = list(dict.fromkeys(queries))
        if not distinct:
            return []
        ranked = dict(zip(distinct, self._ranker.rank(distinct, top_k), strict=True))
        # Many queries find the same passages: each is read once.
        wanted = {row for rows in ranked.values() for row, _ in rows}
        read = {row: self._corpus.document(row) for row in wanted}
        found = {
            query: [replace(read[row], score=score) for row, score in rows]
            for query, rows in ranked.items()
        }
        return [list(found[query]) for query in queries]


def default_folder(corpus: Path, kind: Kind) -> Path:
    """Return the folder beside the corpus: wiki.jsonl has its index in wiki.jsonl.bm25."""
    return Path(f"{corpus}.{kind}")


def build_index(
    corpus: Path,
    folder: Path,
    options: IndexOptions,
    progress: Callable[[int, int], None] = lambda done, count: None,
) -> None:
    """Index a corpus into a new folder; it appears complete or not at all.

    Args:
        corpus: the JSONL file (`read_corpus`).
        folder: the new folder; it must not exist.
        options: how the corpus is indexed.
        progress: called with the number of passages done and their total.

    Raises:
        ConfigError: the corpus has an error (names file and line), the folder exists or cannot be
            written, or the model cannot be loaded.
    """
    if folder.exists():
        raise ConfigError(f"--folder: {folder} exists already; delete it or name another")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A unique name: process ids may be equal in two containers.
        outer = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise _unwritable(folder, error) from error
    staged = outer / "index"  # with the usual permissions, unlike mkdtemp's folder
    try:
        staged.mkdir()
        manifest = _write_index(corpus, staged, options, progress)
        write_json_atomic(staged / _MANIFEST, manifest)
        if folder.exists():
            raise ConfigError(
                f"--folder: {folder} was built by another process meanwhile; run again to use it"
            )
        os.rename(staged, folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--folder: cannot write {folder} ({error.strerror or error}); name another")


def _write_index(
    corpus: Path, folder: Path, options: IndexOptions, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Write all files except the manifest, which is returned."""
    # Check the whole file first: encoding a large corpus takes hours.
    offsets = array("q", (offset for offset, _ in corpus_rows(corpus, _FIELD)))
    np.save(folder / _OFFSETS, np.frombuffer(offsets, dtype=np.int64), allow_pickle=False)
    passages, count = CorpusFile(corpus, offsets), len(offsets)
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": options.kind,
        "count": count,
        "corpus": _identity(corpus),
    }
    if options.kind == "bm25":
        from cotune.retrieval.bm25 import write_bm25

        weight, language = options.title_weight, options.language or "english"
        texts = (indexed_text(d.title, d.text, weight) for d in _counted(passages, progress))
        write_bm25(texts, folder / _RANKING, language)
        return {**manifest, "title_weight": weight, "language": language}
    from cotune.retrieval.dense import write_dense

    encoder = Encoder(options.encoder)
    write_dense(
        (d.contents for d in passages),
        folder / _RANKING,
        encoder,
        lambda done: progress(done, count),
    )
    prefixes = {"query_prefix": encoder.query_prefix, "passage_prefix": encoder.passage_prefix}
    return {**manifest, **model_identity(options.encoder.model), **prefixes}


def _counted(passages: CorpusFile, progress: Callable[[int, int], None]) -> Iterator[Document]:
    for done, document in enumerate(passages, 1):
        yield document
        if done % 10_000 == 0 or done == len(passages):
            progress(done, len(passages))


def open_index(folder: Path, corpus: Path, options: IndexOptions) -> StoredIndex:
    """Open an index that `build_index` built from this corpus with these options.

    Raises:
        ConfigError: it is not an index, is damaged, or was built from another corpus or with other
            options.
    """
    manifest = _read_manifest(folder)
    _check_options(folder, manifest, options)
    _check_corpus(folder, manifest, corpus)
    try:
        offsets = np.load(folder / _OFFSETS, mmap_mode="r", allow_pickle=False)
        ranker = _open_ranker(folder / _RANKING, manifest, options)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = named(error)
        raise _damaged(folder, reason) from error
    count = manifest.get("count")
    if not len(offsets) == ranker.count == count:
        raise _damaged(folder, f"{len(offsets)} offsets and {ranker.count} rows for {count}")
    return StoredIndex(CorpusFile(corpus, offsets), ranker, manifest)


def _open_ranker(folder: Path, manifest: dict[str, Any], options: IndexOptions) -> Ranker:
    if options.kind == "bm25":
        from cotune.retrieval.bm25 import BM25Ranker

        return BM25Ranker(folder, language_of(manifest))
    from cotune.retrieval.dense import DenseRanker

    prefixes = {name: str(manifest[name]) for name in ("query_prefix", "passage_prefix")}
    return DenseRanker(folder, Encoder(EncoderOptions(**{**asdict(options.encoder), **prefixes})))


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: Any = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--folder: {folder} is not an index ({_MANIFEST}: {error.strerror}); name another"
        ) from error
    except ValueError as error:
        raise _damaged(folder, f"{_MANIFEST} is not JSON") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise _damaged(folder, f"schema_version {version!r}; expected {SCHEMA_VERSION}")
    return manifest


def language_of(manifest: Mapping[str, Any]) -> Language:
    """Return the language of a BM25 index."""
    language = manifest.get("language")
    if language not in get_args(Language):
        raise ValueError(f"language {language!r}")
    return cast(Language, language)


def _check_options(folder: Path, manifest: dict[str, Any], options: IndexOptions) -> None:
    """Raise ConfigError if an index was built with other options."""
    encoder = options.encoder
    asked: dict[str, object] = {"kind": options.kind}
    if options.kind == "bm25":
        asked["title_weight"] = options.title_weight
        if options.language is not None:
            asked["language"] = options.language
    else:
        asked |= model_identity(encoder.model)
        given = {"query_prefix": encoder.query_prefix, "passage_prefix": encoder.passage_prefix}
        asked |= {name: prefix for name, prefix in given.items() if prefix is not None}
    for name, value in asked.items():
        if manifest.get(name) != value:
            raise ConfigError(
                f"--folder: {folder} was built with {name} {manifest.get(name)!r}, not {value!r}; "
                "use that value, delete the folder or name another"
            )


def _check_corpus(folder: Path, manifest: dict[str, Any], corpus: Path) -> None:
    """Raise ConfigError if the corpus has changed; compare its hash only if its mtime differs."""
    was = manifest.get("corpus")
    try:
        stat = corpus.stat()
    except OSError as error:
        raise ConfigError(
            f"{_FIELD}: cannot read {corpus} ({error.strerror}); name a JSONL file"
        ) from error
    if not isinstance(was, dict):
        raise _damaged(folder, "no corpus in its manifest")
    same = was.get("bytes") == stat.st_size and (
        was.get("mtime_ns") == stat.st_mtime_ns or was.get("sha256") == sha256_of(corpus)
    )
    if not same:
        raise ConfigError(
            f"--folder: {folder} was built from another corpus than {corpus} ({was.get('name')}, "
            f"{was.get('bytes')} bytes); delete the folder or name another"
        )


def _identity(corpus: Path) -> dict[str, Any]:
    stat = corpus.stat()
    return {
        "name": corpus.name,
        "bytes": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "sha256": sha256_of(corpus),
    }


def _damaged(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"--folder: {folder} holds no usable index ({reason}); delete it to build it again"
    )
