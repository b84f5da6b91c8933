"""LoRA in the TRL engine: sampled, trained, distilled, kept and resumed as whole weights are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from rich.console import Console
from transformers import AutoTokenizer

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.trl.joint_trainer import JointTrainer, TRLBest
from cotune.engines.trl.run_file_setup import build_trainer
from cotune.errors import ConfigError
from cotune.policy.adapters import merged, save_weights, trained_dtype
from cotune.policy.codec import HFCodec
from cotune.policy.local_policy import load, load_tokenizer
from cotune.policy.sampling import CachedSampler, GenerateSampler, policy_sampler
from cotune.types import Distillation, SampleRequest, Sampling
from tests.engines.trl.setup import HintedRows, Run, scored, start
from tests.engines.trl.test_distillation import GEO_HINT, EveryOther, GeoOptions, Spy, start_small
from tests.policy.test_adapters import adapted
from tests.policy.tiny import opens, small_policy, tiny_model, tiny_tokenizer
from tests.reference_loop import completion_logprobs
from tests.run_files import tiny


def lora() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")


def lora_run(folder: Path, **changes: Any) -> Run:
    """A run with a `peft_config`, as a run file's with policy.lora."""
    arguments = {"trainer_arguments": {"peft_config": lora()}} | changes
    return start(folder, **arguments)


def disturb(run: Run, std: float = 0.3) -> None:
    """Gives the adapter, which begins as zero, an effect."""
    torch.manual_seed(9)
    for name, weight in run.weights.items():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=std)


def test_adapters_alone_are_trained(tmp_path: Path) -> None:
    run = lora_run(tmp_path)
    initial = {name: weight.clone() for name, weight in run.weights.items()}
    run.trainer.train()
    changed = {name for name, w in run.weights.items() if not torch.equal(w, initial[name])}
    assert changed == {name for name in initial if ".lora_" in name}
    assert len(changed) == 2 * 7
    assert all(norm > 0 for norm in run.logged("grad_norm"))
    base: Any = run.trainer.model.get_base_model()  # type: ignore[union-attr]
    plain = tiny_model(tiny_tokenizer())
    fixed = {n.replace("base_layer.", ""): p for n, p in base.named_parameters() if "lora" not in n}
    assert all(torch.equal(p, fixed[name]) for name, p in plain.named_parameters())


@pytest.mark.parametrize("kind", [CachedSampler, GenerateSampler])
def test_rollouts_are_sampled_with_the_adapter(kind: Any) -> None:
    """As from the merged weights, over two turns; its generation settings come back."""
    tokenizer = tiny_tokenizer()
    codec, samples = HFCodec(tokenizer), []
    policy = adapted()
    settings = policy.generation_config
    settings.repetition_penalty = 3.0  # which must not be heeded
    inner = policy.get_base_model().generation_config
    for model in (policy, merged(adapted())):
        session = kind(opens(model), codec, 0).open(Sampling(temperature=1.0, seed=4, stop=()))
        contexts = [(4, 5, 6), (7, 8)]
        turns: list[Any] = []
        for _ in range(2):
            requests = [SampleRequest(i, ids, 6) for i, ids in enumerate(contexts)]
            turns += session.generate(requests)
            contexts = [(*c, *s.ids, 5) for c, s in zip(contexts, turns[-2:], strict=True)]
        session.close()
        samples.append(turns)
    assert [t.ids for t in samples[0]] == [t.ids for t in samples[1]]
    for sample, expected in zip(*samples, strict=True):
        assert sample.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    assert policy.generation_config is settings
    assert policy.get_base_model().generation_config is inner
    assert isinstance(policy_sampler(opens(policy), codec, tokenizer), CachedSampler)


