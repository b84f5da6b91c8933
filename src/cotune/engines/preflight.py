"""The preflight of a run file: one ordered list of checks for every command.

`train` and `resume` stop at the first check that fails. `plan`, `try` and `compare --dry-run` stop at
errors in the run file and list what this machine is missing. `doctor` lists everything missing.

Checks run in order of cost: fields, files, packages, keys, the environment with its rewards, and a
first call to the LLM, mostly before any heavy import; then the engine's arguments; then checks that
need the tokenizer; and last those that need the policy's layers. Weights are not loaded.
"""

import netrc
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from packaging.requirements import Requirement

from cotune.config.build import build_llm, build_rewards, initial_instruction, run_environment
from cotune.config.run_checks import (
    check_context,
    check_instruction,
    check_prompt_texts,
    check_prompts,
    check_retriever,
    check_rewards,
    check_splits,
    check_tokens,
    warn_of_repeats,
)
from cotune.config.run_file import EnvironmentOptions, LLMConfig, RunConfig
from cotune.data.dataset import SPLITS, DatasetConfig
from cotune.data.splits import warn
from cotune.engines.engine import Engine, engine_of
from cotune.engines.estimate import memory_of, shape_of
from cotune.environments.environment_options import (
    PythonOptions,
    ToolsOptions,
    TrlOptions,
    VerifiersOptions,
)
from cotune.environments.math import hub_name
from cotune.errors import BudgetError, ConfigError, EngineError, LLMError
from cotune.llm.bank import BankLLM, BankOptions
from cotune.llm.client import OPENAI_URL, OpenAIClient, OpenAIOptions
from cotune.llm.own import OwnLLMOptions, check_own, imported
from cotune.policy.gguf_file import read_header
from cotune.policy.local_llm import LocalOptions, as_llm, naming_llm
from cotune.policy.options import PolicyConfig
from cotune.policy.policy_files import (
    cached_folder,
    check_path,
    damaged_weights,
    has_chat_template,
    is_adapter,
    known_path,
    missing_parts,
    only_local,
    policy_path,
    weights_size,
)
from cotune.protocols import Environment
from cotune.rewards.functions import RewardFunctions, load_reward
from cotune.rewards.reward_options import RewardConfig
from cotune.run.full_disk import free_space
from cotune.run.ledger import CostRow, Ledger
from cotune.run.run_dir import RunDir
from cotune.utils.importing import ENVIRONMENTS, import_object, load_registered
from cotune.utils.packages import installed
from cotune.utils.processes import launched_rank
from cotune.utils.progress import begin
from cotune.utils.text import one_line, size

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from cotune.policy.codec import HFCodec

