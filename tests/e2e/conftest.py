"""Fixtures: one server and one client for all tests that do not need their own."""

import json
import pathlib

import openai
import pytest

from api import Api
from server import Server

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "smollm2-135m-instruct.json"
# Where two tokens are this close (in logits), rounding may decide between them.
MARGIN = 0.05


@pytest.fixture(scope="session")
def server():
    # Answers are compared with those of weights that are bf16.
    with Server("--weights", "exact") as server:
        yield server


@pytest.fixture(scope="session")
def api(server):
    api = Api(server.address)
    yield api
    api.close()


@pytest.fixture(scope="session")
def client(server):
    """The official client, pointed at the server."""
    with openai.OpenAI(base_url=f"http://{server.api}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def golden():
    """Greedy answers of another implementation, cut before the first step that is too close to
    call.
    """
    cases = json.loads(GOLDEN.read_text())["weights_bf16_rounded_fp32_compute"]
    for case in cases:
        margins = case["top1_minus_top2_per_step"]
        sure = next((i for i, margin in enumerate(margins) if margin < MARGIN), len(margins))
        case["sure_ids"] = case["generated_ids"][:sure]
    return cases
