#!/usr/bin/env python3
"""Records what Jinja2, set up as Hugging Face transformers does, makes of chat templates.

    pip install jinja2==3.1.6 gguf
    python record.py [SmolLM2.gguf] [Qwen2.5-Coder.gguf] > expected.json

The templates are the .jinja files beside this script (written for it, in the manner of the
models they are named after) and, where given, the ones inside GGUF files.
"""

import json
import pathlib
import sys

import jinja2
from environment import Refused, environment

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def turn(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = {
    "one question": [turn("user", "What is the capital of Japan? Answer in one sentence.")],
    "system and question": [
        turn("system", "You are terse."),
        turn("user", "Why is the sky blue?"),
    ],
    "several turns": [
        turn("system", "  Answer in French.  "),
        turn("user", " Hello! "),
        turn("assistant", "\nBonjour !\n"),
        turn("user", "And goodbye?"),
    ],
    "hostile characters": [
        turn(
            "user",
            '<b>"it\'s"</b> & {{ braces }} {% tags %} \\n \t \u00e9\u65e5\u672c \U0001f600 </s>',
        ),
        turn("assistant", "ok\u2028\u0007\u007f"),
        turn("user", ""),
    ],
    "reasoning": [
        turn("user", "2 + 2?"),
        turn("assistant", "<think>\nEasy.\n</think>\n\n4"),
        turn("user", "<tool_response>x</tool_response>"),
        turn("assistant", "<think>\nHm.\n</think>\n\nDone."),
        turn("user", "Thanks"),
        turn("assistant", "\n\nSure."),
    ],
    "a tool speaks": [
        turn("user", "Weather?"),
        turn("tool", "sunny"),
        turn("tool", "warm"),
        turn("assistant", "Sunny and warm."),
    ],
    "system in the middle": [
        turn("user", "a"),
        turn("system", "b"),
        turn("user", "c"),
    ],
    "assistant first": [turn("assistant", "Hello"), turn("user", "Hi")],
    "unknown role": [turn("narrator", "Once upon a time")],
    "nothing": [],
}


def record(name, source):
    template = environment().from_string(source)
    for title, messages in CONVERSATIONS.items():
        for prompt in (True, False):
            case = {
                "template": name,
                "conversation": title,
                "messages": messages,
                "add_generation_prompt": prompt,
            }
            try:
                case["text"] = template.render(
                    messages=messages,
                    tools=None,
                    documents=None,
                    add_generation_prompt=prompt,
                    **TOKENS,
                )
            except Refused as refused:
                case["refused"] = str(refused)
            except jinja2.TemplateError as failed:
                case["failed"] = str(failed)
            yield case


def gguf_template(path):
    import gguf

    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    return field.contents()


def main():
    here = pathlib.Path(__file__).parent
    sources = {path.name: path.read_text() for path in sorted(here.glob("*.jinja"))}
    for name, path in zip(["gguf:smollm2", "gguf:qwen2.5-coder"], sys.argv[1:]):
        sources[name] = gguf_template(path)
    cases = [case for name, source in sources.items() for case in record(name, source)]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    print(f"[\n{lines}\n]")


main()
