"""What the README and the program's page tell to run works as it stands."""

import contextlib
import io
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
JAPAN = "What is the capital of Japan?"


def blocks(page, language):
    """Blocks of code of a page."""
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, (ROOT / page).read_text(), flags=re.M | re.S)


def said_by(code, address, server):
    """What the Python code prints, at the server under test."""
    assert address in code
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code.replace(address, server), "README.md", "exec"), {})
    return said.getvalue()


def test_the_first_curl_of_the_readme_gets_an_answer(server, api):
    (code, *_) = [code for code in blocks("README.md", "sh") if code.startswith("curl ")]
    assert "http://localhost:8000/v1/chat/completions" in code
    code = code.replace("localhost:8000", server.api)
    done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    chat = [("user", JAPAN)]
    theirs = api.generate(chat=chat, sampling={"temperature": 0, "max_tokens": 32})
    assert answer["choices"][0]["message"]["content"] == theirs[0].text


def test_openais_client_of_the_readme_gets_an_answer(server, api):
    (code,) = blocks("README.md", "python")
    sampling = {"temperature": 0, "max_tokens": 32}
    theirs = api.generate(chat=[("user", JAPAN)], sampling=sampling)[0].text
    assert said_by(code, "localhost:8000", server.api) == theirs


def test_the_client_of_the_readme_gets_an_answer(server, api):
    (code,) = blocks("engine/README.md", "python")
    sampling = {"temperature": 0, "max_tokens": 8}
    assert (
        said_by(code, "127.0.0.1:50051", server.address)
        == api.generate(text="The capital of France is", sampling=sampling)[0].text
    )
