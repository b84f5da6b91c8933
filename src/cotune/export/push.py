"""`cotune push`: a run's best policy to a repository of the Hugging Face hub."""

import os
import shutil
from pathlib import Path
from typing import cast

from cotune.errors import ConfigError
from cotune.export.export import checked_format, open_finished, stage
from cotune.export.model_card import hub_id
from cotune.utils.files import link_or_copy
from cotune.utils.text import one_line

_WEIGHTS = (".safetensors", ".index.json", ".bin", "adapter_config.json")


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
        ConfigError: see `export`; an invalid repository name, other weights there, no token, no access, no network.
    """
    from huggingface_hub import get_token

    _check_name(repo_id)
    run, config = open_finished(folder)
    kind = checked_format(run, format)
    if kind == "adapter" and not hub_id(config.policy.path):
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
    try:
        stage(config, run, kind, staged, where=repo_id, copy=link_or_copy)
        return _upload(staged, repo_id, private)
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


def _upload(staged: Path, repo_id: str, private: bool) -> str:
    """Upload a folder in one commit; return the repository's address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # Its HTTP library is httpx in some versions, httpx2 in others; this is their common base.
    transport_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])
    api = HfApi()
    try:
        # None: public, unless the organization's default is private.
        address = api.create_repo(repo_id, private=private or None, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise ConfigError(
                f"{repo_id} exists and is public, which --private does not change; make it private in its "
                "settings, or give another name"
            )
        exported = {path.relative_to(staged).as_posix() for path in staged.rglob("*")}
        for file in api.model_info(repo_id).siblings or ():
            if file.rfilename not in exported and file.rfilename.endswith(_WEIGHTS):
                # A loader would mix them with this policy's.
                raise ConfigError(
                    f"{repo_id} holds {file.rfilename}, weights that are not part of this export; remove "
                    "them there, or give another repository"
                )
        api.upload_folder(
            repo_id=repo_id, folder_path=staged, commit_message="Upload by cotune push"
        )
    except (OfflineModeIsEnabled, transport_error, OSError) as error:
        told = getattr(error, "server_message", None) or str(error) or type(error).__name__
        raise ConfigError(
            f"nothing was pushed to {repo_id} at {api.endpoint} ({one_line(told)}); check the owner's name, that "
            "HF_TOKEN may write there, and the network (HF_HUB_OFFLINE, HF_ENDPOINT)"
        ) from None
    return str(address)
