"""What is hidden in messages as a secret, and what is not."""

import random
import string

import pytest

from cotune.utils.text import has_secret, hide_secrets

KEYS = [
    "sk-proj-Zx81kQ", "sk-ant-api03-a_b-c1", "sk-" + "aB3" * 16, "hf_" + "aBcDe" * 6 + "wxyz",
    "ghp_" + "a1B2" * 9, "github_pat_" + "11AB_" * 8, "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
]  # fmt: skip
HARMLESS = [
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "claude-3-5-sonnet-20241022-v2:0", "gpt-4.1-mini",
    "ft:gpt-4o-mini-2024-07-18:me::AbC123xy", "accounts/x/models/llama-v3p1-405b-instruct",
    "runs/hf_models/llama3_8b_instruct", "hf-llama3-8b-instruct", "sk-baseline-2024-seed1",
    "sk-learn", "pk-2024-experiment", "data/hf_math_dataset_v2.jsonl", "runs/sk-llama3-8b",
    "gsk_trials_2021.jsonl", "pplx-70b-online", "https://host:8000/v1?a=b@c", "mail me@host.org",
    "https://github.com/a/b@v1", "StatisticalTranslationModel2024Version", "12345678901234567890123",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_hidden_wherever_it_stands(key: str) -> None:
    for text in (key, f"training.steps is '{key}'", f"a,{key},b", f"{{x: {key}}}"):
        assert has_secret(text)
        hidden = hide_secrets(text)
        assert "***" in hidden
        assert key not in hidden


@pytest.mark.parametrize("text", HARMLESS)
def test_names_and_addresses_stay(text: str) -> None:
    assert not has_secret(text)
    assert hide_secrets(text, guess=True) == text


def test_a_user_or_password_in_an_address_is_hidden() -> None:
    assert hide_secrets("at http://me:pw@host/x, or ssh://me@host") == (
        "at http://***@host/x, or ssh://***@host"
    )
    assert has_secret("postgres://me:pw@host")


def test_random_words_are_guessed_in_values_and_stay_in_paths() -> None:
    letters = string.ascii_letters + string.digits
    words = ["".join(random.Random(i).choices(letters, k=40)) for i in range(50)]
    assert all(hide_secrets(word, guess=True) == "***" for word in words)
    path = f"/cache/snapshots/{words[0]}/config.json"
    assert hide_secrets(path) == path
