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
from tests.export.test_export import whole

PAGE = DOCS / "how-to" / "serving.md"
QUESTION = "What is 59 + 6 - 8?"


@pytest.fixture
def served(cwd: Path) -> Path:
    """The page's folders, as a finished run leaves them."""
    run, _ = whole(cwd)
    best = export(run.path)
    for name in ("ladder-inspo", "x"):
        (cwd / "runs" / name).mkdir(parents=True)
        (cwd / "runs" / name / "best").symlink_to(best)
    return best


class Recorded:
    """Stands for the OpenAI client: takes what would be sent."""

    def __init__(self, **_: Any) -> None:
        self.chat = self.completions = self
        self.sent: list[dict[str, Any]] = []

    def create(self, **request: Any) -> None:
        self.sent.append(request)


def rendered(folder: str, request: dict[str, Any], template: str | None = None) -> str:
    """As vLLM renders a request; tests/policy/test_chat_template.py has what it takes for arguments."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    arguments = request.get("extra_body", {}).get("chat_template_kwargs", {})
    return tokenizer.apply_chat_template(
        request["messages"], chat_template=template, tokenize=False, add_generation_prompt=True, **arguments
    )  # fmt: skip


def test_the_serve_line_renders_the_instruction(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = shlex.split(next(block for block in blocks(PAGE, "sh") if "best --override" in block))
    assert line[:2] == ["vllm", "serve"]
    client_code = [block for block in blocks(PAGE, "python") if "completions" in block]
    recorded = Recorded()
    monkeypatch.setattr("openai.OpenAI", lambda **_: recorded)
    exec(compile("\n".join(client_code), "serving.md", "exec"), {})
    asked, plain, other = recorded.sent
    assert asked["model"] == line[2]
    assert f"{INSTRUCTION}\n\nQuestion: {QUESTION}<" in rendered(line[2], asked)
    assert f">Question: {QUESTION}<" in rendered(line[2], plain)
    assert f">Answer in one word.\n\nQuestion: {QUESTION}<" in rendered(line[2], other)


def test_an_adapters_serve_line_names_its_template(served: Path) -> None:
    line = shlex.split(next(block for block in blocks(PAGE, "sh") if "--enable-lora" in block))
    template = Path(line[line.index("--chat-template") + 1]).read_text(encoding="utf-8")
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    assert INSTRUCTION in rendered("runs/x/best", asked, template)
    assert line[line.index("--lora-modules") + 1] == "policy=runs/x/best"


def test_the_transformers_snippet_runs(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in blocks(PAGE, "python") if "AutoModelForCausalLM" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "serving.md", "exec"), names)
    assert 0 < len(names["written"]) <= 24


def test_the_files_are_those_of_the_folder(served: Path) -> None:
    rows = re.findall(r"^- (`.*?): ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert {path.name for path in served.iterdir()} == named - {"hint.txt"}
