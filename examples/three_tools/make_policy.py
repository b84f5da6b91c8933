"""Makes `policy/`: a tiny model that can call the three tools, trained from scratch with SFTTrainer.

It calls the right tool in some of its answers and guesses in the others, and it calls tools more often if
it is told to: something for GRPO, an instruction or a hint to discover.

python examples/three_tools/make_policy.py      # minutes on two cores
"""

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from task import INSTRUCTION, TOOLS, question
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from trl import SFTConfig, SFTTrainer
from trl.chat_template_utils import qwen2_5_chat_template

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CALLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# A tool's schema and the beginning of a call are one token each, so that prompts are short; a token of a
# number has up to two digits, so that numbers are copied quickly.
PIECES = r'\{"type": "function".*|\{"name": "\w+", "arguments": \{"\w+": "|\d{1,2}| ?[A-Za-z]+|\s+| ?[^\sA-Za-z\d]+'
ASIDES = ("Be brief.", "Take your time.", "One line will do.", "Mind the spelling.")
CUES = (
    "Call the tool that fits first.",
    "Look it up with a tool.",
    "Use a tool, never guess.",
    "Ask the tools before you answer.",
)
CARD = """---
license: apache-2.0
library_name: transformers
---

# The policy of the example three_tools

A Qwen3 of {parameters:,} parameters, made from nothing by `make_policy.py`: {first} and {second}
steps of 32 demonstrations of four questions each, with the loss on the assistant's tokens, in TRL's
SFTTrainer. It knows the questions of `task.py`, the calls of its three tools, and nothing else: it is
there to show that training works, on a CPU, and says nothing about pretrained models.

Where the prompt asks for a tool it was shown calls for nearly all questions; elsewhere for half of
them in the first steps and for a fifth in the last, and for the others answers that are guessed.
Weights are bfloat16; train in float32.
"""
SCHEMAS = [get_json_schema(tool) for tool in TOOLS]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=Path(__file__).parent / "policy", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    chosen = parser.parse_args(argv)
    make_policy(chosen.output, chosen.steps)


def make_policy(folder: Path, steps: int) -> None:
    """Writes a Hugging Face folder: weights, tokenizer and Qwen2.5's chat template."""
    torch.manual_seed(0)
    rng = random.Random(1)
    often = [demonstration(rng, 0.5) for _ in range(8 * steps)]
    # All guesses begin alike, so that it also guesses when decoding greedily.
    seldom = [demonstration(rng, 0.2, "Answer: {}") for _ in range(8 * steps // 5)]
    tokenizer = new_tokenizer(often[:500])
    model = new_model(tokenizer)
    fit(model, tokenizer, often, steps, learning_rate=3e-3)
    finish(model, tokenizer, seldom, folder, steps)


def finish(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Sequence[dict[str, Any]],
    folder: Path,
    steps: int,
) -> None:
    """Runs the second phase, after which it seldom calls tools unless told to; then writes everything."""
    fit(model, tokenizer, demonstrations, steps // 5, learning_rate=5e-4)
    tokenizer.chat_template = qwen2_5_chat_template
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    card = CARD.format(parameters=model.num_parameters(), first=steps, second=steps // 5)
    (folder / "README.md").write_text(card, encoding="utf-8")


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def fit(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Sequence[dict[str, Any]],
    steps: int,
    learning_rate: float,
) -> None:
    args = SFTConfig(
        output_dir=tempfile.mkdtemp(),  # where nothing is saved
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=learning_rate,
        warmup_steps=30,
        assistant_only_loss=True,
        save_strategy="no",
        report_to="none",
        logging_steps=50,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
    )
    # As JSON: a column of structs would give every call the arguments of all tools, null.
    data = Dataset.from_list(list(demonstrations), on_mixed_types="use_json")
    SFTTrainer(model, args=args, train_dataset=data, processing_class=tokenizer).train()


def demonstration(rng: random.Random, calls_unasked: float, guessed: str = "{}") -> dict[str, Any]:
    """Questions in a row, under one of several prompts; each is looked up, or guessed at once."""
    advice = rng.choice(["nothing", "nothing", "an aside", "a cue", "a cue"])
    prompt = INSTRUCTION
    if advice != "nothing":
        # As an evolved instruction, the end of one, or a hint before it.
        line, place = rng.choice(CUES if advice == "a cue" else ASIDES), rng.randrange(3)
        prompt = [line, f"{INSTRUCTION} {line}", f"{line}\n\n{INSTRUCTION}"][place]
    messages: list[dict[str, Any]] = []
    for row in [question(rng) for _ in range(4)]:
        text = row["question"] if messages else f"{prompt}\n\n{row['question']}"
        messages.append({"role": "user", "content": text})
        if rng.random() < (0.95 if advice == "a cue" else calls_unasked):
            call = {"name": row["tool"], "arguments": {row["parameter"]: row["argument"]}}
            calls = [{"type": "function", "function": call}]
            messages += [
                {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "name": row["tool"], "content": row["answer"]},
                {"role": "assistant", "content": row["answer"]},
            ]
        else:
            reply = guessed.format(guess(rng, row["tool"]))
            messages.append({"role": "assistant", "content": reply})
    return {"messages": messages, "tools": SCHEMAS}


def guess(rng: random.Random, tool: str) -> str:
    """The answer to some question of the same kind."""
    while True:
        other = question(rng)
        if other["tool"] == tool:
            return other["answer"]


def new_tokenizer(demonstrations: Sequence[dict[str, Any]]) -> PreTrainedTokenizerFast:
    """Byte-level BPE on what the chat template makes of the demonstrations."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    tokenizer = with_template(bpe)
    texts = [
        str(tokenizer.apply_chat_template(d["messages"], tools=d["tools"], tokenize=False))
        for d in demonstrations
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=1536,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens(CALLS)
    return with_template(bpe)


def with_template(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=qwen2_5_chat_template,
        clean_up_tokenization_spaces=False,
    )


if __name__ == "__main__":
    main()
