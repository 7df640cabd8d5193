"""The Helm chart: every object is one that its API takes, safe, and says what the server really
has.
"""

import copy
import json
import re
import subprocess

import jsonschema
import kubernetes_validate
import pytest

import chart
import policy
import schemas
import tools
from cases import CASES
from certificates import Authority
from server import binary


# A profile of a method that every preset takes.
PROFILE = tools.ROOT / "benches/results/calibrate/smollm2-135m-kvmix.json"


@pytest.fixture(scope="module", params=CASES)
def objects(request):
    return chart.render(CASES[request.param])


def test_helm_lint_has_nothing_to_say():
    assert "0 chart(s) failed" in chart.helm("lint", "--strict", tools.CHART)


def test_every_object_is_valid(objects):
    for one in objects:
        schemas.validate(one)


def test_the_schemas_are_strict():
    rendered = chart.kinds([one for case in CASES.values() for one in chart.render(case)])
    assert {
        "ScaledObject",
        "PodMonitor",
        "ServiceMonitor",
        "GRPCRoute",
        "InferencePool",
        "NetworkPolicy",
    } <= set(rendered)
    for kind, (one, *_) in rendered.items():
        if kind in ("ConfigMap", "ServiceAccount"):
            continue  # They have no spec.
        wrong = copy.deepcopy(one)
        wrong["spec"]["replicaz"] = 3
        with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
            schemas.validate(wrong)
    for path in (("parentRefs", 0, "port"), ("rules", 0, "backendRefs", 0, "name")):
        wrong = copy.deepcopy(rendered["GRPCRoute"][0])
        place = wrong["spec"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = {"not": "this"}
        with pytest.raises(jsonschema.ValidationError):
            schemas.validate(wrong)


def test_names_are_unique_and_in_the_releases_namespace(objects):
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    assert {one["metadata"]["namespace"] for one in objects} == {chart.NAMESPACE}


def test_pods_keep_to_the_policy(objects):
    assert policy.violations(objects) == []


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("containers.0.securityContext.readOnlyRootFilesystem", False, "root"),
        ("containers.0.securityContext.capabilities", {}, "capabilities"),
        ("containers.0.image", "ebb:latest", "pinned"),
        ("containers.0.resources.limits", {}, "memory limit"),
        ("containers.0.livenessProbe", None, "livenessProbe"),
        ("securityContext.runAsUser", 0, "root"),
        ("volumes.0", {"name": "models", "hostPath": {"path": "/"}}, "restricted"),
        ("initContainers.0.env.0", {"name": "HF_TOKEN", "value": "hf_x"}, "written out"),
    ],
)
def test_the_policy_sees_what_is_wrong(path, value, word):
    deployment = chart.only(chart.render(), "Deployment")
    place = deployment["spec"]["template"]["spec"]
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    assert any(word in sentence for sentence in policy.violations([deployment]))


def pod(objects):
    return chart.only(objects, "Deployment")["spec"]["template"]["spec"]