_SERVER_S = 10.0  # embedding a query on a CPU is slow
_FIRST_CALL_S, _FIRST_CALL_RETRIES = 30.0, 1
OPTIONAL = {
    "peft": "LoRA",
    "gguf": "GGUF files as policies",
    "vllm": "sampling with vLLM",
    "verifiers": "environments of verifiers",
    "reasoning-gym": "its generated questions",
    "wandb": "reporting to W&B",
    "trackio": "reporting to trackio",
    "tensorboard": "reporting to TensorBoard",
}
"""Packages that some run files need, each with its purpose."""
_KINDS = ("verifiers", "reasoning-gym")
"""Kinds of environments that need the package of the same name."""
_INSTALLED_AS = {
    **{kind: f"'cotune[{kind}]'" for kind in _KINDS},
    "vllm": "'trl[vllm]'",  # in a version that TRL supports
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Attributes:
        ok: whether the requirement is met.
        what: what was found, in one line.
        fix: how to fix it; "" if it is met.
        blocks: whether it stops training. A download that training does itself and an estimate do not.
        key: whether `cotune doctor` shows it even if it is met; other met findings are only counted.
    """

    ok: bool
    what: str
    fix: str = ""
    blocks: bool = True
    key: bool = False

    @property
    def text(self) -> str:
        return f"{self.what}; {self.fix}" if self.fix else self.what


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the preflight.

    Attributes:
        name: the field or thing that it checks.
        look: returns findings, or raises ConfigError for an error.
        here: whether it checks this machine rather than the run file.
        needs: names of the checks that must pass first.
    """

    name: str
    look: Callable[[], Iterable[Finding] | None]
    here: bool = False
    needs: Sequence[str] = ()

    def findings(self) -> list[Finding]:
        """Return the check's findings, with an error as a finding."""
        try:
            return list(self.look() or ())
        except (ConfigError, EngineError) as error:
            return [wrong(self.name, error)]

    def require(self) -> list[Finding]:
        """Return the check's findings; raise ConfigError for the first one that stops training."""
        found = list(self.look() or ())
        for finding in found:
            if finding.blocks and not finding.ok:
                raise ConfigError(finding.text)
        return found


class Preflight:
    """The checks of a run file and the objects that they build.

    Args:
        config: the run file.
        new: whether the run folder is still to be created.
        patient: whether to wait for a server for as long as the run file allows.
        ask_llm: whether to make one small call to the LLM; done in any case before training.
        loads: whether the policy is loaded afterwards; done in any case before training.

    Attributes:
        starting: whether these processes will train.
        llm_calls: that call, with its retries and their cost.
    """

    starting = False

    def __init__(
        self,
        config: RunConfig,
        *,
        new: bool = True,
        patient: bool = True,
        ask_llm: bool = False,
        loads: bool = False,
    ) -> None:
        self.config, self.engine, self._loads = config, engine_of(config), loads
        self._new, self._patient, self._ask_llm = new, patient, ask_llm
        self.llm_calls: list[CostRow] = []

    def checks(self) -> list[Check]:
        """Return the checks, cheap ones first."""
        config, trainer = self.config, self.engine
        wait = None if self._patient else _SERVER_S
        cheap = [
            Check("training.engine", partial(engine, config.training.engine, trainer), here=True),
            Check("training.engine_args", lambda: check_tokens(config.training.engine_args)),
            Check("policy", self._policy),
            Check("data", partial(data, config.environment, config.dataset)),
            Check("rewards", partial(objects, config.environment, config.rewards)),
            Check("packages", partial(packages, config), here=True),
            Check("llm", partial(llm, config.proposer), here=True),
            Check("output", partial(output, config.output), here=True),
            Check("environment.retriever", partial(retriever, config.environment, wait), here=True),
        ]
        own = trainer.check(self)
        needs = ("data", "rewards", "packages", *(("policy",) if self._drops else ()))
        environment = Check("environment", self._environment, needs=needs)
        # Questions, rewards and tools often need no heavy import, unless tokens are counted.
        light, heavy = ([], [environment]) if self._drops else ([environment], [])
        asks = (self._ask_llm or self.starting) and launched_rank() == 0
        answers = Check("llm answers", self._llm_answers, here=True, needs=("llm",))
        return [
            *(check for check in cheap if self._new or check.name != "output"),
            *light,
            *([answers] if asks else []),  # the last of the light ones, since it may cost something
            *(check for check in own if "environment" not in check.needs),
            Check("disk", self._disk, here=True, needs=("policy", "output")),
            *heavy,
            *(check for check in own if "environment" in check.needs),
            Check("prompts", self._prompts, needs=("policy", "environment")),
            Check("policy.lora", self._layers, needs=("policy", "packages")),
        ]

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of every check, except checks that depend on a failed one."""
        failed: set[str] = set()
        for check in self.checks():
            found = [] if failed & set(check.needs) else check.findings()
            yield from found
            if failed & set(check.needs) or not all(finding.ok for finding in found):
                failed.add(check.name)

    def require(self) -> "Preflight":
        """Raise ConfigError for the first finding that stops training in these processes."""
        self.starting = True
        for check in self.checks():
            check.require()
        return self

    def missing_here(self, *needed: str) -> list[Finding]:
        """Return what this machine is missing for training; raise for errors in the run file.

        Args:
            needed: names of checks of this machine that must still pass.

        Raises:
            ConfigError: a field is invalid; the message names it.
        """
        missing: list[Finding] = []
        failed: set[str] = set()
        for check in self.checks():
            if failed & set(check.needs):
                failed.add(check.name)
                continue
            strict = check.name in needed or not check.here
            found = check.require() if strict else check.findings()
            if lacking := [finding for finding in found if not finding.ok]:
                failed.add(check.name)
                missing += lacking
        return missing

    # ---- objects that the checks build

    @cached_property
    def environment(self) -> Environment:
        begin("reading the questions")
        return run_environment(self.config, self.codec if self._drops else None)

    @property
    def _drops(self) -> bool:
        dataset = self.config.dataset
        return dataset is not None and dataset.drop_too_long

    @cached_property
    def rewards(self) -> RewardFunctions | None:
        return build_rewards(self.config.rewards)

    @cached_property
    def instruction(self) -> str:
        return initial_instruction(self.config.instruction, self.environment)

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        begin("loading the tokenizer")
        from cotune.policy.codec import use_template
        from cotune.policy.local_policy import load_tokenizer

        tokenizer = load_tokenizer(policy_path(self.config.policy.path))
        use_template(tokenizer, self.config.policy.chat_template)
        return tokenizer

    @cached_property
    def codec(self) -> "HFCodec":
        from cotune.policy.codec import HFCodec

        return HFCodec(self.tokenizer, self.config.policy.template_args)

    @cached_property
    def architecture(self) -> "PretrainedConfig":
        """Return the policy's config.json; for an adapter, its base model's."""
        from transformers import AutoConfig

        from cotune.policy.adapters import adapter_base

        path = policy_path(self.config.policy.path)
        path = adapter_base(path) if is_adapter(path) else path
        try:
            local = only_local(path, weights=False)
            return AutoConfig.from_pretrained(path, local_files_only=local)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"policy.path: cannot load the config.json of {path!r}: {one_line(str(error))[:200]}; "
                "name a folder that holds a model"
            ) from error

    @property
    def context_tokens(self) -> int | None:
        """Return the policy's context length in tokens; None if its config.json has none."""
        return getattr(self.architecture.get_text_config(), "max_position_embeddings", None)

    # ---- checks that use those objects

    def _policy(self) -> list[Finding]:
        path = known_path(self.config.policy.path)
        loads = self.starting or self._loads
        if loads and path is not None and not Path(path).is_dir() and not cached_folder(path):
            only_local(path)  # raises if the hub does not have it either
        return policy(self.config.policy)

    def _disk(self) -> list[Finding]:
        found = disk(self.config, self.engine)
        for finding in found:
            if self.starting and self._new and not finding.ok:
                warn(finding.text)
        return found

    def _llm_answers(self) -> list[Finding]:
        found, self.llm_calls = llm_answers(self.config.proposer, self._patient, self._spent())
        if self.starting and not self._new:  # a resume may need no further proposal
            found = [replace(finding, blocks=False) for finding in found]
        for finding in found:
            if self.starting and not finding.ok and not finding.blocks:
                warn(finding.text)
        return found

    def _spent(self) -> float:
        """Return the money that the run has spent so far; 0.0 for one that has not begun."""
        path = RunDir(self.config.output, attempt=1).ledger_path
        if self._new or not path.is_file():
            return 0.0
        with Ledger(path) as ledger:
            return ledger.totals().money

    def _environment(self) -> None:
        config, environment = self.config, self.environment
        check_instruction(environment, self.instruction, config.strategy.kind)
        check_splits(environment, validates=bool(config.evaluation.every))
        if config.has_batches and not config.method.supervised:
            warn_of_repeats(environment, config.training.questions_per_step)
        check_rewards(self.rewards, environment, self.instruction, SPLITS)
        if getattr(config.environment, "retriever", None) is None:
            check_retriever(environment)  # a user's own environment

    def _prompts(self) -> Iterable[Finding]:
        begin("checking the prompts")
        from cotune.policy.tool_templates import check_turns

        config, environment = self.config, self.environment
        check_context(self.context_tokens, config.limits)
        check_turns(environment, self.codec, self.tokenizer)
        check_prompt_texts(environment, self.instruction, self.codec)
        check_prompts(
            environment,
            self.codec,
            self.instruction,
            config.limits,
            SPLITS,
            strategy=config.strategy.kind,
            context_tokens=self.context_tokens,
            leave_out="(dataset.drop_too_long: true)" if config.dataset else "of the data",
        )
        return [
            Finding(True, f"prompts: at most {config.limits.prompt_tokens} tokens, as limits allow")
        ]

    def _layers(self) -> None:
        """Check that the policy has the layers named for LoRA, without loading weights."""
        options = self.config.policy.lora
        if options is None:
            return
        begin("checking the layers for LoRA")
        import torch
        from transformers import AutoModelForCausalLM

        from cotune.policy.adapters import lora_config

        with torch.device("meta"):
            lora_config(options, AutoModelForCausalLM.from_config(self.architecture))


def wrong(field: str, error: Exception) -> Finding:
    """Return a ConfigError as a finding: the error, and the fix after its last semicolon."""
    text = re.sub(rf"^{re.escape(field)}((\.path)?:)? ", "", one_line(str(error)))
    what, _, fix = text.rpartition("; ")
    found = what or text
    found = found if found.startswith(f"{field}.") else f"{field}: {found}"
    return Finding(False, found, fix if what else "")


def required(requirement: Requirement) -> Finding:
    """Check that a package is installed in a supported version."""
    found, wanted = installed(requirement.name), f"{requirement.name}{requirement.specifier}"
    fix = f"pip install '{wanted}'"
    if found is None:
        return Finding(False, f"{requirement.name} is not installed", fix)
    if not requirement.specifier.contains(found, prereleases=True):
        return Finding(False, f"{requirement.name} {found} is not in {requirement.specifier}", fix)
    return Finding(True, f"{requirement.name} {found}")


# ---- the cheap checks


def engine(name: str, trainer: Engine) -> list[Finding]:
    """Check that the engine can be used in this environment."""
    try:
        trainer.check_installed()
    except ConfigError as error:
        what, _, fix = one_line(str(error)).partition(": ")
        return [Finding(False, what, fix)]
    return [Finding(True, f"training.engine: {name} {installed(name) or ''}".rstrip())]


def policy(options: PolicyConfig) -> list[Finding]:
    """Check that the policy is a complete folder, here or in the hub's cache.

    Raises:
        ConfigError: its path is not a folder, or it is an unknown bundled policy.
    """
    given = options.path
    known = known_path(given)
    if known is None:
        return unconverted(options)
    path = Path(known)
    folder = path if path.is_dir() else cached_folder(given)
    if folder is None:
        local = path.exists() or path.is_absolute() or given.startswith(".")
        local = local or (len(path.parts) > 1 and Path(path.parts[0]).is_dir())
        return [
            Finding(
                False,
                f"policy: {given} is neither a folder nor in the cache of the Hugging Face hub",
                "correct policy.path, or make that folder"
                if local
                else f"fetch it (hf download {given}), or correct policy.path",
                blocks=False,
            )
        ]
    if RunDir.is_run(folder):
        found = f"policy.path: {given!r} is the folder of a run, not of a model"
        return [Finding(False, found, f"name {folder / 'best'}")]
    if lacks := missing_parts(folder):
        found = f"policy.path: cannot load {given!r}: it has no {', '.join(lacks)}"
        # Missing files in the hub's cache are downloaded.
        return [Finding(False, found, "complete the folder", blocks=path.is_dir())]
    if damage := damaged_weights(folder):
        found = f"policy.path: cannot load {given!r}: {damage}"
        return [Finding(False, found, "copy or download it again")]
    found = [Finding(True, f"policy: {given}, {size(weights_size(folder))} of weights")]
    template = options.chat_template
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


def unconverted(options: PolicyConfig) -> list[Finding]:
    """Check a GGUF file, before it is converted, only by its header.

    Raises:
        ConfigError: the file is broken, or transformers cannot read its architecture.
    """
    given = options.path
    file = check_path(given)
    assert file is not None
    header = read_header(given, file)
    if not header.chat_template and options.chat_template is None:
        return [
            Finding(
                False,
                f"policy.path is {given!r}, and {file.name} holds no chat template",
                "set policy.chat_template to plain, or to a file",
            )
        ]
    begin("reading the GGUF header")
    from cotune.policy.gguf_conversion import gguf_config

    gguf_config(given, file)
    what = (
        f"policy: {given}, {file.name}: {header.architecture}, {header.parameters:,} parameters in "
        f"{header.weights_type}; converted on first use"
    )
    return [Finding(True, what)]


def data(options: EnvironmentOptions, dataset: DatasetConfig | None) -> list[Finding]:
    """Check that the files of the environment and of the data set exist."""
    named = {
        f"environment.{name}": getattr(options, name) for name in type(options).__annotations__
    }
    if not getattr(options, "search", True):
        named.pop("environment.corpus", None)
    if dataset is not None:
        named["dataset.path"] = dataset.path
        if dataset.path is not None:
            named["dataset.validation"], named["dataset.test"] = dataset.validation, dataset.test
    findings: list[Finding] = []
    for field, path in named.items():
        if not isinstance(path, Path):
            continue
        if name := hub_name(path):
            findings.append(_hub_data(name.partition(":")[0], field))
        elif path.exists():
            findings.append(Finding(True, f"{field}: {path}"))
        else:
            fix = f"correct {field}; paths are relative to the folder that cotune is started in"
            findings.append(Finding(False, f"{field}: there is no {path}", fix))
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
        blocks=False,
    )


