"""The preflight of a run file: one ordered list of checks for every command.

A check builds a part of the run, and its error is the check's. `train`, `resume` and `plan --steps` stop at the
first one. `compare --dry-run` and `measure --then` stop at errors in the run file, and warn of what this machine
lacks; so does `try`, which also needs the policy's files and the retriever. `doctor` goes on and shows all of it.
Checks run in order of cost; weights are not loaded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.config.build import build_llm, build_rewards, initial_instruction, run_environment
from cotune.config.run_checks import (
    check_columns,
    check_instruction,
    check_prompts,
    check_retriever,
    check_splits,
)
from cotune.config.run_file import LLMConfig, RulesConfig, RunConfig
from cotune.data.dataset import SPLITS
from cotune.data.splits import warn
from cotune.engines.engine import engine_of
from cotune.errors import ConfigError, EngineError, LLMError
from cotune.llm.client import OpenAIOptions, make_first_call
from cotune.llm.own import OwnLLMOptions, import_llm
from cotune.policy.policy_files import (
    PolicyConfig,
    cached_folder,
    damaged_weights,
    missing_parts,
    only_local,
    policy_path,
    weights_size,
)
from cotune.protocols import Environment
from cotune.rewards.functions import RewardFunctions
from cotune.run.costs import CostRow
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.utils.packages import installed
from cotune.utils.processes import launched_rank
from cotune.utils.progress import begin
from cotune.utils.text import hide_secrets, one_line, size

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from cotune.policy.codec import HFCodec

OPTIONAL = ("peft", "vllm", "verifiers", "wandb", "trackio", "tensorboard")
"""Packages that some run files need."""


class Notice(ConfigError):
    """What a check doubts, in one line; it stops no training."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the preflight.

    Attributes:
        name: the field or thing that it checks.
        look: returns what is there, in one line; None to say nothing. Raises ConfigError or EngineError.
        here: whether it checks this machine rather than the run file.
        needs: names of the checks that must pass first.
    """

    name: str
    look: Callable[[], str | None]
    here: bool = False
    needs: Sequence[str] = ()


class Preflight:
    """The checks of a run file and the objects that they build.

    Args:
        new: whether the run folder is still to be created.
        ask_llm: whether to make one small call to the LLM; done in any case before training.

    Attributes:
        starting: whether these processes will train.
        llm_calls: that call, with its retries and their cost.
    """

    starting = False

    def __init__(self, config: RunConfig, *, new: bool = True, ask_llm: bool = False) -> None:
        self.config = config
        self.engine = engine_of(config)
        self._new = new
        self._ask_llm = ask_llm
        self.llm_calls: list[CostRow] = []

    def checks(self) -> list[Check]:
        """Return the checks, cheap ones first."""
        config = self.config
        tokenizer = ("policy", "policy files")
        needs = ("packages", *(tokenizer if self._drops else ()))
        return [
            Check("training.engine", self._engine, here=True),
            Check("policy", lambda: policy(config.policy)),
            Check("policy files", self._policy_files, here=True),
            Check("packages", lambda: packages(config), here=True),
            Check("llm", lambda: llm(config.proposer), here=True),
            Check("output", self._output, here=True),
            # Questions, rewards and tools often need no heavy import.
            Check("environment", self._environment, needs=needs),
            Check("environment.retriever", self._retriever, here=True, needs=("environment",)),
            # The last of the light ones, since it may cost something.
            Check("llm answers", self._make_first_call, here=True, needs=("llm",)),
            *self.engine.check(self),
            Check("prompts", self._prompts, needs=(*tokenizer, "environment")),
            Check("policy.lora", self._layers, needs=(*tokenizer, "packages")),
        ]

    def require(self, *, machine_checks: Sequence[str] | None = None) -> "Preflight":
        """Raise the first error, a ConfigError or EngineError; warn of notices.

        Args:
            machine_checks: names of the checks of this machine that must pass; the others only warn. None is all, as
                these processes will train.
        """
        self.starting = machine_checks is None
        for check, outcome in self.outcomes():
            if isinstance(outcome, Notice):
                warn(str(outcome))
            elif isinstance(outcome, Exception):
                if machine_checks is None or not check.here or check.name in machine_checks:
                    raise outcome
                warn(f"missing here: {one_line(str(outcome))}")
        return self

    def outcomes(self) -> Iterator[tuple[Check, str | ConfigError | EngineError | None]]:
        """Yield every check with what it says or raises, except those that depend on a failed one."""
        failed: set[str] = set()
        for check in self.checks():
            if failed.isdisjoint(check.needs):
                try:
                    yield check, check.look()
                except (ConfigError, EngineError) as error:
                    failed.add(check.name)
                    yield check, error
            else:
                failed.add(check.name)

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
        return initial_instruction(self.config.instruction.text, self.environment)

    @cached_property
    def codec(self) -> "HFCodec":
        begin("loading the tokenizer")
        from cotune.policy.local_policy import load_codec

        return load_codec(self.config.policy)

    @cached_property
    def architecture(self) -> "PretrainedConfig":
        """Return the policy's config.json; for an adapter, its base model's."""
        from cotune.policy.local_policy import load_architecture

        return load_architecture(policy_path(self.config.policy.path))

    @property
    def may_call(self) -> bool:
        """Return whether checks may make calls that cost something."""
        return self._ask_llm or self.starting

    @property
    def context_tokens(self) -> int | None:
        """Return the policy's context length in tokens; None if its config.json has none."""
        from cotune.policy.local_policy import context_length

        return context_length(self.architecture)

    # ---- checks that use those objects

    def _engine(self) -> str:
        """Check that the engine can be used in this environment."""
        self.engine.check_installed()
        name = self.config.training.engine
        return f"training.engine: {name} {installed(name) or ''}".rstrip()

    def _policy_files(self) -> None:
        """Check that a policy is a folder or in the hub's cache, or that the hub can be asked for it."""
        path = policy_path(self.config.policy.path)
        if not Path(path).is_dir() and not cached_folder(path) and only_local(path):
            name = hide_secrets(path, guess="/" not in path)  # it may be a misplaced key
            raise ConfigError(
                f"policy.path: cannot load {name!r}: it is neither a folder nor in the hub's cache, and the hub is "
                "out of reach, or HF_HUB_OFFLINE is set; name a folder, or fetch the model (hf download)"
            )

    def _output(self) -> str | None:
        """Check that the run folder can be created: that it does not exist, and can be written."""
        if not self._new:
            return None
        RunDir.check_free(self.config.output)
        return f"output: {self.config.output}"

    def _make_first_call(self) -> str | None:
        options = self.config.proposer
        if not (isinstance(options, OpenAIOptions) and self.may_call) or launched_rank() != 0:
            return None
        try:
            self.llm_calls = make_first_call(options)
        except LLMError as error:
            text = f"llm: a first call failed ({one_line(str(error))[:300]}); correct llm"
            # A resume may need no further proposal.
            if options.optional or (self.starting and not self._new):
                raise Notice(text) from error
            fix = "or set llm.optional: true to train without its proposals"
            raise ConfigError(f"{text}, {fix}") from error
        return "llm: a first call was answered"

    def _environment(self) -> None:
        config = self.config
        rewards = self.rewards
        check_instruction(self.environment, self.instruction, config.strategy.kind)
        check_splits(self.environment, validates=bool(config.evaluation.every))
        check_columns(rewards, self.environment, SPLITS)

    def _retriever(self) -> str | None:
        check_retriever(self.environment)
        options = getattr(self.config.environment, "retriever", None)
        return None if options is None else f"environment.retriever: {options.url} answers"

    def _prompts(self) -> str:
        begin("checking the prompts")
        from cotune.policy.codec import check_template

        config = self.config
        check_template(self.environment, self.codec, self.instruction)
        check_prompts(
            self.environment,
            self.codec,
            self.instruction,
            config.limits,
            SPLITS,
            strategy=config.strategy.kind,
            context_tokens=self.context_tokens,
        )
        return f"prompts: at most {config.limits.prompt_tokens} tokens, as limits allow"

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


