from pipelines.optim import lr_factor
from pipelines.options import OptimOptions


def test_schedule_warms_up_stays_and_decays_to_zero() -> None:
    options = OptimOptions(warmup_steps=4, decay_start=10, decay_steps=10)
    assert [lr_factor(s, options) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert lr_factor(9, options) == lr_factor(10, options) == 1.0
    assert lr_factor(15, options) == 0.25
    assert lr_factor(20, options) == lr_factor(99, options) == 0.0


def test_no_schedule_is_constant() -> None:
    assert {lr_factor(s, OptimOptions()) for s in range(100)} == {1.0}
