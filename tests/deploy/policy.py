"""What every pod must keep to: the restricted profile of the Pod Security Standards, and the
house's rules.
"""

import re

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(objects):
    """What is wrong with the pods of these objects, in sentences."""
    found = []
    for one in objects:
        if one["kind"] == "Deployment":
            found += pod(one["spec"]["template"]["spec"])
        if one["kind"] in ("Secret", "ClusterRole", "ClusterRoleBinding"):
            found.append(f"the chart makes a {one['kind']}")
        found += [
            f"{one['kind']}: {path} names latest"
            for path, text in strings(one)
            if re.search(r":latest\b", text)
        ]
    return found


def pod(spec):
    found = []

    def must(holds, sentence):
        if not holds:
            found.append(sentence)

    security = spec.get("securityContext", {})
    must(
        security.get("runAsNonRoot") is True and security.get("runAsUser", 0) > 0,
        "the pod may run as root",
    )
    must(
        security.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
        "no seccomp profile",
    )
    must(
        not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")),
        "a namespace of the host is used",
    )
    must(spec.get("automountServiceAccountToken") is False, "a service account's token is mounted")
    for volume in spec.get("volumes", []):
        must(
            set(volume) - {"name"} <= VOLUMES,
            f"volume {volume['name']} is of a kind that restricted forbids",
        )
    for container in spec.get("initContainers", []) + spec["containers"]:
        name, mine = container["name"], container.get("securityContext", {})
        must(mine.get("allowPrivilegeEscalation") is False, f"{name} may gain privileges")
        must(mine.get("readOnlyRootFilesystem") is True, f"{name} may write to its root")
        must(not mine.get("privileged"), f"{name} is privileged")
        must(mine.get("capabilities") == {"drop": ["ALL"]}, f"{name} keeps capabilities")
        must(
            not any("hostPort" in port for port in container.get("ports", [])),
            f"{name} takes a port of the host",
        )
        resources = container.get("resources", {})
        must(
            {"cpu", "memory"} <= set(resources.get("requests", {})),
            f"{name} requests no CPU or memory",
        )
        must("memory" in resources.get("limits", {}), f"{name} has no memory limit")
        image = container["image"]
        must(
            re.fullmatch(r"\S+(@sha256:[0-9a-f]{64}|:(?!latest$)[\w][\w.-]*)", image),
            f"{name}: image {image} is not pinned",
        )
        for variable in container.get("env", []):
            secret = re.search(r"(?i)token|secret|password|credential|api_?key", variable["name"])
            must(not (secret and "value" in variable), f"{name}: {variable['name']} is written out")
    for container in spec["containers"]:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            must(probe in container, f"{container['name']} has no {probe}")
    return found


def strings(value, path=""):
    """Every text in an object, with its place."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from strings(part, f"{path}.{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from strings(part, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value
