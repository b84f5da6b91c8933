"""The methods that a suite can name: the papers' baselines, the methods themselves, their ablations.

A method is a sequence of runs, its stages; a stage is a kind of strategy and the fields that differ
from the suite's run file. An ablation is an option, never another code path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cotune.errors import ConfigError
from cotune.methods.registry import added, method_of
from cotune.utils.text import did_you_mean

Group = Literal["inference", "trained", "prompt", "staged", "ours", "ablation"]
Part = Literal["equal", "rest"]
"""A stage's part of the method's budget: an equal part among the stages of its sort (stages that search
share `MethodEntry.share`, stages that train the rest), or what the earlier stages have left."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of a method.

    Attributes:
        name: the name of its folder.
        strategy: the run file's strategy.kind.
        changes: fields that differ from the suite's run file.
        part: the part of the budget that it may spend.
        command: the arguments of `cotune` before the run file.
        policy: the weights it starts from: the run file's, or the best of the stage before.
        instruction: the instruction it starts from, in the same form.
        tools: False removes them from the environment.
    """

    name: str = "train"
    strategy: str = "static"
    changes: Mapping[str, Any] = field(default_factory=dict)
    part: Part = "rest"
    command: tuple[str, ...] = ("train",)
    policy: Literal["base", "before"] = "base"
    instruction: Literal["base", "before"] = "base"
    tools: bool = True

    @property
    def searches(self) -> bool:
        """True if it searches for an instruction while the policy is frozen."""
        return bool(self.changes.get("training", {}).get("frozen"))


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method that a suite can name.

    Attributes:
        label: its name in tables.
        group: its heading in tables.
        about: one line about it.
        compute: policy rollouts it uses, as a multiple of the suite's budget, or "none".
        stages: one after the other; the last one's policy and prompt are the result.
        at_random: proposals are drawn without reading failures: a bank in random order, or the offline
            rules with random remedies.
        takes: what it takes from other rows: the best instruction of one (`instruction_from`), the
            policy of another (`policy_from`).
    """

    label: str
    group: Group
    about: str
    compute: str = "1x"
    stages: tuple[Stage, ...] = (Stage(),)
    at_random: bool = False
    takes: tuple[Literal["instruction", "policy"], ...] = ()


def _inference(name: str, label: str, about: str) -> Method:
    stage = Stage(name=name, command=("baseline", name))
    return Method(label=label, group="inference", about=about, compute="none", stages=(stage,))


def _trained(label: str, about: str, *, compute: str = "1x", **stage: Any) -> Method:
    """Return a method of one stage; GRPO under the static instruction by default."""
    stages = (Stage(**stage),)
    return Method(label=label, group="trained", about=about, compute=compute, stages=stages)


def _staged(label: str, about: str, *stages: Stage) -> Method:
    return Method(label=label, group="staged", about=about, stages=stages)


def _searching(**stage: Any) -> Stage:
    """Return a stage that searches for an instruction while the policy is frozen."""
    named = {"name": "prompt", "strategy": "inspo", **stage}
    return Stage(changes={"training": {"frozen": True}}, **named)


def _ours(kind: str) -> Method:
    """Return a method of the registry, with nothing before or after it."""
    method, stage = method_of(kind), Stage(strategy=kind)
    return Method(label=method.label, group="ours", about=method.about, stages=(stage,))


def _ablation(strategy: str, label: str, about: str, **changes: Any) -> Method:
    """Return a method with other options of its strategy."""
    stages = (Stage(strategy=strategy, changes={"strategy": changes}),)
    return Method(label=label, group="ablation", about=about, stages=stages)


def _variant(strategy: str, label: str, about: str, **proposer: Any) -> Method:
    """Return a method whose proposals come from elsewhere."""
    stages = (Stage(strategy=strategy),)
    return Method(label=label, group="ablation", about=about, stages=stages, **proposer)


_MIXED = {"groups": "mixed", "target": "initial"}
_LAST_STAGE = {"distil_steps": 8, "distillation": {"kind": "filtered"}}

