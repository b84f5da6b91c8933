import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.environments.search import read_corpus, split_contents
from cotune.errors import ConfigError

LINE = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1).filter(
    lambda s: s.strip() and not s.strip().startswith('"') and not s.strip().endswith('"')
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def file(text: str) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text(text, encoding="utf-8")
        return path

    return file


def test_a_corpus(write: Callable[[str], Path]):
    path = write(
        '\ufeff{"id": "0", "contents": "\\"Oslo\\"\\nThe capital.\\nOn a fjord."}\n'
        "\n"
        '{"contents": "Plain\\ntext", "extra": 1}\r\n'
        '{"title": " Bergen\\nby ", "text": "Rain."}\n'
        '{"contents": " No title. "}\n'
        '{"title": "", "text": "None\\neither."}'
    )
    assert [split_contents(contents) for contents in read_corpus(path)] == [
        ("Oslo", "The capital.\nOn a fjord."),
        ("Plain", "text"),
        ("Bergen by", "Rain."),
        ("", "No title."),
        ("", "None either."),
    ]


@given(st.lists(st.tuples(LINE, LINE), min_size=1, max_size=5))
def test_a_corpus_is_read_back(passages: list[tuple[str, str]]):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.jsonl"
        rows = [
            json.dumps({"id": i, "contents": f'"{t}"\n{x}'}) for i, (t, x) in enumerate(passages)
        ]
        path.write_text("\n".join(rows), encoding="utf-8")
        read_back = [split_contents(contents) for contents in read_corpus(path)]
        assert read_back == [(t.strip(), x.strip()) for t, x in passages]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"environment\.corpus: .*rows\.jsonl is empty; expected lines of"),
        ('{"contents": "a"}\nnonsense', r"rows\.jsonl, line 2: not JSON .*'nonsense'; put one"),
        ('"text"', """line 1: no object in braces: '"text"'; put one"""),
        ('{"id": 1, "text": "a"}', r'line 1: "contents" is missing, beside id, text; expected text, as in "contents"'),
        ('{"contents": 5}', r'line 1: "contents" is 5; expected text'),
        ('{"contents": " "}', r'"contents" is \' \'; expected text'),
        ("[" * 100_000, r"line 1: not JSON \(RecursionError"),
    ],
)  # fmt: skip
def test_a_bad_corpus_names_the_line(write: Callable[[str], Path], text: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        read_corpus(write(text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"environment\.corpus: cannot read .*none\.jsonl"):
        read_corpus(tmp_path / "none.jsonl")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"contents": "\xe9"}')
    with pytest.raises(ConfigError, match=r"latin\.jsonl \(UnicodeDecodeError"):
        read_corpus(latin)
