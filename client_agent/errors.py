"""The errors of an agent: each class names a fact, each message says what to do next."""

from __future__ import annotations

from pathlib import Path


class AgentError(Exception):
    """An error that a person in the silo, or the daemon, must handle."""


class ModelNotFound(AgentError):
    """A path or hub id is not a base model that can be loaded."""


class CheckpointIncomplete(ModelNotFound):
    """The weights of a base model lack tensors, or have tensors that the model does not have."""


class ModelChanged(AgentError):
    """A silo's base model or tokenizer is not the one with which its client enrolled."""


class ModelTooLarge(AgentError):
    """A base model does not fit into the memory of its device."""


class UnknownArchitecture(AgentError):
    """A base model is not a decoder that can carry adapters; the message names the reason."""


class TokenizerUnfit(AgentError):
    """The tokenizer lacks character offsets, an end token or a chat template, which training needs."""


class LayoutMismatch(AgentError):
    """Tensors do not match the names and shapes of the adapter."""


class AdapterInPlace(AgentError):
    """An adapter is injected where the bare base model is needed, or the other way round."""


class DataInvalid(AgentError):
    """A data file cannot be read as examples; the message names the file and the line."""


class MissingGradient(AgentError):
    """A trainable parameter got no gradient from the first backward pass."""


class LossNotFinite(AgentError):
    """The loss or its gradient is NaN or infinite."""


class SketchUnusable(AgentError):
    """A gradient sketch is zero or not finite, so that no relevance can be computed from it."""


class PivotMissing(AgentError):
    """The federation's shared model is not on this machine."""


class AlignmentImpossible(AgentError):
    """An alignment pack cannot be made, or a stored one is of another base model."""


class UnknownStrategy(AgentError):
    """This agent has no strategy of this name."""


class NameUnclear(AgentError):
    """No federation has this id or name, or several have the name."""


class StrategyOptionsInvalid(AgentError):
    """The plan's strategy options have values that this agent does not support."""


class SettingsUnusable(AgentError):
    """The configuration file or the environment is missing an option or has a wrong one."""


class PlanUnusable(AgentError):
    """A plan file is missing or wrong."""


class RoundUnreadable(AgentError):
    """A file of a round's folder is damaged, or of another version."""

    def __init__(self, file: Path, trouble: str) -> None:
        super().__init__(
            f"{file} cannot be read. If a newer version of Tessera wrote it, run that version; otherwise "
            f"move {file.parent} away, and the agent continues without that round. The error: {trouble}"
        )


class NothingTrained(AgentError):
    """The agent's folder has no such trained adapter."""


class AdapterUnreadable(AgentError):
    """A file or folder is not a trained adapter of this silo's base model."""


class ProvenanceMismatch(AgentError):
    """An adapter was trained with another plan, alignment pack or base model than it is loaded with."""


class TextTooLong(AgentError):
    """A text has more tokens than the base model has positions."""


class StudyUnusable(AgentError):
    """A study's file is missing or wrong."""


class EngineUnusable(AgentError):
    """A comparison cannot run on this engine: a package, a cluster or its GPUs do not fit."""


class OutputUnwritable(AgentError):
    """The output file or folder cannot be written."""


class CoordinatorStopped(AgentError):
    """The coordinator of a study is not running."""


class RoundMissed(AgentError):
    """A simulated client's update was not counted in a round, so that methods cannot be compared."""


class NoResults(AgentError):
    """No run of a comparison finished."""


class NotEnrolled(AgentError):
    """The agent's folder has no membership."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder.absolute()} has no membership; run `tessera agent enrol` first")


class AlreadyEnrolled(AgentError):
    """The agent's folder already has a membership."""


class TokenDamaged(AgentError):
    """A text is not a complete enrolment token."""

    def __init__(self) -> None:
        super().__init__("this is not a complete enrolment token; copy it whole: tsr1_...")


class CoordinatorNotTrusted(AgentError):
    """The server lacks the signing key that the enrolment token names."""

    def __init__(self) -> None:
        super().__init__(
            "the server at the URL is not the coordinator of the enrolment token; nothing was sent to it. "
            "Check the URL and any proxy, and ask the operator"
        )


class AnotherCoordinator(AgentError):
    """A server without the key that this client enrolled with answers; the daemon tries again."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"another coordinator answers at {url}: it does not have the signing key of this client's "
            "enrolment. Ask the operator whether it runs with another database (TESSERA_DATABASE_URL), and "
            "check `url`"
        )


class AddressMismatch(AgentError):
    """A proxy changes the path or the host that signatures cover, so that all of them would be refused."""

    def __init__(self, url: str, difference: str) -> None:
        super().__init__(f"`url` is {url}: {difference}. No enrolment token was used")


class ManifestRefused(AgentError):
    """A round's manifest contradicts an earlier one that the coordinator signed."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the coordinator's manifest is refused: {reason}. The coordinator was set back to an older "
            "state, or is dishonest; ask the operator. If a backup was restored, `tessera agent "
            "accept-restored` shows the coordinator's state and continues from it after your confirmation"
        )


class NothingWasRestored(AgentError):
    """The coordinator's state is not older than this silo's last manifest."""


class NotInTheBackup(AgentError):
    """The coordinator was restored to a state without this client or its key."""

    def __init__(self, refusal: CoordinatorRefused) -> None:
        super().__init__(
            f"the coordinator does not know this client's key: {refusal}. If it was restored from a backup, "
            "the backup is older than the client or its key: ask the operator for a token, and enrol again "
            "with another `folder`"
        )