METHODS: dict[str, Method] = {
    "direct": _inference("direct", "Direct", "the question alone, without tools"),
    "rag": _inference("rag", "RAG", "passages retrieved once, with the question"),
    "ircot": _inference("ircot", "IRCoT", "retrieval after every sentence of reasoning"),
    "search-o1": _inference("search-o1", "Search-o1", "agentic search, documents condensed first"),
    "agent": _inference("agent", "Initial policy", "the run's own environment, untrained"),
    "sft": _trained(
        "SFT", "supervised on the reference answers", compute="none",
        strategy="sft", changes={"strategy": {"data": "answers"}},
    ),
    "rejection-sft": _trained(
        "Rejection-sampled SFT", "supervised on the initial policy's own successes",
        strategy="sft", changes={"strategy": {"data": "rollouts"}},
    ),
    "grpo-no-tools": _trained("GRPO without tools", "GRPO with nothing to search with", tools=False),
    "search-r1": _trained("Search-R1", "GRPO under the static instruction, with its tools"),
    "grpo": _trained("GRPO", "GRPO under the static instruction"),
    "grpo-2x": _trained(
        "GRPO, twice the rollouts",
        "GRPO under the static instruction for twice the steps; with group_size doubled, P²O's baseline",
        compute="2x",
    ),
    "gepa": Method(
        label="GEPA",
        group="prompt",
        about="the instruction evolved under the frozen policy",
        stages=(_searching(strategy="gepa"),),
    ),
    "prompt-before-rl": _staged(
        "Prompt before RL", "an instruction found under the initial policy, then GRPO under it",
        _searching(part="equal"), Stage(instruction="before"),
    ),
    "prompt-after-rl": _staged(
        "Prompt after RL", "GRPO, then an instruction found under the trained policy",
        Stage(part="equal"), _searching(policy="before"),
    ),
    "w-p-w": _staged(
        "w -> p -> w", "GRPO, an instruction found under the trained policy, GRPO under that",
        Stage(name="first", part="equal"), _searching(part="equal", policy="before"),
        Stage(policy="before", instruction="before"),
    ),
    "p-w-p": _staged(
        "p -> w -> p", "an instruction, GRPO under it, an instruction found under the trained policy",
        _searching(part="equal"), Stage(name="first", part="equal", instruction="before"),
        _searching(name="prompt-2", policy="before", instruction="before"),
    ),
    "p-w-p-w": _staged(
        "p -> w -> p -> w", "an instruction and GRPO under it, twice",
        _searching(part="equal"), Stage(name="first", part="equal", instruction="before"),
        _searching(name="prompt-2", part="equal", policy="before", instruction="before"),
        Stage(policy="before", instruction="before"),
    ),
    "inspo": _ours("inspo"),
    "p2o": _ours("p2o"),
    "inspo+p2o": _ours("inspo+p2o"),
    "fst": _ours("fst"),
    "inspo-mixed": Method(
        label="INSPO, mixed groups",
        group="ours",
        about="half of each group under the initial instruction, all trained on it",
        stages=(Stage(strategy="inspo", changes={"strategy": _MIXED}),),
    ),
    "inspo-distilled": Method(
        label="INSPO, distilled at the end",
        group="ours",
        about="its last batches move the best instruction's gain into the weights",
        stages=(Stage(strategy="inspo", changes={"strategy": _LAST_STAGE}),),
    ),
    "fst-distill": Method(
        label="FST-distill",
        group="ours",
        about="FST, trained on the initial instruction",
        stages=(Stage(strategy="fst", changes={"strategy": {"target": "initial"}}),),
    ),
    "carried": Method(
        label="I* carried",
        group="ours",
        about="one row's best instruction, the policy of another",
        compute="none",
        stages=(Stage(name="agent", command=("baseline", "agent")),),
        takes=("instruction", "policy"),
    ),
    "hindsight": Method(
        label="GRPO in hindsight",
        group="trained",
        about="GRPO under one row's best instruction, which was found at that row's cost",
        takes=("instruction",),
    ),
    # INSPO, Fig. 3 and Fig. 6
    "constant-population": _ablation(
        "inspo", "constant population", "no pruning, no evolution", prune_every=0, evolve_every=0
    ),
    "prune": _ablation("inspo", "prune alone", "no evolution", evolve_every=0),
    "prune-and-expand": _ablation(
        "inspo", "prune and expand", "candidates join without verification",
        verification="none"
    ),
    "racing": _ablation(
        "inspo", "racing verification", "a candidate stops once a test decides", verification="racing"
    ),
    "inspo-mixed-racing": _ablation(
        "inspo", "mixed groups, racing verification", "both", **_MIXED, verification="racing"
    ),
    "paraphrase": _ablation("inspo", "paraphrase", "the parent reworded", proposer="paraphrase"),
    "history": _ablation("inspo", "history", "from instructions and scores", proposer="history"),
    "uplift-sampled": _ablation(
        "inspo", "mixed groups, own targets", "gradient on the sampled instruction",
        **{**_MIXED, "target": "sampled"},
    ),
    "target-initial": _ablation(
        "inspo", "target initial", "gradient on the initial instruction", target="initial"
    ),
    "spread": _ablation(
        "inspo", "spread groups", "an instruction for each rollout", groups="population"
    ),
    "mixed-unmasked": _ablation(
        "inspo", "mixed groups, no mask", "improbable tokens pushed down, too",
        **_MIXED, distillation={"ratio": "original"},
    ),
    "parents-2": _ablation("inspo", "N_parent 2", "two parents are kept", parents=2),
    "parents-3": _ablation("inspo", "N_parent 3", "three parents are kept", parents=3),
    "tau-s-0.05": _ablation("inspo", "τ_s 0.05", "greedier", selection_temperature=0.05),
    "tau-s-1": _ablation("inspo", "τ_s 1", "nearly uniform", selection_temperature=1.0),
    "inspo-random": _variant(
        "inspo", "random proposals", "INSPO's control: proposals that read no failure", at_random=True
    ),
    # P²O, Section 4
    "no-mask": _ablation(
        "p2o", "no mask", "every token distilled, as in the paper", distillation={"ratio": "original"}
    ),
    "signed-mask": _ablation(
        "p2o", "signed mask", "tokens masked only where the advantage is not positive",
        distillation={"ratio": "masked_signed"},
    ),
    "single-turn": _ablation(
        "p2o", "single-turn reflection", "no evolution", hints={"reflection": "single_turn"}
    ),
    "half-hinted": _ablation(
        "p2o", "half hinted", "groups half of which see a hint", hinted_per_group="half"
    ),
    "p2o-random": _variant(
        "p2o", "random hints", "P²O's control: the reflector reads no failure", at_random=True
    ),
}  # fmt: skip


def method_named(name: str) -> Method:
    """Return a method by its name in a suite file.

    Raises:
        ConfigError: no such method; the message names the nearest one.
    """
    if name in METHODS:
        return METHODS[name]
    if name in added():
        return _ours(name)
    raise ConfigError(
        f"methods: {name!r} is unknown{did_you_mean(name, METHODS)}; cotune compare --methods lists the "
        "methods"
    )
