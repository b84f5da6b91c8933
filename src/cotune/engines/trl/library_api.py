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

Options that weight tokens or need a teacher, such as P²O's masks, need `cotune.JointTrainer` instead of
GRPOTrainer. Nothing is written before training begins, and no environment variable is set.
"""

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cotune.config.run_checks import check_instruction
from cotune.config.strategy import build_strategy
from cotune.errors import ConfigError
from cotune.llm.bank import BankLLM, BankOptions, check_bank
from cotune.llm.client import MeteredLLM, NoLLM, OpenAIClient, OpenAIOptions
from cotune.methods.composed import ComposedOptions
from cotune.methods.fst.fst import FstOptions
from cotune.methods.fst.gepa import GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.method import MethodOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.registry import method_of
from cotune.methods.static import StaticOptions
from cotune.protocols import LLM, Environment, State, Strategy, TokenRules
from cotune.rewards.functions import GivenRewards, RewardFunctions, WeightedReward
from cotune.run.record import Record
from cotune.types import Limits
from cotune.utils.packages import need_trl
from cotune.utils.text import did_you_mean
from cotune.worlds.geo import GeoEnvironment
from cotune.worlds.ladder import LadderEnvironment
from cotune.worlds.rules_llm import RulesLLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOConfig

    from cotune.engines.trl.trl_joint import TRLJoint

Options = TypeVar("Options", bound=MethodOptions)
_WORLDS = (GeoEnvironment, LadderEnvironment)


class TrainerMethod(Generic[Options]):
    """Base class of all methods: the parts of a run other than the trainer.

    Args:
        environment: supplies the tasks, answers actions and scores them.
        llm: the optimizer LLM: any object with a `complete(prompt)` method, `OpenAIOptions` for an
            OpenAI-compatible endpoint (then priced and held to its budget), or `BankOptions` for a
            file of texts. None means the offline `RulesLLM` in a bundled world, and an error elsewhere.
        options: the method's options; pass `options` or its fields, not both.
        limits: the limits of an episode, in tokens and turns.
        instruction: the initial instruction; None means the environment's.
        seed: the seed for the order of tasks and for all sampling.
        folder: the run folder; None means `cotune` in the trainer's `output_dir`.
        rewards: a reward function in TRL's form, or several, each alone or with its weight; they
            replace the environment's scoring. See `cotune.RewardFunctions`.

    Attributes:
        options: the method's options.
        llm: the optimizer LLM; None if the method uses none.

    Raises:
        ConfigError: an option or the instruction is invalid, or there is no LLM.
    """

    options_class: type[Options]

    def __init__(
        self,
        *,
        environment: Environment,
        llm: LLM | OpenAIOptions | BankOptions | None = None,
        options: Options | None = None,
        limits: Limits | None = None,
        instruction: str | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        rewards: GivenRewards = None,
        **option_fields: Any,
    ) -> None:
        self.method = method_of(self.options_class().kind)
        name = type(self).__name__
        if isinstance(environment, type) or not hasattr(environment, "initial_instruction"):
            raise ConfigError(
                f"{name}: environment is {_kind(environment)}; expected an environment, such as "
                "cotune.GeoEnvironment() or your subclass of cotune.TaskEnvironment"
            )
        self.environment = environment
        if not isinstance(limits, Limits | None):
            raise ConfigError(
                f"{name}: limits is a {type(limits).__name__}; expected cotune.Limits(…)"
            )
        self.limits = limits or Limits()
        self.instruction = environment.initial_instruction if instruction is None else instruction
        check_instruction(environment, self.instruction, self.method.kind)
        self.rewards = _reward_functions(name, rewards)
        self.seed, self.folder = seed, None if folder is None else Path(folder).expanduser()
        self.options = self._options(options, option_fields)
        self.llm = self._llm_or_rules(llm)

    def _options(self, options: Options | None, option_fields: dict[str, Any]) -> Options:
        name, expected = type(self).__name__, self.options_class
        if options is None:
            known = [field.name for field in fields(expected) if field.name != "kind"]  # pyright: ignore[reportArgumentType]
            for given in option_fields:
                if given not in known:
                    raise ConfigError(
                        f"{name}: {given} is neither an argument nor a field of {expected.__name__}"
                        f"{did_you_mean(given, known)}"
                    )
            try:
                return expected(**option_fields)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{name}: {error}") from error
        if option_fields:
            raise ConfigError(
                f"{name} was given options and {', '.join(option_fields)}; expected one of the two: "
                "put the fields into options"
            )
        if not isinstance(options, expected):
            raise ConfigError(
                f"{name}: options is of {type(options).__name__}; expected {expected.__name__}"
            )
        return options

    def _llm_or_rules(
        self, llm: LLM | OpenAIOptions | BankOptions | None
    ) -> LLM | OpenAIOptions | BankOptions | None:
        """Return the method's LLM; the offline rules if it is None and they know the environment."""
        if not self.method.needs_llm(self.options):
            if llm is not None:
                raise ConfigError(
                    f"{type(self).__name__} uses no LLM with these options; remove llm"
                )
            return None
        if isinstance(llm, BankOptions):
            try:
                check_bank(llm, self.method)
            except ValueError as error:
                raise ConfigError(f"{type(self).__name__}: {error}") from None
        elif llm is not None and not isinstance(llm, OpenAIOptions):
            _check_llm(type(self).__name__, llm)
        if llm is None and not isinstance(self.environment, _WORLDS):
            known = ", ".join(world.__name__ for world in _WORLDS)
            raise ConfigError(
                f"llm is None, but the offline rules know only {known} and "
                f"environment is {type(self.environment).__name__}; give "
                "llm=cotune.OpenAIOptions(model=…) or an object with complete(prompt)"
            )
        return RulesLLM(self.seed) if llm is None else llm

    def for_trl(self, tokenizer: "PreTrainedTokenizerBase", args: "GRPOConfig") -> "TRLJoint":
        """Return a GRPOTrainer's `dataset`, `rollout_func`, `reward_funcs` and `callbacks`.

        `trainer.train()` starts a run folder, and `trainer.train(resume_from_checkpoint=True)`
        resumes it. With `eval_dataset=joint.eval_dataset("validation")` the trainer also evaluates, and
        at the end the best instruction (`best/instruction.txt` in the run folder) is chosen on validation.
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
            named = isinstance(llm, OpenAIOptions | BankOptions)
            found["llm"] = {"kind": llm.public_name if named else type(llm).__name__}
        return found

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        """Build a new strategy; `tokens` is the policy's codec."""
        return build_strategy(
            self.options,
            self.environment,
            instruction=self.instruction,
            seed=self.seed,
            limits=self.limits,
            tokens=tokens,
        )

    def build_llm(self, record: Record) -> LLM:
        """Return the optimizer LLM, whose calls are counted in a record."""
        if self.llm is None:
            return NoLLM()
        if isinstance(self.llm, OpenAIOptions):
            return OpenAIClient(self.llm, record)
        if isinstance(self.llm, BankOptions):
            return BankLLM(self.llm)
        return MeteredLLM(self.llm, record, model=type(self.llm).__name__)


