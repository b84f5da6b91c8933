"""The run file: a run's configuration in one frozen object. Defaults are the papers'."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from cotune.config.overrides import with_overrides
from cotune.data.dataset import DatasetConfig
from cotune.environments import registry as environments
from cotune.environments.registry import EnvironmentKind, kind_of
from cotune.environments.single_turn import SingleTurnOptions
from cotune.errors import ConfigError
from cotune.llm.client import OpenAIOptions
from cotune.llm.own import BankOptions, OwnLLMOptions
from cotune.methods import registry as methods
from cotune.methods.method import Method, RunShape
from cotune.methods.registry import method_of
from cotune.policy.policy_files import PolicyConfig
from cotune.policy.precision import Precision
from cotune.types import Limits
from cotune.utils.field_yaml import FieldLoader
from cotune.utils.importing import import_from
from cotune.utils.packages import ENGINES
from cotune.utils.text import flat, has_secret, hide_secrets, printable
from cotune.utils.validation import ByKind, Model, TextOrFields, describe

if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal[tuple(ENGINES)]


class RulesConfig(Model):
    """The offline rules of the environment, which read the proposers' prompts; the world ladder has some."""

    kind: Literal["rules"] = "rules"

    def describe(self) -> str:
        """Return what proposes."""
        return "offline rules"


class InstructionConfig(TextOrFields):
    """The initial instruction and its position; null fields are the environment's own."""

    text: str | None = None
    """The initial instruction; null: the environment's."""
    role: Literal["user", "system"] | None = None
    """The message that holds it."""
    placement: Literal["before", "after"] | None = None
    """Before or after the question, in the user's message."""
    system: Literal["keep", "replace"] | None = None
    """Keep the data's system prompt, or replace it with the instruction."""
    separator: str | None = None
    """Text between instruction and question in the user's message; the usual one is a blank line."""

    @property
    def places(self) -> dict[str, str]:
        """Return the fields of a `PromptFormat` that are given."""
        return self.model_dump(exclude={"text"}, exclude_none=True)


class RewardConfig(TextOrFields):
    """A reward function and its weight."""

    function: str
    """`package.module:name` or `file.py:name` of a function with TRL's signature, or a built-in one:
    exact_match, f1_squad, boxed."""
    weight: float = 1.0
    """The weight of its values in the sum."""
    messages: bool | None = None
    """Pass prompts and completions as chat messages (true) or as texts (false); null follows the form
    of the data's questions, and passes messages if there are tools."""


class TrainingConfig(Model):
    """GRPO. Defaults are INSPO's for a 3B model."""

    engine: EngineName = "trl"
    """The trainer: TRL's GRPOTrainer, or veRL's on Ray, each in its own Python environment; or a Tinker server,
    which is experimental."""
    steps: int = Field(default=300, ge=1)
    """Rollout batches: T."""
    questions_per_step: int = Field(default=512, ge=1)
    """Questions of a rollout batch; each is a group."""
    group_size: int = Field(default=5, ge=2)
    """Rollouts per question: G."""
    mini_batches: int = Field(default=2, ge=1)
    """Optimizer steps per rollout batch."""
    micro_batch_size: int = Field(default=16, ge=1)
    """Rollouts of one forward and backward pass, per process."""
    learning_rate: float = Field(default=5e-7, gt=0)
    """Peak learning rate, reached at the end of the warm-up."""
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    """Learning-rate schedule after the warm-up."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the optimizer steps over which the learning rate rises."""
    kl: float = Field(default=0.001, ge=0)
    """Weight of the KL term, β; 0 is off and loads no reference model."""
    clip: float = Field(default=0.2, gt=0)
    """Clip range of the importance ratio, ε."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training and verification rollouts."""
    rollout_budget: int | None = Field(default=None, ge=1)
    """Policy rollouts (training, verification, evolution) after which training ends; null: none."""
    rows_per_call: int = Field(default=512, ge=1)
    """Rollouts that are sampled together, per process; bounds memory."""
    save_every: int = Field(default=50, ge=0)
    """Rollout batches between checkpoints; 0 is off (an interrupted run then starts over)."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of checkpoints to keep; older ones are deleted."""
    precision: Precision = "auto"
    """The type to compute in. auto: bfloat16 on a GPU; without one the checkpoint's if policy.dtype is auto
    and the CPU has native bfloat16, else float32. bf16: under autocast, or without a GPU with policy.lora on
    weights in bfloat16."""
    frozen: bool = False
    """Freeze the policy: batches are rolled out if the method learns from them, but there are no
    optimizer steps. With strategy.kind static or gepa there are no batches at all."""
    single_gpu: bool = False
    """Let one process that sees several GPUs train on the first and leave the others idle."""
    engine_args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Passed on unchanged: fields of GRPOConfig, or with engine verl keys of its configuration such as
    actor_rollout_ref.rollout.gpu_memory_utilization. Those that other fields of the run file set are
    refused, except for logging and types. With engine tinker: its server, key's variable, model and prices."""

    @property
    def optimizer_steps(self) -> int:
        """Return the optimizer steps per rollout batch; a frozen batch is not split."""
        return 1 if self.frozen else self.mini_batches

    @model_validator(mode="after")
    def _divides(self) -> "TrainingConfig":
        rows = self.questions_per_step * self.group_size
        if rows % (self.mini_batches * self.micro_batch_size):
            raise ValueError(
                f"questions_per_step × group_size is {rows}, which mini_batches × micro_batch_size "
                f"= {self.mini_batches * self.micro_batch_size} does not divide; change micro_batch_size"
            )
        if self.rollout_budget is not None and self.rollout_budget < rows:
            raise ValueError(
                f"rollout_budget is {self.rollout_budget}, less than one batch of "
                f"questions_per_step × group_size = {rows}; raise it, or null for no budget"
            )
        return self


