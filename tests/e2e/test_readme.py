"""The README's client works as it stands."""

import contextlib
import io
import pathlib
import re

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


def test_the_client_of_the_readme_gets_an_answer(server, api):
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)
    assert "127.0.0.1:50051" in code
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code.replace("127.0.0.1:50051", server.address), "README.md", "exec"), {})
    sampling = {"temperature": 0, "max_tokens": 8}
    assert (
        said.getvalue() == api.generate(text="The capital of France is", sampling=sampling)[0].text
    )
