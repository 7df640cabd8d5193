"""Models by their names on a hub: downloaded, served, and laid as Hugging Face's tools lay them."""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest

from hub import COMMIT, PIECE, Hub, tiny_model
from server import Server, binary, eventually

# A download by Hugging Face's own library.
SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download("org/tiny", local_files_only=sys.argv[1] == "local"))
"""


@pytest.fixture(scope="module")
def hub():
    with Hub(tiny_model()) as hub:
        yield hub


def variables(hub, cache, **more):
    """An environment in which that hub is the hub."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(cache),
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        **more,
    }


def answer(server):
    body = {
        "model": "org/tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 0,
        "max_tokens": 8,
        "ignore_eos": True,
    }
    status, reply, _ = server.ask("/v1/chat/completions", body)
    assert status == 200, reply
    assert reply["model"] == "org/tiny" and reply["usage"]["completion_tokens"] == 8
    return reply["choices"][0]["message"]["content"]


def snapshot(environment, how):
    """The folder that Hugging Face's library says, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SNAPSHOT, how],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


def layout(cache):
    """What lies in a cache: the bytes of each file, the target of each link."""
    repository = cache / "hub" / "models--org--tiny"
    found = {}
    for folder in ("blobs", "refs", "snapshots"):
        for path in sorted((repository / folder).rglob("*")):
            name = str(path.relative_to(repository))
            if path.is_symlink():
                found[name] = os.readlink(path)
            elif path.is_file():
                found[name] = path.read_bytes()
    return found


def test_a_model_is_downloaded_once_and_then_served_without_a_network(hub, tmp_path):
    first = variables(hub, tmp_path, HF_TOKEN="hf_secret")
    with Server(model="org/tiny", kv_memory="16MiB", env=first) as server:
        text = answer(server)
        assert not any("hf_secret" in line for line in server.log)
        assert any("downloading org/tiny" in line for line in server.log)
    asked = list(hub.requests)
    for at_hub, _, _, token, _ in asked:
        assert token == ("Bearer hf_secret" if at_hub else None)
    assert any(not at_hub for at_hub, *_ in asked)
    offline = variables(hub, tmp_path, HF_HUB_OFFLINE="1")
    with Server(model="org/tiny", kv_memory="16MiB", env=offline) as server:
        assert answer(server) == text
    assert hub.requests == asked


def test_the_cache_is_that_of_hugging_faces_library(hub, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"

    def fetch(cache, **more):
        command = [binary(), "fetch", "org/tiny"]
        environment = {**os.environ, **variables(hub, cache, **more)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    done = fetch(ours)
    assert done.returncode == 0, done.stderr
    found = snapshot(variables(hub, ours, HF_HUB_OFFLINE="1"), "local")
    assert found == ours / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    for name, content in hub.files.items():
        assert (found / name).read_bytes() == content
    # What the library downloads lies in the same places, and each takes what the other has fetched.
    snapshot(variables(hub, theirs), "download")
    assert layout(ours) == layout(theirs)
    before = len(hub.requests)
    done = fetch(theirs, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert len(hub.requests) == before
    snapshot(variables(hub, ours), "download")
    assert layout(ours) == layout(theirs)


def test_two_processes_go_on_where_a_killed_one_stopped(tmp_path):
    with Hub(tiny_model()) as hub:
        environment = {**os.environ, **variables(hub, tmp_path)}

        def fetch():
            command = [binary(), "fetch", "org/tiny"]
            return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

        blobs = tmp_path / "hub" / "models--org--tiny" / "blobs"

        def partial():
            sizes = []
            for path in blobs.glob("*.incomplete"):
                with contextlib.suppress(FileNotFoundError):  # It was complete just now.
                    sizes.append(path.stat().st_size)
            return [size for size in sizes if size >= PIECE]

        hub.pause = 0.2
        killed = fetch()
        eventually(lambda: len(partial()) == 1, 30, "the beginning of a large file")
        killed.kill()
        killed.communicate()
        (begin,) = partial()
        hub.pause = 0.02
        both = [fetch(), fetch()]
        for process in both:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
        stored = [begin for at_hub, *_, begin in hub.requests if not at_hub]
        assert sorted(stored) == ["", "", str(begin)]
        assert not list(blobs.glob("*.incomplete"))
        found = snapshot(variables(hub, tmp_path, HF_HUB_OFFLINE="1"), "local")
        for name, content in hub.files.items():
            assert (found / name).read_bytes() == content


def test_what_cannot_be_had_is_said_in_a_sentence(hub, tmp_path):
    def refusal(model, **more):
        environment = {**os.environ, **variables(hub, tmp_path, **more)}
        command = [binary(), "fetch", model]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        (line,) = done.stderr.strip().splitlines()
        return line

    assert "HF_HUB_OFFLINE forbids" in refusal("org/tiny", HF_HUB_OFFLINE="1")
    assert "no repository org/other" in refusal("org/other")
    assert "it holds no .gguf file" in refusal("org/tiny:Q4_K_M")
    assert not (tmp_path / "hub").exists()