def retriever(environment: EnvironmentOptions, timeout_s: float | None = None) -> list[Finding]:
    """Check that the retrieval server answers a query.

    Args:
        timeout_s: the maximum wait, without a retry; None uses the run's setting.

    Raises:
        ConfigError: the server returns no usable reply.
    """
    from cotune.retrieval.remote import RemoteRetriever

    options = getattr(environment, "retriever", None)
    if options is None or not getattr(environment, "search", True):
        return []
    if timeout_s is not None:
        options = replace(options, timeout_s=min(options.timeout_s, timeout_s), retries=0)
    begin("asking the retrieval server")
    try:
        RemoteRetriever(options).check()
    except ConfigError as error:
        return [wrong("environment.retriever.url", error)]
    return [Finding(True, f"environment.retriever: {options.url} answers")]


def objects(options: EnvironmentOptions, rewards: Sequence[RewardConfig]) -> list[Finding]:
    """Check that the functions and classes that the run file names can be imported."""
    wanted: list[tuple[str, str, Callable[[], Any]]] = [
        ("rewards", reward.function, partial(load_reward, reward.function)) for reward in rewards
    ]
    if isinstance(options, ToolsOptions):
        wanted += [_import("environment.tools", tool.function) for tool in options.tools]
    elif isinstance(options, TrlOptions):
        wanted.append(_import("environment.factory", options.factory))
    elif isinstance(options, PythonOptions) and ":" in options.object:
        wanted.append(_import("environment.object", options.object))
    elif isinstance(options, PythonOptions):
        name = options.object
        load = partial(load_registered, ENVIRONMENTS, name, "environment.kind")
        wanted.append(("environment.object", name, load))
    elif isinstance(options, VerifiersOptions) and ":" in options.environment:
        wanted.append(_import("environment.environment", options.environment))
    findings: list[Finding] = []
    for field, name, found in wanted:
        try:
            found()
        except ConfigError as error:
            findings.append(wrong(field, error))
        else:
            findings.append(Finding(True, f"{field}: {name} can be imported"))
    return findings


