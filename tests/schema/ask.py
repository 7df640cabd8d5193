"""Runs schemathesis against a server of its own."""

import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from server import Server  # noqa: E402

# Left out: positive_data_acceptance, since the document cannot tell the size of the vocabulary or
# which roles a template takes.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
]


def main():
    # A short context, so that answers without a limit end soon.
    with Server("--max-context", "128", "--max-running", "16") as server:
        command = [
            pathlib.Path(sys.executable).parent / "schemathesis",
            "run",
            f"http://{server.api}/openapi.json",
            f"--checks={','.join(CHECKS)}",
            "--max-examples=20",
            "--request-timeout=60",
            "--suppress-health-check=all",
            *sys.argv[1:],
        ]
        # It leaves a folder where it runs.
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([str(part) for part in command], check=False, cwd=folder)
        assert server.status("/livez") == 200, "the engine stopped"
        errors = sum(
            value
            for (name, labels), value in server.metrics().items()
            if name == "ebb:http_requests_total" and dict(labels)["status"] in ("500", "502")
        )
        assert errors == 0, f"{errors} calls were answered with a server error"
        return done.returncode


sys.exit(main())
