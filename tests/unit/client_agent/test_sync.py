"""`tessera agent sync` and `work`: a round in two halves gives the bytes of `tessera agent run`."""

from __future__ import annotations

import errno
import fcntl
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from client_agent.daemon import run
from client_agent.distillation.part import sent_outputs
from client_agent.errors import CoordinatorRefused, SettingsUnusable, Stopped, SumNeedsNetwork
from client_agent.identity.agent_folder import exclusive
from client_agent.offline_work import store_facts
from client_agent.privacy.budget import TrainingBudgetSpent
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.session import StopFlag
from client_agent.storage.round_folder import INPUT, JOIN, READY, RECEIPT, REFERENCE, UPDATE, WEIGHTS
from client_agent.training.silo import Silo
from tests.scene.agent_commands import tessera
from tests.scene.agent_processes import environment
from tests.scene.agents import Enrolled, alone_plan, enrolled, limited_sleep, next_brief
from tests.scene.coordinator import Served
from tests.scene.faults import Killed
from tests.scene.silo_config import config_beside
from tests.unit.client_agent.alignment.anchors import anchors_for
from tests.unit.client_agent.offline import Machines
from tests.unit.client_agent.rounds.test_private_training import private_plan
from tests.unit.client_agent.secure_sum.summed_agents import plan as summed_plan

LORA = {"kind": "lora", "rank": 2, "roles": ["v"]}


@pytest.fixture
def machines(served: Served, silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(config_beside(tmp_path, url=served.url), silo, monkeypatch)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".json"}


