"""What a run of a run file needs, and what of it is missing. For `cotune doctor`.

Loaded are configurations and what the run file names; a retrieval server is asked once.
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.engines.engine import engine_of
from cotune.engines.memory import Memory, find_config, memory_of, read_shape
from cotune.environments.environment_options import (
    PythonOptions,
    ToolsOptions,
    TrlOptions,
    VerifiersOptions,
)
from cotune.environments.math import hub_name
from cotune.errors import ConfigError
from cotune.llm.client import OpenAIOptions
from cotune.policy.folder import cached_folder, has_chat_template, missing_parts, weights_size
from cotune.policy.paths import policy_path
from cotune.run.run_dir import RunDir
from cotune.utils.importing import ENVIRONMENTS, import_object, load_registered
from cotune.utils.packages import installed

GIB = 2**30
_SERVER_S = 10.0  # a dense index on a CPU takes its time
OPTIONAL = {
    "peft": "LoRA",
    "vllm": "sampling with vLLM",
    "verifiers": "environments of verifiers",
    "fastapi": "serving a retriever",
    "sentence-transformers": "dense retrieval",
    "faiss-cpu": "dense retrieval",
    "wandb": "reporting to W&B",
    "trackio": "reporting to trackio",
    "tensorboard": "reporting to TensorBoard",
}
"""Packages that some run files need, and what for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        ok: whether a run can go on with it.
        what: what was found, in one line.
        mend: what to do about it; "" where it is well.
    """

    ok: bool
    what: str
    mend: str = ""


def of_run_file(config: RunConfig) -> list[Finding]:
    """What a run of this file needs, beyond what its model checks."""
    findings = [engine(config), *policy(config), *data(config), *retriever(config)]
    findings += [*objects(config), *packages(config)]
    return [*findings, *llm(config), *trainer(config), *gpus(config), *output(config)]


def engine(config: RunConfig) -> Finding:
    """Whether the engine that is to train can be used from this environment."""
    name = config.training.engine
    try:
        engine_of(config).check_installed()
    except ConfigError as error:
        what, _, mend = one_line(error).partition(": ")
        return Finding(False, what, mend)
    return Finding(True, f"training.engine: {name} {installed(name)}")


def policy(config: RunConfig) -> list[Finding]:
    """Whether the policy is a whole folder, here or in the hub's cache."""
    given = config.policy.path
    try:
        path = Path(policy_path(given))
    except ConfigError as error:
        return [wrong("policy", error)]
    folder = path if path.is_dir() else cached_folder(given)
    if folder is None:
        return [
            Finding(
                False,
                f"policy: {given} is neither a folder nor in the cache of the Hugging Face hub",
                f"fetch it (hf download {given}), or correct policy.path",
            )
        ]
    lacks = missing_parts(folder)
    if lacks:
        return [Finding(False, f"policy: {given} has no {', '.join(lacks)}", "complete the folder")]
    found = [Finding(True, f"policy: {given}, {size(weights_size(folder))} of weights")]
    template = config.policy.chat_template
    if template is not None and template != "plain" and not Path(template).is_file():
        found.append(
            Finding(False, f"policy: no chat template {template}", "correct policy.chat_template")
        )
    if template is None and not has_chat_template(folder):
        found.append(
            Finding(
                False,
                f"policy: the tokenizer of {given} has no chat template",
                "set policy.chat_template to plain, or to a file",
            )
        )
    return found


def data(config: RunConfig) -> list[Finding]:
    """Whether the files of the environment and of the data set are there."""
    options, dataset = config.environment, config.dataset
    named = {
        f"environment.{name}": getattr(options, name) for name in type(options).__annotations__
    }
    if dataset is not None:
        named["dataset.path"] = dataset.path
        if dataset.path is not None:
            named["dataset.validation"], named["dataset.test"] = dataset.validation, dataset.test
    findings = [
        Finding(True, f"{field}: {path}")
        if path.exists()
        else Finding(
            False,
            f"{field}: there is no {path}",
            f"correct {field}; it is looked for from the folder that cotune is started in",
        )
        for field, path in named.items()
        if isinstance(path, Path) and not hub_name(path)
    ]
    for field, path in named.items():
        if isinstance(path, Path) and (name := hub_name(path)):
            findings.append(_hub_data(name.partition(":")[0], field))
    if dataset is not None and dataset.name is not None:
        findings.append(_hub_data(dataset.name, "dataset.name"))
    return findings