class EvaluationConfig(Model):
    """Greedy evaluation on questions that are never trained on."""

    every: int = Field(default=100, ge=0)
    """Steps between evaluations on the validation split; the best policy is kept, and the end
    checks its instruction. 0: none, the last policy is kept."""
    before: bool = True
    """Also evaluate the test split before training."""


RIVALS = 2
"""Further instructions that are scored on validation at the end if the method cannot tell them from its best."""


class LoggingConfig(Model):
    """Logs and trackers of a run."""

    trajectories_every: int = Field(default=10, ge=0)
    """Steps between files of training trajectories; 0 keeps those of evaluations only."""
    report_to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Trackers that receive the metrics and the evaluations. TensorBoard's files are in the run folder."""


_LLMS = {
    "rules": RulesConfig, "openai": OpenAIOptions, "bank": BankOptions, "python": OwnLLMOptions,
}  # fmt: skip
if TYPE_CHECKING:
    from cotune.methods.method import MethodOptions as StrategyConfig

    EnvironmentOptions = Any
    LLMConfig = RulesConfig | OpenAIOptions | BankOptions | OwnLLMOptions
else:
    StrategyConfig = Annotated[
        Any, ByKind(methods.BUILT_IN, lambda kind: method_of(kind).options, methods.GROUP)
    ]
    EnvironmentOptions = Annotated[
        Any, ByKind(environments.BUILT_IN, lambda kind: kind_of(kind).options, environments.GROUP)
    ]
    LLMConfig = Annotated[Any, ByKind(_LLMS, _LLMS.__getitem__)]


class RunConfig(Model):
    """A run file."""

    name: str = "run"
    """The name of the run in the console and the report."""
    output: Path
    """The run folder; it must not exist."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the order of questions and of all draws."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the policy; null leaves it to torch."""
    policy: PolicyConfig = PolicyConfig()
    dataset: DatasetConfig | None = None
    """Your own questions, for environments that bring none."""
    environment: EnvironmentOptions = SingleTurnOptions()
    """The environment that answers actions: a kind with its fields, a kind alone, or the
    `package.module:name` or `file.py:name` of your own class."""
    rewards: tuple[RewardConfig, ...] = ()
    """Reward functions, summed by weight; they replace the environment's score."""
    instruction: InstructionConfig = InstructionConfig()
    """The initial instruction: a text, or a text and its position; null: the environment's."""
    limits: Limits = Limits()
    strategy: StrategyConfig
    """The method: which prompt each rollout is sampled under, and which it is trained on."""
    llm: LLMConfig | None = None
    """The optimizer LLM: a kind with its fields, or the `package.module:name` or `file.py:name` of your
    own; null: the environment's offline rules, which the world ladder has; without them an error."""
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        sections = dict(cast("Mapping[str, Any]", raw))
        for name in ("environment", "llm"):
            if isinstance(text := sections.get(name), str):
                is_object = ":" in text
                if name == "llm" and not is_object and text not in _LLMS:
                    raise ValueError(
                        "llm is a text (not shown, as it may be a key); expected rules, the file.py:name of your own, "
                        "{kind: openai, model: …}, or for a file of texts {kind: bank, path: …}"
                    )
                sections[name] = {"kind": "python", "object": text} if is_object else {"kind": text}
        return sections

    @field_validator("output")
    @classmethod
    def _in_the_home_folder(cls, output: Path) -> Path:
        return output.expanduser()

    @model_validator(mode="after")
    def _computes_in_one_type(self) -> "RunConfig":
        if self.training.precision == "fp32" and self.policy.dtype not in ("auto", "float32"):
            raise ValueError(
                f"training.precision is fp32, but policy.dtype is {self.policy.dtype}; expected policy.dtype "
                "auto or float32, or precision auto"
            )
        return self

    @model_validator(mode="after")
    def _sections_fit(self) -> "RunConfig":
        # A script's trainer has checked its parts itself.
        if not isinstance(self, ScriptRun):
            self._check_data()
            self.method.check(self.strategy, self.shape())
            self._check_llm()
        return self

    def _check_data(self) -> None:
        kind = self.environment.kind
        entry = self.environment_kind
        if self.dataset is None and entry.dataset == "required":
            raise ValueError(
                f"dataset: missing; environment.kind {kind} brings no questions: name a file by "
                "dataset: {path: …}, or a data set of the hub by {name: …}"
            )
        if self.dataset is not None and entry.dataset == "none":
            raise ValueError(
                f"dataset: environment.kind {kind} brings its own questions; remove dataset"
            )
        if self.dataset is not None and "path" not in self.policy.model_fields_set:
            raise ValueError(
                "policy.path: missing; expected the model to train on dataset, a name of the hub or a folder"
            )

    @property
    def method(self) -> Method:
        """Return the registry entry of `strategy.kind`."""
        return method_of(self.strategy.kind)

    @property
    def environment_kind(self) -> EnvironmentKind:
        """Return the registry entry of `environment.kind`."""
        return kind_of(self.environment.kind)

    def shape(self, questions: int = 0) -> RunShape:
        """Return what the method's checks and costs depend on, with the number of training questions, if known."""
        training = self.training
        return RunShape(
            group_size=training.group_size,
            steps=training.steps,
            questions_per_step=training.questions_per_step,
            rollout_budget=training.rollout_budget,
            frozen=training.frozen,
            questions=questions,
        )

    @property
    def proposer(self) -> LLMConfig | None:
        """Return the LLM that the method asks: `llm` or the offline rules; None if it asks none."""
        return (self.llm or RulesConfig()) if self.method.needs_llm else None

    @property
    def has_batches(self) -> bool:
        """Return whether the run rolls out training batches; if frozen, only to evolve."""
        return self.method.uses_batches or not self.training.frozen

    def _check_llm(self) -> None:
        if not self.method.needs_llm or (self.llm is not None and self.llm.kind != "rules"):
            return
        if not self.environment_kind.offline_rules:
            raise ValueError(
                f"llm is {'missing' if self.llm is None else 'rules'}, and environment.kind "
                f"{self.environment.kind} has no offline rules; set llm to an "
                "OpenAI-compatible endpoint, {kind: openai, model: …, base_url: …}, to your own, "
                "my_llm.py:MyLLM, or to a file of texts to try, {kind: bank, path: …}"
            )


