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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotune.contracts import LLM, ConfigError, Environment, LLMError, Strategy
from cotune.environments.geo import GeoEnvironment
from cotune.llm.client import MeteredLLM, OpenAIClient, OpenAIOptions
from cotune.llm.ledger import Ledger
from cotune.llm.rules import RulesLLM
from cotune.preflight import check_instruction, instruction_room
from cotune.records import Completion, Limits
from cotune.run_dir import RunDir
from cotune.strategies.inspo import Inspo, InspoOptions
from cotune.strategies.static import StaticOptions, StaticStrategy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOConfig

    from cotune.engines.trl.joint import TRLJoint

BuildStrategy = Callable[[Callable[[str], int]], Strategy]
"""A strategy from what counts a text's tokens."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method with what it needs, before it meets a trainer.

    Attributes:
        environment: where tasks come from, how actions are answered and scored.
        limits: of an episode, in tokens and turns.
        instruction: the initial instruction; None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.
    """

    environment: Environment
    limits: Limits = field(default_factory=Limits)
    instruction: str | None = None
    seed: int = 0
    folder: str | Path | None = None

    def for_trl(self, tokenizer: "PreTrainedTokenizerBase", args: "GRPOConfig") -> "TRLJoint":
        """The four arguments of a GRPOTrainer: dataset, rollout_func, reward_funcs, callbacks.

        `trainer.train()` begins a run folder; `trainer.train(resume_from_checkpoint=True)` goes on
        in it. Started by torchrun, call it in every process.

        Args:
            tokenizer: the policy's, with a chat template; the trainer's `processing_class`.
            args: the trainer's configuration.

        Raises:
            ConfigError: an argument under which the run would not be what it says.
        """
        from cotune.engines.trl.library import joint_run

        return joint_run(self, tokenizer, args)

    def options(self) -> InspoOptions | StaticOptions:
        """The method's numbers."""
        raise NotImplementedError

    def build_strategy(self, count_tokens: Callable[[str], int]) -> Strategy:
        """A new strategy; `count_tokens` counts a text's tokens for the policy."""
        raise NotImplementedError

    def build_llm(self, ledger: Ledger) -> LLM:
        """The optimizer LLM, whose calls are entered in `ledger`."""
        raise NotImplementedError

    def describe_llm(self) -> str:
        """Which LLM proposes, for the report."""
        raise NotImplementedError

    @property
    def initial_instruction(self) -> str:
        return self.environment.initial_instruction if self.instruction is None else self.instruction
