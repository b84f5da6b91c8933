"""`cotune.JointTrainer`: GRPOTrainer with `method=`, from its arguments to the best policy."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from rich.console import Console
from torch.nn import Module
from transformers import PreTrainedTokenizerBase, ProcessorMixin, Trainer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from cotune.config.build import build_llm, initial_instruction
from cotune.config.cost import Plan, plan_method, show_plan
from cotune.config.joint_method import JointMethod, Static
from cotune.config.run_checks import shape_notices
from cotune.data.splits import SPLITS
from cotune.engines.evaluation import BestPolicy, Outcome, RunEvaluation, conclude
from cotune.engines.joint import RunSettings, check_identity, world
from cotune.engines.run_start import begin_run, choose_checkpoint, opened_run, run_parts
from cotune.engines.trl.checks import check_args, check_trl
from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.engines.trl.script import (
    ask_llm,
    check_script,
    fit_arguments,
    keep_best_by_reward,
    proposer_of,
    read_data,
    read_sets,
    refuse_data,
    reward_weights,
    run_shape,
    script_settings,
    tasks_of_sets,
)
from cotune.engines.trl.sharding import check_spread, restore_weights
from cotune.engines.trl.trl_joint import TRLJoint, close_reports, report_scores, tensorboard_into
from cotune.environments.prompt_in_data import PromptInData
from cotune.errors import ConfigError
from cotune.experiments.evaluate.rollout_text import show_rollouts
from cotune.export.export import write_template
from cotune.llm.client import NoLLM
from cotune.methods.method import RunShape
from cotune.policy.adapters import save_weights, trained_dtype
from cotune.policy.codec import HFCodec, PlainCodec
from cotune.policy.local_policy import context_length, load_architecture, load_tokenizer
from cotune.policy.precision import rounding_notice
from cotune.protocols import Environment
from cotune.rewards.reward_model import rewards_of_trainer
from cotune.run.checkpoints import complete_checkpoints, load_state, set_aside_newer
from cotune.run.json_files import write_atomic
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Limits, Prompt, Task, Trajectory
from cotune.utils.values import type_of

_log = logging.getLogger("cotune")


class TRLBest(BestPolicy):
    """Save and load the best policy, whose weights may be sharded over the trainer's processes."""

    def write_weights(self, joint: TRLJoint, folder: Path, step: int) -> None:
        save_weights(joint.unwrapped, folder, joint.coordinator.gather_here())
        # An adapter's folder has none, and the policy must end its turns as in training wherever it is loaded.
        settings = copy.copy(joint.unwrapped.generation_config)
        settings.eos_token_id = sorted(joint.codec.end_ids)
        settings.save_pretrained(folder)

    def load_weights(self, joint: TRLJoint, step: int) -> None:
        restore_weights(joint.unwrapped, self._folder)
        joint.weights_replaced()


