"""Score a model on a silo's test and validation examples, and reuse the scores of an unchanged one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from client_agent.adapters.base import Adapter
from client_agent.model.examples import encode_some, probe_set
from client_agent.model.quantization import precision_of
from client_agent.model.tokens import TokenizedText, digest_of_texts
from client_agent.storage.final_scores import StartScores, TaskScores
from client_agent.training.data import MIN_VALIDATION
from client_agent.training.evaluate import Evaluation, evaluate, teacher_forced
from client_agent.training.metrics import COMPARISON, GENERATED_METRICS
from client_agent.training.silo import Silo
from client_agent.training.text_losses import TextLoss
from schemas.messages.federations import ScoresPlan
from schemas.messages.scores import Score

log = logging.getLogger(__name__)

DATA_REMARK = "data_remark"
"""The attribute of log records that hold for all silos of a study: a comparison prints them once itself."""


def few_validation(count: int) -> str | None:
    """Return the consequence of too few validation examples; None if there are enough."""
    if count >= MIN_VALIDATION:
        return None
    return (
        f"{count} validation examples are too few to choose between served and trained weights; "
        f"{MIN_VALIDATION} are needed. A silo keeps the trained weights, or in its first round the served "
        "weights if the federation had begun without the silo."
    )


@dataclass(frozen=True, slots=True)
class Exam:
    """The scores of a model on the test examples, and its loss on the validation examples.

    Attributes:
        fingerprint: the digest of everything that the scores depend on.
        validation: None with fewer than 16 validation examples.
        tasks: the scores of each task; they stay in the silo.
        texts: the losses of each test text; they stay in the silo, too.
        validation_texts: the losses of each validation text; empty with fewer than 16 examples.
    """

    fingerprint: str
    scores: dict[str, Score]
    validation: float | None
    tasks: TaskScores = field(default_factory=dict)
    texts: Sequence[TextLoss] = field(default=(), compare=False)
    validation_texts: Sequence[TextLoss] = field(default=(), compare=False)


class Examiner:
    """Scores the adapter in place on the examples of one silo."""

    def __init__(self, silo: Silo, plan: ScoresPlan, max_length: int, surroundings: str = "") -> None:
        self._silo = silo
        self._plan = plan
        self._max_length = max_length
        self._test = probe_set(silo.data.test, plan.examples)
        # At least as many as the choice between served and trained weights needs.
        self._validation = probe_set(silo.data.validation, max(plan.examples, MIN_VALIDATION))
        facts = [silo.base.slug, precision_of(silo.base.model), str(max_length)]
        facts += [surroundings, *(repr((e.key, e.options, e.references, e.metrics)) for e in self._test)]
        facts += [e.task.name for e in self._test if e.task is not None]
        if any(metric in GENERATED_METRICS for e in self._test for metric in e.metrics):
            # The version of the comparison of texts: after a change of it, scores are computed again.
            facts.append(COMPARISON)
        test_texts = encode_some(silo.base, self._test, plan.examples, max_length)
        self.test_digest = digest_of_texts(test_texts)
        """The digest of the tokens of the test texts, by which a later round pairs their losses."""
        self.validation_digest = digest_of_texts(self._validation_texts())
        """The same of the validation texts."""
        facts += [self.test_digest, self.validation_digest]
        self._facts = "\n".join(facts).encode()

    def examine(self, adapter: Adapter, earlier: Iterable[Exam] = (), *, is_end: bool = True) -> Exam:
        """Score the adapter, unless one of the earlier exams is of the same model and examples.

        `is_end`: the silo begins or ends with this state. Other states are scored without generated answers
        if the silo's `generated_scores` is `ends`.
        """
        plan = self._plan
        if self._silo.generated_scores == "ends" and not is_end:
            plan = plan.model_copy(update={"new_tokens": 0})
        fingerprint = self._fingerprint(adapter, plan)
        # After an abandoned round the same weights are served again. Scoring takes minutes.
        for exam in earlier:
            if exam.fingerprint == fingerprint:
                return exam
        evaluation = evaluate(self._silo.base, self._test, plan, max_length=self._max_length)
        tasks = {task: dict(scores) for task, scores in evaluation.tasks.items()}
        validation = self.validation()
        return Exam(
            fingerprint,
            evaluation.scores(),
            validation.loss if validation is not None else None,
            tasks,
            evaluation.texts,
            validation.texts if validation is not None else (),
        )

    def examine_served(self, adapter: Adapter, earlier: Iterable[Exam] | None) -> Exam:
        """Score the state before the local steps; `earlier` is None if the silo begins with it."""
        if earlier is not None:
            return self.examine(adapter, earlier, is_end=False)
        if (few := few_validation(len(self._validation))) is not None:
            log.info(few, extra={DATA_REMARK: True})
        return self._examine_start(adapter)

    def _examine_start(self, adapter: Adapter) -> Exam:
        """Score the state that the silo begins with, unless its scores are in the agent's folder."""
        store = self._silo.start_scores
        if store is None:
            return self.examine(adapter)
        stored = store.read(self._fingerprint(adapter, self._plan))
        if stored is not None:
            log.info("scores: start state scored in an earlier run; its scores are reused")
            return Exam(stored.fingerprint, dict(stored.scores), stored.validation_loss, stored.tasks)
        exam = self.examine(adapter)
        scores = StartScores(
            fingerprint=exam.fingerprint,
            scores=exam.scores,
            validation_loss=exam.validation,
            tasks=exam.tasks,
        )
        store.write(scores)
        return exam

    def validation(self) -> Evaluation | None:
        """Return the losses on the validation examples; None if they are too few to decide anything."""
        if len(self._validation) < MIN_VALIDATION:
            return None
        return teacher_forced(self._silo.base, self._validation_texts())

    def _validation_texts(self) -> tuple[TokenizedText, ...]:
        most = max(self._plan.examples, MIN_VALIDATION)
        return encode_some(self._silo.base, self._validation, most, self._max_length)

    def _fingerprint(self, adapter: Adapter, plan: ScoresPlan) -> str:
        digest = hashlib.sha256(self._facts + plan.model_dump_json().encode())
        # A common adapter beside the client's own does not act, so it does not change the scores.
        acting = adapter.state() if adapter.is_sent else {}
        for tensors in (acting, adapter.private_state()):
            for name, values in sorted(tensors.items()):
                digest.update(f"{name} {values.shape}".encode())
                digest.update(values.tobytes())
        return digest.hexdigest()
