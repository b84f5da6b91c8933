"""`cotune export`: the folder holds all that serves, or is not there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.export.export import export
from cotune.policy.adapters import lora_config, merged, save_weights
from cotune.policy.local_policy import load
from cotune.run.record import Record
from tests.export.finished import files, finished_run, read_json
from tests.export.test_complete import world
from tests.helpers import raises_line
from tests.policy.tiny import tiny_model, tiny_tokenizer
from tests.run_files import script_fields

PROMPT = "abc de. fade"


def full_run(folder: Path, **changes: Any) -> tuple[Record, RunConfig]:
    """A finished run that trained all weights."""
    tokenizer = tiny_tokenizer()
    return finished_run(world("geo", folder, **changes), tokenizer, tiny_model(tokenizer))


def with_lora(folder: Path) -> tuple[Record, RunConfig, Any]:
    """A finished run that trained an adapter, and its policy."""
    from peft import get_peft_model

    tokenizer = tiny_tokenizer()
    base = folder / "Some-Base"
    tiny_model(tokenizer).save_pretrained(base)
    tokenizer.save_pretrained(base)
    run, config = finished_run(
        world("geo", folder, policy={"path": str(base), "lora": {"rank": 3}}), tokenizer
    )
    assert config.policy.lora is not None
    model, _ = load(base)
    policy = get_peft_model(model, lora_config(config.policy.lora, model))
    generator = torch.Generator().manual_seed(0)
    for name, weights in policy.named_parameters():
        if "lora_" in name:
            weights.data = torch.randn(weights.shape, generator=generator) * 0.2
    save_weights(policy, run.best_path)
    # As training leaves it, with an end of turns that the base does not name.
    GenerationConfig(eos_token_id=[tokenizer.eos_token_id, 5]).save_pretrained(run.best_path)
    return run, config, policy.eval()


def logits(model: Any) -> torch.Tensor:
    ids = tiny_tokenizer()(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        return model(ids).logits


def test_the_export_is_all_that_best_holds(tmp_path: Path) -> None:
    run, _ = full_run(tmp_path)
    (run.best_path / ".README.md.1.tmp").write_text("left over by a kill")
    folder = export(run.path)
    assert folder == run.path / "export"
    copied = files(folder)
    expected = files(run.best_path)
    del expected[".README.md.1.tmp"]
    assert copied == expected
    # Whole weights need no merging.
    assert files(export(run.path, True, run.path / "merged")) == expected
    assert {
        "README.md", "chat_template.jinja", "config.json", "generation_config.json", "instruction.txt",
        "model.safetensors", "serving.json", "tokenizer.json", "tokenizer_config.json",
    } <= copied.keys()  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits(model), logits(load(run.best_path)[0]))
    served: Any = AutoTokenizer.from_pretrained(folder)
    assert "Search <search>" in served.apply_chat_template(
        [{"role": "user", "content": "ab?"}], tokenize=False
    )


def test_an_empty_folder_is_filled_and_another_is_left_alone(tmp_path: Path) -> None:
    run, _ = full_run(tmp_path)
    target = tmp_path / "here"
    target.mkdir()
    export(run.path, output=target)
    expected = files(run.best_path)
    assert files(target) == expected
    with raises_line("exists and is not an empty folder"):
        export(run.path, output=target)
    assert files(target) == expected
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ConfigError, match="is a file; choose another"):
        export(run.path, output=file)


def test_what_cannot_be_exported_is_said_in_one_line(tmp_path: Path) -> None:
    run, _ = full_run(tmp_path)
    (run.path / "summary.json").unlink()
    with pytest.raises(ConfigError, match=f"finish it with: cotune resume {run.path}"):
        export(run.path)
    script = Record.create(tmp_path / "own", script_fields(tmp_path / "own"))
    with pytest.raises(
        ConfigError, match=r"finish it with: trainer\.train\(resume_from_checkpoint"
    ):
        export(script.path)
    with pytest.raises(ConfigError, match="is not a run folder"):
        export(tmp_path)
    assert not (run.path / "export").exists()


def test_an_adapter_is_exported_as_it_is_and_merged(tmp_path: Path) -> None:
    run, config, policy = with_lora(tmp_path)
    alone = export(run.path)
    assert files(alone) == files(run.best_path)
    assert (alone / "adapter_model.safetensors").is_file()
    card = (alone / "README.md").read_text(encoding="utf-8")
    assert "library_name: peft" in card
    assert "--enable-lora --max-lora-rank 3" in card
    assert "vllm serve path/to/Some-Base" in card
    assert str(tmp_path) not in card

    together = export(run.path, True, tmp_path / "merged")
    assert not list(together.glob("adapter_*"))
    expected = logits(policy)
    model = AutoModelForCausalLM.from_pretrained(together).eval()
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    base = load(config.policy.path)[0]
    assert (logits(base) - expected).abs().max() > 0.1
    card = (together / "README.md").read_text(encoding="utf-8")
    assert "library_name: transformers" in card
    assert "with a LoRA adapter merged in" in card
    assert "--enable-lora" not in card
    assert read_json(together / "generation_config.json")["max_new_tokens"] == 24
    for name in (
        "chat_template.jinja", "generation_config.json", "instruction.txt", "serving.json", "tokenizer.json",
    ):  # fmt: skip
        assert (together / name).read_bytes() == (run.best_path / name).read_bytes()
    torch.testing.assert_close(logits(merged(policy)), expected, rtol=1e-4, atol=1e-4)


def test_a_base_that_is_gone_leaves_no_merged_folder(tmp_path: Path) -> None:
    run, config, _ = with_lora(tmp_path)
    export(run.path, output=tmp_path / "first")
    Path(config.policy.path).rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="there is no such folder"):
        export(run.path, True, tmp_path / "merged")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "first", "moved"}


@pytest.mark.parametrize("name", ["notes.txt", "tokenizer.json"])
def test_links_in_best_are_refused(tmp_path: Path, name: str) -> None:
    run, _ = full_run(tmp_path)
    (tmp_path / "secret").write_text("mine")
    (run.best_path / name).unlink(missing_ok=True)
    (run.best_path / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=rf"{name}: is a symbolic link"):
        export(run.path, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
