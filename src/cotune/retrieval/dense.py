"""Dense retrieval: `sentence-transformers` encodes passages, `faiss` searches their unit vectors."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError

DEFAULT_MODEL = "intfloat/e5-base-v2"
"""The encoder of Search-R1."""

_FILE = "vectors.faiss"
_CHUNK = 4096
_CONFIGURATIONS = ("config.json", "modules.json")
_SAMPLE = 2**20  # bytes
_BGE_QUERY = "Represent this sentence for searching relevant passages: "


_TOGETHER = 64  # texts in one forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """The model of a dense index.

    Attributes:
        model: a name of the Hugging Face hub or a folder.
        query_prefix, passage_prefix: put before each text; None takes the model's own prompts or,
            if it has none, guesses them from its name (`guessed_prefixes`).
        device: "cpu", "cuda", …; None is a GPU if there is one.
    """

    model: str = DEFAULT_MODEL
    query_prefix: str | None = None
    passage_prefix: str | None = None
    device: str | None = None


def guessed_prefixes(model: str) -> tuple[str, str]:
    """Return the prefixes of queries and passages that a model's card asks for, by its name.

    "query: " and "passage: " for E5, except its instruction-tuned models; a sentence before
    queries for the English BGE v1 and v1.5; "" for others.
    """
    name = Path(model).name.lower()
    if "e5" in name.replace("_", "-").split("-") and "instruct" not in name:
        return "query: ", "passage: "
    if name.startswith("bge-") and "-en" in name:
        return _BGE_QUERY, ""
    return "", ""


def model_identity(model: str) -> dict[str, str | None]:
    """Return what identifies a model in an index's manifest.

    Returns:
        `model`: its name on the hub, or the resolved folder. `model_sha256`: a hash of a folder's
        configuration files and of the names, sizes and last bytes of its weights; None for a name.
    """
    folder = Path(model)
    if not folder.is_dir():
        return {"model": model, "model_sha256": None}
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name in _CONFIGURATIONS:
            digest.update(f"{name}\n".encode() + path.read_bytes())
        elif path.suffix in (".safetensors", ".bin"):
            size = path.stat().st_size
            with path.open("rb") as file:  # further training changes bytes, but no sizes
                file.seek(max(0, size - _SAMPLE))
                digest.update(f"{name} {size}\n".encode() + file.read())
    return {"model": str(folder.resolve()), "model_sha256": digest.hexdigest()}


class Encoder:
    """Encode texts as unit vectors, with the model's own pooling, or mean pooling if it has none.

    Raises:
        ConfigError: the model cannot be loaded.
    """

    def __init__(self, options: EncoderOptions) -> None:
        from sentence_transformers import SentenceTransformer

        try:
            self._model = SentenceTransformer(options.model, device=options.device)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"--model: {options.model} cannot be loaded ({type(error).__name__}: {reason}); "
                "name a sentence-transformers model or its folder"
            ) from error
        own: dict[str, str] = getattr(self._model, "prompts", None) or {}
        query, passage = guessed_prefixes(options.model)
        query = own.get("query") or query
        passage = own.get("passage") or own.get("document") or passage
        self.query_prefix = query if options.query_prefix is None else options.query_prefix
        self.passage_prefix = passage if options.passage_prefix is None else options.passage_prefix

    def queries(self, texts: Sequence[str]) -> Any:
        """Return float32 vectors (queries, dimensions), each of norm 1."""
        return self._encode([self.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Any:
        """Return float32 vectors (passages, dimensions), each of norm 1."""
        return self._encode([self.passage_prefix + text for text in texts])

    def _encode(self, texts: list[str]) -> Any:
        # prompt="": the model's default prompt must not be added to ours.
        vectors = self._model.encode(
            texts,
            prompt="",
            batch_size=_TOGETHER,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return vectors.astype("float32", copy=False)


class DenseRanker:
    """Rank the rows of an index that `write_dense` wrote, by exact inner product.

    The vectors stay on disk, memory-mapped.

    Raises:
        RuntimeError: the folder holds no such index.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        import faiss

        self._encoder = encoder
        # IO_FLAG_MMAP would map only inverted lists, not a flat index.
        self._index = faiss.read_index(str(folder / _FILE), faiss.IO_FLAG_MMAP_IFC)
        self.count = int(self._index.ntotal)

    def rank(self, queries: Sequence[str], top_k: int) -> list[list[tuple[int, float]]]:
        """Return row and score of the `top_k` best passages of each query, best first."""
        vectors = self._encoder.queries(queries)
        if vectors.shape[1] != self._index.d:
            raise ConfigError(
                f"--model: gives {vectors.shape[1]} dimensions, the index has {self._index.d}; "
                "name the model that the index was built with"
            )
        scores, rows = self._index.search(vectors, min(top_k, self.count))
        return [
            [(row, score) for row, score in zip(*pair, strict=True) if row >= 0]
            for pair in zip(rows.tolist(), scores.tolist(), strict=True)
        ]


def write_dense(
    texts: Iterable[str], folder: Path, encoder: Encoder, progress: Callable[[int], None]
) -> None:
    """Encode texts into a flat index; building it takes 4 bytes of memory per dimension and text.

    `progress` is called with the number of texts done.
    """
    import faiss

    folder.mkdir()
    index: Any = None
    rest = iter(texts)
    while chunk := list(islice(rest, _CHUNK)):
        vectors = encoder.passages(chunk)
        if index is None:
            index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        progress(index.ntotal)
    faiss.write_index(index, str(folder / _FILE))
