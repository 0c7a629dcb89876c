import json
from pathlib import Path

import pytest
import yaml

from app.config import RunConfig, load_config, parse_yaml
from app.config_text import annotated, reference_page
from app.presets import PRESETS
from pipelines.errors import UserError


def message(*assignments: str, preset: str | None = None, file: Path | None = None) -> str:
    with pytest.raises(UserError) as error:
        load_config(preset, file, assignments)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_are_valid(preset: str) -> None:
    assert load_config(preset) != RunConfig()


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("train: {batch_size: 64, epochs: 3}\nmodel:\n  table_dims: {C1: 8}\n")
    config = load_config("smoke", file, ["train.epochs=5", "model.table_dims.C2=4", "optim.dense_lr=1e-4"])
    assert config.train.batch_size == 64
    assert config.train.epochs == 5
    assert config.train.log_every == PRESETS["smoke"]["train"]["log_every"]
    assert config.model.table_dims == {"C1": 8, "C2": 4}
    assert config.optim.dense_lr == 1e-4
    assert PRESETS["smoke"]["train"]["batch_size"] != 64, "a preset must not be changed by a run"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("train.epochz=2", "train.epochz: unknown key (did you mean train.epochs?)"),
        ("trane.epochs=2", "trane: unknown key (did you mean train?)"),
        ("epochs=2", "epochs: unknown key (did you mean train.epochs?)"),
        ("data.synthetic.row=4", "data.synthetic.row: unknown key (did you mean data.synthetic.rows?)"),
        ("sharding.tables.C1={typ: row_wise}", "did you mean sharding.tables.C1.type?"),
        ("train.epochs=two", "train.epochs: input should be a valid integer, got 'two'"),
        ("train.epochs='2'", "got '2'"),
        ("train.batch_size=0", "should be greater than 0, got 0"),
        ("optim.sparse=adagard", "'rowwise_adagrad', 'sgd' or 'adam'"),
        ("train=3", "train: "),
        ("train.epochs", "not section.key=value"),
        ("train.epochs=[1", "not a YAML value"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_with_the_remedy(assignment: str, expected: str) -> None:
    assert expected in message(assignment)


def test_unknown_preset_and_bad_files(tmp_path: Path) -> None:
    assert "did you mean demo?" in message(preset="demmo")
    assert "missing.yaml" in message(file=tmp_path / "missing.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("train: [")
    assert "not YAML" in message(file=bad)
    bad.write_text("- 1")
    assert "holds no sections" in message(file=bad)
    bad.write_text("train: {epoch: 1}")
    assert "train.epoch: unknown key" in message(file=bad)


def test_written_configuration_reads_back() -> None:
    config = load_config("demo", None, ["sharding.tables.C1={type: table_wise, ranks: [1]}", "data.path=/x y/z"])
    for text in (config.to_yaml(), annotated(config)):
        assert load_config(base=parse_yaml(text, "test")) == config


def test_the_reference_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == reference_page(RunConfig()), "run `make docs`"


def test_every_key_has_a_meaning() -> None:
    text = annotated(RunConfig())
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  ") and not line.startswith(("  #", "   ")):
            assert lines[number - 1].startswith("  #"), f"no meaning above {line}"
    assert yaml.safe_load(text)["train"]["epochs"] == 1


def test_a_plan_is_a_configuration(tmp_path: Path) -> None:
    """As JSON, which is YAML."""
    file = tmp_path / "plan.json"
    plan = {"cache": {"hot_rows": {"C1": 7, "C3": 1000}}, "exchange": {"tables": {"C3": {"path": "row"}}}}
    file.write_text(json.dumps(plan, indent=1))
    config = load_config("smoke", file, ["cache.adapt_every=500"])
    assert config.cache.hot_rows == {"C1": 7, "C3": 1000} and config.cache.adapt_every == 500
    assert config.job("").cache == config.cache and config.exchange.tables["C3"].path == "row"
    assert "did you mean cache.hot_rows?" in message("cache.hot_row={C1: 3}")
    assert "should be less than or equal to 1" in message("cache.hot_share=1.5")
