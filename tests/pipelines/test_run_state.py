from pipelines.options import TrainOptions
from pipelines.run_state import Segment, cut


def test_segments_end_where_something_is_due() -> None:
    options = TrainOptions(eval_every=4, checkpoint_every=6)
    assert list(cut(0, 10, 10, options)) == [
        Segment(0, 4, evaluate=True, save=False),
        Segment(4, 6, evaluate=False, save=True),
        Segment(6, 8, evaluate=True, save=False),
        Segment(8, 10, evaluate=True, save=True),
    ]


def test_by_default_each_epoch_ends_with_both() -> None:
    assert list(cut(0, 7, 21, TrainOptions())) == [Segment(0, 7, evaluate=True, save=True)]


def test_a_resumed_epoch_keeps_the_same_boundaries() -> None:
    options = TrainOptions(eval_every=4, checkpoint_every=6)
    whole = [s for s in cut(0, 20, 20, options) if s.start >= 6]
    assert list(cut(6, 20, 20, options)) == whole


def test_nothing_is_left_at_the_end_of_an_epoch() -> None:
    assert list(cut(7, 7, 21, TrainOptions())) == []


def test_shadow_evaluations_come_at_multiples_of_their_own() -> None:
    options = TrainOptions(eval_every=4)
    found = [(s.stop, s.evaluate, s.shadow) for s in cut(0, 10, 10, options, shadow_every=3)]
    assert found == [
        (3, False, True),
        (4, True, False),
        (6, False, True),
        (8, True, False),
        (9, False, True),
        (10, True, False),
    ]
    assert not any(s.shadow for s in cut(0, 10, 10, options))


def test_every_step_is_in_exactly_one_segment() -> None:
    options = TrainOptions(eval_every=3, checkpoint_every=5)
    steps = [s for segment in cut(2, 40, 50, options) for s in range(segment.start, segment.stop)]
    assert steps == list(range(2, 40))
