from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from cotune.config.run_file import parse_config
from cotune.engines import joint
from cotune.errors import LLMError
from cotune.run.record import Record
from tests.run_files import tiny


def test_the_llm_is_made_on_the_first_rank_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text("class My:\n    def complete(self, prompt): return 'made'\n")
    config = parse_config(tiny(tmp_path / "out", {"llm": "my.py:My"}), "test")
    monkeypatch.setattr(joint, "build_strategy", MagicMock())

    def of(rank: int) -> joint.Parts:
        monkeypatch.setattr(joint, "world", lambda: SimpleNamespace(rank=rank))
        return joint.run_parts(config, MagicMock(), MagicMock(), None, record)

    record = Record()
    record.begin_attempt(None)
    assert of(0).llm.complete("?").text == "made"
    with pytest.raises(LLMError, match="this run has no LLM"):
        of(1).llm.complete("?")
