"""The choice of a chain by the cost law, from trials that are given: no test here goes by the clock."""

import numpy as np
import pytest

from compression import Codec, inspect, select
from compression.select import EVERY, HYSTERESIS, Selector, Trial
from compression.wire import BITPACK, CHAINS, HUFFMAN, RANS, RAW
from tests.compression.codec_checks import assert_kept, noise, round_trip, trained

FAST = Trial(ratio=4.0, encode=8e9, decode=8e9)
MIDDLE = Trial(ratio=8.0, encode=1e9, decode=2e9)
SMALL = Trial(ratio=20.0, encode=2e8, decode=4e8)
KEY = 0, 16, 9
GIVEN = {BITPACK: FAST, HUFFMAN: MIDDLE, RANS: SMALL}


def chosen(trials: dict[int, Trial], link: float) -> int:
    selector = Selector(link)
    selector.decide(KEY, trials)
    return selector.chosen[KEY]


def test_the_law():
    assert FAST.cost(1e9) == pytest.approx(1 / 4e9 + 1 / 8e9 + 1 / 8e9)
    for link in np.geomspace(1e5, 1e11, 50):
        costs = {
            RAW: 1 / link,
            **{chain: 1 / (t.ratio * link) + 1 / t.encode + 1 / t.decode for chain, t in GIVEN.items()},
        }
        assert costs[chosen(GIVEN, link)] == min(costs.values())


def test_a_slower_link_gets_a_smaller_payload():
    choices = [chosen(GIVEN, link) for link in (1e6, 3e7, 1e9, 1e12)]
    assert choices == [RANS, HUFFMAN, BITPACK, RAW]


def test_a_very_fast_link_is_not_compressed_for():
    assert chosen(GIVEN, 3.1e9) == RAW
    assert chosen({}, 1e6) == RAW, "no chain makes it smaller"
    assert chosen({BITPACK: Trial(1.01, 1e8, 1e8)}, 1e9) == RAW


def test_a_choice_is_kept_until_another_is_clearly_better():
    selector = Selector(1e7)
    selector.decide(KEY, {BITPACK: Trial(4.0, 1e12, 1e12)})
    selector.decide(KEY, {BITPACK: Trial(4.0, 1e12, 1e12), RANS: Trial(4.0 / HYSTERESIS * 0.999, 1e12, 1e12)})
    assert selector.chosen[KEY] == BITPACK
    selector.decide(KEY, {BITPACK: Trial(4.0, 1e12, 1e12), RANS: Trial(4.0 / HYSTERESIS * 1.01, 1e12, 1e12)})
    assert selector.chosen[KEY] == RANS
    selector.decide(KEY, {BITPACK: Trial(4.0, 1e12, 1e12), RANS: Trial(4.0 * HYSTERESIS * 1.01, 1e12, 1e12)})
    assert selector.chosen[KEY] == RANS
    selector.decide(KEY, {BITPACK: Trial(0.9, 1e12, 1e12), RANS: Trial(0.9, 1e12, 1e12)})
    assert selector.chosen[KEY] == RAW


def test_a_chain_that_no_longer_works_is_left():
    selector = Selector(1e7)
    for trials, best in (({RANS: SMALL}, RANS), ({}, RAW), ({BITPACK: FAST}, BITPACK), ({HUFFMAN: MIDDLE}, HUFFMAN)):
        selector.decide(KEY, trials)
        assert selector.chosen[KEY] == best


class Given:
    """Stands for the trials of a codec."""

    def __init__(self) -> None:
        self.trials, self.count = GIVEN, 0

    def __call__(self, *arguments: object) -> dict[int, Trial]:
        self.count += 1
        return self.trials


@pytest.fixture
def given(monkeypatch) -> Given:
    made = Given()
    monkeypatch.setattr(select, "try_chains", made)
    return made


def test_what_is_decoded_need_not_go_by_the_clock(given):
    """A fast link sends tables raw, bit for bit, unless all runs are to decode the same."""
    given.trials = {BITPACK: Trial(2.0, 1e6, 1e6)}
    for exact, chain in ((True, "raw"), (False, "bitpack")):
        codec = Codec(link=1e12, exact=exact)
        assert [s["chain"] for s in inspect(codec.encode([trained(300, 16)], 0.1))] == [chain]


@pytest.fixture
def none_is_small(monkeypatch) -> None:
    """Every table has its own trial."""
    monkeypatch.setattr(select, "SMALL_BYTES", 0)


