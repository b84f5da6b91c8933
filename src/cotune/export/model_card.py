"""The model card of a run's best policy: README.md of `best/`, of an export, of a repository.

Texts of models and of the run file cannot end their block or become a tag, a link or a heading.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import yaml
from huggingface_hub import ModelCardData

from cotune.config.run_file import RunConfig, ScriptRun
from cotune.export.serving import Format, Serving, best_choice, read_result
from cotune.policy.policy_files import is_local
from cotune.run.best import BestRecord
from cotune.run.json_files import Row, write_atomic
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH
from cotune.utils.text import printable

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
    (arm,) = read_result(run)["arms"].values()
    chosen = best_choice(folder)
    front = ModelCardData(
        base_model=hub_id(config.policy.path) or None,
        library_name="peft" if kind == "adapter" else "transformers",
        pipeline_tag="text-generation",
        tags=["cotune", "grpo", config.strategy.kind],
        model_name=re.sub(r"\W+", "-", config.name).strip("-") or "run",
    )
    base = inline(base_name(config.policy.path))
    trained_by = "cotune.JointTrainer" if isinstance(config, ScriptRun) else "cotune train"
    parts = [
        f"---\n{front.to_yaml()}\n---",
        f"# {inline(config.name) or 'run'}",
        f"{_WEIGHTS[kind]} of {base}, trained with cotune. {inline(chosen.statement())}.",
        "## Results",
        *_results(arm),
        "## Instruction",
        code_block(chosen.instruction)
        if chosen.instruction
        else "None: it was trained and evaluated on the questions only.",
        _place(chosen, serving),
        "A hint that helped in training; what it taught is in the weights:" * bool(chosen.hint),
        code_block(chosen.hint) if chosen.hint else "",
        "## Serving",
        code_block(_serve_command(config, folder, kind), "sh"),
        *_serving_notes(serving),
        "## Method",
        f"{inline(config.method.label)}: {inline(config.method.about)}. Trained by `{trained_by}` with",
        code_block(_settings(run.read_config()), "yaml"),
        f"Proposals by {inline(config.proposer.public_name)}."
        if config.proposer
        else "The instruction was fixed.",
        "The weights are the base's." * config.training.frozen,
        "The licence of the base model holds for what is derived from it.",
    ]
    write_atomic(folder / "README.md", "\n\n".join(filter(None, parts)) + "\n")


def _results(arm: Row) -> Iterator[str]:
    """Yield the table of scores, all questions, then each stratum; and what they are."""
    names = [name for name in _SCORES if arm.get(name) is not None]
    if not names:
        yield "There were no test questions."
        return
    rows = [["test questions", *(_SCORES[name] for name in names)], ["---", *["---:"] * len(names)]]
    rows.append([f"all {arm['em_n']:,}", *(f"{arm[name]:.3f}" for name in names)])
    for stratum in arm.get("em_by_stratum") or {}:
        scores = [arm[f"{name}_by_stratum"].get(stratum) for name in names]
        rows.append([inline(stratum), *("" if s is None else f"{s:.3f}" for s in scores)])
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows)
    measure = inline(arm.get("measure", EXACT_MATCH)).capitalize()
    interval = arm.get("em_interval")
    text = f"{measure} of one greedy rollout a question."
    if interval is not None:
        text += " 95 % interval of the first figure: {:.3f} to {:.3f}.".format(*interval)
    yield text


def _place(chosen: BestRecord, serving: Serving) -> str:
    """Say whether a request needs the instruction."""
    if serving.instruction_in_template:
        return (
            "The chat template carries it: a request with only the question is rendered to the tokens that were "
            'evaluated. The template argument `instruction` replaces it, and `instruction=""` leaves it out.'
        )
    if not chosen.instruction:
        return ""
    return (
        f"The chat template does not carry it, since {inline(serving.reason)}. `serving.json` says where it "
        "stood."
    )


def _serving_notes(serving: Serving) -> Iterator[str]:
    """Yield what a server or client must share with the evaluation."""
    limits = serving.limits
    yield (
        f"It was evaluated greedily, with at most {limits.turn_tokens} tokens a turn and "
        f"{limits.trajectory_tokens} after the prompt. Turns: at most {limits.turns}."
    )
    if serving.stop:
        stops = ", ".join(map(_code, serving.stop))
        yield f"A turn ended at {stops}: set `stop` and `include_stop_str_in_output` in a request."
    if serving.tools:
        tools = ", ".join(map(_code, serving.tools))
        yield f"It was offered the tools {tools}: pass them as `tools` of a request."


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


def _code(text: str) -> str:
    return f"<code>{inline(text)}</code>"


def code_block(text: str, language: str = "text") -> str:
    """Return a code block around a text, its fence longer than any run of backticks in it.

    Control characters and bidirectional marks are left out.
    """
    line = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{line}\n{fence}"