# ---- the cheap checks


def policy(options: PolicyConfig) -> str:
    """Check that the policy is a complete folder, as far as it is here."""
    name = options.path
    path = policy_path(name)
    template = options.chat_template
    if template is not None and template != "plain" and not Path(template).is_file():
        raise ConfigError(f"policy: no chat template {template}; correct policy.chat_template")
    folder = Path(path) if Path(path).is_dir() else cached_folder(name)
    if folder is None:
        return f"policy: {name}, on the Hugging Face hub"
    if RunDir.is_run(folder):
        raise ConfigError(
            f"policy.path: {name!r} is the folder of a run, not of a model; name {folder / 'best'}"
        )
    lacks = ", ".join(missing_parts(folder))
    if lacks and not Path(path).is_dir():
        return f"policy: {name}, whose {lacks} are not in the hub's cache"  # and are downloaded
    if lacks:
        raise ConfigError(
            f"policy.path: cannot load {name!r}: it has no {lacks}; complete the folder"
        )
    if damage := damaged_weights(folder):
        raise ConfigError(f"policy.path: cannot load {name!r}: {damage}; copy or download it again")
    return f"policy: {name}, {size(weights_size(folder))} of weights"


def packages(config: RunConfig) -> None:
    """Check that the optional packages that the run file asks for are installed."""
    args = config.training.engine_args
    reported = args.get("report_to") or ()
    trackers = (reported,) if isinstance(reported, str) else reported
    needed = {name: "training.engine_args.report_to" for name in trackers if name in OPTIONAL}
    needed |= dict.fromkeys(config.logging.report_to, "logging.report_to")
    if config.policy.lora is not None:
        needed["peft"] = "policy.lora"
    if args.get("use_vllm"):
        needed["vllm"] = "training.engine_args.use_vllm"
    # vLLM in a version that TRL supports, and what is installed with cotune.
    sources = {"vllm": "'trl[vllm]'"}
    if extra := config.environment_kind.extra:
        needed[extra] = "environment.kind"
        sources[extra] = f"'cotune[{extra}]'"
    for name, field in needed.items():
        if not installed(name):
            raise ConfigError(
                f"{name} is not installed, but {field} asks for it; pip install {sources.get(name, name)}"
            )


def llm(options: LLMConfig | None) -> str | None:
    """Check what the LLM needs: a key in its environment variable, the file of a bank, an import."""
    if options is None or isinstance(options, RulesConfig):
        return None
    if isinstance(options, OwnLLMOptions):
        import_llm(options)
        return f"llm: {options.describe()}"
    build_llm(options, 0, Record())
    text = f"llm: {options.describe()}"
    if isinstance(options, OpenAIOptions) and options.api_key_env:
        text += f"; the environment variable {options.api_key_env} is set"
    return text
