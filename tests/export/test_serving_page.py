"""docs/how-to/serving.md: what it shows is what the folder does."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from cotune.export.export import export
from tests.docs.sources import DOCS, blocks
from tests.export.finished import INSTRUCTION
from tests.export.test_export import full_run

PAGE = DOCS / "how-to" / "serving.md"
QUESTION = "What is 59 + 6 - 8?"


@pytest.fixture
def folder(cwd: Path) -> Path:
    """The page's folders, as a finished run leaves them."""
    run, _ = full_run(cwd)
    best = export(run.path)
    for name in ("ladder-inspo", "x"):
        (cwd / "runs" / name).mkdir(parents=True)
        (cwd / "runs" / name / "best").symlink_to(best)
    return best


class Recorded:
    """Stands for the OpenAI client: takes what would be sent."""

    def __init__(self, **_: Any) -> None:
        self.chat = self.completions = self
        self.requests: list[dict[str, Any]] = []

    def create(self, **request: Any) -> None:
        self.requests.append(request)


def render(folder: str, request: dict[str, Any], template: str | None = None) -> str:
    """As vLLM renders a request; tests/policy/test_chat_template.py has what it takes for arguments."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    arguments = request.get("extra_body", {}).get("chat_template_kwargs", {})
    return tokenizer.apply_chat_template(
        request["messages"], chat_template=template, tokenize=False, add_generation_prompt=True, **arguments
    )  # fmt: skip


def test_the_serve_line_renders_the_instruction(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = shlex.split(next(block for block in blocks(PAGE, "sh") if "best --override" in block))
    assert line[:2] == ["vllm", "serve"]
    client_code = [block for block in blocks(PAGE, "python") if "completions" in block]
    recorded = Recorded()
    monkeypatch.setattr("openai.OpenAI", lambda **_: recorded)
    exec(compile("\n".join(client_code), "serving.md", "exec"), {})
    default, plain, replaced = recorded.requests
    assert default["model"] == line[2]
    assert f"{INSTRUCTION}\n\nQuestion: {QUESTION}<" in render(line[2], default)
    assert f">Question: {QUESTION}<" in render(line[2], plain)
    assert f">Answer in one word.\n\nQuestion: {QUESTION}<" in render(line[2], replaced)


def test_an_adapters_serve_line_names_its_template(folder: Path) -> None:
    line = shlex.split(next(block for block in blocks(PAGE, "sh") if "--enable-lora" in block))
    template = Path(line[line.index("--chat-template") + 1]).read_text(encoding="utf-8")
    request = {"messages": [{"role": "user", "content": QUESTION}]}
    assert INSTRUCTION in render("runs/x/best", request, template)
    assert line[line.index("--lora-modules") + 1] == "policy=runs/x/best"


def test_the_transformers_snippet_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in blocks(PAGE, "python") if "AutoModelForCausalLM" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "serving.md", "exec"), names)
    assert 0 < len(names["written"]) <= 24


def test_the_files_are_those_of_the_folder(folder: Path) -> None:
    rows = re.findall(r"^- (`.*?): ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert {path.name for path in folder.iterdir()} == names - {"hint.txt"}