def _import(field: str, reference: str) -> tuple[str, str, Callable[[], Any]]:
    return field, reference, partial(import_object, reference, field)


def packages(config: RunConfig) -> list[Finding]:
    """Check that the optional packages that the run file asks for are installed."""
    args = config.training.engine_args
    reported = args.get("report_to") or []
    samples = not config.method.supervised  # fine-tuning rejects the field
    trackers = [reported] if isinstance(reported, str) else list(reported)
    asked = {
        "peft": "policy.lora" if config.policy.lora is not None else "",
        "vllm": "training.engine_args.use_vllm" if args.get("use_vllm") and samples else "",
        **{kind: "environment.kind" for kind in _KINDS if config.environment.kind == kind},
        **{name: "training.engine_args.report_to" for name in trackers if name in OPTIONAL},
        **dict.fromkeys(config.logging.report_to, "logging.report_to"),
    }
    findings = [
        Finding(True, f"{name}: installed, as {field} asks")
        if installed(name)
        else Finding(
            False,
            f"{name} is not installed, but {field} asks for it",
            f"pip install {_INSTALLED_AS.get(name, name)}",
        )
        for name, field in asked.items()
        if field
    ]
    if asked.get("wandb") and installed("wandb") and not _wandb_can_log_in():
        fix = "run wandb login, or set WANDB_API_KEY, or WANDB_MODE=offline"
        findings.append(Finding(False, f"{asked['wandb']}: W&B has no API key", fix))
    return findings


