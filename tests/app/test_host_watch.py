"""What is said of lost hosts, from plain data; tests/benchmarks/test_lost_host.py cuts a real link."""

import socket

import pytest

from app.config import ClusterOptions
from app.errors import LostHostError
from app.host_watch import Node, RollCall, is_timeout, unreachable

GO_ON = "`thinwire train --resume runs/x`"


def nodes(*dead: int, count: int = 3, slots: int = 1) -> dict[str, Node]:
    return {
        f"id{i}": Node(f"host{i} (10.77.0.{i + 1})", ("", 0), alive=i not in dead, slots=slots) for i in range(count)
    }


def running(**options) -> RollCall:
    """Two workers, on host 1 and host 2."""
    roll = RollCall(ClusterOptions(workers=2, lost_host_wait_s=60, **options), GO_ON)
    assert roll.seen(nodes(), 0) == []
    assert roll.joined(0, "id1", 1) == roll.joined(1, "id2", 1) == []
    return roll


def test_a_lost_host_is_named_and_the_restart_too() -> None:
    roll = running()
    assert roll.seen(nodes(2), 100) == [
        "lost host2 (10.77.0.3) with rank 1: restarting from the last checkpoint, "
        "which may take 60 s (cluster.lost_host_wait_s)"
    ]
    assert roll.seen(nodes(2), 101) == []
    assert roll.joined(1, "id0", 112) == []
    assert roll.overdue(159) is None
    assert roll.joined(0, "id1", 113) == [
        "2 workers run again, on host0 (10.77.0.1) and host1 (10.77.0.2), 13 s after the loss"
    ]
    assert roll.overdue(1000) is None and roll.blame() is None


def test_without_a_spare_host_the_run_ends_after_the_wait() -> None:
    roll = running(placement="STRICT_SPREAD")
    roll.seen(nodes(0), 90)  # a host without workers
    assert roll.overdue(1000) is None
    assert roll.seen(nodes(0, 1), 100) == [
        "lost host1 (10.77.0.2) with rank 0: room is left for 1 of 2 workers; waiting 60 s "
        "(cluster.lost_host_wait_s) for a host to restart from the last checkpoint"
    ]
    assert roll.overdue(159) is None
    assert str(roll.overdue(160)) == (
        "lost host1 (10.77.0.2) with rank 0: 2 workers did not run again within 60 s (cluster.lost_host_wait_s); "
        f"bring a host back and {GO_ON}, or go on with fewer: add --set cluster.workers=1"
    )


def test_a_second_loss_does_not_start_the_wait_anew() -> None:
    roll = running()
    roll.seen(nodes(2), 100)
    assert roll.seen(nodes(1, 2), 130)[0].startswith("lost host1 (10.77.0.2): room is left for 1 of 2 workers")
    assert "lost host2 (10.77.0.3) with rank 1 and host1 (10.77.0.2): 2 workers did" in str(roll.overdue(160))


def test_several_ranks_on_a_host_and_no_host_left() -> None:
    roll = RollCall(ClusterOptions(workers=2), GO_ON)
    roll.seen(nodes(count=1, slots=2), 0)
    roll.joined(0, "id0", 1)
    roll.joined(1, "id0", 1)
    assert roll.seen(nodes(0, count=1), 5)[0].startswith(
        "lost host0 (10.77.0.1) with ranks 0 and 1: room is left for 0"
    )
    assert str(roll.overdue(400)).endswith(f"bring a host back and {GO_ON}")


def test_a_host_lost_while_the_workers_start_matters_only_if_there_is_no_room() -> None:
    roll = RollCall(ClusterOptions(workers=2), GO_ON)
    roll.seen(nodes(), 0)
    assert roll.seen(nodes(0), 1) == [] and roll.overdue(1000) is None
    roll.joined(0, "id1", 2)
    assert roll.seen(nodes(0, 2), 3)[0].startswith("lost host2 (10.77.0.3): room is left for 1 of 2 workers")


def test_when_no_restart_is_left_the_host_is_named() -> None:
    roll = running(max_failures=1)
    assert roll.blame() is None, "a worker failed, all hosts are well"
    roll.seen(nodes(2), 100)
    roll.joined(0, "id0", 110)
    roll.joined(1, "id1", 110)
    assert roll.seen(nodes(1, 2), 200) == [
        "lost host1 (10.77.0.2) with rank 1: no restart is left (cluster.max_failures=1)"
    ]
    assert str(roll.blame()) == (
        "lost host1 (10.77.0.2) with rank 1: no restart is left (cluster.max_failures=1); "
        f"bring a host back and {GO_ON}, or go on with fewer: add --set cluster.workers=1"
    )


def test_a_restart_in_place_is_not_a_loss() -> None:
    """A worker was killed: the same hosts, a new group."""
    roll = running()
    assert roll.joined(1, "id2", 50) == roll.joined(0, "id1", 50) == []
    assert roll.seen(nodes(0), 60) == []
    assert roll.seen(nodes(0, 1), 61)[0].startswith("lost host1 (10.77.0.2) with rank 0:")


def test_a_host_that_does_not_answer_is_named_before_ray_gives_it_up() -> None:
    roll = running()
    assert roll.probed({"id2"}, 14.2) == ["host2 (10.77.0.3) with rank 1 does not answer: no step for 14 s"]
    assert roll.probed({"id2"}, 15.2) == []
    assert isinstance(roll.blame(), LostHostError) and str(roll.blame()).startswith("no answer from host2 (10.77.0.3)")
    assert roll.probed(set(), 16) == ["host2 (10.77.0.3) answers again"]
    assert roll.blame() is None


def test_ports_are_asked_all_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        addresses = {"up": server.getsockname(), "down": other.getsockname()}
        other.close()
        found = {key: Node(key, address, alive=True, slots=1) for key, address in addresses.items()}
        assert unreachable(found) == {"down"}
        assert unreachable({}) == frozenset()


@pytest.mark.parametrize(("text", "timeout"), [
    ("[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation", True),
    ("[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:27554.", False),
    ("shape mismatch", False),
])  # fmt: skip
def test_only_gloos_own_timeouts_are_taken_for_slow_links(text: str, timeout: bool) -> None:
    assert is_timeout(RuntimeError(text)) is timeout
