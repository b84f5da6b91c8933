"""The model card of a run's best policy: README.md of `best/`, of an export, of a repository.

Texts of models and of the run file cannot end their block or become a tag, a link or a heading.
"""

import json
import re
from pathlib import Path
from shlex import quote

import yaml
from huggingface_hub import ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from cotune.config.run_file import RunConfig, ScriptRun
from cotune.export.serving import Format, Serving, read_result
from cotune.policy.policy_files import is_local
from cotune.run.json_files import Row, write_atomic
from cotune.run.run_dir import RunDir
from cotune.utils.text import printable

_PROPOSERS = {
    "rules": "cotune's offline rules",
    "bank": "a bank of written texts, not an LLM",
    "python": "the author's own LLM",
    "openai": "",  # its model's name
}
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_SCORES = {
    "em": "trained, best instruction",
    "em_initial_instruction": "trained, initial instruction",
    "em_with_hint": "trained, best instruction and hint",
    "em_before": "before training, initial instruction",
}
_WEIGHTS = {
    "full": "Weights",
    "adapter": "A LoRA adapter",
    "merged": "Weights with a LoRA adapter merged in",
}


def hub_id(path: str) -> str:
    """Return a run file's `policy.path` if it is a repository of the hub; "" for a local policy."""
    return path if _HUB_ID.fullmatch(path) and not is_local(path) else ""


def base_name(path: str) -> str:
    """Return the name of the model that a policy was trained from, without its place on this machine."""
    if hub_id(path) or path.startswith("bundled:"):
        return path
    return Path(path).resolve().name if path else "a model without a name"


def write_card(
    folder: Path, config: RunConfig, run: RunDir, serving: Serving, kind: Format
) -> None:
    """Replace README.md in a folder with the run's model card.

    Args:
        folder: the folder that it describes.
        config: the run file.
        run: the finished run.
        serving: how the policy was evaluated.
        kind: what the folder holds.
    """
    summary, chosen = read_result(run)
    (arm,) = summary["arms"].values()
    front = ModelCardData(
        base_model=hub_id(config.policy.path) or None,
        library_name="peft" if kind == "adapter" else "transformers",
        pipeline_tag="text-generation",
        tags=["cotune", "grpo", config.strategy.kind],
        model_name=re.sub(r"\W+", "-", config.name).strip("-") or "run",
    )
    # It is Markdown: texts are escaped by `inline` and `code_block`.
    templates = Environment(
        loader=PackageLoader("cotune.export", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "inline": inline,
        "block": code_block,
        "code": lambda text: f"<code>{inline(text)}</code>",
    }
    card = templates.get_template("card.md.j2").render(
        front=front.to_yaml(),
        config=config,
        proposers=_PROPOSERS,
        chosen=chosen,
        serving=serving,
        arm=arm,
        weights=_WEIGHTS[kind],
        base=base_name(config.policy.path),
        scores=_score_table(arm),
        command=_serve_command(config, folder, kind),
        trained_by="cotune.JointTrainer" if isinstance(config, ScriptRun) else "cotune train",
        settings=_settings(run.read_config()),
    )
    write_atomic(folder / "README.md", card)


def _score_table(arm: Row) -> str:
    """Return a table of scores, all questions, then each stratum; "" without test questions."""
    names = [name for name in _SCORES if arm.get(name) is not None]
    if not names:
        return ""
    rows = [["test questions", *(_SCORES[name] for name in names)], ["---", *["---:"] * len(names)]]
    rows.append([f"all {arm['em_n']:,}", *(f"{arm[name]:.3f}" for name in names)])
    for stratum in arm.get("em_by_stratum") or {}:
        scores = [arm[f"{name}_by_stratum"].get(stratum) for name in names]
        rows.append([inline(stratum), *("" if s is None else f"{s:.3f}" for s in scores)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _serve_command(config: RunConfig, adapter: Path, kind: Format) -> str:
    folder = "path/to/this/folder"
    greedy = """--override-generation-config '{"temperature": 0}'"""
    if kind != "adapter":
        return f"vllm serve {folder} {greedy}"
    path = config.policy.path
    rank = json.loads((adapter / "adapter_config.json").read_bytes())["r"]
    weights = hub_id(path) or f"path/to/{base_name(path).removeprefix('bundled:')}"
    return (
        f"vllm serve {quote(weights)} {greedy} --enable-lora --max-lora-rank {rank} \\\n"
        f"  --lora-modules policy={folder} --chat-template {folder}/chat_template.jinja"
    )


def _settings(config: Row) -> str:
    """Return the part of run.yaml that says how it was trained, without what is private."""
    del config["training"]["engine_args"]
    names = ("seed", "strategy", "training", "limits")
    settings = {name: config[name] for name in names} | {"lora": config["policy"].get("lora")}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()


def inline(text: str) -> str:
    """Return text for a line or a table's cell; possible syntax becomes character references."""
    line = " ".join(printable(" ".join(text.split())).split())
    safe = " /,-();'%" + ("" if "www." in line.lower() else ".")
    # A colon before a space ends neither a URL's scheme nor an emoji's name.
    parts = (
        "".join(c if c.isalnum() or c in safe else f"&#{ord(c)};" for c in part)
        for part in line.split(": ")
    )
    return ": ".join(parts)


def code_block(text: str, language: str = "text") -> str:
    """Return a code block around a text, its fence longer than any run of backticks in it.

    Control characters and bidirectional marks are left out.
    """
    line = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{line}\n{fence}"
