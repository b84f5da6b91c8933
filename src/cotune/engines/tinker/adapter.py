"""An adapter on a Tinker server: trained, saved, exported."""

import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from cotune.engines.tinker.sampler import ServerPolicy
from cotune.engines.tinker.service import Service
from cotune.engines.tinker.settings import ALPHA
from cotune.errors import EngineError
from cotune.methods.context_distillation import Floats
from cotune.run.json_files import write_atomic, write_json_atomic

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_[AB]\.weight")

Pair = tuple[Sequence[int], Sequence[int]]
"""The tokens of a prompt and of its completion."""


class Adapter(ServerPolicy):
    """A LoRA adapter on all linear layers but the head, and its optimizer.

    Args:
        saved: what `save` returned, to go on from; "" makes a new adapter.
    """

    def __init__(self, service: Service, rank: int, seed: int = 0, saved: str = "") -> None:
        super().__init__(service)
        self._rank = rank
        client = service.client

        def make() -> Any:
            if saved:  # newer servers load into no client that has done something else
                return client.create_training_client_from_state_with_optimizer(saved)
            return client.create_lora_training_client(
                base_model=service.base_model, rank=rank, seed=seed, train_unembed=False
            )

        self._client = service.call("an adapter", make)

    def _open(self) -> Any:
        return self._client.save_weights_and_get_sampling_client()

    def forward(self, pairs: Sequence[Pair]) -> list[Floats]:
        """Return log π of each completion's tokens, (C,), by the pass that training makes."""
        data = [datum(p, c, weights=np.ones(len(p) + len(c) - 1)) for p, c in pairs]
        forward = self._client.forward
        output = self.service.call("log-probabilities", lambda: forward(data, "cross_entropy"))
        of_targets = zip(_logprobs(output), pairs, strict=True)
        return [logprobs[len(prompt) - 1 :] for logprobs, (prompt, _) in of_targets]

    def update(
        self, data: Sequence[Any], loss: str, bounds: Mapping[str, float], learning_rate: float
    ) -> dict[str, float]:
        """Make a step of Adam; return the server's metrics and `drift`, the largest change in log π since sampling."""
        from tinker.types import AdamParams

        # SkyRL ignores a norm to clip gradients to, so none is set.
        adam = AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.999, eps=1e-8)

        def send() -> list[Any]:
            # Together: the hosted service works in cycles of about ten seconds.
            passed = self._client.forward_backward(list(data), loss, dict(bounds))
            return [passed, self._client.optim_step(adam)]

        passed, stepped = self.service.call("an update", send)
        self._sampling = None
        drift = 0.0
        for row, logprobs in zip(data, _logprobs(passed), strict=True):
            old, advantages = (row.loss_fn_inputs[n].to_numpy() for n in ("logprobs", "advantages"))
            drift = max(drift, float(np.abs(logprobs - old)[advantages != 0].max(initial=0.0)))
        return {**(passed.metrics or {}), **(stepped.metrics or {}), "drift": drift}

    def save(self, name: str) -> str:
        """Save weights and Adam's moments; return their path on the server."""
        return self.service.call("a checkpoint", lambda: self._client.save_state(name)).path

    def export(self, name: str, folder: Path, base: str) -> str:
        """Save the weights on the server, and here as a PEFT adapter of a base; return their path on the server.

        Raises:
            EngineError: the server's export is not one that PEFT loads whole.
        """
        from safetensors.torch import load

        save = self._client.save_weights_for_sampler
        path: str = self.service.call("weights to keep", lambda: save(name)).path
        files = self._download(name, path)
        config = json.loads(files.get(_CONFIG, b"{}"))
        tensors = load(files[_WEIGHTS]) if _WEIGHTS in files else {}
        names = [_TENSOR.fullmatch(tensor) for tensor in tensors]
        shape = config.get("r"), config.get("lora_alpha")
        if not names or not all(names) or shape != (self._rank, ALPHA):
            exported = f"the Tinker server exported {len(names)} tensors with r and alpha {shape}"
            names_of = f"{(self._rank, ALPHA)}, and PEFT's names, base_model.model.….lora_A.weight"
            raise EngineError(f"{exported}; expected {names_of}; use another server")
        # SkyRL names no layers, and PEFT then loads two of seven without a word.
        modules = sorted({match[1].rpartition(".")[2] for match in names if match})
        config |= {"target_modules": modules, "base_model_name_or_path": base}
        config |= {"task_type": "CAUSAL_LM", "inference_mode": True}
        folder.mkdir(parents=True)
        write_atomic(folder / _WEIGHTS, files[_WEIGHTS])
        write_json_atomic(folder / _CONFIG, config)
        return path

    def _download(self, name: str, path: str) -> dict[str, bytes]:
        """Return the files of an adapter, by name."""
        call = self.service.call
        rest_client = self.service.rest_client
        if not hasattr(rest_client, "get_checkpoint_archive_url"):  # newer versions of the SDK
            save = self._client.save_weights_external
            external = call("weights to export", lambda: save(name)).path
            urls = call("addresses", lambda: rest_client.get_external_weights_urls(external)).urls
            files = {Path(file).name: _fetch(url) for file, url in urls.items()}
            self.service.delete(external)
            return files
        # SkyRL's path and its route have the bare name, the hosted service's "sampler_weights/NAME".
        run, _, checkpoint = path.removeprefix("tinker://").partition("/")
        url = call(
            "an archive", lambda: rest_client.get_checkpoint_archive_url(run, checkpoint)
        ).url
        archive = _fetch(url)

        def unpack() -> dict[str, bytes]:
            with tarfile.open(fileobj=io.BytesIO(archive)) as members:
                read = [(member.name, members.extractfile(member)) for member in members]
                return {Path(member).name: file.read() for member, file in read if file}

        return call("the files of an archive", unpack)


def datum(prompt: Sequence[int], completion: Sequence[int], **inputs: Any) -> Any:
    """Return a row of a batch, with what the loss needs of each token after the first, (P + C - 1,)."""
    from tinker.types import Datum, ModelInput

    ids = [*prompt, *completion]
    targets = {"target_tokens": np.array(ids[1:]), **inputs}
    return Datum(model_input=ModelInput.from_ints(ids[:-1]), loss_fn_inputs=targets)


def _fetch(url: str) -> bytes:
    try:
        answer = httpx.get(url, follow_redirects=True, timeout=300)
        return answer.raise_for_status().content
    except httpx.HTTPError as error:  # the address may be signed, so it is not shown
        raise EngineError(f"an adapter cannot be downloaded: {type(error).__name__}") from None


def _logprobs(output: Any) -> list[Floats]:
    return [np.asarray(row["logprobs"].data, dtype=np.float64) for row in output.loss_fn_outputs]
