"""cluster.yaml is what Ray's cluster launcher accepts, and does what its comments say."""

from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

import app

FILE = Path(app.__file__).parent.parent / "cluster.yaml"


@pytest.fixture
def config():
    return yaml.safe_load(FILE.read_text())


def test_valid_by_rays_schema(config):
    validate_config(prepare_config(config))


def test_the_schema_would_notice(config):
    config["max_worker"] = 3
    with pytest.raises(Exception, match="max_worker"):
        validate_config(prepare_config(config))


def test_gpu_workers_in_one_place_with_shared_storage(config):
    gpu, head = (config["available_node_types"][kind] for kind in ("gpu", "head"))
    assert gpu["min_workers"] > 1 and head["resources"] == {"CPU": 0}
    assert "GroupName" in gpu["node_config"]["Placement"] and "GroupName" in config["provider"]["security_group"]
    assert "," not in config["provider"]["availability_zone"]
    assert any("mount -t nfs4" in command for command in config["setup_commands"])
    assert any("make setup DEVICE=cuda" in command for command in config["worker_setup_commands"])


@pytest.mark.parametrize("kind", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_interface_is_set_where_ray_starts(config, kind):
    (start,) = (command for command in config[kind] if "ray start" in command)
    assert start.index("export GLOO_SOCKET_IFNAME=") < start.index("ray start")
