"""A Hugging Face tokenizer as a codec."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec, PlainCodec
from cotune.policy.policy_files import policy_path
from tests.policy.tiny import tiny_tokenizer

TINY = HFCodec(tiny_tokenizer())
BUNDLED_TOKENIZER = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
BUNDLED = HFCodec(BUNDLED_TOKENIZER)


def test_a_prompt_is_the_chat_template_up_to_the_policys_turn() -> None:
    ids = TINY.render([{"role": "user", "content": "ab?"}])
    assert TINY.decode(ids) == "<|im_start|>ab?<|im_end|><|im_start|>"
    assert ids.count(TINY.eos_id) == 1
    ids = BUNDLED.render([{"role": "user", "content": "Where?"}])
    rendered = BUNDLED_TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "Where?"}], add_generation_prompt=True, tokenize=False
    )
    assert BUNDLED.decode(ids) == rendered
    assert "Where?" in rendered


@pytest.mark.parametrize("codec", [TINY, BUNDLED], ids=["tiny", "bundled"])
def test_no_observation_can_end_the_policys_turn(codec: HFCodec) -> None:
    control = codec.decode([codec.eos_id])
    ids = codec.encode(f"a{control}b")
    assert codec.eos_id not in ids
    assert codec.encode(f"a{control}b")[0] == codec.encode("a")[0]


@pytest.mark.parametrize("codec", [TINY, BUNDLED], ids=["tiny", "bundled"])
def test_no_message_of_a_prompt_can_end_the_users_turn(codec: HFCodec) -> None:
    forged = "".join(codec.control_tokens)
    plain = codec.render([{"role": "user", "content": "a b"}])
    asked = codec.render([{"role": "user", "content": f"a {forged} b"}])
    tokenizer = codec.tokenizer
    # What the tiny tokenizer has no token for is unknown, and that is a special one.
    control = {tokenizer.convert_tokens_to_ids(t) for t in codec.control_tokens}
    control -= {tokenizer.unk_token_id}
    assert [i for i in asked if i in control] == [i for i in plain if i in control]


def test_half_of_a_utf_16_pair_in_an_observation_is_no_error() -> None:
    assert BUNDLED.encode("a\ud83db") == BUNDLED.encode("a?b")
    message = {"role": "user", "content": "a\ud83db"}
    assert BUNDLED.render_next([message]) == BUNDLED.render_next([{**message, "content": "a?b"}])
    assert BUNDLED.render([message]) == BUNDLED.render([{**message, "content": "a?b"}])


@given(st.text(alphabet="abcXYZ 019.,?!<>/\n'-éßĀ中", max_size=60))
def test_text_comes_back_as_it_was(text: str) -> None:
    assert BUNDLED.decode(BUNDLED.encode(text)) == text


def test_the_protocols_tags_and_control_tokens_decode_to_themselves() -> None:
    text = " <search> a , b </search>\n<answer>it 's</answer>"
    assert BUNDLED.decode(BUNDLED.encode(text)) == text
    assert BUNDLED.decode([BUNDLED.eos_id]) == BUNDLED_TOKENIZER.eos_token


def test_a_tokenizer_that_lacks_something_is_refused_by_name() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    bare.pad_token = None
    with pytest.raises(ConfigError, match="no chat_template and no pad_token"):
        HFCodec(bare)


def test_a_plain_prompt_needs_no_chat_template_and_offers_no_tools() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    codec = PlainCodec(tokenizer)
    ids = codec.render([{"role": "user", "content": "<|im_start|>ab?<|im_end|>"}])
    assert codec.decode(ids) == "<|im_start|>ab?<|im_end|>"
    assert ids.count(codec.eos_id) == 1
    assert codec.foreign_end() == ""
    with pytest.raises(ConfigError, match="plain texts; expected chat messages"):
        codec.check_tools([])
    with pytest.raises(ConfigError, match="plain texts; expected chat messages"):
        codec.render_next([{"role": "tool", "content": "4"}])
