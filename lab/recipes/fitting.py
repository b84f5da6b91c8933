"""Fit a bundled policy from scratch on demonstrations; shared by the worlds' recipes.

A Qwen2 of about one million parameters, trained on the tokens that the demonstrator wrote itself
(prompts and observations are context only). Matrices are optimised by Muon, the rest by AdamW.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.optim._muon as muon
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.multiprocessing.spawn import spawn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from cotune.policy.precision import native_bfloat16

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

MicroBatch = tuple[torch.Tensor, torch.Tensor]
"""Token ids and labels, both (rows, width)."""
Row = tuple[list[int], list[int]]
"""Token ids of one demonstration and its labels; -100 where the policy did not write."""
Stream = Callable[[PreTrainedTokenizerFast, Any, int, int, int], Iterator[Row]]
"""(tokenizer, recipe, phase, rank, workers) to an endless stream of rows; a module's function, so
that a new process can import it."""


@dataclass(frozen=True)
class FitPhase:
    """A stretch of training with its own optimizers and schedule.

    Attributes:
        steps: updates.
        scale: factor of the learning rates.
    """

    steps: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """Shape and optimisation; everything the weights depend on except the demonstrations and the
    package versions."""

    seed: int = 0
    vocabulary: int = 2048
    tokenizer_demonstrations: int = 6000
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    phases: tuple[FitPhase, ...] = ()
    batch: int = 32
    micro_batches: int = 4
    muon_lr: float = 0.012
    adamw_lr: float = 2.5e-3
    warm_up: int = 50
    context: int = 1024


def byte_level_bpe(
    texts: Iterable[str], recipe: FitRecipe, added: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with a chat template; each digit is a token.

    Args:
        added: texts of one token each that are ordinary text to `decode`.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary - len(added),
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens(list(added))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
    )


class Answered(Protocol):
    """A demonstration of one turn."""

    @property
    def message(self) -> str: ...

    @property
    def response(self) -> str: ...


def tokenizer_of(
    sample: Callable[[random.Random], Answered], recipe: FitRecipe
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on demonstrations."""
    rng = random.Random(recipe.seed)
    demos = [sample(rng) for _ in range(recipe.tokenizer_demonstrations)]
    return byte_level_bpe([text for d in demos for text in (d.message, d.response)], recipe)


def encode(demo: Answered, tokenizer: PreTrainedTokenizerFast) -> Row:
    """Return token ids of a demonstration and its labels; -100 for the prompt."""
    return encode_chat(tokenizer, demo.message, [(demo.response, True)])


def encode_chat(
    tokenizer: PreTrainedTokenizerFast, message: str, segments: Sequence[tuple[str, bool]]
) -> Row:
    """Return token ids of an episode and its labels.

    Args:
        message: the user's message.
        segments: (text, whether the policy wrote it) in order.
    """
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    ids = cast("list[int]", rendered)
    labels = [-100] * len(ids)
    for text, learnt in segments:
        piece: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += piece
        labels += piece if learnt else [-100] * len(piece)
    eos = cast(int, tokenizer.eos_token_id)
    return [*ids, eos], [*labels, eos]


def stream_rng(recipe: FitRecipe, phase: int, rank: int, workers: int) -> random.Random:
    """Return the random generator of one worker in one phase."""
    late = f"/{phase}" if phase else ""
    return random.Random(f"{recipe.seed}/{rank}/{workers}{late}")


