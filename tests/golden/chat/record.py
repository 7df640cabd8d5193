#!/usr/bin/env python3
"""Records what Jinja2, set up as Hugging Face transformers does, makes of chat templates.

    pip install jinja2==3.1.6 gguf
    python record.py [SmolLM2.gguf] [Qwen2.5-Coder.gguf] > expected.json

The templates are the .jinja files beside this script (written for it, in the manner of the
models they are named after) and, where given, the ones inside GGUF files.
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2024, 7, 26, 12, 30, tzinfo=datetime.timezone.utc)
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


class Generation(jinja2.ext.Extension):
    """{% generation %} marks training targets; the text inside is unchanged."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_inside")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


class Refused(jinja2.TemplateError):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


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
