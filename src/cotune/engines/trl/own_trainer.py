"""The library's face: a user's own `GRPOTrainer` gets a method by four arguments.

    joint = cotune.INSPO(environment=environment, llm=llm).for_trl(tokenizer, args)
    trainer = GRPOTrainer(
        model,
        args=args,
        train_dataset=joint.dataset,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
        callbacks=joint.callbacks,
    )
    trainer.train()

P²O needs `cotune.JointTrainer` in GRPOTrainer's place, which weighs tokens. Nothing is written
before training begins, and no environment variable is set.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from cotune.config.preflight import check_instruction, evolved_room
from cotune.engines.trl.own_run import LibraryRun
from cotune.environments.description import description_of
from cotune.errors import ConfigError
from cotune.llm.client import MeteredLLM, NoLLM, OpenAIClient, OpenAIOptions
from cotune.methods.composed import ComposedOptions, InspoP2O
from cotune.methods.gepa.gepa import Gepa, GepaOptions
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.p2o import p2o
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.static import StaticStrategy
from cotune.protocols import LLM, Environment, State, Strategy, TokenRules
from cotune.rewards.functions import AnyReward, RewardFunctions
from cotune.types import Limits
from cotune.utils.packages import need_trl
from cotune.worlds.arithmetic import ArithmeticEnvironment
from cotune.worlds.geo import GeoEnvironment
from cotune.worlds.hint_writer import RulesLLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOConfig

    from cotune.engines.trl.hooks import TRLJoint

GivenRewards = RewardFunctions | Sequence[AnyReward] | None


class Method:
    """What all methods share: the parts of a run that are not the trainer's."""

    kind: ClassVar[str]

    def __init__(
        self,
        *,
        environment: Environment,
        limits: Limits | None = None,
        instruction: str | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        rewards: GivenRewards = None,
    ) -> None:
        self.environment = environment
        self.limits = limits or Limits()
        self.instruction = environment.initial_instruction if instruction is None else instruction
        check_instruction(environment, self.instruction, self.kind)
        if rewards is not None and not isinstance(rewards, RewardFunctions):
            rewards = RewardFunctions(rewards)
        self.rewards: RewardFunctions | None = rewards
        self.seed, self.folder = seed, None if folder is None else Path(folder)

    def for_trl(self, tokenizer: "PreTrainedTokenizerBase", args: "GRPOConfig") -> "TRLJoint":
        """What a GRPOTrainer is given: `dataset`, `rollout_func`, `reward_funcs`, `callbacks`.

        `trainer.train()` begins a run folder, `trainer.train(resume_from_checkpoint=True)` goes on
        in it. With `eval_dataset=joint.eval_dataset("validation")` the trainer evaluates, too.
        Where several processes train, every one of them calls this.

        Args:
            tokenizer: the policy's, with a chat template; also the trainer's `processing_class`.
            args: the trainer's configuration, with `max_steps` and `shuffle_dataset=False`;
                docs/reference/grpo-config.md goes through all fields.

        Raises:
            ConfigError: an argument that cannot work; the trainer is checked when it is made.
        """
        need_trl("for_trl")
        from cotune.engines.trl.method import joint_run

        return joint_run(self, tokenizer, args)

    def describe(self) -> State:
        """What a run folder's run.yaml says of the method."""
        return {
            "seed": self.seed,
            "environment": {"kind": type(self.environment).__name__},
            "instruction": self.instruction,
            "limits": asdict(self.limits),
            "rewards": None if self.rewards is None else self.rewards.describe(),
            "strategy": {"kind": self.kind},
        }

    def check_group(self, group_size: int) -> None:
        """Raises ConfigError where the method cannot work with groups of so many rollouts."""

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        """A new strategy; `tokens` is the policy's codec."""
        raise NotImplementedError

    def build_llm(self, run: LibraryRun) -> LLM:
        """The optimizer LLM; its calls are entered in the run's ledger."""
        raise NotImplementedError


Options = TypeVar("Options", InspoOptions, P2OOptions, ComposedOptions, GepaOptions)


class Evolving(Method, Generic[Options]):
    """A method with an optimizer LLM and with options.

    Attributes:
        options: the method's numbers.
        llm: what proposes.
    """

    options_class: type[Options]
    offline: ClassVar[tuple[type[Any], ...]]  # the environments that the offline rules know

    def __init__(
        self,
        *,
        environment: Environment,
        llm: LLM | OpenAIOptions | None = None,
        options: Options | None = None,
        limits: Limits | None = None,
        instruction: str | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        rewards: GivenRewards = None,
        **option_fields: Any,
    ) -> None:
        super().__init__(
            environment=environment, limits=limits, instruction=instruction, seed=seed,
            folder=folder, rewards=rewards,
        )  # fmt: skip
        name = type(self).__name__
        if options is not None and option_fields:
            raise ConfigError(
                f"{name} was given options and {', '.join(option_fields)}; expected one of the two: "
                "put the fields into options"
            )
        if options is not None and not isinstance(options, self.options_class):
            raise ConfigError(
                f"{name}: options is of {type(options).__name__}; expected "
                f"{self.options_class.__name__}"
            )
        if options is None:
            options = _options(name, self.options_class, option_fields)
        self.options = options
        if llm is None and not isinstance(environment, self.offline):
            known = " and ".join(c.__name__ for c in self.offline)
            raise ConfigError(
                f"llm is None, but for {name} the offline rules know {known} alone and environment "
                f"is {type(environment).__name__}; give llm=cotune.OpenAIOptions(model=…) or an "
                "object with complete(prompt)"
            )
        self.llm = RulesLLM(seed) if llm is None else llm

    def describe(self) -> State:
        llm = self.llm
        name = llm.model if isinstance(llm, OpenAIOptions) else type(llm).__name__
        return {**super().describe(), "strategy": asdict(self.options), "llm": {"kind": name}}

    def _limits(self, tokens: TokenRules) -> tuple[Callable[[str], int], int, tuple[str, ...]]:
        """How texts are counted, how long they may be, and what none may hold."""
        return tokens.count, evolved_room(self.limits, self.kind), tokens.control_tokens

    def build_llm(self, run: LibraryRun) -> LLM:
        if isinstance(self.llm, OpenAIOptions):
            return OpenAIClient(self.llm, run)
        return MeteredLLM(self.llm, run, model=type(self.llm).__name__)


