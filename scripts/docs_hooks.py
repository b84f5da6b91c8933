"""mkdocs hooks that add the pages generated from the code."""

from typing import Any

import reference  # in this folder, which mkdocs puts on the path while it loads hooks
from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: Any) -> Files:
    """Add the reference pages."""
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    return files
