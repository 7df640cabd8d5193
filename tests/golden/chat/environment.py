"""jinja2 as Hugging Face transformers sets it up for chat templates."""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

# transformers takes the local time; Ebb takes UTC.
NOW = datetime.datetime(2024, 7, 26, 12, 30, tzinfo=datetime.timezone.utc)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks training targets; the text inside is unchanged."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 asks for it)

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