def twin_of(participant: Participant, folder: Path) -> Participant:
    """Copy an agent with its files: the same client, run by `tessera agent run`."""
    shutil.copytree(participant.workspace.folder, folder, dirs_exist_ok=True)
    home = folder / participant.session.federation_id
    session = type(participant.session)(
        **{name: getattr(participant.session, name) for name in participant.session.__slots__}
        | {"home": home}
    )
    workspace = type(participant.workspace)(folder, participant.session.federation_id, 2)
    trainer = type(participant.trainer)(participant.trainer.silo, session, lambda: False)
    return Participant(session, workspace, trainer, participant.sleep)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        {},
        {
            "adapter": LORA,
            "strategy": {"name": "ca_pfl", "options": {"warm_rounds": 1, "density": 0.3}},
            "wire": {"recipe": {"reference": "served", "density": 0.9, "values": "int8"}},
        },
        {"adapter": LORA, "strategy": {"name": "fedex_lora"}},
    ],
    ids=["fedmosaic", "ca_pfl", "fedex_lora"],
)
def test_killed_sync_and_work_equal_an_uninterrupted_run(
    plan: dict[str, Any], started: Enrolled, machines: Machines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    participant = started(**alone_plan(**plan))
    next_brief(participant)
    assert machines.sync().next == "work"
    assert machines.kill_at_each_file(machines.work) == 1  # what it found out of the silo
    machines.kill_at_each_file(machines.sync)
    twin = twin_of(participant, tmp_path_factory.mktemp("twin"))
    assert machines.kill_at_each_file(machines.work) >= 3
    folder, expected = participant.workspace.rounds.open(1), twin.workspace.rounds.open(1)
    assert take_part(twin, next_brief(participant), until=UPDATE)
    assert files_of(folder.path) == files_of(expected.path)
    assert machines.work() is None
    machines.kill_at_each_file(lambda: machines.sync(waits=False))
    assert folder.finished
    assert folder.has(RECEIPT)


def test_work_compares_outputs_on_fetched_texts(
    served: Served, participant: Enrolled, machines: Machines
) -> None:
    strategy = {"name": "fedmosaic", "options": {"distil": {"texts": 2}}}
    federation_id = served.federation(**alone_plan(strategy=strategy, adapter=LORA))
    path = f"/v1/federations/{federation_id}"
    texts = [{"id": name, "prompt": "COPY abc=", "answer": name} for name in ("abc", "cab")]
    assert served.admin.put(f"{path}/anchors", json={"anchors": texts}).status_code == 201
    agent = participant(federation_id)
    assert served.admin.post(f"{path}/start").status_code == 200
    next_brief(agent)
    tasks = []
    while machines.sync().next == "work" and "train" not in tasks:
        tasks.append(machines.work())
    assert tasks == ["prepare", "train"]
    sent = sent_outputs(agent.workspace.rounds.open(1))
    assert {name: tensor.shape for name, tensor in sent.items()} == dict.fromkeys(sent, (8, 8))
    assert sent.keys() == {"outputs.bytes", "outputs.shares"}


@pytest.mark.slow
def test_sync_and_work_take_part_until_the_end(served: Served, started: Enrolled, machines: Machines) -> None:
    participant = started(**alone_plan())
    next_brief(participant)
    tasks = []
    while machines.sync().next == "work":
        tasks.append(machines.work())
    assert tasks == ["prepare", "train", "train", "score"]
    rounds = served.rounds(participant.session.federation_id)
    assert [view["state"] for view in rounds] == ["published", "published"]
    assert rounds[-1]["clients"][0]["scores"]["final"] is not None
    status = tessera("status", "--config", machines.file)
    assert status.exit_code == 0
    assert "last sync" in status.stdout
    run(participant, limited_sleep(500))  # an agent with both a network and the model finds nothing left


@pytest.mark.slow
def test_sync_joins_no_round_beyond_the_budget(started: Enrolled, machines: Machines) -> None:
    participant = started(
        **private_plan(privacy={"training": {"epsilon": 4.0, "steps": 3}})
    )  # a round has two
    next_brief(participant)
    tasks = []
    with pytest.raises(TrainingBudgetSpent, match=r"the privacy budget of training is spent"):  # noqa: PT012
        while machines.sync().next == "work":
            tasks.append(machines.work())
    assert tasks == ["prepare", "train"]
    assert not participant.workspace.rounds.open(2).has(WEIGHTS)


def test_newcomer_joins_with_the_sketch_of_work(
    served: Served,
    silo: Silo,
    participant: Enrolled,
    machines: Machines,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    federation_id = served.federation(**alone_plan(rounds={"total": 2, "min_clients": 1}))
    with ExitStack() as stack:
        founder = enrolled(
            served, federation_id, silo, tmp_path_factory.mktemp("founder"), stack, name="birch"
        )
        served.start_federation(federation_id)
        assert take_part(founder, next_brief(founder))
    agent = participant(federation_id)
    next_brief(agent)
    folder = agent.workspace.rounds.open(2)
    assert machines.sync().next == "work"
    assert machines.work() == "prepare"
    assert folder.has(JOIN)
    assert machines.sync().next == "work"
    assert folder.has(WEIGHTS)


@pytest.mark.slow
def test_work_builds_pack_and_sketches_from_fetched_data(
    served: Served, participant: Enrolled, silo: Silo, machines: Machines
) -> None:
    federation_id = served.federation(
        **alone_plan(
            adapter={"rank": 2, "blocks": 1, "roles": ["v"]},
            alignment={"pivot": silo.base.slug, "frames": "random", "anchors": 8},
        )
    )
    path = f"/v1/federations/{federation_id}"
    anchors = [anchor.model_dump() for anchor in anchors_for()][:8]
    assert served.admin.put(f"{path}/anchors", json={"anchors": anchors}).is_success
    agent = participant(federation_id)
    answer = served.admin.post(f"{path}/start")
    assert answer.is_success, answer.text
    next_brief(agent)
    assert machines.sync().next == "work"
    assert machines.work() == "prepare"
    assert machines.pending() is None
    assert machines.sync().next == "work"
    (stored,) = served.admin.get(f"{path}/alignments").json()["items"]
    assert stored["base_model"] == silo.base.slug
    assert machines.work() == "train"
    assert agent.workspace.rounds.open(1).has(UPDATE)


def test_update_without_reference_is_rebuilt_by_work(started: Enrolled, machines: Machines) -> None:
    participant = started(**alone_plan())
    next_brief(participant)
    for _ in range(2):
        machines.sync()
        machines.work()
    folder = participant.workspace.rounds.open(1)
    refused = folder.read(UPDATE)

    def lacks_reference(client: Any) -> None:
        def refuse(*_: object) -> None:
            raise CoordinatorRefused(412, "reference-mismatch", "another reference", "/update")

        client.session.api.push_update = refuse

    assert machines.sync(change=lacks_reference).next == "work"
    assert not folder.has(UPDATE)
    assert folder.read(REFERENCE) == b""
    assert machines.work() == "train"
    assert len(folder.read(UPDATE)) > len(refused)  # the whole one
    machines.sync(waits=False)
    assert folder.has(RECEIPT)


def test_summed_updates_require_a_waiting_sync(
    served: Served, participant: Enrolled, machines: Machines
) -> None:
    federation_id = served.federation(**summed_plan(3))
    agent = participant(federation_id)
    served.start_federation(federation_id)
    next_brief(agent)
    with pytest.raises(SumNeedsNetwork, match=r"within 120 s.*--wait"):
        machines.sync(waits=False)
    for _ in range(2):
        assert machines.sync().next == "work"
        machines.work()
    folder = agent.workspace.rounds.open(1)
    assert folder.has(INPUT)

    def ends(client: Any) -> None:
        client.session.api._sleep = limited_sleep(0)

    with pytest.raises(Stopped):  # it stays in the sum, whose other members are missing
        machines.sync(change=ends)
    assert folder.has(READY)


WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "peft", "bitsandbytes"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
from tests.scene.agent_commands import tessera
for command in ("work", "sync", "status"):
    done = tessera(command, "--config", sys.argv[1])
    print(command, done.exit_code, done.output)
"""


@pytest.mark.slow
def test_sync_needs_no_torch(started: Enrolled, silo: Silo, machines: Machines) -> None:
    participant = started(**alone_plan())
    next_brief(participant)
    store_facts(silo, participant.workspace.folder, 64)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(machines.file)],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert "work 0 nothing to do\nnext: tessera agent sync" in done.stdout
    assert "sync 0 round 1: weights downloaded\nnext: tessera agent work" in done.stdout
    assert "tessera agent work" in done.stdout.partition("status 0")[2]
    assert participant.workspace.rounds.open(1).has(WEIGHTS)


def test_silo_enrols_with_the_profile_of_work(
    served: Served, silo: Silo, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = served.enrolment_token(served.federation(**alone_plan()), "aster")
    arguments = ("enrol", "--config", machines.file, "--name", "aster", "--token", token, "--prepared")
    refused = tessera(*arguments)
    assert refused.exit_code == 1
    monkeypatch.setattr("client_agent.training.silo.open_silo", lambda _: silo)
    assert "enrol --prepared" in tessera("work", "--prepare", "--config", machines.file).stdout
    monkeypatch.setattr("client_agent.training.silo.open_silo", None)
    assert tessera(*arguments).exit_code == 0


def test_work_out_of_time_exits_with_code_75(
    started: Enrolled, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = started(**alone_plan())
    next_brief(participant)
    machines.sync()
    machines.work()
    machines.sync()
    monkeypatch.setattr("client_agent.training.silo.open_silo", lambda _: participant.trainer.silo)
    monkeypatch.setattr("client_agent.cli.offline.stop_on_signal", lambda _: StopFlag(0.0))
    assert tessera("work", "--time", "1", "--config", machines.file).exit_code == 75
    assert machines.work() == "train"


def test_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SettingsUnusable, match=r"-o flock"), exclusive(tmp_path):
        raise Killed
