"""The manifests for Kubernetes, by the schemas of the real API, offline. No cluster has run them.

Kubernetes' own schemas are in the package kubernetes-validate. No package has those of KubeRay: of a RayJob
its pod templates are checked, and the whole where TOKMILL_KUBERAY_CRD names a file of KubeRay's repository
(ray-operator/config/crd/bases/ray.io_rayjobs.yaml).
"""

from __future__ import annotations

import contextlib
import copy
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import tokmill as mill
from nodes import free_port
from object_servers import Bucket, environment, make_bucket, open_moto

validator = pytest.importorskip("kubernetes_validate")

MANIFESTS = Path(__file__).parents[2] / "examples/kubernetes"
VERSIONS = ["1.31", "1.34", "1.37"]


def load(name: str) -> dict[str, Any]:
    """By kind."""
    documents = list(yaml.safe_load_all((MANIFESTS / name).read_text()))
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


def templates(ray_job: dict[str, Any]) -> list[dict[str, Any]]:
    spec = ray_job["spec"]
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [spec["submitterPodTemplate"], *(group["template"] for group in groups)]


def as_resource(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_indexed_job_is_one_that_kubernetes_takes(version: str) -> None:
    found = load("indexed-job.yaml")
    assert set(found) == {"ConfigMap", "Service", "NetworkPolicy", "Job"}
    for resource in found.values():
        validator.validate(resource, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_of_the_ray_job_are_pods(version: str) -> None:
    found = load("rayjob.yaml")
    assert set(found) == {"ConfigMap", "RayJob"}
    validator.validate(found["ConfigMap"], version, strict=True)
    for template in templates(found["RayJob"]):
        validator.validate(as_resource(template), version, strict=True)


def test_a_key_that_is_misspelt_is_refused() -> None:
    """Else the tests above could not fail."""
    job = copy.deepcopy(load("indexed-job.yaml")["Job"])
    job["spec"]["completionsMode"] = job["spec"].pop("completionMode")
    with pytest.raises(validator.ValidationError):
        validator.validate(job, VERSIONS[0], strict=True)
    template = copy.deepcopy(templates(load("rayjob.yaml")["RayJob"])[1])
    template["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(validator.ValidationError):
        validator.validate(as_resource(template), VERSIONS[0], strict=True)


def unknown_keys(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """What an API server would drop without a word, or refuse for its type."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{where}: neither a number nor a string"
        return
    if "type" in schema and not isinstance(value, kinds.get(schema["type"], object)):
        yield f"{where}: not {schema['type']}"
        return
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{where}.{key}: missing" for key in schema.get("required", []) if key not in value)
        for key, inner in value.items():
            if key in known:
                yield from unknown_keys(inner, known[key], f"{where}.{key}")
            elif isinstance(others, dict):
                yield from unknown_keys(inner, others, f"{where}.{key}")
            elif not others and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{where}.{key}: unknown"
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from unknown_keys(inner, schema["items"], f"{where}[{number}]")


def test_the_ray_job_is_one_that_kuberay_takes() -> None:
    path = os.environ.get("TOKMILL_KUBERAY_CRD")
    if not path:
        pytest.skip("KubeRay's schema is in no package: TOKMILL_KUBERAY_CRD names none")
    (served,) = (
        version
        for version in yaml.safe_load(Path(path).read_text())["spec"]["versions"]
        if version["name"] == "v1"
    )
    schema = served["schema"]["openAPIV3Schema"]
    job = load("rayjob.yaml")["RayJob"]
    job["metadata"] = {}  # has a schema of its own
    assert list(unknown_keys(job, schema)) == []
    job["spec"]["rayClusterSpec"]["authOption"] = job["spec"]["rayClusterSpec"].pop("authOptions")
    assert list(unknown_keys(job, schema)) == [".spec.rayClusterSpec.authOption: unknown"]


def container_of(kind: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = kind["spec"]["template"]["spec"]["containers"][0]
    return container


def test_every_command_of_a_manifest_is_one_of_ours() -> None:
    commands = [load("rayjob.yaml")["RayJob"]["spec"]["entrypoint"]]
    script = container_of(load("indexed-job.yaml")["Job"])["args"][0]
    commands += [line.strip() for line in script.splitlines() if line.strip().startswith("tokmill ")]
    assert len(commands) == 2
    for command in commands:
        program, verb, *rest = shlex.split(command)
        assert (program, verb) == ("tokmill", "run")
        options = [word for word in rest if word.startswith("--")]
        assert options == ["--out", "--work", "--engine", "--address"]
    for name in ("rayjob.yaml", "indexed-job.yaml"):
        mill.load_recipe(load(name)["ConfigMap"]["data"]["stage-a.yaml"])


def test_the_script_of_the_indexed_job_makes_a_run_in_processes_of_this_machine(tmp_path: Path) -> None:
    """Three indexes as three processes, a server for S3 as the store."""
    pytest.importorskip("distributed")
    (tmp_path / "notes.jsonl").write_text("".join(f'{{"text": "note {n} of many"}}\n' for n in range(50)))
    recipe = tmp_path / "stage-a.yaml"
    recipe.write_text('name: stage-a\nsources:\n  - {name: notes, domain: prose, files: "*.jsonl"}\n')
    expected = mill.verify(mill.run(recipe, tmp_path / "out", workers=1).out).digest
    container = container_of(load("indexed-job.yaml")["Job"])
    told = {one["name"]: one["value"] for one in container["env"]}
    scripts = str(Path(sys.executable).parent)
    with open_moto() as endpoint, contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        make_bucket(endpoint, "corpora")
        settings = {
            **told,
            **environment(endpoint),
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "RECIPE": str(recipe),
            "SCHEDULER": "127.0.0.1",
            "PORT": str(free_port()),
            "WORKERS": "1",
            "TOKMILL_NODE_CACHE": str(tmp_path / "cache"),
        }
        for name, value in environment(endpoint).items():
            patch.setenv(name, value)
        script = container["args"][0].replace("/tmp/stage-a", str(tmp_path / "work"))
        script = script.replace("--local-directory /tmp", f"--local-directory {tmp_path}")
        pods = [
            stack.enter_context(
                subprocess.Popen(
                    [*container["command"], script],
                    env={**os.environ, **settings, "JOB_COMPLETION_INDEX": str(index)},
                    cwd=tmp_path,
                    stdout=subprocess.PIPE if index == 0 else subprocess.DEVNULL,
                    stderr=subprocess.STDOUT if index == 0 else subprocess.DEVNULL,
                    text=True,
                )
            )
            for index in range(3)
        ]
        try:
            said, _ = pods[0].communicate(timeout=300)
            assert pods[0].returncode == 0, said
            report = mill.verify(settings["OUT"])
            assert (report.problems, report.digest) == ([], expected)
            assert Bucket(endpoint, "corpora").sizes("runs/stage-a/work/") == {}
        finally:
            for pod in pods:  # Kubernetes ends workers when the first index has succeeded
                pod.terminate()