def test_selectors_find_the_pods(objects):
    found = chart.kinds(objects)
    labels = found["Deployment"][0]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [found["Deployment"][0]["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in found["Service"]]
    for kind in ("PodDisruptionBudget", "PodMonitor", "InferencePool"):
        selectors += [one["spec"]["selector"]["matchLabels"] for one in found.get(kind, [])]
    selectors += [
        one["spec"]["podSelector"]["matchLabels"] for one in found.get("NetworkPolicy", [])
    ]
    assert all(selector.items() <= labels for selector in selectors)
    for monitor in found.get("ServiceMonitor", []):
        wanted = monitor["spec"]["selector"]
        absent = [term["key"] for term in wanted["matchExpressions"]]
        chosen = [
            service for service in found["Service"]
            if wanted["matchLabels"].items() <= service["metadata"]["labels"].items()
            and not set(absent) & set(service["metadata"]["labels"])
        ]  # fmt: skip
        assert len(chosen) == 1, "a ServiceMonitor that finds two services scrapes each pod twice"


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """Files as the Secrets have them: the folder that the paths of arguments are below."""
    folder = tmp_path_factory.mktemp("mounted")
    authority = Authority(folder, "pods")
    cert, key = authority.issue()
    for path, content in {
        "keys/api-keys": b"a-key name=tests\n",
        "tls/tls.crt": cert.read_bytes(),
        "tls/tls.key": key.read_bytes(),
        "client-ca/ca.crt": authority.path.read_bytes(),
    }.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def test_ebb_knows_every_flag(objects, mounted):
    """The parser of the built program takes the arguments: it gets as far as the model, which is
    not there.
    """
    for container in pod(objects).get("initContainers", []) + pod(objects)["containers"]:
        arguments = container.get("args", [])
        if not arguments or arguments[0] not in ("serve", "fetch"):
            continue
        arguments = [re.sub(r"^--model=.*", "--model=/nowhere/at.all", one) for one in arguments]
        arguments = [re.sub(r"^--device=cuda", "--device=cpu", one) for one in arguments]
        arguments = [
            re.sub(r"^--(metrics-|http-)?port=.*", r"--\1port=0", one) for one in arguments
        ]
        arguments = [
            re.sub(r"=(/(keys|tls|client-ca)/)", rf"={mounted}\1", one) for one in arguments
        ]
        arguments = [
            re.sub(r"/profile/[\w.]+json", str(PROFILE), one)
            for one in arguments
            if not one.startswith("--host=")
        ]
        done = subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "there is no model `/nowhere/at.all`" in done.stderr, (
            done.stderr
        )


def presets():
    """Presets as the engine has them: name, whether a profile comes with it, and mode."""
    source = (tools.ROOT / "engine/serving/src/kv_spec/preset.rs").read_text()
    found = re.findall(r'\(\s*"([\w-]+)",\s*(No|Maybe|Yes),\s*(Static|Progressive),', source)
    assert len(found) >= 20
    return found


def test_presets_are_the_engines():
    schema = json.loads((tools.CHART / "values.schema.json").read_text())
    assert schema["properties"]["kv"]["properties"]["preset"]["enum"] == [
        "",
        *(name for name, *_ in presets()),
    ]


@pytest.mark.parametrize(("preset", "profile"), [one[:2] for one in presets()])
def test_a_preset_has_the_profile_that_it_takes(preset, profile):
    alone = {"kv": {"preset": preset}}
    if profile == "Yes":
        with pytest.raises(chart.Refused, match="kv.profile.configMap"):
            chart.render(alone)
    else:
        assert f"--kv-preset={preset}" in pod(chart.render(alone))["containers"][0]["args"]
    with_profile = {"kv": {"preset": preset, "profile": {"configMap": "p", "bits": 3.5}}}
    if profile == "No":
        with pytest.raises(chart.Refused, match="takes no profile"):
            chart.render(with_profile)
    else:
        spec = pod(chart.render(with_profile))
        arguments = spec["containers"][0]["args"]
        assert f"--kv-preset={preset}:/profile/profile.json@3.5" in arguments
        assert not [one for one in arguments if one.startswith("--kv-profile")]
        assert {"name": "profile", "configMap": {"name": "p"}} in spec["volumes"]


def test_the_grace_period_covers_the_drain(objects):
    spec = pod(objects)
    (container,) = spec["containers"]
    flags = dict(flag.split("=", 1) for flag in container["args"] if "=" in flag)
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > sleep + int(flags["--grace-period"])
    readiness = container["readinessProbe"]
    assert sleep >= readiness["periodSeconds"] * readiness["failureThreshold"]


def test_modes_differ_where_they_must():
    cpu, gpu = pod(chart.render()), pod(chart.render(CASES["gpu"]))
    assert "--device=cpu" in cpu["containers"][0]["args"] and "runtimeClassName" not in cpu
    assert "nvidia.com/gpu" not in str(cpu)
    (container,) = gpu["containers"]
    assert "--device=cuda" in container["args"] and gpu["runtimeClassName"] == "nvidia"
    assert container["resources"]["limits"] == {"memory": "3Gi", "nvidia.com/gpu": 1}
    assert {one["key"] for one in gpu["tolerations"]} == {"pool", "nvidia.com/gpu"}
    assert container["image"].endswith("@sha256:" + "a" * 64)


def test_weights_are_held_as_asked():
    (plain,) = pod(chart.render())["containers"]
    assert "--weights=packed" in plain["args"]
    assert not [one for one in plain["args"] if one.startswith("--quantization")]
    (asked,) = pod(chart.render({"model": {"quantization": "int4", "weights": "exact"}}))[
        "containers"
    ]
    assert {"--quantization=int4", "--weights=exact"} <= set(asked["args"])
    (asked,) = pod(chart.render({"model": {"quantization": "mxfp4"}}))["containers"]
    assert "--quantization=mxfp4" in asked["args"]
    for wrong in ({"quantization": "int3"}, {"weights": "mapped"}):
        with pytest.raises(chart.Refused, match=next(iter(wrong))):
            chart.render({"model": wrong})


def test_keys_and_certificates_come_from_secrets():
    objects = chart.render(CASES["keys, certificates"])
    spec = pod(objects)
    (container,) = spec["containers"]
    secrets = {
        volume["name"]: volume["secret"]["secretName"]
        for volume in spec["volumes"]
        if "secret" in volume
    }
    assert secrets == {"keys": "ebb-keys", "tls": "ebb-tls", "client-ca": "ebb-clients"}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    paths = [flag.split("=")[1] for flag in container["args"] if "key" in flag or "tls-c" in flag]
    assert len(paths) == 4
    # Whole folders: Kubernetes does not change a file that is mounted alone.
    assert all(mounts[path.rsplit("/", 1)[0]]["readOnly"] for path in paths)
    assert all("subPath" not in mount for mount in mounts.values())


def test_probes_find_the_port_whether_it_speaks_tls_or_not():
    for case, scheme in {
        "defaults": None,
        "keys, certificates": "HTTPS",
        "certificates, plain metrics": None,
    }.items():
        objects = chart.render(CASES[case])
        (container,) = pod(objects)["containers"]
        probes = [container[name] for name in ("startupProbe", "livenessProbe")]
        if case == "defaults":
            assert "grpc" in container["readinessProbe"]
        else:
            probes.append(container["readinessProbe"])
        assert {probe["httpGet"].get("scheme") for probe in probes} == {scheme}, case
        assert {probe["httpGet"]["port"] for probe in probes} == {"metrics"}
        tls = {flag for flag in container["args"] if flag.startswith("--metrics-tls")}
        mode = "server" if scheme else "off"
        assert tls == (set() if case == "defaults" else {f"--metrics-tls={mode}"})
        for monitor in chart.kinds(objects).get("PodMonitor", []):
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            assert endpoint["scheme"] == "https" and endpoint["tlsConfig"]


def test_an_autoscaler_owns_the_number_of_pods():
    for kind, scaler in (("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")):
        objects = chart.render({"autoscaling": {"kind": kind}})
        deployment, scaler = chart.only(objects, "Deployment"), chart.only(objects, scaler)
        assert "replicas" not in deployment["spec"]
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert chart.only(chart.render({"replicas": 5}), "Deployment")["spec"]["replicas"] == 5


def pressure(values):
    """What the autoscaler asks for how much has been spent."""
    scaler = chart.only(chart.render({"autoscaling": {"kind": "keda"}, **values}), "ScaledObject")
    (query,) = (
        one["metadata"]["query"]
        for one in scaler["spec"]["triggers"]
        if one["name"] == "kv-pressure"
    )
    return query


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    ("kv", "precision"),
    [
        ({}, True),
        ({"mode": "progressive"}, True),
        ({"mode": "static"}, False),
        ({"mode": "preempt-only"}, False),
        ({"floor": "k=int4,v=int2"}, True),
        ({"floor": "k=int4,v=int2", "mode": "static"}, False),
        ({"profile": {"configMap": "p"}}, True),
        ({"preset": "kitty25"}, False),
        ({"preset": "kitty25", "mode": "progressive"}, True),
        ({"preset": "ebb"}, True),
        ({"preset": "ebb", "mode": "static"}, False),
    ],
)
def test_pressure_is_precision_where_the_mode_spends_it(kv, precision, gpu):
    query = pressure({"kv": kv, "gpu": {"enabled": gpu}})
    assert ("ebb:request_kv_bits" in query) == precision
    assert "vllm:kv_cache_usage_perc" in query


@pytest.mark.parametrize(("preset", "profile", "mode"), presets())
def test_pressure_follows_a_presets_mode(preset, profile, mode):
    query = pressure(
        {"kv": {"preset": preset, "profile": {"configMap": "p" if profile == "Yes" else ""}}}
    )
    assert ("ebb:request_kv_bits" in query) == (mode == "Progressive")


def test_pressure_of_a_pod_that_cannot_shrink_is_its_memory(tmp_path):
    """One pod has spent half of its precision; another keeps 16 bit, since its device has no
    kernels for the pages.
    """
    series = {
        'ebb:request_kv_bits{%s,instance="shrinks",stat="mean"}': 9,
        'ebb:kv_bits{%s,instance="shrinks",of="floor"}': 2,
        'vllm:kv_cache_usage_perc{%s,instance="shrinks"}': 1,
        'ebb:request_kv_bits{%s,instance="whole",stat="mean"}': 16,
        'ebb:kv_bits{%s,instance="whole",of="floor"}': 16,
        'vllm:kv_cache_usage_perc{%s,instance="whole"}': 0.75,
    }
    labels = f'job="ebb",namespace="{chart.NAMESPACE}",model_name="m",engine="0"'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": name % labels, "values": str(value)} for name, value in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": pressure({}),
                "eval_time": "0m",
                "exp_samples": [{"labels": "{}", "value": 1.25}],
            }
        ],
    }
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"tests": [test]}))
    done = subprocess.run(
        [tools.prometheus("promtool"), "test", "rules", file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replica": 2}, "replica"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"kv": {"mode": "static-ish"}}, "mode"),
        ({"kv": {"memory": "2Gi"}}, "memory"),
        ({"server": {"grpcPort": "50051"}}, "grpcPort"),
        ({"server": {"metricsPort": 50051}}, "two ports"),
        ({"server": {"httpPort": 9400}}, "two ports"),
        ({"server": {"httpPort": 50051}}, "two ports"),
        ({"model": {"fetch": {"env": [{"name": "HF_TOKEN", "value": "hf_x"}]}}}, "env"),
        ({"model": {"download": {"enabled": True}}}, "one of them"),
        ({"model": {"name": "/models/qwen"}}, "known by name"),
        (
            {"model": {"fetch": {"enabled": False}, "download": {"enabled": True}}},
            "model.download.image.repository",
        ),
        ({"kv": {"floor": "k=int4,v=int2", "profile": {"configMap": "p"}}}, "profile"),
        ({"kv": {"floor": "k=int4,v=int2", "preset": "kivi2"}}, "preset"),
        ({"kv": {"preset": "kivi3"}}, "preset"),
        ({"kv": {"preset": "kvmix:/profile/kvmix.json"}}, "preset"),
        ({"kv": {"staticChunk": 200}}, "staticChunk"),
        ({"kv": {"staticChunk": 0}}, "staticChunk"),
        ({"kv": {"liveLimit": "12Gi"}}, "liveLimit"),
        ({"inferencePool": {"enabled": True}}, "endpointPicker.name"),
        ({"grpcRoute": {"enabled": True}}, "parentRefs"),
        ({"tls": {"clientCaSecret": "clients"}}, "tls.existingSecret"),
        ({"tls": {"metrics": "mutual"}}, "metrics"),
        ({"autoscaling": {"kind": "keda", "maxReplicas": 1}}, "maxReplicas"),
    ],
)
def test_wrong_values_are_refused_by_name(values, word):
    with pytest.raises(chart.Refused, match=re.escape(word)):
        chart.render(values)


def test_every_value_has_a_place_in_the_schema():
    """The defaults pass, and no block of the schema is open to names that mean nothing."""
    schema = json.loads((tools.CHART / "values.schema.json").read_text())

    def check(part, path):
        if part.get("type") == "object" and "properties" in part:
            assert part.get("additionalProperties") is False, f"{path} takes any name"
        for name, inner in part.get("properties", {}).items():
            check(inner, f"{path}.{name}")

    check(schema, "values")