def train_as_the_loop(run: Run) -> None:
    """Train, and compare the gradients with the reference loop's at the same weights."""
    Spy(run).check(least=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_the_loop(tmp_path: Path) -> None:
    """Groups without an advantage are passed over, as with whole weights."""
    run = lora_run(tmp_path, max_steps=1, max_grad_norm=1e9)
    disturb(run, std=0.05)
    scores = iter([0.0, 0.0, 0.0, 0.0, 1.0, 0.0])  # the first group decides nothing
    environment: Any = run.joint.parts.environment
    environment.score = lambda _: (next(scores), None)
    train_as_the_loop(run)
    assert run.logged("zero_advantage_share") == [0.5]


@pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")
def test_gradient_checkpointing_changes_nothing_but_memory(tmp_path: Path) -> None:
    """Over two steps with rollouts in between, after which it is still on, in training alone."""
    logs: list[list[float]] = []
    for on in (False, True):
        run = lora_run(tmp_path / str(on), gradient_checkpointing=on)
        disturb(run, std=0.05)
        run.trainer.train()
        logs.append([*run.logged("loss"), *run.logged("grad_norm")])
        model: Any = run.trainer.model
        assert model.is_gradient_checkpointing is on
        checkpoint_func = model.get_base_model().model._gradient_checkpointing_func if on else None
        with run.joint.policy():
            pass
        if on:
            assert model.get_base_model().model._gradient_checkpointing_func is checkpoint_func
    assert logs[1] == pytest.approx(
        logs[0], rel=1e-4, abs=1e-6
    )  # on-policy losses are 0 but for rounding
    assert all(norm > 0 for norm in logs[1][2:])


def test_the_reference_of_the_kl_term_is_the_policy_without_its_adapter(tmp_path: Path) -> None:
    run = lora_run(tmp_path, beta=0.1, max_steps=1)
    disturb(run)
    outputs = run.outputs()
    run.trainer.train()
    assert run.trainer.ref_model is None
    (batch,), (output,) = run.trajectories, outputs
    with torch.no_grad():
        plain, mask = completion_logprobs(tiny_model(tiny_tokenizer()), batch, 1.0)
    generated = mask.bool()
    reference = output["ref_per_token_logps"][:, : plain.shape[1]]
    torch.testing.assert_close(reference[generated], plain[generated], atol=1e-4, rtol=0)
    sampled = torch.tensor([x for t in batch for x, m in zip(t.logprobs, t.mask, strict=True) if m])
    assert not torch.allclose(reference[generated], sampled, atol=0.05)
    assert run.logged("kl")[0] > 0.01


def test_hints_are_distilled_into_the_adapter(tmp_path: Path) -> None:
    """P²O's extra pass sees the adapter: loss and gradient are the reference loop's."""
    environment = EveryOther(GeoOptions(train=3, validation=1, test=1))
    distillation = Distillation(ratio="masked_signed", low=0.7, high=1.2)
    instruction = environment.initial_instruction
    strategy = HintedRows((0, 1, 2, 3, 5, 6, 7), distillation, instruction, GEO_HINT)
    adapter = {"trainer_arguments": {"peft_config": lora()}}
    run = start_small(tmp_path, strategy, environment, **adapter)
    disturb(run, std=0.02)
    train_as_the_loop(run)
    assert 0 < run.logged("p2o/ratio_masked_share")[0] < 1


def test_the_best_adapters_turns_end_as_in_training(tmp_path: Path) -> None:
    model, tokenizer = tiny_model(tiny_tokenizer()), tiny_tokenizer()
    other_end: int = tokenizer.convert_tokens_to_ids("<unk>")
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, other_end]
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    run = lora_run(tmp_path / "run", policy=load(tmp_path / "base"))
    assert run.joint.codec.end_ids == {tokenizer.eos_token_id, other_end}
    TRLBest(tmp_path / "best", run.joint.codec.tokenizer).offer(run.joint, scored(0.5), 3)
    assert HFCodec(load_tokenizer(tmp_path / "best")).end_ids == run.joint.codec.end_ids


def test_adapters_are_trained_in_float32_and_virtual_tokens_are_refused(tmp_path: Path) -> None:
    model: Any = tiny_model(tiny_tokenizer()).to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
    assert trained_dtype(model) == "bfloat16"
    assert trained_dtype(get_peft_model(model, lora())) == "float32"
    # Virtual tokens are refused.
    virtual = PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    with pytest.raises(ConfigError, match=r"peft_config is PrefixTuningConfig, .*: use LoRA"):
        lora_run(tmp_path, trainer_arguments={"peft_config": virtual})


def run_config(folder: Path, **policy: Any) -> RunConfig:
    return parse_config(tiny(folder / "out", {"policy": policy}), "test")


def make_trainer(config: RunConfig) -> JointTrainer:
    return build_trainer(Preflight(config, new=False).require(), Console(quiet=True))


def test_layers_that_the_policy_has_not_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"target_modules: 'qkv_proj' is none of the linear"):
        make_trainer(run_config(tmp_path, lora={"target_modules": ["qkv_proj"]}))
    assert not (tmp_path / "out").exists()


def test_training_starts_from_whole_weights(tmp_path: Path) -> None:
    save_weights(adapted(base=small_policy()), tmp_path / "adapter")
    AutoTokenizer.from_pretrained(small_policy()).save_pretrained(tmp_path / "adapter")
    config = run_config(tmp_path, path=str(tmp_path / "adapter"))
    with pytest.raises(ConfigError, match=r"policy.path: '.*adapter' holds an adapter, .*--merge"):
        make_trainer(config)