def _wandb_can_log_in() -> bool:
    """Return whether W&B has a key, needs none, or can ask for one on a terminal."""
    if os.environ.get("WANDB_MODE", "online") != "online" or sys.stdin.isatty():
        return True
    if any(map(os.environ.get, ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    try:
        file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
        return netrc.netrc(file).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def llm(options: LLMConfig | None) -> list[Finding]:
    """Check what the LLM needs: a key in its environment variable, the file of a bank, an import.

    Raises:
        ConfigError: the variable holds no key, or a file or an object cannot be loaded.
    """
    if isinstance(options, BankOptions):
        BankLLM(options)
        return [Finding(True, f"llm: {options.describe()}")]
    if isinstance(options, LocalOptions):
        if options.path is None:
            return [Finding(True, f"llm: {options.describe()}")]
        with naming_llm():
            found = policy(PolicyConfig(path=options.path))
        return [replace(f, what=as_llm(f.what), fix=as_llm(f.fix)) for f in found]
    if isinstance(options, OwnLLMOptions):
        imported(options)
        return [Finding(True, f"llm: {options.object} can be imported")]
    if not isinstance(options, OpenAIOptions):
        return []
    name = options.api_key_env
    if name is not None and not os.environ.get(name):
        return [
            Finding(
                False,
                f"llm: the environment variable {name} is not set",
                f"export {name}=… with the key, or set llm.api_key_env to null",
            )
        ]
    with Ledger(":memory:") as ledger:
        build_llm(options, 0, ledger)
    if name is None:
        return [Finding(True, "llm: no API key is sent")]
    return [Finding(True, f"llm: the environment variable {name} is set")]


def llm_answers(
    options: LLMConfig | None, patient: bool = True, spent: float = 0.0
) -> tuple[list[Finding], list[CostRow]]:
    """Check that the LLM answers one small call; also return that call.

    An LLM of the user's own is called only if it has a method `check`.

    Args:
        patient: whether to wait up to 30 s and to retry once, as far as the run file allows;
            otherwise 10 s, without a retry.
        spent: money that counts against the budget.
    """
    if not isinstance(options, OpenAIOptions | OwnLLMOptions):
        return [], []
    with Ledger(":memory:") as ledger:
        ledger.begin_attempt(None)
        try:
            if isinstance(options, OpenAIOptions):
                longest, retries = (
                    (_FIRST_CALL_S, _FIRST_CALL_RETRIES) if patient else (_SERVER_S, 0)
                )
                asked = replace(
                    options,
                    timeout_s=min(options.timeout_s, longest),
                    retries=min(options.retries, retries),
                )
                seconds = asked.timeout_s * (1 + asked.retries) + asked.retries  # with pauses
                begin(f"asking {options.describe()} (at most {seconds:g} s)")
                check_listens(asked)
                if asked.budget is not None:
                    asked = replace(asked, budget=max(0.0, asked.budget - spent))
                OpenAIClient(asked, ledger).check()
            elif not check_own(options):
                return [], []
        except (LLMError, BudgetError) as error:
            what = f"llm: a first call failed ({one_line(str(error))[:300]})"
            fix = "correct llm, or set llm.optional: true to train without its proposals"
            return [Finding(False, what, fix, blocks=not options.optional)], ledger.rows()
        return [Finding(True, "llm: a first call was answered", key=True)], ledger.rows()


def check_listens(options: OpenAIOptions) -> None:
    """Raise LLMError if nothing listens at an endpoint, before the client's library is imported.

    Does not judge an endpoint behind a proxy, or one that is slow to accept.
    """
    if getproxies():
        return
    url = options.base_url or OPENAI_URL
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), options.timeout_s).close()
    except (ConnectionRefusedError, socket.gaierror) as error:
        raise LLMError(f"no reply from {options.model} at {url}: {error}") from error
    except OSError:
        return


