#!/usr/bin/env python3
"""Renders chat templates with Ebb and with jinja2 as transformers sets it up, and shows where they
differ.

    tests/templates_beside_jinja2.py FOLDER [--verbose]

FOLDER has templates (*.jinja, *.j2, or tokenizer_config.json) at any depth. Each is rendered with
conversations with and without a system message, with tools, tool calls, reasoning, content parts,
and with and without a generation prompt. Needs cargo, and PyPI for jinja2, which is kept in
target/templates-venv. Ends with 1 if anything differs.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / "target" / "templates-venv"
JINJA2 = "jinja2==3.1.6"

TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, in °C.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Which city"},
                "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
                "days": {"type": ["integer", "null"], "minimum": 1.5},
                "places": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object", "properties": {"x": {"type": "number"}}},
            },
            "required": ["city"],
        },
        "return": {"type": "string", "description": "Words"},
    },
}
NOTHING = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, number=1):
    return {
        "id": f"call0000{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


USER = says("user", 'What\'s the <weather> in "Kraków" & Łódź?\n')
CALLS = [
    says("system", "Be brief."),
    USER,
    says("assistant", "", tool_calls=[call("get_weather", {"city": "Kraków", "days": 2})]),
    says("tool", '{"temp": 21.5}', tool_call_id="call00001", name="get_weather"),
    says("assistant", "21.5 degrees."),
    says("user", "Thanks"),
]
CONVERSATIONS = {
    "question": {"messages": [USER]},
    "system": {"messages": [says("system", "Be brief."), USER]},
    "turns": {
        "messages": [
            says("system", " Be brief. "),
            says("user", " Hi "),
            says("assistant", "\nHello!\n"),
            says("user", "2 + 2?"),
            says("assistant", "<think>\nEasy.\n</think>\n\n4"),
            says("user", ""),
        ]
    },
    "answered": {"messages": [USER, says("assistant", "Fine."), USER, says("assistant", "Rain.")]},
    "parts": {
        "messages": [
            says("system", [{"type": "text", "text": "Be brief."}]),
            says("user", [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]),
        ]
    },
    "image": {
        "messages": [says("user", [{"type": "image"}, {"type": "text", "text": "What is it?"}])]
    },
    "tools": {"messages": [USER], "tools": [WEATHER, NOTHING]},
    "system and tools": {"messages": [says("system", "Be brief."), USER], "tools": [WEATHER]},
    "calls": {"messages": CALLS, "tools": [WEATHER]},
    "calls of text": {
        "messages": [
            USER,
            says("assistant", None, tool_calls=[call("get_weather", '{"city": "Kraków"}')]),
            says("tool", "sunny", tool_call_id="call00001", name="get_weather"),
        ],
        "tools": [WEATHER],
    },
    "two calls": {
        "messages": [
            USER,
            says(
                "assistant",
                "Let me see.",
                tool_calls=[call("get_weather", {"city": "Łódź"}), call("now", {}, 2)],
            ),
            says("tool", "sunny", tool_call_id="call00001", name="get_weather"),
            says("tool", "12:30", tool_call_id="call00002", name="now"),
        ],
        "tools": [WEATHER, NOTHING],
    },
    "reasoning": {
        "messages": [
            USER,
            says("assistant", "Rain.", reasoning_content="Clouds.", thinking="Clouds."),
            says("user", "Sure?"),
        ]
    },
    "documents": {
        "messages": [USER],
        "documents": [{"title": "A", "text": "It rains.", "doc_id": 1}],
    },
    "thinking off": {
        "messages": [USER],
        "kwargs": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    },
    "thinking on": {"messages": [USER], "kwargs": {"enable_thinking": True, "thinking": True}},
    "developer": {"messages": [says("developer", "Be brief."), USER]},
    "system in the middle": {"messages": [USER, says("system", "Be brief."), USER]},
    "assistant first": {"messages": [says("assistant", "Hello"), USER]},
    "unknown role": {"messages": [says("narrator", "Once")]},
    "no content": {"messages": [{"role": "user"}]},
    "nothing": {"messages": []},
}


def inside_venv():
    """Goes on in a virtual environment that has jinja2."""
    python = VENV / "bin" / "python"
    stamp = VENV / "installed.txt"
    if not stamp.exists() or stamp.read_text() != JINJA2:
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", JINJA2], check=True)
        stamp.write_text(JINJA2)
    if pathlib.Path(sys.prefix) != VENV:
        sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)


def templates(folder):
    """Names and sources of all templates below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".jinja", ".j2", ".jinja2"):
            yield str(path.relative_to(folder)), path.read_bytes().decode()
        elif path.name == "tokenizer_config.json":
            source = json.loads(path.read_text()).get("chat_template") or []
            named = [{"name": "default", "template": source}] if isinstance(source, str) else source
            for one in named:
                yield f"{path.relative_to(folder)}:{one['name']}", one["template"]


def by_jinja2(source, arguments):
    sys.path.insert(0, str(ROOT / "tests" / "golden" / "chat"))
    from environment import environment

    try:
        return {"text": environment().from_string(source).render(**arguments)}
    except Exception as error:  # noqa: BLE001 (whatever Python raises, the template fails)
        return {"error": f"{type(error).__name__}: {error}"}


class Ebb:
    def __init__(self):
        build = ["cargo", "build", "--quiet", "--package=ebb-models", "--example=chat_template"]
        subprocess.run(build, cwd=ROOT, check=True)
        program = ROOT / "target" / "debug" / "examples" / "chat_template"
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def render(self, source, case):
        print(json.dumps({"template": source, **case}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true", help="show both texts")
    options = parser.parse_args()
    inside_venv()
    ebb = Ebb()
    counts = collections.Counter()
    for name, source in templates(options.folder):
        different = []
        for title, given in CONVERSATIONS.items():
            for prompt in (True, False):
                kwargs = {**TOKENS, **given.get("kwargs", {})}
                case = {"tools": None, "documents": None, **given, "kwargs": kwargs}
                case["add_generation_prompt"] = prompt
                arguments = {k: v for k, v in case.items() if k != "kwargs"}
                expected = by_jinja2(source, {**arguments, **kwargs})
                got = ebb.render(source, case)
                counts["rendered"] += 1
                counts["errors of both"] += "error" in expected and "error" in got
                if expected.get("text") != got.get("text"):
                    different.append((title, prompt, expected, got))
        counts["templates"] += 1
        counts["templates that differ"] += bool(different)
        if different:
            print(f"{name}: {len(different)} of {2 * len(CONVERSATIONS)} differ")
        for title, prompt, expected, got in different if options.verbose else different[:1]:
            print(f"  {title}, generation prompt {prompt}")
            print(f"    jinja2 {json.dumps(expected, ensure_ascii=False)}")
            print(f"    ebb    {json.dumps(got, ensure_ascii=False)}")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    sys.exit(1 if counts["templates that differ"] else 0)


main()
