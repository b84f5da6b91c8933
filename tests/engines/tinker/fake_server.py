"""A Tinker server in this process: torch and peft behind the SDK's names, with its own types.

It knows what servers and versions of the SDK do differently. It has no `forward_backward_custom`, `compute_logprobs`
or `load_state`, which work on some servers alone.
"""

import copy
import functools
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

KEY = "tml-a-key-that-nobody-sees"


def ready(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@dataclass
class FakeServer:
    """A server of one model.

    Attributes:
        model: a Hugging Face folder, which is also the server's name of it.
        futures: whether clients come as futures, and exports file by file, as with tinker 0.38; else as with 0.24.
        reduction: "sum", "mean" (SkyRL's), or "mean of rows", which no known server does.
        metrics: what it reports of an update: "norm", "sum" or "nothing".
        names_modules: whether an export names the adapter's layers; SkyRL's does not.
        bare_names: whether kept weights are at ID/NAME, as SkyRL has them; else at ID/sampler_weights/NAME.
        alpha: LoRA's.
        seeded: whether it draws by seeds.
        off: what its sampler adds to log-probabilities.
        stops: "kept", "dropped" or "ignored".
        saved: by path, what is on the server.
        archives: by address, what can be downloaded.
        requests: the parameters of every sampling.
        adams, sent: every optimizer step, and the number of rows of every update.
        fail: called with the name of every request; may raise.
    """

    model: str
    futures: bool = False
    reduction: str = "sum"
    metrics: str = "norm"
    names_modules: bool = True
    bare_names: bool = False
    alpha: int = 32
    seeded: bool = True
    off: float = 0.0
    stops: str = "kept"
    saved: dict[str, Any] = field(default_factory=dict)
    archives: dict[str, bytes] = field(default_factory=dict)
    requests: list[Any] = field(default_factory=list)
    adams: list[Any] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    fail: Callable[[str], None] = lambda name: None
    runs: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeServer":
        """Answer instead of any server."""

        def connect(**arguments: Any) -> FakeServer:
            self.arguments = arguments
            return self

        def get(url: str, **_: Any) -> httpx.Response:
            self.fail("get")
            content = self.archives.get(url, b"{}")
            return httpx.Response(200, content=content, request=httpx.Request("GET", url))

        monkeypatch.setattr("tinker.ServiceClient", connect)
        if self.futures:
            rest_client = lambda **_: self.create_rest_client()  # noqa: E731
            monkeypatch.setattr("tinker.RestClient", rest_client, raising=False)
        else:
            monkeypatch.delattr("tinker.RestClient", raising=False)
        monkeypatch.setattr("httpx.get", get)
        monkeypatch.setenv("TINKER_API_KEY", KEY)
        return self

    def wrap(self, value: Any) -> Any:
        return ready(value) if self.futures else value

    # ---- as the SDK's service client

    def create_rest_client(self) -> Any:
        both = {"delete_checkpoint_from_tinker_path": self._delete}
        if self.futures:
            external = lambda path: ready(SimpleNamespace(urls=self.saved[path]))  # noqa: E731
            methods = {**both, "get_external_weights_urls": external}
            methods["get_server_capabilities"] = lambda: ready(self._capabilities())
            return SimpleNamespace(**methods)
        return SimpleNamespace(**both, get_checkpoint_archive_url=self._archive_url)

    def get_server_capabilities(self) -> Any:
        assert not self.futures
        return self._capabilities()

    def _capabilities(self) -> Any:
        self.fail("capabilities")
        model = SimpleNamespace(model_name=self.model, max_context_length=None)
        return SimpleNamespace(supported_models=[model])

    def create_lora_training_client(
        self, base_model: str, rank: int, seed: int, train_unembed: bool
    ) -> Any:
        self.fail("create")
        assert not train_unembed
        return self.wrap(FakeTraining(self, rank, seed))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Any:
        self.fail("load")
        rank, weights, optimizer = self.saved[path]
        client = FakeTraining(self, rank, 0)
        client.put(weights)
        client.optimizer.load_state_dict(copy.deepcopy(optimizer))
        return self.wrap(client)

    def create_sampling_client(self, model_path: str = "", base_model: str = "") -> Any:
        assert base_model in ("", self.model)
        # A new adapter is the base model.
        base = FakeTraining(self, 1, 0).state() if base_model else None
        rank, weights, _ = state = base or self.saved[model_path]
        client = FakeTraining(self, rank, 0)
        client.put(weights)
        return self.wrap(FakeSampling(client, state))

    def _delete(self, path: str) -> Any:
        self.fail("delete")
        del self.saved[path]
        return ready(None)

    def _archive_url(self, run: str, name: str) -> Any:
        return ready(SimpleNamespace(url=f"https://server/{run}/{name}"))


class FakeTraining:
    """The SDK's training client."""

    def __init__(self, server: FakeServer, rank: int, seed: int) -> None:
        self.server = server
        server.runs += 1
        self.run = f"run{server.runs}"
        base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
        options = {"lora_alpha": server.alpha, "target_modules": "all-linear"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model: Any = get_peft_model(base, LoraConfig(r=rank, **options)).eval()
        self.rank = rank
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.0, weight_decay=0.0)
        self.steps = 0
        self.rows = 0

    def put(self, weights: Sequence[torch.Tensor]) -> None:
        for parameter, weight in zip(self.parameters, weights, strict=True):
            parameter.data.copy_(weight)

    def state(self) -> tuple[int, list[torch.Tensor], Any]:
        weights = [parameter.detach().clone() for parameter in self.parameters]
        return self.rank, weights, copy.deepcopy(self.optimizer.state_dict())

    def _logprobs(self, row: Any) -> torch.Tensor:
        ids = torch.tensor([row.model_input.to_ints()])
        targets = torch.tensor(row.loss_fn_inputs["target_tokens"].data)
        logits = self.model(input_ids=ids).logits[0].float()
        return torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]

    def forward(self, data: Sequence[Any], loss: str) -> Any:
        self.server.fail("forward")
        assert loss == "cross_entropy"
        with torch.no_grad():
            rows = [self._logprobs(row) for row in data]
        return ready(SimpleNamespace(loss_fn_outputs=[_output(row) for row in rows], metrics={}))

    def forward_backward(self, data: Sequence[Any], loss: str, bounds: dict[str, float]) -> Any:
        self.server.fail("update")
        outputs = []
        for row in data:
            inputs = {name: torch.tensor(v.data) for name, v in row.loss_fn_inputs.items()}
            assert set(inputs) == {"target_tokens", "logprobs", "advantages"}
            logprobs, advantages = self._logprobs(row), inputs["advantages"]
            ratio = torch.exp(logprobs - inputs["logprobs"])
            low = bounds.get("clip_low_threshold", 0.8)
            high = bounds.get("clip_high_threshold", 1.2)
            clipped = ratio.clamp(low, high)
            token = {
                "importance_sampling": ratio * advantages,
                "ppo": torch.min(ratio * advantages, clipped * advantages),
                "cispo": clipped.detach() * logprobs * advantages,
            }[loss]
            reduced = -(token.sum() if self.server.reduction == "sum" else token.mean())
            reduced.backward()
            outputs.append(_output(logprobs.detach()))
        self.rows += len(data)
        self.server.sent.append(len(data))
        reported = {"sum": {"loss:sum": 0.0}}.get(self.server.metrics, {})
        return ready(SimpleNamespace(loss_fn_outputs=outputs, metrics=reported))

    def optim_step(self, adam: Any) -> Any:
        self.server.adams.append(adam)
        if self.server.reduction == "mean":
            for parameter in self.parameters:
                parameter.grad = None if parameter.grad is None else parameter.grad / self.rows
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1e30)
        self.optimizer.param_groups[0] |= {
            "lr": adam.learning_rate, "betas": (adam.beta1, adam.beta2), "eps": adam.eps,
        }  # fmt: skip
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        self.rows = 0
        reported = {"norm": {"skyrl.ai/grad_norm": float(norm)}}.get(self.server.metrics, {})
        return ready(SimpleNamespace(metrics=reported))

    def _save(self, kind: str, name: str) -> Any:
        path = f"tinker://{self.run}/{kind}/{name}".replace("//" + name, "/" + name)
        self.server.saved[path] = self.state()
        return ready(SimpleNamespace(path=path))

    def save_state(self, name: str) -> Any:
        self.server.fail("save")
        return self._save("weights", name)

    def save_weights_and_get_sampling_client(self) -> Any:
        return self.server.wrap(FakeSampling(self, self.state()))

    def save_weights_for_sampler(self, name: str) -> Any:
        saved = self._save("" if self.server.bare_names else "sampler_weights", name)
        files = self._files()
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for file, content in files.items():
                member = tarfile.TarInfo(f"{name}/{file}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        url = saved.result().path.replace("tinker://", "https://server/")
        self.server.archives[url] = stream.getvalue()
        return saved

    def save_weights_external(self, name: str) -> Any:
        assert self.server.futures
        urls: dict[str, str] = {}
        for file, content in self._files().items():
            urls[file] = f"https://server/external/{self.run}/{name}/{file}"
            self.server.archives[urls[file]] = content
        path = f"tinker://{self.run}/external_weights/{name}"
        self.server.saved[path] = urls
        return ready(SimpleNamespace(path=path))

    def _files(self) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            names = ("adapter_config.json", "adapter_model.safetensors")
            files = {name: (Path(folder) / name).read_bytes() for name in names}
        if not self.server.names_modules:
            config = json.loads(files[names[0]]) | {"target_modules": None, "task_type": None}
            files[names[0]] = json.dumps(config).encode()
        return files


class FakeSampling:
    """The SDK's sampling client."""

    def __init__(self, owner: FakeTraining, state: Any) -> None:
        self.owner = owner
        self.made_at = owner.steps
        self.weights = state[1]

    @torch.no_grad()
    def sample(self, prompt: Any, num_samples: int, parameters: Any) -> Any:
        server = self.owner.server
        server.fail("sample")
        server.requests.append(parameters)
        # SkyRL's jax server would put the old weights back into the trainer.
        assert self.made_at == self.owner.steps, "an older client was sampled"
        seed = parameters.seed if server.seeded else len(server.requests)
        generator = torch.Generator().manual_seed(seed)
        step = torch.tensor([prompt.to_ints()])
        cache, tokens, logprobs = None, list[int](), list[float]()
        while len(tokens) < parameters.max_tokens:
            output = self.owner.model(input_ids=step, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            raw = torch.log_softmax(output.logits[0, -1].float(), -1)
            if parameters.temperature == 0:
                token = int(raw.argmax())
            else:
                heated = torch.softmax(raw / parameters.temperature, -1)
                token = int(torch.multinomial(heated, 1, generator=generator))
            tokens.append(token)
            logprobs.append(float(raw[token]) + server.off)
            step = torch.tensor([[token]])
            if server.stops != "ignored" and self._stopped(tokens, parameters.stop or ()):
                if server.stops == "dropped":
                    del tokens[-1], logprobs[-1]
                break
        return ready(SimpleNamespace(sequences=[SimpleNamespace(tokens=tokens, logprobs=logprobs)]))

    def _stopped(self, tokens: list[int], stop: Sequence[Any]) -> bool:
        if all(isinstance(end, int) for end in stop):
            return tokens[-1] in stop
        text = _tokenizer(self.owner.server.model).decode(tokens)
        return any(end in text for end in stop)


@functools.cache
def _tokenizer(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def _output(logprobs: torch.Tensor) -> dict[str, Any]:
    return {"logprobs": SimpleNamespace(data=logprobs.tolist())}