def _kind(given: object) -> str:
    """Name what was given without its value, which may be a key."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return "a text" if isinstance(given, str) else f"of type {type(given).__name__}"


def _check_llm(name: str, llm: object) -> None:
    """Raise ConfigError unless it is an object with `complete`."""
    if isinstance(llm, type) or not callable(getattr(llm, "complete", None)):
        raise ConfigError(
            f"{name}: llm is {_kind(llm)}; expected cotune.OpenAIOptions(model=…), "
            "cotune.BankOptions(path=…) or an object with complete(prompt)"
        )


def _reward_functions(name: str, given: GivenRewards) -> RewardFunctions | None:
    """Return the reward functions; a single one counts as a list."""
    if given is None or isinstance(given, RewardFunctions):
        return given
    if callable(given) or isinstance(given, str | WeightedReward):
        return RewardFunctions([given])
    if not isinstance(given, list | tuple):
        raise ConfigError(
            f"{name}: rewards is {_kind(given)}; expected a function, or a list of functions"
        )
    return RewardFunctions(given)


class Static(TrainerMethod[StaticOptions]):
    """Train with GRPO under a static instruction: the baseline for every method.

    It has no options and asks no LLM.
    """

    options_class = StaticOptions


class INSPO(TrainerMethod[InspoOptions]):
    """Co-evolve instruction and policy (INSPO, arXiv 2512.01945) with your own trainer."""

    options_class = InspoOptions


class GEPA(TrainerMethod[GepaOptions]):
    """Run GEPA on the instruction before the first step (arXiv 2507.19457), then train with GRPO.

    The search spends its whole `budget` of rollouts at step 1, with the policy as it is then.
    """

    options_class = GepaOptions


class FST(TrainerMethod[FstOptions]):
    """Evolve a set of prompts between steps and spread each group over them (FST, arXiv 2605.12484).

    Its authors' loss is CISPO: `GRPOConfig(loss_type="cispo", epsilon_high=5.0)`.
    """

    options_class = FstOptions


class P2O(TrainerMethod[P2OOptions]):
    """Sample hard questions under hints, and distil the hints (P²O, arXiv 2603.21877).

    The instruction does not change. Train with `cotune.JointTrainer`, which takes GRPOTrainer's
    arguments; a plain GRPOTrainer works with the default `distillation`, without a mask.
    """

    options_class = P2OOptions


class INSPOWithP2O(TrainerMethod[ComposedOptions]):
    """Combine INSPO and P²O: evolve instructions, and sample hard questions under hints.

    Train with `cotune.JointTrainer`, as for `P2O`.
    """

    options_class = ComposedOptions