class JointTrainer(PolicyUpdate):
    """Train weights and prompt together, with GRPOTrainer's arguments and a method.

    The policy is rolled out by cotune, under the prompts that the method decides, and updated by TRL. `train` keeps the
    run in a folder: events, metrics, rollouts, costs, the best policy with its instruction, and a report. After `train`
    the trainer holds the best policy on validation, or the last one if there is no `eval_dataset`.

    Args:
        model: the policy, or its name.
        reward_funcs: reward functions or models as TRL takes them; None if the environment scores.
        reward_processing_classes: the tokenizers of reward models.
        args: GRPOTrainer's configuration; docs/reference/grpo-config.md lists the fields that are refused.
        train_dataset: as GRPOTrainer takes it.
        eval_dataset: as GRPOTrainer takes it.
        processing_class: the policy's tokenizer, with a chat template; None loads it by the model's name.
        callbacks: the trainer's callbacks.
        optimizers: as GRPOTrainer takes them.
        quantization_config: as GRPOTrainer takes it.
        peft_config: as GRPOTrainer takes it.
        tools: as GRPOTrainer takes them.
        rollout_func: refused; cotune makes the rollouts itself.
        environment_factory: as GRPOTrainer takes it.
        method: `cotune.INSPO(llm="gpt-4.1")` or another one; None is GRPO under a fixed instruction.
        environment: supplies the tasks, answers actions and scores them, in place of `train_dataset`,
            `tools` and `environment_factory`.
        limits: the limits of an episode in tokens and turns; None takes them from `args`.
        settings: the rest of a run, as a run file has it; None takes it from `args`.
        trainer_class: a subclass of GRPOTrainer whose methods the trainer has before GRPOTrainer's. What it scores,
            and a loss of its own, are used as they are: cotune then leaves out no rollout and shares no prompt.

    Attributes:
        outcome: the run's result, once it is trained.

    Raises:
        ConfigError: an argument is invalid; the message names it. Nothing is written yet.
        EngineError: the installed TRL does not fit, or vLLM did not start.
    """

    outcome: Outcome | None = None

    def __new__(
        cls, *_: Any, trainer_class: type[GRPOTrainer] = GRPOTrainer, **__: Any
    ) -> "JointTrainer":
        if not (isinstance(trainer_class, type) and issubclass(trainer_class, GRPOTrainer)):
            raise ConfigError(
                f"trainer_class is {trainer_class!r}; expected a subclass of trl.GRPOTrainer; a library that replaces "
                "that class must be imported before cotune"
            )
        if issubclass(cls, trainer_class):
            return super().__new__(cls)
        # Its methods come after cotune's and before GRPOTrainer's.
        joined: Any = type(cls.__name__, (cls, trainer_class), {})
        return super().__new__(joined)

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: Any = None,
        callbacks: Sequence[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
        *,
        method: JointMethod | None = None,
        environment: Environment | None = None,
        limits: Limits | None = None,
        settings: RunSettings | None = None,
        trainer_class: type[GRPOTrainer] = GRPOTrainer,
    ) -> None:
        method = method or Static()
        _check_arguments(rollout_func, model=model, processing_class=processing_class, tools=tools,
                         method=method, args=args, limits=limits, settings=settings)  # fmt: skip
        name = model if isinstance(model, str) else str(model.config._name_or_path)
        args = copy.copy(args) if args else GRPOConfig(output_dir=f"{name.split('/')[-1]}-GRPO")
        is_run_file = settings is not None
        # A processor of texts and images has a tokenizer inside.
        tokenizer: Any = getattr(processing_class, "tokenizer", processing_class)
        loading = _loading_arguments(args)
        tokenizer = tokenizer or load_tokenizer(name, **loading)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        rewards = rewards_of_trainer(reward_funcs, reward_processing_classes, args)
        args.reward_weights = None
        chat = True
        parts = None
        if environment is None:
            data = read_data(method, train_dataset, eval_dataset, tools, environment_factory)
            environment = data.environment
            parts = data.parts
            chat = data.chat
            # The environment has the instruction, as the data writes it.
            method = replace(method, instruction=None)
        else:
            refuse_data(
                environment,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                tools=tools,
                environment_factory=environment_factory,
            )
        template_args = cast("dict[str, Any] | None", args.chat_template_kwargs)
        codec = HFCodec(tokenizer, template_args) if chat else PlainCodec(tokenizer)
        # Each epoch of a run file has an order of its own; a script says whether its data has.
        shuffle = settings is not None or bool(args.shuffle_dataset)
        # The run's own data set is in the order of training.
        args.shuffle_dataset = False
        fit_arguments(args, len(environment.tasks("train")))
        check_trl()
        check_args(args)
        if settings is None:
            config = load_architecture(model, **loading) if isinstance(model, str) else model.config
            context = context_length(config)
            limits = check_script(args, method, environment, limits, rewards, codec, context)
            policy = {"path": name, "dtype": _dtype_of(model, args)}
            settings = script_settings(args, method, environment, limits, rewards, policy, parts)
            keep_best_by_reward(args)
        self.settings = settings
        self.method = method
        prompt = Prompt(initial_instruction(method.instruction, environment))
        run = RunDir(settings.folder)
        self._evaluation = RunEvaluation(
            settings.evaluation, prompt, run, TRLBest(run.best_path, tokenizer), report_scores
        )
        weights = {} if is_run_file else reward_weights(rewards, environment)
        joint = TRLJoint(
            run_parts(settings, method, environment, codec, limits or Limits(), rewards),
            args,
            self._evaluation if is_run_file else None,
            shuffle=shuffle,
            reward_names=tuple(weights),
        )
        args.reward_weights = list(weights.values()) or None
        validation = environment.tasks("validation") if settings.evaluation.every else ()
        questions = [{"prompt": task.id} for task in validation]
        super().__init__(
            model,
            joint,
            callbacks=callbacks or (),
            # Only to satisfy the trainer: `evaluate` reads the environment's tasks.
            eval_dataset=Dataset.from_list(questions) if questions else None,
            optimizers=optimizers,
            peft_config=peft_config,
            **({} if quantization_config is None else {"quantization_config": quantization_config}),
        )

    # ---- before training

    def plan(self) -> Plan:
        """Print the most that training can spend, and return it: rollouts, calls of the LLM, their price.

        Nothing is rolled out, asked or written.
        """
        joint = self.joint
        environment = joint.parts.environment
        sizes = {split: len(environment.tasks(split)) for split in SPLITS}
        llm = proposer_of(self.method, environment)
        planned = plan_method(
            self.method.options,
            self._shape(),
            sizes,
            joint.parts.limits,
            self.settings.evaluation,
            llm,
            has_batches=self.settings.has_batches,
        )
        if world().rank == 0:
            name = self.settings.record["name"]
            console = Console()
            show_plan(planned, name, joint.parts.limits, llm, console)
            for text in self._notices():
                console.print(text, markup=False, highlight=False)
        return planned

    def _shape(self) -> RunShape:
        return replace(
            run_shape(self.joint.args),
            rollout_budget=self.settings.rollout_budget,
            frozen=self.settings.frozen,
            questions=len(self.joint.parts.environment.tasks("train")),
        )

    def _notices(self) -> Iterator[str]:
        return shape_notices(self.method.options, self._shape())

    def try_rollouts(
        self, count: int = 4, split: str = "train", *, greedy: bool = False
    ) -> list[Trajectory]:
        """Roll out a few questions as training does, print what happens in each, and return them.

        Nothing is trained or written, no LLM is asked, and, without vLLM, no later draw changes.

        Args:
            count: how many questions from the start of the split, one rollout each.
            split: "train", "validation" or "test".
            greedy: pick the most likely token each time, as evaluation does.

        Raises:
            ConfigError: the split has no questions.
        """
        joint = self.joint
        prompt = Prompt(self.best_instruction)
        if not isinstance(cast(object, count), int) or count < 1:
            raise ConfigError(f"try_rollouts: count is {count!r}; expected 1 or more")
        assignments = [
            Assignment(task, prompt, prompt, "i0", group)
            for group, task in enumerate(self._tasks_of(split)[:count])
        ]
        rollouts: list[Trajectory] = joint.coordinator.rollout(
            assignments, purpose="try", greedy=greedy
        )
        if world().rank == 0:
            show_rollouts(rollouts, joint.codec, Console())
        return rollouts

    # ---- training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train to the end, score, and keep the best policy with its instruction.

        Args:
            resume_from_checkpoint: True continues from the newest complete checkpoint, or from the start
                if there is none; a folder continues from that checkpoint; None starts a new run.
            trial: as in transformers.Trainer.
            ignore_keys_for_eval: as in transformers.Trainer.

        Returns:
            The trainer's output; None if no step was trained.

        Raises:
            ConfigError: the run folder holds another run, or a checkpoint does not fit.
            EvolutionError: no call of the LLM brought a proposal.
        """
        joint = self.joint
        output = None
        resume = resume_from_checkpoint
        if (
            resume
            and not RunDir.is_run(self.run_folder)
            and complete_checkpoints(joint.state_folder)
        ):
            raise ConfigError(
                f"{self.run_folder}: the checkpoint's run folder is not there (no run.yaml); put it back, or train "
                "from the start"
            )
        with self.record_run(resume=bool(resume)) as record:
            checkpoint = self._choose(resume) if resume else None
            fresh = checkpoint is None
            if fresh and joint.attempt is not None:
                raise ConfigError(
                    "this trainer has already trained, and there is no checkpoint to go on from; make a new one to "
                    "train from the start"
                )
            if fresh and self.settings.llm_checks is None and world().rank == 0:
                ask_llm(proposer_of(self.method, joint.parts.environment), record)
            self._begin(record, checkpoint, resume=bool(resume))
            if not self.settings.has_batches:
                joint.evolve_only()
            # A run that was stopped after its last step is evaluated without another rollout.
            elif not (checkpoint and joint.budget_is_spent() and self._restore_ended(checkpoint)):
                output = super().train(
                    str(checkpoint) if checkpoint else None, trial, ignore_keys_for_eval
                )
            self.outcome = self._evaluation.finish(joint)
            close_reports(joint)
            if world().rank == 0:
                parts = joint.parts
                tokenizer = parts.codec.tokenizer
                conclude(self.settings, record, self.outcome, parts.environment, tokenizer)
        return output

    def _choose(self, resume: str | bool) -> Path | None:
        """Return the checkpoint to resume from, which the first process chooses; None if there is none."""
        checkpoint: Path | None = None
        if world().rank == 0:
            folder = self.joint.state_folder
            checkpoints = complete_checkpoints(folder)
            if not isinstance(resume, bool):
                checkpoints = [c for c in checkpoints if c.resolve() == Path(resume).resolve()]
                if not checkpoints:
                    raise ConfigError(
                        f"resume_from_checkpoint is {str(resume)!r}; expected a complete folder checkpoint-N "
                        f"in {folder}, or True for the newest"
                    )
            checkpoint = choose_checkpoint(checkpoints, self._evaluation.best)
        return world().broadcast(checkpoint)

    @contextmanager
    def record_run(self, *, resume: bool, steps: int | None = None) -> Iterator[Record]:
        """Open the run folder, and record the run in it; `steps` are trained, None is all."""
        settings = self.settings
        joint = self.joint
        with opened_run(settings, steps or joint.total_batches, resume=resume) as record:
            llm = NoLLM()
            # The other ranks never ask the LLM, and making the user's own may load a model.
            if world().rank == 0:
                environment = joint.parts.environment
                proposer = proposer_of(self.method, environment)
                llm = build_llm(proposer, settings.seed, record, environment)
            joint.record_in(record, llm)
            try:
                yield record
            finally:
                joint.record_in(Record(), NoLLM())

    def _begin(self, record: Record, checkpoint: Path | None, *, resume: bool) -> None:
        """Write the first events, and check what the run resumes from."""
        joint = self.joint
        tensorboard_into(joint, record.path / "tensorboard")

        def check(checkpoint: Path) -> None:
            state = load_state(checkpoint)
            check_identity(state, joint.identity)
            check_spread(state, self)  # before the trainer loads weights of a different shape

        best = self._evaluation.best
        joint.changed = begin_run(
            record, self.settings, best, checkpoint, check, self._notices(), resume=resume
        )
        if checkpoint is not None and world().rank == 0:
            set_aside_newer(checkpoint)
        rate = self.args.learning_rate
        is_fresh = checkpoint is None
        if is_fresh and rate and (text := rounding_notice(trained_dtype(joint.unwrapped), rate)):
            record.event("notice", 0, text=text)
        if is_fresh and not self.scores_shared:
            text = "the trainer feeds a prompt again for each of its rollouts: updates are slower than with TRL 1.16's"
            record.event("notice", 0, text=text)

    def _restore_ended(self, checkpoint: Path) -> bool:
        """Restore a run whose training had ended by its newest checkpoint; the trainer would train one more step."""
        state = load_state(checkpoint)
        if not state["ended"]:
            return False
        self.joint.resume(state)
        restore_weights(self.joint.unwrapped, checkpoint)
        self.joint.weights_replaced()
        return True

    # ---- results

    @property
    def run_folder(self) -> Path:
        """Return the folder of the run."""
        return self.settings.folder

    @property
    def best_instruction(self) -> str:
        """Return the instruction to use the policy under.

        After `train` it is the one that was kept with the best policy, on every rank. Before, it is the
        method's best so far, which only the first rank knows.
        """
        if self.outcome is not None:
            return self.outcome.kept.instruction
        return self.joint.coordinator.strategy.best_prompt().instruction

    @property
    def best_hint(self) -> str:
        """Return the most helpful hint, for users who keep one at inference; "" if there is none."""
        if self.outcome is not None:
            return self.outcome.kept.hint
        return self.joint.coordinator.strategy.best_hint()

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Score the current policy under the best instruction: greedily, once per question.

        No draw of the training changes. During training the policy is kept if it is the best so far.

        Args:
            eval_dataset: None is the validation questions; or rows in TRL's form, or several data sets by name;
                or the name of one of the trainer's, or a split of the environment, such as "test".
            ignore_keys: not used.
            metric_key_prefix: begins the name of each metric.

        Returns:
            The mean reward, `eval_reward`, and the mean of each reward function, `eval_rewards/NAME/mean`. Of
            each named data set, or stratum of an environment, the same begin with `eval_NAME`.
        """
        joint = self.joint
        validates = eval_dataset is None and self._in_training
        tasks = () if validates else self._tasks_of(eval_dataset)

        def roll_out() -> list[Trajectory]:
            if validates:
                self._evaluation.validate(joint, joint.batches)
                return self._evaluation.rollouts
            if (outcome := self.outcome) is None:
                return joint.coordinator.evaluate(tasks)
            prompt = Prompt(outcome.kept.instruction)
            return joint.coordinator.evaluate(tasks, prompt, outcome.kept.instruction_id)

        rollouts = joint.coordinator.on_rank_zero(roll_out)
        metrics = _means(rollouts, metric_key_prefix)
        Trainer.log(self, metrics)  # TRL's own would add the metrics of the last training batch
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _tasks_of(self, eval_dataset: Any) -> Sequence[Task]:
        environment = self.joint.parts.environment
        if eval_dataset is None or isinstance(eval_dataset, str):
            name = "validation" if eval_dataset is None else eval_dataset
            # None is the whole split, even if one of its data sets is called "validation".
            validation = environment.tasks("validation")
            tasks = [task for task in validation if task.stratum == eval_dataset]
            tasks = tasks or (environment.tasks(name) if name in SPLITS else ())
            if not tasks:
                raise ConfigError(
                    f"{name!r} has no questions; expected eval_dataset= with some, another split (train, "
                    "validation, test), or the name of one of its data sets"
                )
            return tasks
        prompt_format = getattr(environment, "prompt_format", None)
        if not isinstance(prompt_format, PromptInData):
            raise ConfigError(
                "eval_dataset: rows need a trainer with a train_dataset; name a split of the environment, such as "
                'evaluate("test")'
            )
        return tasks_of_sets(read_sets(eval_dataset), "evaluate", prompt_format.text)

    def push_to_hub(self, *_: Any, **__: Any) -> Any:
        """Raise ConfigError: the trainer would upload its output folder, with the run in it."""
        raise ConfigError(
            "push_to_hub would upload output_dir with the run folder in it: questions, rollouts and costs; save the "
            "policy by trainer.save_model(FOLDER), then: hf upload OWNER/NAME FOLDER"
        )

    @property
    def _in_training(self) -> bool:
        return self.is_in_train and bool(self.settings.evaluation.every)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the policy; its chat template carries the best instruction.

        `instruction.txt` holds the instruction too, and `hint.txt` the best hint if there is one. The
        trainer's own checkpoints keep the model's template.
        """
        super().save_model(output_dir, _internal_call)
        if self.args.should_save and not _internal_call:
            folder = Path(output_dir or cast(str, self.args.output_dir))
            parts = self.joint.parts
            _, reason = write_template(
                cast("dict[str, Any]", self.args.chat_template_kwargs or {}),  # pyright: ignore
                folder,
                self.best_instruction,
                parts.environment,
                parts.codec.tokenizer,
            )
            if reason:
                _log.warning(
                    "the chat template does not carry the instruction, since %s: see instruction.txt",
                    reason,
                )
            write_atomic(folder / "instruction.txt", self.best_instruction + "\n")
            if hint := self.best_hint:
                write_atomic(folder / "hint.txt", hint + "\n")


def _dtype_of(model: Any, args: GRPOConfig) -> str:
    """Return the type of a model's weights, as `policy.dtype` of a run file."""
    init_arguments = cast("dict[str, Any]", args.model_init_kwargs or {})
    dtype = init_arguments.get("dtype", "float32") if isinstance(model, str) else model.dtype
    name = str(dtype).removeprefix("torch.")
    return name if name in ("float32", "bfloat16", "float16") else "auto"


