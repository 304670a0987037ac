"""Random requests, failed appends and failovers of a share coordinator, against two rules.

Whatever part of the log a new coordinator has, it has the states that were valid at its end. And a
leader that knows the outcome of all of its writes knows what is stored.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.state_port import CallOrder, SharePartitionId
from penstock.shares.state_requests import Delete, Initialize, Read, StateRequest
from penstock.shares.state_shard import StateConfig
from penstock.shares.states import RecordState
from penstock.shares.stored_states import StoredState
from penstock.wire.errors import ErrorCode

from .state_driver import JOBS, MAIL, NOW, Leader, StateDriver, contents, replayed

WHERE = st.sampled_from([JOBS, MAIL])
AGES = st.sampled_from([0, 0, 0, 1, 3])
STATES = st.sampled_from([RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED])
FENCED = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)


@dataclass
class ModelLeader:
    """A leader, and what it believes to be stored."""

    leader: Leader
    image: ShareImage
    under_way: dict[int, Delta] = field(default_factory=dict)
    is_sure: bool = True


class ShareCoordinatorModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        config = StateConfig(snapshot_after=3, trim_after=6, trim_step=2)
        self.driver = StateDriver(config)
        self.reads: dict[int, Read] = {}
        self.leaders: list[ModelLeader] = []
        self.history: dict[int, dict[SharePartitionId, StoredState]] = {0: {}}

    def _ask(self, request: StateRequest) -> int:
        token = self.driver.ask(request)
        if isinstance(request, Read):
            self.reads[token] = request
        return token

    @rule(where=WHERE, state_epoch=st.integers(1, 4), start=st.integers(-1, 3), age=AGES)
    def initialize(self, where: SharePartitionId, state_epoch: int, start: int, age: int) -> None:
        self._ask(Initialize(where, state_epoch, start, self._order(age)))
        self.settle()

    def _order(self, age: int) -> CallOrder:
        """Returns the order of a new call, or of one that was made some calls before."""
        latest = self.driver.next_order()
        return latest._replace(number=latest.number - age)

    @rule(where=WHERE, leader_epoch=st.sampled_from([1, 2, 2, 2, 3]))
    def read(self, where: SharePartitionId, leader_epoch: int) -> None:
        self._ask(Read(where, leader_epoch))

    @precondition(lambda self: self.leaders)
    @rule(data=st.data(), first=st.integers(0, 8), size=st.integers(1, 3), state=STATES)
    def write(self, data: st.DataObject, first: int, size: int, state: RecordState) -> None:
        leader = data.draw(st.sampled_from(self.leaders[-4:]))
        span = StoredSpan(first, first + size - 1, state, 1)
        delta = Delta(leader.image.state_epoch, 0, first + size, 1, (span,))
        leader.under_way[self._ask(leader.leader.write(delta))] = delta

    @rule(where=WHERE, with_topic=st.booleans(), age=AGES)
    def delete(self, where: SharePartitionId, with_topic: bool, age: int) -> None:
        if with_topic:
            self.driver.carry_out(self.driver.shard.remove_topics({where.topic_id}, NOW))
        else:
            self._ask(Delete(where, self._order(age)))

    @rule()
    def end_turn(self) -> None:
        self.driver.end_turn()

    @rule()
    def settle(self) -> None:
        self.driver.end_turn()
        while self.driver.append is not None:
            self.commit()

    @precondition(lambda self: self.driver.append)
    @rule()
    def commit(self) -> None:
        self.driver.commit()
        self.history[len(self.driver.log)] = deepcopy(contents(self.driver.shard.states))

    @precondition(lambda self: self.driver.append)
    @rule(is_late=st.booleans())
    def go_wrong(self, is_late: bool) -> None:
        if is_late:
            self.driver.be_late()
        else:
            self.driver.fail()

    @precondition(lambda self: self.driver.timers)
    @rule()
    def fire(self) -> None:
        self.driver.fire()

    @rule(with_append=st.booleans())
    def fail_over(self, with_append: bool) -> None:
        self.driver.fail_over(with_append=with_append)
        self.history[len(self.driver.log)] = deepcopy(contents(self.driver.shard.states))

    def _note_answers(self) -> None:
        for token in [token for token in self.reads if token in self.driver.answers]:
            request, answer = self.reads.pop(token), self.driver.answers[token]
            if answer.code == ErrorCode.NONE:
                assert answer.image is not None
                reader = Leader(request.share_partition, request.leader_epoch, answer.read_offset)
                self.leaders.append(ModelLeader(reader, answer.image))
        for leader in self.leaders:
            for token in [token for token in leader.under_way if token in self.driver.answers]:
                delta, code = leader.under_way.pop(token), self.driver.answers[token].code
                if code == ErrorCode.NONE:
                    leader.image.apply(delta)
                elif code == ErrorCode.REQUEST_TIMED_OUT or code in FENCED:
                    leader.is_sure = False

    @invariant()
    def a_sure_leader_knows_what_is_stored(self) -> None:
        self._note_answers()
        for leader in self.leaders:
            where, read_offset = leader.leader.where, leader.leader.read_offset
            state = self.driver.shard.states.get(where)
            if state is not None and state.read_offset == read_offset and leader.is_sure:
                assert state.image == leader.image
                assert state.leader_epoch == leader.leader.leader_epoch

    @invariant()
    def what_is_left_of_the_log_has_the_states(self) -> None:
        left = contents(replayed(self.driver.log, self.driver.log_start))
        states = contents(self.driver.shard.states)
        assert left.keys() == states.keys()
        for where, state in states.items():
            assert left[where].snapshot() == state.snapshot()

    def teardown(self) -> None:
        for end, expected in self.history.items():
            states = contents(replayed(self.driver.log[:end]))
            assert {where: state.snapshot() for where, state in states.items()} == {
                where: state.snapshot() for where, state in expected.items()
            }


TestShareCoordinatorModel = ShareCoordinatorModel.TestCase
TestShareCoordinatorModel.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None
)