def output(folder: Path) -> list[Finding]:
    """Check that the run folder can be created.

    Raises:
        ConfigError: the folder already exists, or cannot be written.
    """
    RunDir.check_free(folder)
    return [Finding(True, f"output: {folder}")]


def disk(config: RunConfig, trainer: Engine) -> list[Finding]:
    """Check that the checkpoints fit on the run folder's disk."""
    free, needed = free_space(config.output), disk_needed(config, trainer)
    if needed is None:
        return [Finding(True, f"disk: {size(free)} are free")]
    what = f"disk: checkpoints take about {size(needed)} of the {size(free)} that are free"
    if needed <= free:
        return [Finding(True, what)]
    fix = "choose another output, or lower training.keep_checkpoints"
    return [Finding(False, what, fix, blocks=False)]


def disk_needed(config: RunConfig, trainer: Engine) -> int | None:
    """Return the maximum bytes of checkpoints and best policy; None for an unknown policy.

    A checkpoint holds the trained weights and AdamW's two moments. While one is written there is
    one more than the number kept, and best/ is staged next to the folder that it replaces.
    """
    try:
        shape, layout = shape_of(config.policy.path), trainer.layout(config)
        best, checkpoint = memory_of(config, shape, layout).saved
    except (ValueError, ConfigError):
        return None
    kept = config.training.keep_checkpoints + 1 if config.training.save_every else 0
    return kept * checkpoint + 2 * best
