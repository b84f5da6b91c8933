"""The model card: its figures are the run's, and no text of a model is Markdown or HTML in it."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from cotune.export.export import complete_best
from cotune.run.run_dir import RunDir
from tests.export.finished import finished_run
from tests.export.test_complete import tokenizer_of, world

HOSTILE = (
    "<script>alert(1)</script> ![x](http://a/b.png) [link](http://a) # heading\n"
    "````\n</code></pre><img src=x onerror=y>\n```\n---\nlicense: mit\n---\n| a | b |\n| - | - |\n"
    "`````text\n\x1b[31mred\u202edet \r\n\x00"
)


def complete(folder: Path, kind: str = "geo", hint: str = "", **changes: Any) -> tuple[RunDir, str]:
    instruction = changes.pop("text", HOSTILE)
    raw = world(kind, folder, **changes)
    run, config = finished_run(raw, tokenizer_of("bundled:geo"), instruction=instruction, hint=hint)
    complete_best(config, run)
    return run, (run.best_path / "README.md").read_text(encoding="utf-8")


def parse_card(card: str) -> tuple[dict[str, Any], list[Token]]:
    """The front matter, and the tokens that a Markdown reader finds in the rest."""
    _, front, body = card.split("---\n", 2)
    return yaml.safe_load(front), MarkdownIt("commonmark").parse(body)


def test_texts_of_a_model_are_one_block_each_and_nothing_else(tmp_path: Path) -> None:
    _, card = complete(tmp_path, hint=HOSTILE + "hint")
    front, tokens = parse_card(card)
    assert front["pipeline_tag"] == "text-generation"
    fences = [token for token in tokens if token.type == "fence"]
    blocks = [token.content for token in fences if "<script>" in token.content]
    assert [text.endswith("hint\n") for text in blocks] == [False, True]
    assert (
        blocks[0]
        == HOSTILE.replace("\r\n", "\n").translate({0: None, 0x1B: None, 0x202E: None}) + "\n"
    )
    inlines = [child for token in tokens for child in token.children or ()]
    tags = {t.content for t in (*tokens, *inlines) if t.type in ("html_inline", "html_block")}
    assert tags <= {"<code>", "</code>"}
    assert not [token for token in inlines if token.type == "image"]
    links = {token.attrs["href"] for token in inlines if token.type == "link_open"}
    assert not links
    headings = [
        heading.content for token, heading in pairwise(tokens) if token.tag == "h2"
        and token.nesting == 1
    ]  # fmt: skip
    assert headings == ["Results", "Instruction", "Serving", "Method"]


def test_it_holds_the_results_and_the_settings_that_are_not_private(tmp_path: Path) -> None:
    name = "*my* <b>run</b> [x](y) www.example.com\n# no"
    llm = {
        "kind": "openai",
        "model": "gpt-4o",
        "base_url": "http://10.0.0.7:8000/v1",
        "api_key_env": "MY_KEY",
    }
    strategy = {"kind": "inspo", "population_size": 7}
    training = {"steps": 9, "engine_args": {"logging_dir": str(tmp_path)}}
    changes = {"name": name, "llm": llm, "strategy": strategy, "training": training}
    _, card = complete(tmp_path, hint="Count twice.", **changes)
    front, tokens = parse_card(card)
    assert (
        """
- trained, best instruction: 0.500
- trained, initial instruction: 0.375
- trained, best instruction and hint: 0.750
- before training, initial instruction: 0.250

Exact match of one greedy rollout for each of 40 test questions. 95 % interval of the first figure: 0.352 to 0.648.
"""
        in card
    )
    assert "A hint that helped in training" in card

    assert front["tags"] == ["cotune", "grpo", "inspo"]
    settings = yaml.safe_load(
        next(t.content for t in tokens if t.type == "fence" and t.info == "yaml")
    )
    assert (settings["strategy"]["population_size"], settings["training"]["steps"]) == (7, 9)
    assert "Proposer: gpt-4o." in card
    for private in ("10.0.0.7", "MY_KEY", str(tmp_path)):
        assert private not in card

    # A name is text, of which no reader makes a link.
    title = tokens[tokens.index(next(t for t in tokens if t.tag == "h1")) + 1]
    assert "".join(child.content for child in title.children or ()) == " ".join(name.split())
    assert {child.type for child in title.children or ()} <= {"text", "text_special"}
    assert "www.example" not in card


def test_how_to_serve_names_stops_and_tools(tmp_path: Path) -> None:
    _, card = complete(tmp_path, kind="tools", text="Use them.")
    assert "tools <code>look&#95;up</code>" in card
    assert "A turn ended at" not in card
    _, card = complete(tmp_path / "geo")
    assert "A turn ended at <code>&#60;/search&#62;</code>, <code>&#60;/answer&#62;</code>" in card


def test_an_empty_instruction_is_named_as_none(tmp_path: Path) -> None:
    _, card = complete(tmp_path, kind="single_turn", text="")
    assert "Mean reward of one greedy rollout for each of 40 test questions." in card
    assert "None: it was trained and evaluated on the questions only." in card
