"""vLLM finds the revisions of an export folder by name when a request asks for one.

    TESSERA_ADAPTERS=/srv/aster/tessera-served VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve ... --enable-lora

`aster@7` is this revision for ever, and `aster` is what `current` names when vLLM first asks. vLLM loads
`register` by the entry point `tessera` of `vllm.general_plugins`, in all of its processes. It reads files of
this machine alone, and never the network.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from client_agent.errors import AgentError, ServedRevisionRefused
from client_agent.revisions.served_folder import ServedFolder, ServedRevision, parsed_label

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    LoRAResolver = object
else:
    try:
        from vllm.lora.resolver import LoRAResolver
    except ImportError:  # the agent and its tests need no vLLM
        LoRAResolver = object

log = logging.getLogger("vllm.tessera")

FOLDERS: Final = "TESSERA_ADAPTERS"
"""The variable with the export folders, separated as in PATH."""
BASE_MODEL: Final = "TESSERA_BASE_MODEL"
"""The variable with the slug of the served base model, for one whose files are not those of training."""
_FORMATS: Final = ("peft", "vllm")
_ID_BITS = 62


def register() -> None:
    """Register the resolver with vLLM; without TESSERA_ADAPTERS, do nothing."""
    if not os.environ.get(FOLDERS):
        return
    from vllm.lora.resolver import LoRAResolverRegistry

    LoRAResolverRegistry.register_resolver("tessera", TesseraResolver.from_environment())


@dataclass(eq=False)
class TesseraResolver(LoRAResolver):
    """Resolves the names of adapters in export folders.

    Attributes:
        folders: the export folders; the first that has a name is used.
        base_model: the slug of the served base model; None = it is derived from the model's files.
    """

    folders: tuple[ServedFolder, ...]
    base_model: str | None = None
    _slugs: dict[str, str] = field(default_factory=dict, init=False)
    _records: dict[str, str] = field(default_factory=dict, init=False)

    @classmethod
    def from_environment(cls) -> TesseraResolver:
        paths = [path for path in os.environ.get(FOLDERS, "").split(os.pathsep) if path]
        return cls(
            tuple(ServedFolder(Path(path).absolute()) for path in paths), os.environ.get(BASE_MODEL) or None
        )

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the request that loads a revision; None if no folder has it, or it is refused.

        A refusal is logged with its reason.
        """
        # Hashing the base model's files takes seconds, and the server answers others meanwhile.
        resolved = await asyncio.to_thread(self.resolve, base_model_name, lora_name)
        if resolved is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(lora_name=resolved.name, lora_int_id=resolved.number, lora_path=str(resolved.path))

    def resolve(self, base_model_name: str, lora_name: str) -> ResolvedRevision | None:
        """Return the checked revision of a name; None if there is none, or it is refused."""
        for folder in self.folders:
            try:
                try:
                    label = _label_of_request(folder, lora_name)
                except OSError as error:
                    log.warning("tessera: %s cannot be read, and is skipped: %s", folder.path, error)
                    continue
                if label is not None:
                    return self._checked(folder, label, base_model_name, lora_name)
            except (AgentError, OSError) as error:
                log.warning("tessera: %s is refused: %s", lora_name, error)
                return None
        return None

    def _checked(
        self, folder: ServedFolder, label: str, base_model_name: str, lora_name: str
    ) -> ResolvedRevision:
        """Check the files and the base model of a revision.

        Raises:
            ServedRevisionRefused: a check fails.
        """
        revision, record = folder.read(label)
        path = folder.path / label
        if revision.format not in _FORMATS:
            raise ServedRevisionRefused(
                f"{path} is exported for {revision.format}, and vLLM loads {' or '.join(_FORMATS)}; set "
                "export.after_round in the agent's silo.toml"
            )
        # A record that was replaced together with its files would agree with them.
        if self._records.setdefault(str(path), record) != record:
            raise ServedRevisionRefused(f"{path} was replaced since this server first read it; restore it")
        self._require_base(revision, base_model_name)
        folder.verify(revision)
        return ResolvedRevision.of(revision, lora_name, path)

    def _require_base(self, revision: ServedRevision, base_model_name: str) -> None:
        """Check that the served base model is the one of training.

        Raises:
            ServedRevisionRefused: it is another one, or its files cannot be read.
        """
        if self.base_model is None and base_model_name in (revision.base_name, revision.base_model):
            return
        slug = self.base_model or self._slug(base_model_name)
        if slug != revision.base_model:
            raise ServedRevisionRefused(
                f"it was trained on {revision.base_model}, and this server's base model {base_model_name} is "
                f"{slug}; serve the base model of training"
            )

    def _slug(self, base_model_name: str) -> str:
        """Return the slug of the served base model, a folder or a hub id that is on this machine.

        Raises:
            ServedRevisionRefused: its files cannot be read.
        """
        if base_model_name not in self._slugs:
            from client_agent.model.slug import slug_of

            try:
                self._slugs[base_model_name] = slug_of(_local_folder(base_model_name))
            except (AgentError, OSError, ValueError, ImportError) as error:
                raise ServedRevisionRefused(
                    f"the files of the base model {base_model_name} cannot be compared ({error}); set "
                    f"{BASE_MODEL} to its slug if this server's base model is that of training"
                ) from error
        return self._slugs[base_model_name]


@dataclass(frozen=True, slots=True)
class ResolvedRevision:
    """What vLLM needs of a revision.

    Attributes:
        name: the name by which vLLM's prefix cache and batches know it; equal names have equal weights.
        number: an id of the same property, of 62 bits.
        path: the folder of the revision, never the link.
    """

    name: str
    number: int
    path: Path

    @classmethod
    def of(cls, revision: ServedRevision, lora_name: str, path: Path) -> ResolvedRevision:
        # vLLM gives each requested name an id of its own, but joins the adapters of a batch by their names:
        # `aster` and `aster@7` in one batch must differ, and so must `aster` before and after a new revision.
        name = revision.label if lora_name == revision.label else f"{lora_name}={revision.label}"
        digest = hashlib.sha256(f"{name} {revision.digest}".encode()).digest()
        return cls(name, (int.from_bytes(digest[:8], "big") >> (64 - _ID_BITS)) or 1, path)


def _label_of_request(folder: ServedFolder, lora_name: str) -> str | None:
    """Return the label that a requested name stands for in a folder; None if it is of another folder.

    Raises:
        ServedRevisionRefused: the folder has the adapter, and not this revision.
    """
    labels = folder.labels()
    parsed = parsed_label(lora_name)
    if parsed is None:
        current = parsed_label(folder.current() or "")
        return folder.current() if current is not None and current[0] == lora_name else None
    if lora_name not in labels and any((parsed_label(label) or ("",))[0] == parsed[0] for label in labels):
        raise ServedRevisionRefused(f"{folder.path} has {', '.join(labels)}")
    return lora_name if lora_name in labels else None


def _local_folder(base_model_name: str) -> Path:
    if Path(base_model_name).is_dir():
        return Path(base_model_name)
    from huggingface_hub import snapshot_download

    # Never the network: the server has loaded this model, so its files are here.
    return Path(snapshot_download(base_model_name, local_files_only=True))