def _check_arguments(rollout_func: object, **arguments: object) -> None:
    """Raise ConfigError for rollouts of the script's own, and for arguments of another type."""
    if rollout_func is not None:
        raise ConfigError(
            "rollout_func: cotune makes the rollouts itself; remove it, and give tools=, "
            "environment_factory= or environment="
        )
    tokenizers = PreTrainedTokenizerBase | ProcessorMixin | None
    table: dict[str, tuple[Any, str]] = {
        "model": (str | Module, "a model of transformers, or its name"),
        "processing_class": (tokenizers, "a tokenizer of transformers, or None"),
        "tools": (list | tuple | None, "a list of functions, or None"),
        "method": (JointMethod, "an object such as cotune.INSPO(llm=…), or None"),
        "args": (GRPOConfig | None, "an object such as trl.GRPOConfig(…), or None"),
        "limits": (Limits | None, "an object such as cotune.Limits(…), or None"),
        "settings": (RunSettings | None, "a run file's RunSettings, or None"),
    }
    for name, (kind, expected) in table.items():
        if not isinstance(arguments[name], kind):
            raise ConfigError(f"{name} is {type_of(arguments[name])}; expected {expected}")


def _loading_arguments(args: GRPOConfig) -> dict[str, Any]:
    """Return what selects the files of a model by name, as GRPOTrainer reads it from its arguments."""
    selecting = ("revision", "trust_remote_code")
    init_arguments = cast("dict[str, Any]", args.model_init_kwargs or {})
    options = {"trust_remote_code": args.trust_remote_code, **init_arguments}
    return {name: options[name] for name in selecting if options.get(name)}


def _means(rollouts: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Return the mean reward of rollouts, and of each reward function; the same of each named stratum."""
    metrics: dict[str, float] = {}
    for stratum in ["", *sorted({t.task.stratum for t in rollouts} - {""})]:
        some = [t for t in rollouts if stratum in ("", t.task.stratum)]
        start = f"{prefix}_{stratum}" if stratum else prefix
        metrics[f"{start}_reward"] = sum(t.reward for t in some) / max(1, len(some))
        for name in sorted({name for t in some for name in t.parts}):
            values = [t.parts[name] for t in some if name in t.parts]
            metrics[f"{start}_rewards/{name}/mean"] = sum(values) / len(values)
    return metrics
