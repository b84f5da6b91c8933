"""Score the quadrants of a run: both of its policies under both instructions."""

from typing import Any, cast

from cotune.config.build import initial_instruction, run_environment
from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluation import OpenPolicy, PromptScores, best_record, score
from cotune.experiments.evaluate.quadrants import (
    PROMPTS,
    WEIGHTS,
    Quadrants,
    hash_of_best,
    relative,
)
from cotune.experiments.evaluate.questions import EvaluationOptions, question_sets
from cotune.run.run_dir import RunDir
from cotune.run.scores import measure_of
from cotune.types import Prompt


def evaluate_quadrants(
    config: RunConfig,
    run: RunDir,
    options: EvaluationOptions,
    since: RunDir | None,
    open_policy: OpenPolicy,
) -> Quadrants:
    """Score both policies of a run under both instructions, greedily and sampled; write nothing.

    Equal policies or instructions are rolled out once. Both policies are in memory at the same time, for their
    divergence, unless a server has them.

    Args:
        options: one set of questions, and at least one sample of each.
        since: the first of several runs that each continued the one before: its policy and instruction are the initial
            ones. None is this run.

    Raises:
        ConfigError: there is no best policy, the questions are not available or of several sets, or a prompt is too
            long; before any rollout.
    """
    # The method's own best, even if the initial instruction is kept in its place.
    best = best_record(run).method_best.instruction
    first = config if since is None else recorded_config(since)
    environment = run_environment(config)
    questions, *others = question_sets(config, environment, options)
    if others:
        raise ConfigError(
            "--quadrants score one set of questions; expected one of --split, --questions and --benchmark"
        )
    initial = initial_instruction(first.instruction.text, environment)
    prompts = {"plain": Prompt(initial), "prompted": Prompt(best)}
    trained = since is not None or not config.training.frozen
    temperature = options.temperature
    initial_config = config.model_copy(update={"policy": first.policy})
    policies = {"initial": open_policy(initial_config, environment, temperature=temperature)}
    if trained:
        policies["trained"] = open_policy(
            config, environment, best=run.best_path, temperature=temperature
        )
    is_here = hasattr(policies["initial"].sampler, "model")
    scores: dict[str, dict[str, PromptScores]] = {}
    for weights, policy in policies.items():
        origin = policies["initial"] if weights == "trained" and is_here else None
        scores[weights] = score(policy, prompts, questions, options.samples, initial=origin)
    distinct = {scored for by_prompt in scores.values() for scored in by_prompt.values()}
    scores.setdefault("trained", scores["initial"])
    divergences = {prompt: scores["trained"][prompt].divergences for prompt in PROMPTS}
    return Quadrants(
        split=questions.name,
        measure=measure_of(questions.environment, questions.rewards),
        samples=options.samples,
        temperature=temperature or config.training.temperature,
        initial=initial,
        best=best,
        trained=trained,
        questions=tuple(task.id for task in questions.tasks),
        strata=tuple(task.stratum for task in questions.tasks),
        # pydantic makes tuples of the lists
        rewards={
            f"{weights}_{prompt}": cast(Any, scores[weights][prompt].rewards)
            for weights in WEIGHTS
            for prompt in PROMPTS
        },
        divergences=cast(Any, divergences if any(divergences.values()) else {}),
        since="" if since is None else relative(since.path, run.path),
        rollouts=sum(scored.rollouts for scored in distinct),
        generated_tokens=sum(scored.generated_tokens for scored in distinct),
        of=hash_of_best(run.path),
    )
