"""Hooks of mkdocs: the pages that are written from the code."""

from typing import Any

import reference  # of this folder, which mkdocs has on its path while it loads hooks
from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the reference pages."""
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    return files
