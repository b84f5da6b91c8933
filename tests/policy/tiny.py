"""Tiny policies without any training, their tokenizer, and a world in their alphabet."""

import atexit
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from cotune.policy.policy_files import policy_path
from cotune.types import Action, Prompt, Response, Task, Trajectory

ALPHABET = "abcdef .?\n"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def models_template(name: str) -> str:
    """A model's chat template as TRL ships it."""
    import trl

    folder = Path(trl.__file__).parent / "chat_templates"
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A token a character, so that a stop string of n characters takes n tokens."""
    vocabulary = {t: i for i, t in enumerate(["<pad>", "<unk>", "<|im_start|>", "<|im_end|>"])}
    for character in ALPHABET:
        vocabulary.setdefault(character, len(vocabulary))
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # type: ignore[assignment]
    backend.decoder = decoders.Fuse()  # type: ignore[assignment]
    backend.add_special_tokens(["<pad>", "<unk>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(
    tokenizer: PreTrainedTokenizerFast, seed: int = 0, window: int | None = None, layers: int = 1
) -> Qwen2ForCausalLM | Qwen3ForCausalLM:
    """Return random weights, large enough that contexts matter; Qwen2 with windows if `window` is set.

    A forward pass costs about the same for each layer, so runs take one layer; tests of samplers,
    caches and adapters take three.
    """
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "tie_word_embeddings": False, "initializer_range": 0.2,
        "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(seed)
    if window is None:
        return Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8)).eval()
    windowed = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**shape, **windowed)).eval()


@cache
def small_policy(like: str = "bundled:geo") -> str:
    """Return the folder of an untrained policy of one layer with a bundled policy's tokenizer.

    For whole runs that need a policy of a bundled world but not a good one: a run with it takes a
    fifth of the time. The folder is the same for the whole process, and removed at its end.
    """
    folder, path = tempfile.mkdtemp(prefix="small-policy-"), policy_path(like)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shape = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "layer_types": ["full_attention"], "num_attention_heads": 2, "num_key_value_heads": 1,
        "initializer_range": 0.2,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path, **shape))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return folder


def opens(model: Any) -> Any:
    """The model as samplers take it."""
    return lambda: contextlib.nullcontext(model)


class Letters:
    """Tasks whose reward is the share of "a" in what the policy wrote; an untrained one differs.

    A turn that holds "d" asks for an observation, one that holds "e" answers.
    """

    stop = ("de", "f")
    initial_instruction = "abc de. "
    required: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    def __init__(self, count: int = 6) -> None:
        letters = [x + y for x in "abcdef" for y in "abcdef"]
        self._tasks = {
            split: [Task(f"{split}{i}", f"{letters[first + i]}?", ("a",)) for i in range(n)]
            for split, first, n in (("train", 0, count), ("validation", 30, 2), ("test", 32, 2))
        }
        self.actions: list[Action] = []

    def tasks(self, split: str) -> Sequence[Task]:
        return self._tasks[split]

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        return [{"role": "user", "content": prompt.hint + prompt.instruction + task.question}]

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        self.actions += actions
        return [self._response(action) for action in actions]

    def _response(self, action: Action) -> Response:
        if "e" in action.text:
            return Response(done=True, action="answer")
        if "d" in action.text:
            return Response(f"\n{action.task.question}bb\n", action="search")
        return Response("ab\n", action="invalid", error="neither d nor e")

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        text = trajectory.own_text
        return text.count("a") / max(1, len(text)), text[-1:] or None


class ApartLetters(Letters):
    """Letters whose episodes do not wait for each other, answered after random times."""

    parallel_responses = 3

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        time.sleep(random.random() / 100)
        return super().respond(actions)


def byte_tokenizer(
    template: str, special: Sequence[str], eos: str, added: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A token a byte, so that every text can be written, with a template's own tokens.

    Args:
        template: a chat template.
        special: its control tokens; `eos` among them.
        eos: the one that ends a turn.
        added: tokens that are none of the control tokens, as Qwen's <tool_call>.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    backend.add_special_tokens(["<pad>", *special])
    backend.add_tokens(list(added))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token=eos, padding_side="left"
    )
    tokenizer.chat_template = template
    return tokenizer
