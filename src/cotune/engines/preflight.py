"""The preflight of a run file: one ordered list of checks for every command.

A check builds a part of the run, and its error is the check's. `train` and `resume` stop at the first one.
`plan`, `try` and `compare --dry-run` stop at errors in the run file, and warn of what this machine lacks.
`doctor` goes on and shows all of it. Checks run in order of cost: mostly before any heavy import; then the engine's
arguments; then what needs the tokenizer, and the policy's layers. Weights are not loaded.
"""

import netrc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cotune.config.build import build_llm, build_rewards, initial_instruction, run_environment
from cotune.config.run_checks import (
    check_columns,
    check_context,
    check_instruction,
    check_prompt_texts,
    check_prompts,
    check_retriever,
    check_splits,
    check_tokens,
)
from cotune.config.run_file import LLMConfig, RulesConfig, RunConfig
from cotune.data.dataset import SPLITS
from cotune.data.splits import warn
from cotune.engines.engine import Engine, engine_of
from cotune.environments.environment_kind import EnvironmentOptions
from cotune.environments.registry import BUILT_IN, kind_of
from cotune.errors import ConfigError, EngineError, LLMError
from cotune.llm.client import OpenAIOptions
from cotune.llm.first_call import make_first_call
from cotune.llm.own import OwnLLMOptions, imported
from cotune.policy.options import PolicyConfig
from cotune.policy.policy_files import (
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
from cotune.utils.text import one_line, size

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from cotune.policy.codec import HFCodec

# A server is asked once more at most, and an LLM not for long, whatever the run file allows later.
_EXTRAS = [kind_of(kind).extra for kind in BUILT_IN if kind_of(kind).extra]
OPTIONAL = ("peft", "vllm", *_EXTRAS, "wandb", "trackio", "tensorboard")
"""Packages that some run files need."""
_VLLM = "'trl[vllm]'"  # in a version that TRL supports


class Notice(str):
    """What a check doubts, in one line; it stops no training."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the preflight.

    Attributes:
        name: the field or thing that it checks.
        look: returns what is there, in one line, or a `Notice`; None to say nothing. Raises ConfigError.
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
        config: the run file.
        new: whether the run folder is still to be created.
        ask_llm: whether to make one small call to the LLM; done in any case before training.
        loads: whether the policy is loaded afterwards; done in any case before training.

    Attributes:
        starting: whether these processes will train.
        llm_calls: that call, with its retries and their cost.
    """

    starting = False

    def __init__(
        self, config: RunConfig, *, new: bool = True, ask_llm: bool = False, loads: bool = False
    ) -> None:
        self.config = config
        self.engine = engine_of(config)
        self._loads = loads
        self._new = new
        self._ask_llm = ask_llm
        self.llm_calls: list[CostRow] = []

    def checks(self) -> list[Check]:
        """Return the checks, cheap ones first."""
        config = self.config
        trainer = self.engine
        tokenizer = ("policy", "policy files")
        needs = ("packages", *(tokenizer if self._drops else ()))
        return [
            Check("training.engine", partial(engine, config.training.engine, trainer), here=True),
            Check("training.engine_args", lambda: check_tokens(config.training.engine_args)),
            Check("policy", lambda: policy(config.policy)),
            Check("policy files", self._policy_files, here=True),
            Check("packages", partial(packages, config), here=True),
            Check("llm", partial(llm, config.proposer), here=True),
            Check("output", self._output, here=True),
            Check("environment.retriever", partial(retriever, config.environment), here=True),
            # Questions, rewards and tools often need no heavy import.
            Check("environment", self._environment, needs=needs),
            # The last of the light ones, since it may cost something.
            Check("llm answers", self._make_first_call, here=True, needs=("llm",)),
            *trainer.check(self),
            Check("prompts", self._prompts, needs=(*tokenizer, "environment")),
            Check("policy.lora", self._layers, needs=(*tokenizer, "packages")),
        ]

    def require(self) -> "Preflight":
        """Raise ConfigError for the first thing that stops training in these processes."""
        self.starting = True
        for check in self.checks():
            if isinstance(outcome := check.look(), Notice):
                warn(outcome)
        return self

    def require_run_file(self, *needed: str) -> "Preflight":
        """Raise ConfigError for the first error in the run file; warn of what this machine lacks for training.

        Args:
            needed: names of checks of this machine that must pass, too.
        """
        for check, outcome in self.outcomes():
            if isinstance(outcome, Exception) and (not check.here or check.name in needed):
                raise outcome
            if isinstance(outcome, Exception | Notice):
                warn(f"missing here: {one_line(str(outcome))}")
        return self

    def outcomes(self) -> Iterator[tuple[Check, str | ConfigError | EngineError | None]]:
        """Yield every check with what it says or raises, except those that depend on a failed one."""
        failed: set[str] = set()
        for check in self.checks():
            if failed & set(check.needs):
                failed.add(check.name)
                continue
            try:
                yield check, check.look()
            except (ConfigError, EngineError) as error:
                failed.add(check.name)
                yield check, error

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
        from cotune.policy.local_policy import load_architecture

        return load_architecture(policy_path(self.config.policy.path))

    @property
    def context_tokens(self) -> int | None:
        """Return the policy's context length in tokens; None if its config.json has none."""
        return getattr(self.architecture.get_text_config(), "max_position_embeddings", None)

    # ---- checks that use those objects

    def _policy_files(self) -> None:
        """Check that a policy's name is in the hub's cache, or that the hub has it before it is loaded."""
        name = self.config.policy.path
        path = policy_path(name)
        if Path(path).is_dir() or cached_folder(path):
            return
        if self.starting or self._loads:
            only_local(path)  # raises if the hub does not have it either
        else:
            raise ConfigError(
                f"policy.path: {name} is neither a folder nor in the cache of the Hugging Face hub; fetch it "
                f"(hf download {name}), or correct policy.path"
            )

    def _output(self) -> str | None:
        """Check that the run folder can be created: that it does not exist, and can be written."""
        if not self._new:
            return None
        RunDir.check_free(self.config.output)
        return f"output: {self.config.output}"

    def _make_first_call(self) -> str | None:
        options = self.config.proposer
        if not (self._ask_llm or self.starting) or launched_rank() != 0:
            return None
        spent = 0.0 if self._new else RunDir(self.config.output).totals().money
        try:
            answered, self.llm_calls = make_first_call(options, spent)
        except LLMError as error:
            fix = "correct llm, or set llm.optional: true to train without its proposals"
            text = f"llm: a first call failed ({one_line(str(error))[:300]}); {fix}"
            # A resume may need no further proposal.
            if getattr(options, "optional", False) or (self.starting and not self._new):
                return Notice(text)
            raise ConfigError(text) from error
        return answered

    def _environment(self) -> None:
        config = self.config
        rewards = self.rewards
        environment = self.environment
        check_instruction(environment, self.instruction, config.strategy.kind)
        check_splits(environment, validates=bool(config.evaluation.every))
        check_columns(rewards, environment, SPLITS)
        if getattr(config.environment, "retriever", None) is None:
            check_retriever(environment)  # a user's own environment

    def _prompts(self) -> str:
        begin("checking the prompts")
        from cotune.policy.template_checks import check_template

        config = self.config
        environment = self.environment
        check_context(self.context_tokens, config.limits)
        check_template(environment, self.codec, self.instruction)
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


def engine(name: str, trainer: Engine) -> str:
    """Check that the engine can be used in this environment."""
    trainer.check_installed()
    return f"training.engine: {name} {installed(name) or ''}".rstrip()


def policy(options: PolicyConfig) -> str:
    """Check that the policy is a complete folder, as far as it is here.

    Raises:
        ConfigError: its path is not a folder, or it is an unknown bundled policy.
    """
    name = options.path
    path = policy_path(name)
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
    template = options.chat_template
    if template is not None and template != "plain" and not Path(template).is_file():
        raise ConfigError(f"policy: no chat template {template}; correct policy.chat_template")
    return f"policy: {name}, {size(weights_size(folder))} of weights"


def retriever(environment: EnvironmentOptions) -> str | None:
    """Check that the retrieval server answers a query.

    Raises:
        ConfigError: the server returns no usable reply.
    """
    from cotune.retrieval.remote import RemoteRetriever

    options = getattr(environment, "retriever", None)
    if options is None:
        return None
    begin("asking the retrieval server")
    RemoteRetriever(options, retries=1).check()
    return f"environment.retriever: {options.url} answers"


def packages(config: RunConfig) -> None:
    """Check that the optional packages that the run file asks for are installed."""
    args = config.training.engine_args
    reported = args.get("report_to") or []
    trackers = [reported] if isinstance(reported, str) else list(reported)
    needed = {
        "peft": "policy.lora" if config.policy.lora is not None else "",
        "vllm": "training.engine_args.use_vllm" if args.get("use_vllm") else "",
        **{name: "training.engine_args.report_to" for name in trackers if name in OPTIONAL},
        **dict.fromkeys(config.logging.report_to, "logging.report_to"),
    }
    if extra := config.environment_kind.extra:
        needed[extra] = "environment.kind"
    for name, field in needed.items():
        if field and not installed(name):
            source = f"'cotune[{name}]'" if field == "environment.kind" else name
            raise ConfigError(
                f"{name} is not installed, but {field} asks for it; pip install "
                f"{_VLLM if name == 'vllm' else source}"
            )
    if needed.get("wandb") and not _wandb_can_log_in():
        raise ConfigError(
            f"{needed['wandb']}: W&B has no API key; run wandb login, or set WANDB_API_KEY, or "
            "WANDB_MODE=offline"
        )


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


def llm(options: LLMConfig | None) -> str | None:
    """Check what the LLM needs: a key in its environment variable, the file of a bank, an import.

    Raises:
        ConfigError: the variable holds no key, or a file or an object cannot be loaded.
    """
    if options is None or isinstance(options, RulesConfig):
        return None
    if isinstance(options, OwnLLMOptions):
        imported(options)
        return f"llm: {options.describe()}"
    build_llm(options, 0, Record())
    name = options.api_key_env if isinstance(options, OpenAIOptions) else None
    return f"llm: {options.describe()}" + (
        f"; the environment variable {name} is set" if name else ""
    )