def test_small_tables_of_about_a_size_share_a_trial(given):
    codec = Codec(link=1e6)
    codec.encode([trained(20, 16), trained(30, 16), trained(17, 16), trained(33, 16), trained(20, 8)], 0.1)
    assert given.count == 3, "17 to 31 rows of 16, 33 rows of 16, 20 rows of 8"
    codec.encode([trained(20, 16), trained(30, 16)], [0.001, 10.0])
    assert given.count == 3, "whatever their bounds"
    codec.encode([trained(1024, 16), trained(1024, 16)], 0.1)
    assert given.count == 5


@pytest.mark.usefixtures("none_is_small")
def test_a_table_is_tried_at_first_sight_and_seldom_again(given):
    codec = Codec(link=1e6)
    tables = [trained(4, 4)] * 3
    for _ in range(EVERY // 2):
        codec.encode(tables, 0.1)
    assert given.count == 3
    for _ in range(4 * EVERY):
        codec.encode(tables, 0.1)
    assert 6 <= given.count <= 3 + 3 * 5


@pytest.mark.parametrize("others", ["exact", "empty", "gone", "none"])
def test_a_choice_is_made_again_whatever_the_other_tables_are(given, others):
    """They may be bit-exact, empty or no longer sent."""
    codec = Codec(link=1e6)
    table = trained(64, 16)
    tables, bounds = {
        "exact": ([table, table, table], [0.0, 0.1, 0.0]),
        "empty": ([np.empty((0, 4), np.float32), table, np.empty((0, 4), np.float32)], 0.1),
        "gone": ([table, table], 0.1),
        "none": ([table], 0.1),
    }[others]
    for _ in range(5):
        payload = codec.encode(tables, bounds)
        assert "rans" in [section["chain"] for section in inspect(payload)]
    given.trials = {BITPACK: FAST}
    if others == "gone":
        tables = tables[:1]
    for _ in range(2 * EVERY):
        codec.encode(tables, bounds)
    assert "bitpack" in [section["chain"] for section in inspect(codec.encode(tables, bounds))]


@pytest.mark.usefixtures("none_is_small")
def test_each_table_has_its_own_choice(given):
    """If it is not small. So has each size of it: a message of few rows may not be worth what one of many is."""
    codec = Codec(link=1e6)
    tables = [trained(300, 16), trained(300, 16), trained(300, 8), trained(20, 16)]
    codec.encode(tables, 0.1)
    assert given.count == 4
    codec.encode([trained(17, 16)], 0.1)
    assert given.count == 5
    for table, chain in zip(codec.selector.chosen, (RAW, BITPACK, RANS, RAW), strict=False):
        codec.selector.chosen[table] = chain
    assert [s["chain"] for s in inspect(codec.encode(tables, 0.1))] == ["raw", "bitpack", "rans", "raw"]
    assert given.count == 5


def test_real_trials_of_real_tables():
    """The smallest chain on a link so slow that nothing else counts; none on one so fast, and none for noise."""
    table = trained(3000, 16)
    slow, fast = Codec(link=1.0), Codec(link=1e15)
    payload, out = round_trip(slow, table, 0.01)
    assert_kept(table, out, 0.01)
    sizes = {chain: len(round_trip(slow, table, 0.01, chain)[0]) for chain in CHAINS}
    assert len(payload) <= 1.06 * min(sizes.values())
    (trials,) = slow.selector.trials.values()
    assert set(trials) <= set(CHAINS.values()) - {RAW}
    for trial in trials.values():
        assert trial.ratio > 1 and trial.encode > 0 and trial.decode > 0
    assert inspect(round_trip(fast, table, 0.01)[0])[0]["chain"] == "raw"
    assert inspect(round_trip(Codec(link=1.0), noise(900, 16), 0.01)[0])[0]["chain"] == "raw"


def test_a_trial_counts_the_bytes_that_the_payload_has():
    for table in (trained(3000, 16), trained(3000, 16).astype(np.float16), trained(5, 300), trained(500, 1)):
        codec = Codec(link=1.0)
        codec.encode([table], 0.01)
        (trials,) = codec.selector.trials.values()
        for number, trial in trials.items():
            name = next(name for name, n in CHAINS.items() if n == number)
            size = inspect(codec.encode([table], 0.01, name))[0]["bytes"] + 20
            assert trial.ratio == pytest.approx(table.nbytes / size, rel=0.01)