class RosterRefused(AgentError):
    """The coordinator's roster has a member that the silo's policy does not allow."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the federation's roster is refused: {reason}. Ask the operator and the other silos; the file "
            "of the `roster` setting has the pinned members"
        )


class ManifestExpired(AgentError):
    """The deadline of the coordinator's current round has passed; the daemon tries again."""

    def __init__(self, round_number: int) -> None:
        super().__init__(f"round {round_number} is still current after its deadline; the agent tries again")


class FolderInUse(AgentError):
    """Another process uses the same folder."""


class Stopped(AgentError):
    """The agent was stopped before its work was done."""

    def __init__(self) -> None:
        super().__init__("stopped before the end")


class FederationOver(AgentError):
    """The federation is finished."""

    def __init__(self) -> None:
        super().__init__("the federation is finished; no further round needs preparation")


class CoordinatorUnreachable(AgentError):
    """No answer within the deadline; the daemon tries again."""

    def __init__(self, url: str, trouble: str, seconds: float) -> None:
        duration = f" for {seconds:.0f} s" if seconds >= 1 else ""
        super().__init__(f"{url} did not answer{duration} ({trouble}); check the URL, proxy and network")


class CoordinatorRefused(AgentError):
    """The coordinator answered with a problem: its `slug` or "", and the `expected` value, if any."""

    def __init__(self, status: int, slug: str, detail: str, path: str, expected: str | None = None) -> None:
        super().__init__(f"the coordinator refused {path}: {detail} ({status} {slug})".replace(" )", ")"))
        self.status, self.slug, self.expected = status, slug, expected


class RequestTooSlow(AgentError):
    """A request arrived after its signature had expired; the daemon tries again."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} took minutes, and its signature had expired when it arrived. A proxy must not buffer "
            "bodies (nginx: proxy_request_buffering off); otherwise the connection is too slow for the body"
        )


class KeyRefused(AgentError):
    """The coordinator does not accept the key in a file as a new key."""

    def __init__(self, file: object, refusal: CoordinatorRefused) -> None:
        super().__init__(
            f"the key in {file} is not accepted: {refusal}; move that file away, and repeat the command to "
            "make a new key"
        )


class PackRefused(AgentError):
    """The coordinator does not accept this agent's alignment pack."""

    def __init__(self, base_model: str, refusal: CoordinatorRefused) -> None:
        super().__init__(
            f"the alignment pack of {base_model} is not accepted: {refusal}; "
            "ask the operator whether the plan's limits suit this model"
        )


class PivotPackAwaited(AgentError):
    """The pivot's alignment pack is not stored, and another client makes it; the daemon tries again."""

    def __init__(self, federation_id: str, pivot: str) -> None:
        self.pivot = pivot
        super().__init__(
            f"the alignment pack of the pivot {pivot} is not stored yet; a client of that base model makes "
            "it when it runs. If the federation has no such client, an operator makes it with "
            f"`tessera agent make-pivot-pack {federation_id} MODEL`"
        )


class AnswerUnreadable(AgentError):
    """An answer does not follow the protocol: other versions, or a proxy."""

    def __init__(self, path: str, trouble: str) -> None:
        super().__init__(
            f"the answer to {path} is not Tessera's protocol ({trouble}); check that the URL is a coordinator"
        )


class VersionMismatch(AgentError):
    """Coordinator and agent speak different versions of the protocol."""

    def __init__(self, trouble: str) -> None:
        super().__init__(f"{trouble}; upgrade the older of coordinator and agent")


class DownloadDamaged(AgentError):
    """Downloaded bytes do not match their digest."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: download damaged (digest mismatch); it is downloaded again")


class SyncNeeded(AgentError):
    """A step on a machine without a network needs an answer of the coordinator."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(
            f"{method} {path} needs the coordinator: run `tessera agent sync` where there is a network"
        )


class WorkNeeded(AgentError):
    """A round needs work with the model first; `task` names the missing result."""

    def __init__(self, task: str) -> None:
        super().__init__(f"{task}: run `tessera agent work` where the model is")


class SumNeedsNetwork(AgentError):
    """A federation sums updates, and its members must answer within minutes."""

    def __init__(self, phase_seconds: int) -> None:
        super().__init__(
            "this federation sums updates: from the moment that this client is ready, it must answer each "
            f"step of the sum within {phase_seconds} s. Run `tessera agent sync --wait SECONDS` or "
            "`--until-work`, which stays until the sum is over, or `tessera agent run` where there are both "
            "a network and the model"
        )


class ExportUnsupported(AgentError):
    """The format of an export cannot hold this adapter or this architecture."""


class ExportInexact(AgentError):
    """An exported model has another held-out loss than the model in training."""


class RevisionMissing(AgentError):
    """The agent's folder has no such revision."""


class ServedRevisionRefused(AgentError):
    """A revision in an export folder is missing, or is not what was exported."""


class UploadRefused(AgentError):
    """The hub did not accept an export."""


class SumRefused(AgentError):
    """The coordinator's terms or messages of a secure sum contradict this silo's own records."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the secure sum is refused: {reason}. Nothing more of this silo is sent in this round. The "
            "coordinator is dishonest, or was set back to an older state; ask the operator"
        )
