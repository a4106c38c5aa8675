"""docker-compose.yml and the manifests say what they must: shared memory, patient health, no endless restarts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = ("scheduler", "worker-cpu", "worker-gpu")


@pytest.mark.parametrize("name", ["worker-cpu", "worker-gpu"])
def test_cmp_01_workers_have_shared_memory_and_leave_sockets_in_a_volume(name: str) -> None:
    """Docker gives 64 MB; torch's and NCCL's segments may want more. The ZeroMQ socket lives elsewhere."""
    service = COMPOSE["services"][name]
    assert service["shm_size"] == "1g"
    assert "run:/run/pagewire" in service["volumes"]
    assert "--scheduler=ipc:///run/pagewire/worker.sock" in service["command"]


def test_cmp_01_a_pod_has_a_memory_volume_at_dev_shm() -> None:
    (worker,) = yaml.safe_load_all((ROOT / "deploy/k8s/worker.yaml").read_text())
    pod = worker["spec"]["template"]["spec"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in pod["volumes"]


def test_cmp_02_health_is_readiness_asked_by_a_program_in_the_image() -> None:
    """`pagewire health` asks by gRPC; there is no curl in the image. While a model loads no failure counts."""
    check = COMPOSE["services"]["scheduler"]["healthcheck"]
    assert check["test"] == ["CMD", "pagewire", "health", "--target", "127.0.0.1:50052"]
    assert check["start_period"] == "600s"
    assert "--start-period=600s" in (ROOT / "scheduler_svc/Dockerfile").read_text()


def test_cmp_02_nobody_waits_for_a_model_to_load() -> None:
    """Start order is free: no service depends on another's health, and every one of ours comes back after a crash."""
    for name, service in COMPOSE["services"].items():
        assert isinstance(service.get("depends_on", []), list), f"{name} waits for a condition"
    assert {COMPOSE["services"][name]["restart"] for name in OURS} == {"on-failure:10"}


def test_stopping_is_given_the_time_that_a_drain_takes() -> None:
    command = COMPOSE["services"]["scheduler"]["command"]
    drain = next(int(word.removeprefix("--drain-seconds=")) for word in command if word.startswith("--drain-seconds="))
    grace = COMPOSE["services"]["scheduler"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= drain + 10


def test_the_inference_pool_has_the_fields_of_its_definition_and_finds_our_pods() -> None:
    """`inference.networking.k8s.io/v1`: a service as the picker needs its port, ports are numbers, gRPC needs h2c."""
    pool = yaml.safe_load((ROOT / "deploy/k8s/inference-gateway/inference-pool.yaml").read_text())
    assert (pool["apiVersion"], pool["kind"]) == ("inference.networking.k8s.io/v1", "InferencePool")
    spec = pool["spec"]
    assert set(spec) <= {"selector", "targetPorts", "appProtocol", "endpointPickerRef"}
    assert spec["appProtocol"] == "kubernetes.io/h2c"
    picker = spec["endpointPickerRef"]
    assert {"name", "port"} <= set(picker) <= {"group", "kind", "name", "port", "failureMode"}
    assert 1 <= len(spec["targetPorts"]) <= 8
    for port in (*spec["targetPorts"], picker["port"]):
        assert set(port) == {"number"}
        assert 1 <= port["number"] <= 65535
    manifests = yaml.safe_load_all((ROOT / "deploy/k8s/scheduler.yaml").read_text())
    pods = next(each["spec"]["template"] for each in manifests if each["kind"] in ("Deployment", "StatefulSet"))
    assert set(spec["selector"]) == {"matchLabels"}
    assert spec["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    ports = [port["containerPort"] for container in pods["spec"]["containers"] for port in container["ports"]]
    assert spec["targetPorts"][0]["number"] in ports
