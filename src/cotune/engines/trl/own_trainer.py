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
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cotune.config.preflight import check_instruction
from cotune.config.strategy import strategy_of
from cotune.errors import ConfigError
from cotune.llm.client import Account, MeteredLLM, NoLLM, OpenAIClient, OpenAIOptions
from cotune.methods.composed import ComposedOptions
from cotune.methods.gepa.gepa import GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.method import MethodOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.registry import method_of
from cotune.methods.static import StaticOptions
from cotune.protocols import LLM, Environment, State, Strategy, TokenRules
from cotune.rewards.functions import AnyReward, RewardFunctions
from cotune.types import Limits
from cotune.utils.packages import need_trl
from cotune.worlds.arithmetic import ArithmeticEnvironment
from cotune.worlds.geo import GeoEnvironment
from cotune.worlds.rules import RulesLLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOConfig

    from cotune.engines.trl.hooks import TRLJoint

GivenRewards = RewardFunctions | Sequence[AnyReward] | None
Options = TypeVar("Options", bound=MethodOptions)
_WORLDS = {"geo": GeoEnvironment, "arithmetic": ArithmeticEnvironment}


class TrainerMethod(Generic[Options]):
    """The base of all methods: the parts of a run that are not the trainer's.

    Attributes:
        options: the method's numbers.
        llm: what proposes; None if nothing does.
    """

    options_class: type[Options]
    options: Options
    llm: LLM | OpenAIOptions | None = None

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
        self.method = method_of(self.options_class().kind)
        check_instruction(environment, self.instruction, self.method.kind)
        if rewards is not None and not isinstance(rewards, RewardFunctions):
            rewards = RewardFunctions(rewards)
        self.rewards: RewardFunctions | None = rewards
        self.seed, self.folder = seed, None if folder is None else Path(folder)

    def for_trl(self, tokenizer: "PreTrainedTokenizerBase", args: "GRPOConfig") -> "TRLJoint":
        """Return what a GRPOTrainer takes: `dataset`, `rollout_func`, `reward_funcs`, `callbacks`.

        `trainer.train()` begins a run folder, `trainer.train(resume_from_checkpoint=True)` continues
        it. With `eval_dataset=joint.eval_dataset("validation")` the trainer evaluates, too.
        If several processes train, each of them calls this.

        Args:
            tokenizer: the policy's, with a chat template; also the trainer's `processing_class`.
            args: the trainer's configuration, with `max_steps` and `shuffle_dataset=False`;
                docs/grpo-config.md goes through all fields.

        Raises:
            ConfigError: an argument that cannot work; the trainer is checked when it is made.
        """
        need_trl("for_trl")
        from cotune.engines.trl.own_run import joint_run

        return joint_run(self, tokenizer, args)

    def describe(self) -> State:
        """Return what a run folder's run.yaml says of the method."""
        found = {
            "seed": self.seed,
            "environment": {"kind": type(self.environment).__name__},
            "instruction": self.instruction,
            "limits": asdict(self.limits),
            "rewards": None if self.rewards is None else self.rewards.describe(),
            "strategy": asdict(self.options),  # pyright: ignore[reportArgumentType]
        }
        if self.llm is not None:
            llm = self.llm
            name = llm.model if isinstance(llm, OpenAIOptions) else type(llm).__name__
            found["llm"] = {"kind": name}
        return found

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        """Build a new strategy; `tokens` is the policy's codec."""
        return strategy_of(
            self.options,
            self.environment,
            instruction=self.instruction,
            seed=self.seed,
            limits=self.limits,
            tokens=tokens,
        )

    def build_llm(self, account: Account) -> LLM:
        """Return the optimizer LLM, whose calls an account keeps."""
        if self.llm is None:
            return NoLLM()
        if isinstance(self.llm, OpenAIOptions):
            return OpenAIClient(self.llm, account)
        return MeteredLLM(self.llm, account, model=type(self.llm).__name__)


class Static(TrainerMethod[StaticOptions]):
    """GRPO with a static instruction for your own trainer: the baseline of every method.

    Takes the arguments of `INSPO` except `llm` and `options`.

    Raises:
        ConfigError: an instruction that cannot work.
    """

    options_class = StaticOptions
    options = StaticOptions()


class Evolving(TrainerMethod[Options]):
    """A method with an optimizer LLM and with options."""

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
        if options is None:
            options = _options(name, self.options_class, option_fields)
        elif option_fields:
            raise ConfigError(
                f"{name} was given options and {', '.join(option_fields)}; expected one of the two: "
                "put the fields into options"
            )
        elif not isinstance(options, self.options_class):
            raise ConfigError(
                f"{name}: options is of {type(options).__name__}; expected "
                f"{self.options_class.__name__}"
            )
        self.options = options
        worlds = tuple(_WORLDS[world] for world in self.method.offline_worlds)
        if llm is None and not isinstance(environment, worlds):
            known = " and ".join(world.__name__ for world in worlds)
            raise ConfigError(
                f"llm is None, but for {name} the offline rules know {known} alone and environment "
                f"is {type(environment).__name__}; give llm=cotune.OpenAIOptions(model=…) or an "
                "object with complete(prompt)"
            )
        self.llm = RulesLLM(seed) if llm is None else llm


class INSPO(Evolving[InspoOptions]):
    """Instruction-policy co-evolution (arXiv 2512.01945) for your own trainer.

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

    options_class = InspoOptions


class GEPA(Evolving[GepaOptions]):
    """GEPA on the instruction before the first step (arXiv 2507.19457), then GRPO under the best one.

    The search spends its whole `budget` of rollouts at step 1, under the policy of that moment. Takes the
    arguments of `INSPO`.

    Args:
        options: the method's numbers; or give its fields as keywords, not both.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    options_class = GepaOptions


class P2O(Evolving[P2OOptions]):
    """Hints on hard questions, distilled into the weights (arXiv 2603.21877).

    The instruction stays as it is. Trained by `cotune.JointTrainer`, whose arguments are those of
    GRPOTrainer; a plain one does with `distillation=cotune.Distillation(ratio="original")`. Takes the
    arguments of `INSPO`.

    Args:
        llm: as for `INSPO`; None is the offline `RulesLLM` on the bundled worlds `geo` and
            `arithmetic`, and an error elsewhere.
        options: the method's numbers; or give its fields as keywords, not both.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    options_class = P2OOptions


class INSPOWithP2O(Evolving[ComposedOptions]):
    """INSPO and P²O composed: instructions evolve, and hard questions get hints besides.

    Trained by `cotune.JointTrainer`, as `P2O` is. Takes the arguments of `INSPO`.

    Args:
        options: both methods' numbers; or give its fields as keywords (`inspo`, `p2o`,
            `distil_instruction`), not both.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    options_class = ComposedOptions


def _options(method: str, options_class: type[Options], given: dict[str, Any]) -> Options:
    names = fields(options_class)  # pyright: ignore[reportArgumentType]
    known = [field.name for field in names if field.name != "kind"]
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
