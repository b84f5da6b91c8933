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

Nothing is written before training begins, and no environment variable is set.
"""

import difflib
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotune.contracts import LLM, ConfigError, Environment, State, Strategy, TokenRules
from cotune.environments.geo import GeoEnvironment
from cotune.library_run import LibraryRun
from cotune.llm.client import MeteredLLM, NoLLM, OpenAIClient, OpenAIOptions
from cotune.llm.hint_writer import RulesLLM
from cotune.preflight import check_instruction, evolved_room
from cotune.records import Limits
from cotune.strategies.inspo import Inspo, InspoOptions
from cotune.strategies.static import StaticStrategy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOConfig

    from cotune.engines.trl.joint import TRLJoint


class Method:
    """What `INSPO` and `Static` share: the parts of a run that are not the trainer's."""

    kind: str

    def __init__(
        self,
        environment: Environment,
        limits: Limits | None,
        instruction: str | None,
        seed: int,
        folder: str | Path | None,
    ) -> None:
        self.environment = environment
        self.limits = limits or Limits()
        self.instruction = environment.initial_instruction if instruction is None else instruction
        check_instruction(environment, self.instruction)
        self.seed, self.folder = seed, None if folder is None else Path(folder)

    def for_trl(self, tokenizer: "PreTrainedTokenizerBase", args: "GRPOConfig") -> "TRLJoint":
        """What a GRPOTrainer is given: `dataset`, `rollout_func`, `reward_funcs`, `callbacks`.

        `trainer.train()` begins a run folder, `trainer.train(resume_from_checkpoint=True)` goes on
        in it. Where several processes train, every one of them calls this.

        Args:
            tokenizer: the policy's, with a chat template; also the trainer's `processing_class`.
            args: the trainer's configuration. It needs `max_steps`, `shuffle_dataset=False` and
                `top_k=0`, and `temperature` is that of the rollouts.

        Raises:
            ConfigError: an argument under which the run would not be what it says.
        """
        from cotune.engines.trl.library import joint_run

        return joint_run(self, tokenizer, args)

    def describe(self) -> State:
        """What a run folder's run.yaml says of the method."""
        return {
            "seed": self.seed,
            "environment": {"kind": type(self.environment).__name__},
            "instruction": self.instruction,
            "limits": asdict(self.limits),
            "strategy": {"kind": self.kind},
        }

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        """A new strategy; `tokens` is the policy's codec."""
        raise NotImplementedError

    def build_llm(self, run: LibraryRun) -> LLM:
        """The optimizer LLM; its calls are entered in the run's ledger."""
        raise NotImplementedError


class INSPO(Method):
    """Instruction-policy co-evolution (arXiv 2512.01945) for a trainer of one's own.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        llm: the optimizer LLM: anything with `complete(prompt)`, or `OpenAIOptions` for an
            OpenAI-compatible endpoint (then priced and held to its budget). None is the offline
            `RulesLLM` on the bundled world, and an error elsewhere.
        options: the method's numbers; or give its fields as keywords, not both.
        limits: of an episode, in tokens and turns.
        instruction: the initial instruction; None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    kind = "inspo"

    def __init__(
        self,
        *,
        environment: Environment,
        llm: LLM | OpenAIOptions | None = None,
        options: InspoOptions | None = None,
        limits: Limits | None = None,
        instruction: str | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        **option_fields: Any,
    ) -> None:
        super().__init__(environment, limits, instruction, seed, folder)
        if options is not None and option_fields:
            raise ConfigError(
                f"INSPO was given options and {', '.join(option_fields)}; expected one of the two: "
                "put the fields into options"
            )
        self.options = options or _options(option_fields)
        if llm is None and not isinstance(environment, GeoEnvironment):
            raise ConfigError(
                f"llm is None, but the offline rules write instructions for geo alone and environment "
                f"is {type(environment).__name__}; give llm=cotune.OpenAIOptions(model=…) or an "
                "object with complete(prompt)"
            )
        self.llm = RulesLLM(seed) if llm is None else llm

    def describe(self) -> State:
        llm = self.llm
        name = llm.model if isinstance(llm, OpenAIOptions) else type(llm).__name__
        return {**super().describe(), "strategy": asdict(self.options), "llm": {"kind": name}}

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        room = evolved_room(self.limits, self.kind)
        return Inspo(
            self.instruction, self.options, self.seed, tokens.count, room, tokens.control_tokens
        )

    def build_llm(self, run: LibraryRun) -> LLM:
        if isinstance(self.llm, OpenAIOptions):
            return OpenAIClient(self.llm, run)
        return MeteredLLM(self.llm, run, model=type(self.llm).__name__)


class Static(Method):
    """GRPO with a static instruction for a trainer of one's own: the baseline of every method.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        limits: of an episode, in tokens and turns.
        instruction: None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.

    Raises:
        ConfigError: an instruction that cannot work.
    """

    kind = "static"

    def __init__(
        self,
        *,
        environment: Environment,
        limits: Limits | None = None,
        instruction: str | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(environment, limits, instruction, seed, folder)

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        return StaticStrategy(self.instruction)

    def build_llm(self, run: LibraryRun) -> LLM:
        return NoLLM()


def _options(given: dict[str, Any]) -> InspoOptions:
    known = [field.name for field in fields(InspoOptions)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"INSPO: {name} is no argument and no field of InspoOptions{meant}")
    try:
        return InspoOptions(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"INSPO: {error}") from error