class ScriptRun(RunConfig):
    """What a script's run was made from, as the fields of a run file; fields that are not set are TRL's.

    Its questions are not recorded; `__main__:name` is an object that cannot be imported.
    """

    library: Literal["trl"]
    """The trainer that the script is written for."""


def load_config(path: str | Path, assignments: Sequence[str] = ()) -> RunConfig:
    """Read a run file; `assignments` replace its fields, each as `training.steps=600` (see `with_overrides`).

    Raises ConfigError: one line with the file, the field, the value and what was expected.
    """
    path = Path(path)
    import_from((Path.cwd(), path.parent))  # files named in the run file may be there
    raw = read_fields(path, "a run file", "output: and strategy:")
    if "methods" in raw and "strategy" not in raw:
        raise ConfigError(
            f"{path} is a suite file, as it has methods and no strategy; expected a run file; start the "
            f"suite with cotune compare {path}"
        )
    if "library" in raw:
        raise ConfigError(
            f"{path}: is what a script has recorded; expected a run file; in the script, trainer.plan() and "
            "trainer.try_rollouts() look at a run before trainer.train()"
        )
    source = f"{path} with --set" if assignments else str(path)
    return parse_config(with_overrides(raw, assignments), source)


def parse_config(raw: Mapping[str, Any], source: str) -> RunConfig:
    """Build the configuration of a new run from plain data; `source` is named in errors."""
    check_values(raw, source)
    return parse_recorded(raw, source)


def parse_recorded(raw: Mapping[str, Any], source: str) -> RunConfig:
    """Build a configuration from plain data that was accepted before, as `dump_config` returned it."""
    model = ScriptRun if "library" in raw else RunConfig
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        # Not `from error`: its text repeats the input, which may include a misplaced key.
        raise ConfigError(f"{source}: {describe(error, RunConfig)}") from None


def check_values(raw: Mapping[str, Any], source: str) -> None:
    """Raise ConfigError for a key, or a password in a URL."""
    for name, value in flat(raw).items():
        if has_secret(str(value)) and not name.startswith("instruction"):
            field = printable(hide_secrets(name, guess=True))
            raise ConfigError(
                f"{source}: {field}: holds a key, or an address with a user or password (not shown), and "
                "a run file is copied into the run folder; keep secrets in environment variables"
            )


def dump_config(config: RunConfig) -> dict[str, Any]:
    """Return plain data that `parse_recorded` reads back; of a script only what it set."""
    return config.model_dump(mode="json", exclude_unset=isinstance(config, ScriptRun))


def read_fields(path: Path, expected: str, such_as: str) -> dict[str, Any]:
    """Read a YAML file of fields, without checking their names; ConfigError if it is not one."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), FieldLoader)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; expected {expected}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}{_yaml_problem(error)}") from None
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{path}: holds {'nothing' if raw is None else type(raw).__name__}; expected fields "
            f"such as {such_as}"
        )
    return cast("dict[str, Any]", raw)


def _yaml_problem(error: Exception) -> str:
    """Describe the position and the problem, without the line itself: it may hold a key."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        problem = hide_secrets(error.problem or "not YAML", guess=True)
        return f", line {error.problem_mark.line + 1}: {problem}; expected YAML"
    return ": expected YAML, in UTF-8"
