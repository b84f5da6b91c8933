"""The run folder of a method from `cotune.engines.trl.library_api` on a user's own GRPOTrainer."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState
from trl import GRPOConfig

from cotune.config.run_checks import (
    check_context,
    check_prompt_texts,
    check_prompts,
    check_rewards,
)
from cotune.config.run_file import EvaluationConfig
from cotune.engines.best_policy import choice_of
from cotune.engines.evaluation import Validation
from cotune.engines.joint import Parts
from cotune.engines.trl.checkpoints import drop_torn
from cotune.engines.trl.checks import check_args, check_trl, steps_per_batch
from cotune.engines.trl.library_api import TrainerMethod
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.environments.instruction_config import InstructionConfig
from cotune.errors import ConfigError
from cotune.methods.method import RunShape
from cotune.policy.codec import HFCodec
from cotune.policy.tool_templates import check_turns
from cotune.protocols import State
from cotune.run.frames import cost_rows
from cotune.run.journal import Journal, RunJournal, SilentJournal, describe_event
from cotune.run.json_files import plain, write_atomic
from cotune.run.ledger import Ledger
from cotune.run.locks import run_locked
from cotune.run.replies import ReplyCache
from cotune.run.run_dir import RunDir
from cotune.run.scores import Score
from cotune.types import Purpose, Trajectory
from cotune.utils.processes import launched_rank

_FIXED = ("seed", "environment", "instruction", "limits", "rewards", "strategy", "batch")
_TRAJECTORIES_EVERY = 10  # steps between files of training rollouts, as for a run file
_WARNINGS = ("notice", "proposal_failed", "phase_failed", "proposals_ended")
_DETAILS = ("hint_progress",)  # several per phase
_log = logging.getLogger("cotune")
_locks: dict[Path, ExitStack] = {}  # of folders in which this process trains


class LibraryRun:
    """Journal, meter and ledger in one, on a run folder that is opened when training begins.

    Events before training (the trainer's own evaluation, for example) are neither written nor
    counted. The logger "cotune" reports each evolution in one line.

    Args:
        folder: the run folder.
        config: plain data for its run.yaml; on a resume, the entries named in `_FIXED` must not
            change.
        total_steps: the number of rollout batches in the run.
    """

    def __init__(self, folder: Path, config: State, total_steps: int) -> None:
        self._folder, self._config, self._total_steps = folder, config, total_steps
        self._journal: Journal = SilentJournal()
        self._ledger: Ledger | None = None

    def begin_attempt(self, resumed_from: int | None, saved_in: int | None = None) -> int:
        """Create the folder, or open it to resume from a step that an attempt saved.

        Raises:
            ConfigError: the step was discarded by a later attempt; the folder of a new run already holds a run that has trained; that of a resumed
                run holds none, or one with other settings; or another process trains it.
        """
        self._close()
        run = self._begun() if resumed_from is None else self._opened()
        self._journal = RunJournal(run, Console(quiet=True), self._total_steps, _TRAJECTORIES_EVERY)
        self._ledger = Ledger(run.ledger_path)
        if resumed_from is None:
            strategy = cast("Mapping[str, Any]", self._config["strategy"])["kind"]
            self._journal.event("run_started", 0, config=self._config["name"], strategy=strategy)
        return self._ledger.begin_attempt(resumed_from, saved_in)

    def finish(
        self, step: int, instruction_id: str, instruction: str, score: Score | None = None
    ) -> None:
        """Finish the run: write its best instruction to best/instruction.txt.

        Args:
            score: the instruction's on validation; None if it was not checked there.
        """
        best = RunDir(self._folder, attempt=1).best_path
        best.mkdir(exist_ok=True)
        write_atomic(best / "instruction.txt", instruction + "\n")
        em = None if score is None else score.em
        self.event(
            "run_finished", step, instruction_id=instruction_id, instruction=instruction, em=em
        )
        _log.info(
            "step %d: trained; best instruction %s, %s; run folder %s",
            step,
            instruction_id,
            f"{score.measure} {em:.3f} on validation" if score else "not checked on validation",
            self._folder,
        )
        _release(self._folder.resolve())

    # ---- journal

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        self._journal.event(kind, step, **fields)
        if self._ledger is not None:
            _say(kind, step, fields)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._journal.metrics(step, values)

    def trajectories(self, step: int, purpose: str, trajectories: Sequence[Trajectory]) -> None:
        self._journal.trajectories(step, purpose, trajectories)

    def cut_back(self, step: int) -> None:
        self._journal.cut_back(step)

    @property
    def replies(self) -> ReplyCache:
        return self._journal.replies

    # ---- meter

    def set_step(self, step: int) -> None:
        if self._ledger is not None:
            self._ledger.set_step(step)

    def add_rollouts(
        self, purpose: Purpose, rollouts: int, generated_tokens: int, seconds: float = 0.0
    ) -> None:
        if self._ledger is not None:
            self._ledger.add_rollouts(purpose, rollouts, generated_tokens, seconds)

    def booking(self) -> AbstractContextManager[list[int]]:
        return nullcontext([]) if self._ledger is None else self._ledger.booking()

    def adopt(self, rows: Sequence[int]) -> None:
        if self._ledger is not None:
            self._ledger.adopt(rows)

    # ---- LLM account

    def check_budget(self, limit: float | None) -> None:
        self._open_ledger().check_budget(limit)

    def add_call(self, model: str, **fields: Any) -> None:
        self._open_ledger().add_call(model, **fields)

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            raise RuntimeError("an LLM is asked only while training runs")
        return self._ledger

    def _begun(self) -> RunDir:
        """Create the folder, or open that of a run that was stopped before the end of its first step."""
        if not RunDir.is_run(self._folder):
            run = RunDir.create(self._folder, self._config)
            self._lock()
            return run
        if _has_trained(RunDir.open(self._folder)):
            raise ConfigError(
                f"{self._folder}: holds an earlier run; resume it with "
                "trainer.train(resume_from_checkpoint=True) if it has a checkpoint, or set another "
                "output_dir in GRPOConfig"
            )
        run = self._opened()
        run.cut_back(-1)  # keeps the LLM's replies
        return run

    def _opened(self) -> RunDir:
        if not RunDir.is_run(self._folder):
            raise ConfigError(
                f"{self._folder}: the checkpoint's run folder is not there (no run.yaml); put it "
                "back, or train from the start"
            )
        self._lock()
        run = RunDir.open(self._folder)
        before, now = run.read_config(), plain(self._config, "config")
        for name in _FIXED:
            if before.get(name) != now.get(name):
                raise ConfigError(
                    f"{name} is {now.get(name)!r}, but the run in {self._folder} was started with "
                    f"{before.get(name)!r}; a resume needs the same, a new run another output_dir"
                )
        return run

    def _lock(self) -> None:
        """Keep other processes from training in the folder. This one may begin again, as in a notebook."""
        folder = self._folder.resolve()
        _release(folder)
        _locks[folder] = ExitStack()
        _locks[folder].enter_context(run_locked(self._folder))

    def _close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
        self._journal, self._ledger = SilentJournal(), None
        _release(self._folder.resolve())


def _has_trained(run: RunDir) -> bool:
    """Return whether a run came beyond its first step. One that logs rarely has no metrics by then."""
    return (
        bool(run.read_metrics())
        or any(event["kind"] in ("saved", "run_finished") for event in run.read_events())
        or any(row["kind"] == "train" and row["step"] > 1 for row in cost_rows(run.ledger_path))
    )


def _release(folder: Path) -> None:
    if folder in _locks:
        _locks.pop(folder).close()


def _say(kind: str, step: int, fields: Mapping[str, object]) -> None:
    """Log an event that users want to see, with model text as the console shows it."""
    line = describe_event(kind, fields)
    if kind == "evolution":
        line = (
            f"evolution: {fields['accepted']} of {fields['proposed']} proposals accepted, "
            f"{fields['verified']} verified; population of {fields['population']}"
        )
    if line:
        level = logging.DEBUG if kind in _DETAILS else logging.INFO
        level = logging.WARNING if kind in _WARNINGS else level
        _log.log(level, "step %d: %s", step, Text.from_markup(line).plain)


def joint_run(
    method: TrainerMethod[Any], tokenizer: PreTrainedTokenizerBase, args: GRPOConfig
) -> TRLJoint:
    """Build the joint run; see `TrainerMethod.for_trl`."""
    check_trl()
    check_args(args)
    shape = RunShape(
        group_size=args.num_generations or 1,
        group_field="GRPOConfig.num_generations",
        steps=args.max_steps // steps_per_batch(args),
        steps_field="GRPOConfig.max_steps, in rollout batches,",
    )
    try:
        method.method.check(method.options, shape)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if method.rewards is not None:
        method.rewards.trainer_state = TrainerState(max_steps=args.max_steps)
    check_rewards(method.rewards, method.environment, method.instruction, ("train",))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # as the trainer does
    codec = HFCodec(tokenizer, cast("dict[str, Any] | None", args.chat_template_kwargs))
    check_turns(method.environment, codec, tokenizer)
    check_prompt_texts(method.environment, method.instruction, codec)
    check_prompts(
        method.environment,
        codec,
        method.instruction,
        method.limits,
        ("train",),
        strategy=method.method.kind,
    )
    folder = method.folder or Path(cast(str, args.output_dir)) / "cotune"
    if launched_rank() == 0:
        # The trainer resumes from the newest folder, even if it is incomplete.
        drop_torn(Path(cast(str, args.output_dir)))
    run = LibraryRun(folder, _config(method, tokenizer, args, shape.steps), shape.steps)
    parts = Parts(
        strategy=method.build_strategy(codec),
        environment=method.environment,
        llm=method.build_llm(run),
        journal=run,
        meter=run,
        limits=method.limits,
        seed=method.seed,
        rewards=method.rewards,
    )
    joint = TRLJoint(parts, tokenizer, args)
    instruction = InstructionConfig(text=method.instruction)
    joint.callbacks.append(_LibraryCallback(joint, run, instruction))
    return joint


def _config(
    method: TrainerMethod[Any], tokenizer: PreTrainedTokenizerBase, args: GRPOConfig, steps: int
) -> dict[str, Any]:
    """Return run.yaml: the method's arguments, and the trainer settings that readers look for."""
    return {
        "library": "trl",
        "name": Path(cast(str, args.output_dir)).resolve().name,
        "policy": {"path": tokenizer.name_or_path},
        **method.describe(),
        "batch": {
            "rollouts": args.generation_batch_size,
            "group_size": args.num_generations,
            "mini_batches": steps_per_batch(args),
        },
        "training": {
            "steps": steps,
            "mini_batches": steps_per_batch(args),
            "learning_rate": args.learning_rate,
            "temperature": args.temperature,
            "kl": args.beta,
            "clip": args.epsilon,
        },
    }


class _LibraryCallback(TrainerCallback):
    """Check limits against the model on construction of the trainer; close the run at the end."""

    def __init__(self, joint: TRLJoint, run: LibraryRun, instruction: InstructionConfig) -> None:
        self._joint, self._run, self._instruction = joint, run, instruction

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        check_context(context, self._joint.parts.limits)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._joint.begin_closing()
        self._joint.coordinator.on_rank_zero(self._finish)

    def _finish(self) -> None:
        """Choose the instruction on validation, if the trainer evaluates there; on rank 0."""
        joint, strategy = self._joint, self._joint.coordinator.strategy
        score: Score | None = None
        plain: Score | None = None
        if "validation" in joint.splits.values() and choice_of(joint) is not None:
            validation = Validation(EvaluationConfig(), self._instruction, lambda *_: None)
            score, plain = validation.during(joint, last=True)
        best = strategy.best_instruction_id(), strategy.best_prompt().instruction
        if score and plain and plain.em >= score.em:
            best, score = ("i0", cast(str, self._instruction.text)), plain
        self._run.finish(joint.batches, *best, score)
