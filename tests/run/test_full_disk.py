import errno
import shutil
from pathlib import Path

import pytest

from cotune.errors import ConfigError, EngineError, Stopped
from cotune.run.full_disk import full_disk_explained, nearly_full


def free(path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(path)._replace(free=count)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "a.jsonl"),
        OSError(errno.EDQUOT, "Quota exceeded", "a.jsonl"),
        RuntimeError("PytorchStreamWriter failed writing file data/3"),
        EngineError("the actor died: No space left on device"),
    ],
)
def test_an_error_of_a_full_disk_is_one_line_with_what_to_do(
    error: Exception, tmp_path: Path
) -> None:
    folder = tmp_path / "not" / "there"
    with (
        pytest.raises(ConfigError, match=r"could not be written.*make room, then: do it") as told,
        full_disk_explained(folder, lambda: "do it"),
    ):
        raise error
    assert "\n" not in str(told.value)
    assert str(folder) in str(told.value)


@pytest.mark.parametrize("error", [ConfigError("a"), Stopped("b"), EngineError("c")])
def test_our_own_errors_pass_even_on_a_full_disk(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(tmp_path, 0, monkeypatch)
    assert nearly_full(tmp_path)
    with pytest.raises(type(error)) as passed, full_disk_explained(tmp_path):
        raise error
    assert passed.value is error


def test_any_other_error_is_blamed_on_the_disk_only_if_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(tmp_path, 2**31, monkeypatch)
    with pytest.raises(KeyError), full_disk_explained(tmp_path):
        raise KeyError("a")
    free(tmp_path, 1000, monkeypatch)
    with pytest.raises(ConfigError, match="the command failed"), full_disk_explained(tmp_path):
        raise KeyError("a")