def _hub_data(name: str, field: str) -> Finding:
    from datasets import config as datasets_config
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = (
        Path(name),
        Path(HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}",
        Path(datasets_config.HF_DATASETS_CACHE) / name.replace("/", "___"),
    )
    if any(folder.is_dir() for folder in folders):
        return Finding(True, f"{field}: {name} is in the cache")
    return Finding(
        False,
        f"{field}: {name} is not in the cache of the Hugging Face hub",
        f"fetch it (hf download --repo-type dataset {name}), or correct {field}",
    )


def retriever(config: RunConfig) -> list[Finding]:
    """Whether the retrieval server answers a query."""
    from cotune.retrieval.remote import RemoteRetriever

    options = getattr(config.environment, "retriever", None)
    if options is None:
        return []
    short = replace(options, timeout_s=min(options.timeout_s, _SERVER_S), retries=0)
    try:
        RemoteRetriever(short).check()
    except ConfigError as error:
        return [wrong("environment.retriever.url", error)]
    return [Finding(True, f"environment.retriever: {options.url} answers")]


def objects(config: RunConfig) -> list[Finding]:
    """Whether the functions and classes that the run file names can be imported."""
    from cotune.rewards.functions import load_reward

    wanted: list[tuple[str, str, Callable[[], Any]]] = [
        ("rewards", reward.function, lambda name=reward.function: load_reward(name))
        for reward in config.rewards
    ]
    options = config.environment
    if isinstance(options, ToolsOptions):
        wanted += [_import("environment.tools", tool.function) for tool in options.tools]
    elif isinstance(options, TrlOptions):
        wanted.append(_import("environment.factory", options.factory))
    elif isinstance(options, PythonOptions):
        if ":" in options.object:
            wanted.append(_import("environment.object", options.object))
        else:
            name = options.object
            wanted.append(
                (
                    "environment.object",
                    name,
                    lambda: load_registered(ENVIRONMENTS, name, "environment.kind"),
                )
            )
    elif isinstance(options, VerifiersOptions) and ":" in options.environment:
        wanted.append(_import("environment.environment", options.environment))
    findings: list[Finding] = []
    for field, name, load in wanted:
        try:
            load()
        except ConfigError as error:
            findings.append(wrong(field, error))
        else:
            findings.append(Finding(True, f"{field}: {name} can be imported"))
    return findings


def _import(field: str, reference: str) -> tuple[str, str, Callable[[], Any]]:
    return field, reference, lambda: import_object(reference, field)


def packages(config: RunConfig) -> list[Finding]:
    """Whether the optional packages that the run file asks for are installed."""
    args = config.training.engine_args
    reported = args.get("report_to") or []
    trackers = [reported] if isinstance(reported, str) else list(reported)
    asked = {
        "peft": "policy.lora" if config.policy.lora is not None else "",
        "vllm": "training.engine_args.use_vllm" if args.get("use_vllm") else "",
        "verifiers": "environment.kind" if config.environment.kind == "verifiers" else "",
        **{name: "training.engine_args.report_to" for name in trackers if name in OPTIONAL},
        **dict.fromkeys(config.logging.report_to, "logging.report_to"),
    }
    return [
        Finding(True, f"{name}: installed, as {field} asks")
        if installed(name)
        else Finding(
            False, f"{name} is not installed, but {field} asks for it", f"pip install {name}"
        )
        for name, field in asked.items()
        if field
    ]


def llm(config: RunConfig) -> list[Finding]:
    """Whether the variable that holds the LLM's key is set. Its value is not looked at."""
    options = config.llm
    if not config.method.needs_llm or not isinstance(options, OpenAIOptions):
        return []
    name = options.api_key_env
    if name is None:
        return [Finding(True, "llm: no API key is sent")]
    if os.environ.get(name):
        return [Finding(True, f"llm: the environment variable {name} is set")]
    return [
        Finding(
            False,
            f"llm: the environment variable {name} is not set",
            f"export {name}=… with the key, or set llm.api_key_env to null",
        )
    ]


def trainer(config: RunConfig) -> list[Finding]:
    """Whether TRL, where it trains, takes the trainer's arguments."""
    if config.training.engine != "trl":
        return []
    try:
        from cotune.engines.trl.checks import check_args
        from cotune.engines.trl.setup import grpo_config

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries about each other
            check_args(grpo_config(config, config.output / "checkpoints"))
    except ImportError:
        return []  # said among the packages
    except ConfigError as error:
        return [wrong("training", error)]
    return [Finding(True, "training: TRL takes these arguments")]


