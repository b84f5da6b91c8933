"""`cotune push`: a run's best policy to a repository of the Hugging Face hub."""

import os
import shutil
from pathlib import Path
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.export.export import checked_format, open_finished, stage
from cotune.export.model_card import base_model
from cotune.utils.files import link_or_copy

_WEIGHTS = ("*.safetensors", "*.bin", "adapter_config.json")


def push(folder: Path, repo_id: str, format: str | None = None, private: bool = False) -> str:
    """Upload the export of a finished run, and nothing else, to a model repository.

    Create the repository if it does not exist. The token is that of HF_TOKEN or of `hf auth login`.

    Args:
        repo_id: "owner/name".
        format: see `export`.
        private: create the repository as private; an existing one must be private.

    Returns:
        The address of the repository.

    Raises:
        ConfigError: see `export`; an invalid repository name, no token, no access, no network.
    """
    from huggingface_hub import HfApi, get_token

    _check_name(repo_id)
    run, config = open_finished(folder)
    kind = checked_format(run, format)
    if kind == "adapter" and not base_model(config.policy.path).hub_id:
        raise ConfigError(
            f"policy.path is {config.policy.path!r}, a base that others cannot load; push "
            "whole weights with --format merged"
        )
    if get_token() is None:
        raise ConfigError(
            "no token of the Hugging Face hub: set HF_TOKEN to one with write access, or log in with "
            "hf auth login"
        )
    staged = run.path / f".push.{os.getpid()}.new"
    api = HfApi()
    try:
        stage(config, run, kind, staged, where=repo_id, copy=link_or_copy)
        return _upload(api, staged, repo_id, private)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _check_name(repo_id: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
        valid = "/" in repo_id
    except HFValidationError:
        valid = False
    if not valid:
        raise ConfigError(
            f"REPO_ID is {repo_id!r}; expected owner/name, of letters, digits, '-', '_' and '.'"
        )


def _upload(api: Any, staged: Path, repo_id: str, private: bool) -> str:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # Its HTTP library is httpx in some versions, httpx2 in others; this is their common base.
    transport_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])

    try:
        # None: public, unless the organization's default is private.
        address = api.create_repo(repo_id, private=private or None, exist_ok=True)
        _check_repository(api, staged, repo_id, private)
        api.upload_folder(
            repo_id=repo_id, folder_path=staged, commit_message="Upload by cotune push"
        )
    except OfflineModeIsEnabled as error:
        raise ConfigError(
            "HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it and push again"
        ) from error
    except HfHubHTTPError as error:
        raise ConfigError(_refusal(api.endpoint, repo_id, error)) from None
    except (transport_error, ConnectionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"the hub at {api.endpoint} cannot be reached ({reason}); push again with a network, or "
            "check HF_ENDPOINT"
        ) from error
    return str(address)


def _check_repository(api: Any, staged: Path, repo_id: str, private: bool) -> None:
    """Raise ConfigError for a repository that the export must not be added to."""
    info = api.model_info(repo_id)
    if private and not info.private:
        raise ConfigError(
            f"{repo_id} exists and is public, which --private does not change; make it private in its "
            "settings, or give another name"
        )
    ours = {path.relative_to(staged).as_posix() for path in staged.rglob("*")}
    others = [
        file.rfilename
        for file in info.siblings or ()
        if file.rfilename not in ours and any(Path(file.rfilename).match(form) for form in _WEIGHTS)
    ]
    if others:
        # A loader would mix them with this policy's.
        raise ConfigError(
            f"{repo_id} holds {others[0]}, weights that are not part of this export; remove them there, "
            "or give another repository"
        )


def _refusal(endpoint: str, repo_id: str, error: Any) -> str:
    """Say what the hub refused and how to fix it; never what was sent."""
    status = error.response.status_code
    if status == 401:
        return f"{endpoint} does not know the token (401); set HF_TOKEN to a valid one with write access"
    if status in (403, 404):
        return (
            f"{endpoint} refuses {repo_id} ({status}); check the owner's name, and that the token may "
            "write there"
        )
    said = " ".join(str(error.server_message or "").split())[:200]
    return f"{endpoint} answered {status} to the upload of {repo_id}{f' ({said})' if said else ''}; push again"
