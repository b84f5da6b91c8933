"""Link files."""

import os
import shutil


def link_or_copy(source: str, target: str) -> None:
    """Link a file to a second name; copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