def micro_batches(
    rows: Iterator[Row], tokenizer: PreTrainedTokenizerFast, recipe: FitRecipe, workers: int
) -> Iterator[list[MicroBatch]]:
    """Yield one worker's share of every batch in rows of similar length, endlessly."""
    pad = cast(int, tokenizer.pad_token_id)
    while True:
        share = [next(rows) for _ in range(recipe.batch // workers)]
        share.sort(key=lambda row: len(row[0]))
        size = len(share) // recipe.micro_batches
        yield [_padded(share[i : i + size], pad) for i in range(0, len(share), size)]


def _padded(rows: list[Row], pad: int) -> MicroBatch:
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
    return ids, labels


def new_model(tokenizer: PreTrainedTokenizerFast, recipe: FitRecipe) -> Qwen2ForCausalLM:
    """Return random weights in the recipe's shape."""
    torch.manual_seed(recipe.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=3 * recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        pad_token_id=cast(int, tokenizer.pad_token_id),
        eos_token_id=cast(int, tokenizer.eos_token_id),
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def token_losses(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of labelled tokens, (labelled,); others get no logits."""
    targets = labels[:, 1:]
    labelled = targets != -100
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1][labelled]
    return F.cross_entropy(model.lm_head(hidden), targets[labelled], reduction="none")


def fit(
    out: Path,
    tokenizer: PreTrainedTokenizerFast,
    recipe: FitRecipe,
    stream: Stream,
    workers: int = 2,
) -> None:
    """Run every phase of a recipe and write a Hugging Face folder to `out`.

    `workers` processes of one thread each share every batch: for a model this small that is
    faster than one process of several threads.
    """
    tokenizer.save_pretrained(out)
    new_model(tokenizer, recipe).save_pretrained(out)
    for number in range(len(recipe.phases)):
        fit_phase(out, recipe, number, stream, workers)


def fit_phase(out: Path, recipe: FitRecipe, number: int, stream: Stream, workers: int = 2) -> None:
    """Train the weights in `out` for one phase of the recipe and write them back."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (workers, f"file://{folder}/rendezvous", out, recipe, number, stream)
        spawn(_work, arguments, nprocs=workers)


def _work(
    rank: int,
    workers: int,
    rendezvous: str,
    out: Path,
    recipe: FitRecipe,
    number: int,
    stream: Stream,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=workers)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    model = Qwen2ForCausalLM.from_pretrained(out)
    phase = recipe.phases[number]
    optimizers, bases = new_optimizers(model, recipe)
    rows = stream(tokenizer, recipe, number, rank, workers)
    shares = micro_batches(rows, tokenizer, recipe, workers)
    run_phase(model, optimizers, bases, shares, recipe, phase, lambda: model.save_pretrained(out))
    dist.destroy_process_group()


def run_phase(
    model: Any,
    optimizers: list[torch.optim.Optimizer],
    bases: Sequence[float],
    shares: Iterator[list[MicroBatch]],
    recipe: FitRecipe,
    phase: FitPhase,
    save: Callable[[], object],
    log_every: int = 50,
    save_every: int = 500,
) -> None:
    """Train for one phase; the first worker prints the recent loss and saves.

    Args:
        bases: the learning rate of each optimizer.
        shares: this worker's micro-batches of each step.
    """
    first = dist.get_rank() == 0
    started, recent = time.monotonic(), 0.0
    for step in range(1, phase.steps + 1):
        for optimizer, base in zip(optimizers, bases, strict=True):
            optimizer.param_groups[0]["lr"] = (
                base * phase.scale * _schedule(step, phase.steps, recipe.warm_up)
            )
        recent = (0.98 * recent if step > 1 else 0.0) + _update(model, optimizers, next(shares)) * (
            0.02 if step > 1 else 1.0
        )
        if first and (step % log_every == 0 or step == phase.steps):
            print(f"step {step} loss {recent:.3f} {time.monotonic() - started:.0f} s", flush=True)
        if first and (step % save_every == 0 or step == phase.steps):
            save()


def _schedule(step: int, steps: int, warm_up: int) -> float:
    """Return the learning-rate factor: linear warm-up, then linear decay to 2 %."""
    return min(1.0, step / warm_up) * max(0.02, 1 - step / steps)


def new_optimizers(
    model: Qwen2ForCausalLM, recipe: FitRecipe
) -> tuple[list[torch.optim.Optimizer], list[float]]:
    """Return Muon for matrices and AdamW for the rest, with the learning rate of each."""
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in named if p.ndim != 2 or "embed" in n]
    if not native_bfloat16():
        muon._zeropower_via_newtonschulz = orthogonal  # pyright: ignore[reportPrivateUsage]
    by_matrix = torch.optim.Muon(matrices, lr=recipe.muon_lr, momentum=0.95, weight_decay=0.01)
    adamw = torch.optim.AdamW(others, lr=recipe.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0)
    return [by_matrix, adamw], [recipe.muon_lr, recipe.adamw_lr]


def orthogonal(
    gradient: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Return Muon's orthogonalised gradient, computed in the gradient's type.

    torch computes it in bfloat16, which takes four fifths of a fit on a CPU that emulates it.
    """
    a, b, c = coefficients
    tall = gradient.size(0) > gradient.size(1)
    x = gradient.T if tall else gradient
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _update(
    model: Any,
    optimizers: list[torch.optim.Optimizer],
    share: list[MicroBatch],
) -> float:
    """Update on the mean loss over the labelled tokens of all workers, and return it."""
    count = torch.tensor(float(sum(int((labels[:, 1:] != -100).sum()) for _, labels in share)))
    dist.all_reduce(count)
    total = torch.zeros(())
    for ids, labels in share:
        loss = token_losses(model, ids, labels).sum() / count
        loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    for gradient, piece in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(piece.view_as(gradient))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return float(total)
