#!/usr/bin/env python3
"""Records what jinja2, set up as transformers does, makes of the templates of snippets.txt.

    pip install jinja2==3.1.6
    python snippets.py > snippets.json

Each is rendered with ARGUMENTS. One that raises is recorded as an error, without its words.
"""

import json
import pathlib

from environment import environment

ARGUMENTS = {
    "n": None,
    "yes": True,
    "no": False,
    "i": 7,
    "neg": -7,
    "big": 9223372036854775807,
    "f": 2.5,
    "tiny": 1e-7,
    "huge": 1e22,
    "s": "Hello, World",
    "e": "",
    "u": "naïve 日本 \U0001f600",
    "q": 'it\'s "x"\n',
    "l": [3, 1, 2],
    "empty": [],
    "words": ["b", "A", "c", "a"],
    "mixed": [1, "1", 1.0, True, None, [], {}],
    "d": {"z": 1, "a": [1, 2], "m": {"k": "v"}},
    "nodict": {},
    "keys": {"items": 1, "get": 2, "role": "user"},
    "people": [
        {"name": "Bo", "age": 30, "city": "ca", "on": True},
        {"name": "al", "age": 25, "city": "NY", "on": False},
        {"name": "Cy", "age": 30, "city": "CA"},
    ],
    "parts": [{"type": "text", "text": "hi"}, {"type": "image"}],
    "fn": {
        "type": "function",
        "function": {"name": "f", "parameters": {"é": [1.5, None, True], "b": "<&>'\"\\"}},
    },
}

HERE = pathlib.Path(__file__).parent


def lines():
    """Topics and templates."""
    for section in (HERE / "snippets.txt").read_text().split("\n== ")[1:]:
        topic, *templates = section.rstrip("\n").split("\n")
        for template in templates:
            yield topic, template.replace("<NL>", "\n").replace("<CR>", "\r")


def main():
    recorded = []
    for topic, template in lines():
        case = {"topic": topic, "template": template}
        try:
            case["text"] = (
                environment()
                .from_string(template)
                .render(
                    messages=[],
                    tools=None,
                    documents=None,
                    add_generation_prompt=False,
                    **ARGUMENTS,
                )
            )
        except Exception:  # noqa: BLE001 (whatever Python raises, the template fails)
            case["error"] = True
        recorded.append(case)
    arguments = json.dumps(ARGUMENTS, ensure_ascii=False)
    cases = ",\n".join(json.dumps(case, ensure_ascii=False) for case in recorded)
    print(f'{{"arguments": {arguments},\n"snippets": [\n{cases}\n]}}')


main()