def gpus(config: RunConfig) -> list[Finding]:
    """Whether there are as many processes as GPUs, each with its share, and with room for it."""
    if config.training.engine != "trl":
        return []  # veRL starts its processes by itself
    try:
        import torch

        from cotune.engines.trl.launch import check_launch
    except ImportError:
        return []  # said among the packages
    training = config.training
    count = torch.cuda.device_count()
    if "WORLD_SIZE" in os.environ or training.single_gpu:
        try:
            check_launch(training)
        except ConfigError as error:
            return [wrong("processes", error)]
        shared = int(os.environ.get("WORLD_SIZE", "1"))
        findings = [Finding(True, f"processes: {shared}, {count} visible GPUs")]
    elif count > 1:
        findings, shared = [_start(count)], count
    else:
        findings, shared = [], 1
    rows = training.questions_per_step * training.group_size // training.optimizer_steps
    if rows % (shared * training.micro_batch_size):
        findings.append(
            Finding(
                False,
                f"training.micro_batch_size: {training.micro_batch_size} on {shared} processes does "
                f"not divide the {rows} rollouts of a mini-batch",
                f"make it a divisor of {rows} / {shared}",
            )
        )
    memory = _memory(config)
    if count and memory is not None:
        findings.append(_room(memory, torch.cuda.get_device_properties(0).total_memory))
    return findings


def _start(count: int) -> Finding:
    """`cotune train` alone would be refused where there are several GPUs."""
    start = f"torchrun --nproc_per_node {count} -m cotune train RUN.yaml"
    return Finding(
        True, f"processes: {count} GPUs are visible; start one process for each: {start}"
    )


def _room(memory: Memory, total: int) -> Finding:
    """Whether a GPU has room for what the plan reckons at most."""
    needed = max(memory.training, memory.sampling or 0)
    what = f"GPU memory: at most {size(needed)} of {size(total)} are needed"
    if needed <= total:
        return Finding(True, what)
    return Finding(
        False,
        what,
        "lower training.micro_batch_size, training.rows_per_call or the limits; or LoRA",
    )


def _memory(config: RunConfig) -> Memory | None:
    """What the plan reckons; None where the policy is not here, or is of an unknown kind."""
    found = find_config(config.policy.path)
    if found is None:
        return None
    try:
        return memory_of(config, read_shape(found))
    except ValueError:
        return None


def output(config: RunConfig) -> list[Finding]:
    """Whether the run folder can be made, and whether the checkpoints fit where it is to be."""
    try:
        RunDir.check_free(config.output)
    except ConfigError as error:
        return [wrong("output", error)]
    there = _nearest(config.output)
    if not os.access(there, os.W_OK):
        return [Finding(False, f"output: {there} cannot be written", "choose another output")]
    free = shutil.disk_usage(there).free
    needed = disk_needed(config)
    if needed is None:
        return [Finding(True, f"output: {config.output}; {size(free)} are free")]
    what = f"output: {config.output}; checkpoints take about {size(needed)}"
    if needed > free:
        return [
            Finding(
                False,
                f"{what}, {size(free)} are free",
                "choose another output, or lower training.keep_checkpoints",
            )
        ]
    return [Finding(True, f"{what} of the {size(free)} that are free")]


def disk_needed(config: RunConfig) -> int | None:
    """Bytes of the run's checkpoints and best policy at most; None where the policy is not known.

    A checkpoint holds what is trained, and AdamW's two moments of it. One more than are kept is
    there while it is written, and best/ is staged beside the one that it replaces.
    """
    memory = _memory(config)
    if memory is None:
        return None
    trained = memory.optimizer // 2
    checkpoints = config.training.keep_checkpoints + 1 if config.training.save_every else 0
    return checkpoints * (trained + memory.optimizer) + 2 * trained


def size(count: float) -> str:
    """Bytes as "12.5 GiB" or "3.4 MiB"."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.1f} MiB"


def _nearest(path: Path) -> Path:
    """The nearest folder at or above a path that is there."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def wrong(field: str, error: Exception) -> Finding:
    """A ConfigError as a finding: what is wrong, and after its last semicolon what to do."""
    text = re.sub(rf"^{re.escape(field)}(\.path)?:? ", "", one_line(error))
    what, _, mend = text.rpartition("; ")
    return Finding(False, f"{field}: {what or text}", mend if what else "")


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