class INSPO(Evolving[InspoOptions]):
    """Instruction-policy co-evolution (arXiv 2512.01945) for a trainer of one's own.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        llm: the optimizer LLM: anything with `complete(prompt)`, or `OpenAIOptions` for an
            OpenAI-compatible endpoint (then priced and held to its budget). None is the offline
            `RulesLLM` on the bundled world `geo`, and an error elsewhere.
        options: the method's numbers; or give its fields as keywords, not both.
        limits: of an episode, in tokens and turns.
        instruction: the initial instruction; None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.
        rewards: functions as TRL takes them, each alone or with its weight; they score in the
            environment's place. See `cotune.RewardFunctions`.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    kind = "inspo"
    options_class = InspoOptions
    offline = (GeoEnvironment,)

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        told = (self.environment.required, description_of(self.environment))
        return Inspo(self.instruction, self.options, self.seed, *self._limits(tokens), *told)


class GEPA(Evolving[GepaOptions]):
    """GEPA on the instruction before the first step (arXiv 2507.19457), then GRPO under the best one.

    The search spends its whole `budget` of rollouts at step 1, under the policy as it is then.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        llm: the optimizer LLM, which reflects on failures; as for `INSPO`.
        options: the method's numbers; or give its fields as keywords, not both.
        limits: of an episode, in tokens and turns.
        instruction: the initial instruction; None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.
        rewards: functions as TRL takes them, each alone or with its weight; they score in the
            environment's place. See `cotune.RewardFunctions`.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    kind = "gepa"
    options_class = GepaOptions
    offline = (GeoEnvironment,)

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        return Gepa(
            self.instruction,
            self.environment.tasks("train"),
            self.options,
            self.seed,
            *self._limits(tokens),
            self.environment.required,
            description_of(self.environment),
        )


class P2O(Evolving[P2OOptions]):
    """Hints on hard questions, distilled into the weights (arXiv 2603.21877).

    The instruction stays as it is. Trained by `cotune.JointTrainer`, whose arguments are those of
    GRPOTrainer; a plain one does with `distillation=cotune.Distillation(ratio="original")`.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        llm: the optimizer LLM, which reflects on failures; as for `INSPO`. None is the offline
            `RulesLLM` on the bundled worlds `geo` and `arithmetic`, and an error elsewhere.
        options: the method's numbers; or give its fields as keywords, not both.
        limits: of an episode, in tokens and turns.
        instruction: None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.
        rewards: functions as TRL takes them, each alone or with its weight; they score in the
            environment's place. See `cotune.RewardFunctions`.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    kind = "p2o"
    options_class = P2OOptions
    offline = (GeoEnvironment, ArithmeticEnvironment)

    def check_group(self, group_size: int) -> None:
        _check_judged(self.options, group_size)

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        return p2o.P2O(
            StaticStrategy(self.instruction),
            self.environment.tasks("train"),
            self.options,
            self.seed,
            *self._limits(tokens),
            description_of(self.environment),
        )


class INSPOWithP2O(Evolving[ComposedOptions]):
    """INSPO and P²O composed: instructions evolve, and hard questions get hints besides.

    Trained by `cotune.JointTrainer`, as `P2O` is.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        llm: the optimizer LLM of both; as for `INSPO`.
        options: both methods' numbers; or give its fields as keywords (`inspo`, `p2o`,
            `distil_instruction`), not both.
        limits: of an episode, in tokens and turns.
        instruction: the initial instruction; None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.
        rewards: functions as TRL takes them, each alone or with its weight; they score in the
            environment's place. See `cotune.RewardFunctions`.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    kind = "inspo+p2o"
    options_class = ComposedOptions
    offline = (GeoEnvironment,)

    def check_group(self, group_size: int) -> None:
        _check_judged(self.options.p2o, group_size)

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        return InspoP2O(
            self.instruction,
            self.environment.tasks("train"),
            self.options,
            self.seed,
            *self._limits(tokens),
            self.environment.required,
            description_of(self.environment),
        )


class Static(Method):
    """GRPO with a static instruction for a trainer of one's own: the baseline of every method.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        limits: of an episode, in tokens and turns.
        instruction: None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.
        rewards: functions as TRL takes them, each alone or with its weight; they score in the
            environment's place. See `cotune.RewardFunctions`.

    Raises:
        ConfigError: an instruction that cannot work.
    """

    kind = "static"

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        return StaticStrategy(self.instruction)

    def build_llm(self, run: LibraryRun) -> LLM:
        return NoLLM()


def _check_judged(options: P2OOptions, group_size: int) -> None:
    judged = options.judged(group_size)
    if options.successes_below > judged:
        raise ConfigError(
            f"successes_below is {options.successes_below}, but a question is judged by {judged} "
            f"rollouts of GRPOConfig.num_generations={group_size} and would stay hard for ever; "
            f"expected at most {judged}"
        )


def _options(method: str, options_class: type[Options], given: dict[str, Any]) -> Options:
    known = [field.name for field in fields(options_class) if field.name != "kind"]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(
                f"{method}: {name} is no argument and no field of {options_class.__name__}{meant}"
            )
    try:
        return options_class(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{method}: {error}") from error
