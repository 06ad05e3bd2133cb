"""The messages between rank, agent and coordinator: what each looks like on the wire."""

import json

import pytest

from belay.agents.training.train import protocol as p

ON_THE_WIRE = [
    (p.Store(2, 1, "set", ("a", "b")), '{"t":"store","gen":2,"id":1,"verb":"set","keys":["a","b"]}'),
    (p.Store(2, 1, "add", ("a",), 3), '{"t":"store","gen":2,"id":1,"verb":"add","keys":["a"],"number":3}'),
    (
        p.Ready(2, 5, None, True, (4, 5), 4),
        '{"t":"ready","gen":2,"done":5,"shard":null,"checkpoints":true,"kept":[4,5],"proven":4}',
    ),
    (p.Ready(2, -1, "#1"), '{"t":"ready","gen":2,"done":-1,"shard":"#1"}'),
    (p.Prepared(2, 5), '{"t":"prepared","gen":2,"step":5}'),
    (p.Sample(2, 5, "", {"a": 7}, True), '{"t":"sample","gen":2,"done":5,"shard":"","sums":{"a":7},"divides":true}'),
    (p.Digest(2, 5, "", 7, (0.5, 1.5)), '{"t":"digest","gen":2,"done":5,"shard":"","weights":7,"costs":[0.5,1.5]}'),
    (
        p.RecomputedSums(2, 5, 1, 2, 3, 4),
        '{"t":"recomputed","gen":2,"done":5,"weights":1,"own":2,"other":3,"found":4}',
    ),
    (p.ShardNamed(2, "stage 1"), '{"t":"shard","gen":2,"shard":"stage 1"}'),
    (p.Offered(2, (5, 10)), '{"t":"offered","gen":2,"steps":[5,10]}'),
    (p.Times(2, 0.5, 1.5, 2.5), '{"t":"times","gen":2,"planned":0.5,"formed":1.5,"repaired":2.5}'),
    (p.Entered(2), '{"t":"entered","gen":2}'),
    (p.Broken(2, "reset"), '{"t":"broken","gen":2,"text":"reset"}'),
    (p.Finished(2, 9), '{"t":"finished","gen":2,"done":9}'),
    (p.Failed("KeyError", True), '{"t":"failed","text":"KeyError","final":true}'),
    (p.Leaving(0), '{"t":"leaving","code":0}'),
    (p.Waits("in recv", 0.5, 0.0), '{"t":"waits","text":"in recv","outside":0.5,"idle":0.0}'),
    (
        p.Assign(3, 1, 8, 1, 2, "host", {"RANK": "3"}, (0, 3)),
        '{"t":"assign","rank":3,"local_rank":1,"world":8,"inc":1,"gen":2,"address":"host","env":{"RANK":"3"},'
        '"active":[0,3]}',
    ),
    (p.Shards({3: "stage 1"}), '{"t":"shards","of":{"3":"stage 1"}}'),
    (p.RecoverOrder(2, False), '{"t":"recover","gen":2,"explained":false}'),
    (
        p.Plan(2, 5, {1: 0}, False, True, (5, 10, -1, 0, 0), False),
        '{"t":"plan","gen":2,"step":5,"donors":{"1":0},"checkpoint":false,"back":true,"pace":[5,10,-1,0,0],'
        '"sharded":false}',
    ),
    (p.OfferRequest(2, True), '{"t":"plan","gen":2,"ask":true}'),
    (p.NewPace((5, 10, 4, 0, 0)), '{"t":"pace","pace":[5,10,4,0,0]}'),
    (p.CommitStep(2, True), '{"t":"commit","gen":2,"go":true}'),
    (p.LeaveFunction(True), '{"t":"leave","all":true}'),
    (p.StoreAnswer(1, 3), '{"t":"answer","id":1,"number":3}'),
    (p.OfRank(3, 1, {"t": "look"}), '{"t":"rank","rank":3,"inc":1,"m":{"t":"look"}}'),
    (
        p.Join(1, "job", 2, 4, 1, (), {3: "#1"}),
        '{"t":"join","version":1,"job":"job","nodes":2,"nproc":4,"node":1,"shards":{"3":"#1"}}',
    ),
    (
        p.Progress(((3, 1, 5),), 0.5, working=True),
        '{"t":"progress","steps":[[3,1,5]],"median":0.5,"working":true}',
    ),
    (p.Lost(3, 1, "was killed"), '{"t":"lost","rank":3,"inc":1,"why":"was killed"}'),
    (p.Start(3, 1, 2), '{"t":"start","rank":3,"inc":1,"gen":2}'),
    (p.End(3, 1, "hangs"), '{"t":"end","rank":3,"inc":1,"why":"hangs"}'),
    (p.AllFinished(), '{"t":"finished"}'),
    (p.JobEnded(1, "gone"), '{"t":"job","code":1,"text":"gone"}'),
    (p.Hello("12"), '{"t":"hello","n":"12"}'),
    (p.Challenge("12", "ab"), '{"t":"challenge","n":"12","proof":"ab"}'),
    (p.Proven("ab"), '{"t":"proof","proof":"ab"}'),
    (p.Refused("another job", "job"), '{"t":"refused","text":"another job","field":"job"}'),
]


@pytest.mark.parametrize(("said", "wire"), ON_THE_WIRE, ids=[wire[6:30] for _, wire in ON_THE_WIRE])
def test_a_message_is_written_and_read(said: p.Said, wire: str) -> None:
    assert json.dumps(said.message(), separators=(",", ":")) == wire
    assert type(said).read(json.loads(wire)) == said


@pytest.mark.parametrize(
    "message",
    [
        {"t": "ready"},
        {"t": "ready", "gen": "x", "done": 1, "shard": ""},
        {"t": "sample", "gen": 1, "done": 1, "shard": "", "sums": [1]},
        {"t": "offered", "gen": 1, "steps": 5},
        {"t": "offered", "gen": 1e999, "steps": []},
        {"gen": 1},
        [],
    ],
)
def test_what_cannot_be_read_is_refused_in_one_way(message: object) -> None:
    with pytest.raises(ValueError, match=r"ready|sample|offered|is not an object"):
        p.from_rank(message)


def test_a_kind_of_a_newer_version_is_none() -> None:
    assert p.from_rank({"t": "sung"}) is p.to_rank({"t": "sung"}) is p.from_coordinator({"t": "sung"}) is None
