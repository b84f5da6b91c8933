import os
from pathlib import Path

from cotune.run.json_files import write_output


def test_an_output_goes_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    real, link, pipe = (tmp_path / name for name in ("real.json", "link.json", "pipe"))
    link.symlink_to(real)
    write_output(link, "{}")
    assert link.is_symlink()
    assert real.read_text() == "{}"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "né")
    assert os.read(reader, 99) == "né".encode()
    os.close(reader)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "pipe", "real.json"]
