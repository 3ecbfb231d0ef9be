"""deploy/ray: the SLURM script parses, and the YAML has only fields that KubeRay and Kubernetes know."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray and with the docs")

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "ray"
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")

# JSON names of the fields in KubeRay's ray-operator/apis/ray/v1/raycluster_types.go, of its version 1.
CLUSTER = {
    "headGroupSpec",
    "workerGroupSpecs",
    "rayVersion",
    "enableInTreeAutoscaling",
    "autoscalerOptions",
    "headServiceAnnotations",
    "suspend",
}
HEAD = {"serviceType", "headService", "enableIngress", "rayStartParams", "template"}
GROUP = {
    "groupName",
    "replicas",
    "minReplicas",
    "maxReplicas",
    "numOfHosts",
    "rayStartParams",
    "template",
    "scaleStrategy",
}
# Of Kubernetes' core/v1, those that the file may use.
POD = {"securityContext", "containers", "volumes"}
CONTAINER = {"name", "image", "ports", "resources", "volumeMounts", "env"}


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    cluster, policy = yaml.safe_load_all((FILES / "kuberay.yaml").read_text(encoding="utf-8"))
    return cluster, policy


def started(params: dict[str, Any]) -> set[str]:
    """Options of ``ray start``; KubeRay's map takes texts only."""
    assert all(isinstance(value, str) for value in params.values())
    return {f"--{name}" for name in params}


def test_kuberays_fields() -> None:
    cluster, _ = documents()
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    assert cluster.keys() <= {"apiVersion", "kind", "metadata", "spec"}
    spec = cluster["spec"]
    assert {"headGroupSpec"} <= spec.keys() <= CLUSTER
    head, groups = spec["headGroupSpec"], spec["workerGroupSpecs"]
    assert {"rayStartParams", "template"} <= head.keys() <= HEAD
    for group in groups:
        assert {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"} <= group.keys() <= GROUP
        assert all(isinstance(group[key], int) for key in group if key.endswith("eplicas"))
    for one in (head, *groups):
        pod = one["template"]["spec"]
        assert pod.keys() <= POD
        (container,) = pod["containers"]
        assert container.keys() <= CONTAINER
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert one["rayStartParams"]["num-cpus"] == container["resources"]["limits"]["cpu"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert len({one["template"]["spec"]["containers"][0]["image"] for one in (head, *groups)}) == 1


def test_only_the_clusters_pods_reach_its_ports() -> None:
    cluster, policy = documents()
    pods = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    assert policy["apiVersion"] == "networking.k8s.io/v1"
    assert policy["spec"] == {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
    }


@pytest.mark.parametrize("tool", [("bash", "-n"), ("shellcheck",)], ids=" ".join)
def test_the_slurm_script_parses(tool: tuple[str, ...]) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    done = subprocess.run([*tool, FILES / "slurm.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_options_of_ray_start_exist() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.scripts.scripts import start

    known = {option for parameter in start.params for option in parameter.opts}
    cluster, _ = documents()
    spec = cluster["spec"]
    asked = set[str]().union(
        *(started(one["rayStartParams"]) for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))
    )
    texts = [block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if "ray start" in block]
    commands = [*re.findall(r"^ray start (.*?[^\\])$", "\n".join(texts), re.DOTALL | re.MULTILINE)]
    commands += [(FILES / "slurm.sh").read_text(encoding="utf-8").partition("ray start")[2].partition("steps+=")[0]]
    asked |= set(re.findall(r"--[a-z-]+", " ".join(commands))) - {"--dashboard"}
    assert len(asked) > 6
    assert asked <= known


def test_the_page_names_the_files() -> None:
    assert all(f"deploy/ray/{path.name}" in PAGE for path in FILES.iterdir())
