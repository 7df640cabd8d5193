"""Values to render the chart with: each case turns on what the others leave off."""

CASES = {
    "defaults": {},
    "gpu": {
        "gpu": {"enabled": True, "count": 1},
        "kv": {"memory": "", "mode": "progressive", "floor": "k=int4,v=int2"},
        "image": {"repository": "registry.example.com/ebb", "digest": "sha256:" + "a" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "tolerations": [
            {"key": "pool", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}
        ],
        "nodeSelector": {"gpu": "h200"},
        "priorityClassName": "serving",
    },
    "keda, claim": {
        "autoscaling": {"kind": "keda"},
        "monitoring": {
            "kind": "podMonitor",
            "labels": {"release": "prometheus"},
            "dashboards": {"enabled": True},
        },
        "model": {"volume": {"type": "claim", "storageClassName": "shared"}},
    },
    "alerts": {
        "alerts": {"enabled": True, "parameters": {"ttftSeconds": 1}},
        "monitoring": {"labels": {"role": "alerts"}},
    },
    "hpa, preempt-only": {
        "autoscaling": {"kind": "hpa"},
        "kv": {"mode": "preempt-only"},
        "monitoring": {"kind": "serviceMonitor"},
        "service": {"headless": False, "type": "LoadBalancer", "annotations": {"a/b": "c"}},
    },
    "download": {
        "model": {
            "name": "/models/qwen",
            "servedName": "qwen",
            "fetch": {"enabled": False},
            "download": {
                "enabled": True,
                "image": {"repository": "registry.example.com/hf", "tag": "1.2"},
                "command": ["hf"],
                "args": ["download", "Qwen/Qwen2.5-7B-Instruct", "--local-dir=/models/qwen"],
                "env": [
                    {
                        "name": "HF_TOKEN",
                        "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}},
                    }
                ],
            },
        },
        "kv": {"profile": {"configMap": "qwen-profile", "bits": 3.5}, "liveLimit": "12GiB"},
        "server": {
            "maxContext": 1048576,
            "maxStepTokens": 2048,
            "extraArgs": ["--no-prefix-cache"],
        },
    },
    "keys, certificates": {
        "auth": {"existingSecret": "ebb-keys", "key": "api-keys"},
        "tls": {"existingSecret": "ebb-tls", "clientCaSecret": "ebb-clients"},
        "monitoring": {"kind": "podMonitor"},
    },
    "certificates, plain metrics": {
        "tls": {"existingSecret": "ebb-tls", "metrics": "off"},
        "monitoring": {"kind": "serviceMonitor"},
    },
    "preset": {"kv": {"preset": "kivi2", "staticChunk": 1048576}},
    "preset, profile": {
        "kv": {
            "preset": "kvmix",
            "mode": "static",
            "profile": {"configMap": "kvmix", "key": "kvmix20.json"},
        }
    },
    "gateway": {
        "grpcRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "grpc"}],
            "hostnames": ["llm.example.com"],
            "annotations": {"a": "b"},
        },
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
        "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "apps"}}}]},
    },
    "bare": {
        "replicas": 1,
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "model": {
            "fetch": {"enabled": False},
            "volume": {"type": "claim", "existingClaim": "models"},
        },
        "serviceAccount": {"name": "default"},
        "topologySpreadConstraints": [],
        "podLabels": {"team": "llm"},
        "podAnnotations": {"note": "x"},
    },
}
