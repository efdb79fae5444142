"""Say what can go wrong in an agent: every class is a fact, every message says what to do about it."""

from __future__ import annotations

from pathlib import Path


class AgentError(Exception):
    """Something that a person in the silo, or the daemon, has to react to."""


class ModelNotFound(AgentError):
    """There is no loadable base model at the given place."""


class ModelTooLarge(AgentError):
    """A base model does not fit into the memory of its device."""


class UnknownArchitecture(AgentError):
    """No entry of `client_agent/model/architectures.py` describes this kind of model."""


class TokenizerUnfit(AgentError):
    """The tokenizer lacks something that training needs: character offsets, an end token, a chat template."""


class LayoutMismatch(AgentError):
    """Tensors do not have the names and shapes that the adapter has."""


class AdapterInPlace(AgentError):
    """The bare base model is needed, and an adapter is wrapped around it, or the other way round."""


class DataInvalid(AgentError):
    """A data file cannot be read as examples; the message names the file and the line."""


class MissingGradient(AgentError):
    """A trainable parameter got no gradient from the first backward pass."""


class LossNotFinite(AgentError):
    """The loss or its gradient is NaN or infinite."""


class SignatureUnusable(AgentError):
    """The signature is zero or not finite, so that nobody's relevance could be computed from it."""


class PivotMissing(AgentError):
    """The federation's shared model is not on this machine."""


class AlignmentImpossible(AgentError):
    """No alignment pack can be made, or a stored one does not fit this base model."""


class UnknownStrategy(AgentError):
    """No file of `client_agent/strategies/` has this name."""


class StrategyOptionsInvalid(AgentError):
    """The plan's strategy options do not mean anything to this agent."""


class SettingsUnusable(AgentError):
    """The configuration file or the environment is missing an option or has a wrong one."""


class PlanUnusable(AgentError):
    """A plan file is missing or wrong."""


class NothingTrained(AgentError):
    """The agent's folder does not hold the trained adapter that is asked for."""


class AdapterUnreadable(AgentError):
    """A file or folder holds no trained adapter of this silo's base model."""


class ProvenanceMismatch(AgentError):
    """An adapter was trained under another plan, alignment pack or base model than it is to act under."""


class TextTooLong(AgentError):
    """A text has more tokens than the base model has positions."""


class StudyUnusable(AgentError):
    """A study's file is missing or wrong."""


class OutputUnwritable(AgentError):
    """Results cannot be written where they should go."""


class CoordinatorStopped(AgentError):
    """The coordinator that was started for simulated clients does not run."""


class RoundMissed(AgentError):
    """A simulated client's update did not count in a round, so that methods cannot be compared."""


class NoResults(AgentError):
    """No run of a comparison finished."""


class NotEnrolled(AgentError):
    """The agent's folder holds no membership."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder.absolute()} holds no membership: run `tessera agent enrol` first")


class AlreadyEnrolled(AgentError):
    """The agent's folder holds a membership already."""


class TokenDamaged(AgentError):
    """What should be an enrolment token is not one, or not all of it."""

    def __init__(self) -> None:
        super().__init__("this is not an enrolment token, or not all of it; copy it whole: tsr1_...")


class CoordinatorNotTrusted(AgentError):
    """Who answers does not have the signing key that the enrolment token names."""

    def __init__(self) -> None:
        super().__init__(
            "who answers at the URL is not the coordinator that the enrolment token is of; nothing was sent "
            "to it: check the URL and what stands in between, and ask the operator"
        )


class ManifestRefused(AgentError):
    """What the coordinator signed for a round cannot be believed."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the coordinator's manifest is refused: {why}. It was set back to an older state, or it lies: "
            "ask the operator. If it was restored from a backup, `tessera agent accept-restored` shows what "
            "it offers and, if you agree, goes on from there"
        )


class NothingWasRestored(AgentError):
    """The coordinator is no older than what this silo has seen of it."""


class NotInTheBackup(AgentError):
    """The coordinator was set back to before this client, or its key, was there."""

    def __init__(self, why: CoordinatorRefused) -> None:
        super().__init__(
            f"the coordinator does not know this client's key: {why}. If it was restored from a backup, that "
            "one is older than this client, or than its key: ask the operator for a token, and enrol anew "
            "with another folder"
        )


class RosterRefused(AgentError):
    """The coordinator counts somebody among the members whom this silo does not let in."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the federation's roster is refused: {why}. Ask the operator and the other silos; the file that "
            "`roster` names has the pinned members"
        )


class ManifestExpired(AgentError):
    """The round that the coordinator shows is over; the daemon asks again."""

    def __init__(self, round_number: int) -> None:
        super().__init__(f"round {round_number} is shown though its deadline is over")


class FolderInUse(AgentError):
    """Another process works on the same folder."""


class Stopped(AgentError):
    """The agent was asked to stop."""

    def __init__(self) -> None:
        super().__init__("stopped before the end")


class FederationOver(AgentError):
    """The federation is finished."""

    def __init__(self) -> None:
        super().__init__("the federation is finished; there is nothing left to prepare")


class CoordinatorUnreachable(AgentError):
    """No answer within the deadline; the daemon goes on trying."""

    def __init__(self, url: str, trouble: str, seconds: float) -> None:
        tried = f" for {seconds:.0f} s" if seconds >= 1 else ""
        super().__init__(f"{url} did not answer{tried} ({trouble}); check the URL, proxy and network")


class CoordinatorRefused(AgentError):
    """The coordinator answered with a problem: its slug or "", and what was `expected`, if it says so."""

    def __init__(self, status: int, slug: str, detail: str, path: str, expected: str | None = None) -> None:
        super().__init__(f"the coordinator refused {path}: {detail} ({status} {slug})".replace(" )", ")"))
        self.status, self.slug, self.expected = status, slug, expected


class RequestTooSlow(AgentError):
    """A request was on its way for longer than its signature lives; the daemon tries again."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was minutes on its way, and its signature was over when it arrived: what stands in "
            "between must pass bodies on as they come (nginx: proxy_request_buffering off), or the line is "
            "too slow for what is sent"
        )


class KeyRefused(AgentError):
    """The coordinator does not take the key in a file for a new one."""

    def __init__(self, file: object, why: CoordinatorRefused) -> None:
        super().__init__(
            f"the key in {file} is not taken: {why}; move that file away, and the same command makes another"
        )


class PackRefused(AgentError):
    """The coordinator does not take the alignment pack that was made here."""

    def __init__(self, base_model: str, why: CoordinatorRefused) -> None:
        super().__init__(
            f"the alignment pack of {base_model} was made and not taken: {why}; "
            "ask the operator whether the plan's limits and this model fit together"
        )


class PivotPackAwaited(AgentError):
    """The pivot's alignment pack is not stored, and is not ours to make; the daemon asks again."""

    def __init__(self, federation_id: str, pivot: str) -> None:
        super().__init__(
            f"the alignment pack of the pivot {pivot} is not stored yet: a client of that base model makes "
            "it when it runs; if the federation has none, an operator makes it with "
            f"`tessera agent make-pivot-pack {federation_id} MODEL`"
        )


class AnswerUnreadable(AgentError):
    """The coordinator's answer is not what the protocol says: different versions, or something in between."""

    def __init__(self, path: str, trouble: str) -> None:
        super().__init__(
            f"the answer to {path} is not understood; is the URL a Tessera coordinator? {trouble}"
        )


class DownloadDamaged(AgentError):
    """Downloaded bytes do not match their digest."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} arrived damaged: its digest does not match; it will be fetched again")
