"""The Python API for your own `GRPOTrainer`: a method supplies four of its arguments.

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

P²O needs `cotune.JointTrainer` instead of GRPOTrainer, because it weights tokens. Nothing is
written before training begins, and no environment variable is set.
"""

import difflib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cotune.config.run_checks import check_instruction
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
from cotune.worlds.rules_llm import RulesLLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOConfig

    from cotune.engines.trl.trl_joint import TRLJoint

GivenRewards = RewardFunctions | Sequence[AnyReward] | None
Options = TypeVar("Options", bound=MethodOptions)
_WORLDS = {"geo": GeoEnvironment, "arithmetic": ArithmeticEnvironment}


class TrainerMethod(Generic[Options]):
    """Base class of all methods: the parts of a run other than the trainer.

    Attributes:
        options: the method's options.
        llm: the optimizer LLM; None if the method uses none.
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
        """Return a GRPOTrainer's `dataset`, `rollout_func`, `reward_funcs` and `callbacks`.

        `trainer.train()` starts a run folder, and `trainer.train(resume_from_checkpoint=True)`
        resumes it. With `eval_dataset=joint.eval_dataset("validation")` the trainer also evaluates.
        If several processes train, each of them must call this method.

        Args:
            tokenizer: the policy's tokenizer, with a chat template; also the trainer's
                `processing_class`.
            args: the trainer's configuration, with `max_steps` and `shuffle_dataset=False`;
                docs/reference/grpo-config.md lists the fields that are refused.

        Raises:
            ConfigError: an argument is invalid; the trainer itself is checked when it is
                constructed.
        """
        need_trl("for_trl")
        from cotune.engines.trl.library_run import joint_run

        return joint_run(self, tokenizer, args)

    def describe(self) -> State:
        """Return the method's entries in a run folder's run.yaml."""
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
        from cotune.config.build import build_strategy  # loads pydantic

        return build_strategy(
            self.options,
            self.environment,
            instruction=self.instruction,
            seed=self.seed,
            limits=self.limits,
            tokens=tokens,
        )

    def build_llm(self, account: Account) -> LLM:
        """Return the optimizer LLM, which charges its calls to an account."""
        if self.llm is None:
            return NoLLM()
        if isinstance(self.llm, OpenAIOptions):
            return OpenAIClient(self.llm, account)
        return MeteredLLM(self.llm, account, model=type(self.llm).__name__)


class Static(TrainerMethod[StaticOptions]):
    """Train with GRPO under a static instruction: the baseline for every method.

    Takes the arguments of `INSPO` except `llm` and `options`.

    Raises:
        ConfigError: the instruction is invalid.
    """

    options_class = StaticOptions
    options = StaticOptions()


class Evolving(TrainerMethod[Options]):
    """Base class of methods that have an optimizer LLM and options."""

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
    """Co-evolve instruction and policy (INSPO, arXiv 2512.01945) with your own trainer.

    Args:
        environment: supplies the tasks, answers actions and scores them.
        llm: the optimizer LLM: any object with a `complete(prompt)` method, or `OpenAIOptions` for
            an OpenAI-compatible endpoint (then priced and held to its budget). None means the
            offline `RulesLLM` in the bundled world `geo`, and an error elsewhere.
        options: the method's options; pass `options` or its fields, not both.
        limits: the limits of an episode, in tokens and turns.
        instruction: the initial instruction; None means the environment's.
        seed: the seed for the order of tasks and for all sampling.
        folder: the run folder; None means `cotune` in the trainer's `output_dir`.
        rewards: reward functions in TRL's form, each alone or with its weight; they replace the
            environment's scoring. See `cotune.RewardFunctions`.

    Raises:
        ConfigError: an option or the instruction is invalid, or there is no LLM.
    """

    options_class = InspoOptions


class GEPA(Evolving[GepaOptions]):
    """Run GEPA on the instruction before the first step (arXiv 2507.19457), then train with GRPO.

    The search spends its whole `budget` of rollouts at step 1, with the policy as it is then. Takes
    the arguments of `INSPO`.

    Args:
        options: the method's options; pass `options` or its fields, not both.

    Raises:
        ConfigError: an option or the instruction is invalid, or there is no LLM.
    """

    options_class = GepaOptions


class P2O(Evolving[P2OOptions]):
    """Sample hard questions under hints, and distil the hints (P²O, arXiv 2603.21877).

    The instruction does not change. Train with `cotune.JointTrainer`, which takes GRPOTrainer's
    arguments; a plain GRPOTrainer works with `distillation=cotune.Distillation(ratio="original")`.
    Takes the arguments of `INSPO`.

    Args:
        llm: as for `INSPO`; None means the offline `RulesLLM` in the bundled worlds `geo` and
            `arithmetic`, and an error elsewhere.
        options: the method's options; pass `options` or its fields, not both.

    Raises:
        ConfigError: an option or the instruction is invalid, or there is no LLM.
    """

    options_class = P2OOptions


class INSPOWithP2O(Evolving[ComposedOptions]):
    """Combine INSPO and P²O: evolve instructions, and sample hard questions under hints.

    Train with `cotune.JointTrainer`, as for `P2O`. Takes the arguments of `INSPO`.

    Args:
        options: both methods' options; pass `options` or its fields, not both:
            `inspo`, `p2o`, `distil_instruction`.

    Raises:
        ConfigError: an option or the instruction is invalid, or there is no LLM.
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
