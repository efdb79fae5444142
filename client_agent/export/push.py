"""Upload an export to the Hugging Face hub, into a private repository."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from client_agent.errors import UploadRefused


def upload(folder: Path, files: Sequence[str], repository: str) -> str:
    """Create the repository if it is missing, upload files of a folder, and return the commit's address.

    Raises:
        UploadRefused: there is no token, or the hub does not answer or refuses.
    """
    from huggingface_hub import HfApi  # slow to import, and needed here only
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(files),
            commit_message="Export with Tessera",
        )
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError) as error:
        raise UploadRefused(
            f"{repository}: not uploaded ({error}); the files are in {folder}. Check the name, set HF_TOKEN "
            "or run `hf auth login`, and repeat with `hf upload`"
        ) from error
    return str(commit.commit_url)
