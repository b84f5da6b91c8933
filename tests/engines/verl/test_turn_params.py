"""What the agent loops ask of the rollout engine for a turn."""

import torch

from cotune.engines.verl.agent import turn_params
from cotune.types import SampleRequest, Sampling
from tests.engines.verl.cpu.generation import respond
from tests.policy.tiny import tiny_model, tiny_tokenizer


def test_no_other_token_ends_a_turn() -> None:
    """Whatever the generation_config.json says that vLLM reads."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    vocabulary = model.config.vocab_size
    model.generation_config.eos_token_id = list(range(vocabulary))
    request = SampleRequest(row=0, context_ids=(5, 6, 7), max_tokens=6)

    def generate(*end_ids: int) -> list[int]:
        params = turn_params(request, Sampling(temperature=0.0), frozenset(end_ids))
        return respond(model, tokenizer, request.context_ids, params, 6, torch.Generator())[0]

    ids = generate(vocabulary)  # an EOS that the policy never writes
    assert len(ids) == 6
    assert generate(ids[0]) == ids[:1]


def test_stop_strings_are_looked_for_in_all_that_is_written() -> None:
    request = SampleRequest(row=0, context_ids=(5,), max_tokens=6)
    params = turn_params(request, Sampling(stop=("</search>",)), frozenset({3}))
    assert params["stop"] == ["</search>"]
    assert params["include_stop_str_in_output"] is True
    assert params["skip_special_tokens"] is False
    assert "stop" not in turn_params(request, Sampling(), frozenset({3}))
