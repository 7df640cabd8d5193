//! Chat templates.

type Inputs = Vec<(String, Vec<u8>)>;

const CHATML: &str = "{% for message in messages %}{% if loop.first and message['role'] != \
    'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}\
    {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const LLAMA: &str = "{{- bos_token }}{%- if not date_string is defined %}\
    {%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}\
    {%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}\
    {%- set system_message = messages[0]['content']|trim %}\
    {%- set messages = messages[1:] %}{{ date_string }}{{ system_message }}\
    {%- for message in messages %}{%- if message.role == 'ipython' %}\
    {{- raise_exception('no tools') }}{%- endif %}\
    {{- '<|start_header_id|>' + message['role'] + message['content'] | trim }}{%- endfor %}";
const QWEN: &str = "{%- macro render(content) %}{{- content }}{%- endmacro %}\
    {%- set ns = namespace(multi=true, last=messages|length - 1) %}\
    {%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}\
    {%- if ns.multi and message.role == 'user' and message.content is string and not \
    (message.content.startswith('<t>') and message.content.endswith('</t>')) %}\
    {%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}\
    {%- for m in messages %}{%- if '</think>' in m.content %}\
    {{- m.content.split('</think>')[-1].lstrip('\n') }}{%- else %}{{- render(m.content) }}\
    {%- endif %}{{ m | tojson(indent=2) }}{%- endfor %}{% generation %}x{% endgeneration %}";

pub(super) fn all() -> Inputs {
    let fixed = [
        ("chatml", CHATML),
        ("llama", LLAMA),
        ("qwen", QWEN),
        ("empty", ""),
        ("tag-of-three-bytes", "{%}"),
        ("unclosed", "{% for x in"),
        (
            "doubling",
            "{% set ns = namespace(s='ab') %}{% for i in range(34) %}\
            {% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        ),
        (
            "list",
            "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}\
            {% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l|length }}",
        ),
        ("batch", "{{ [1]|batch(1000000000)|list|length }}"),
        (
            "replace",
            "{% set s = 'a'*1000 %}{{ s.replace('a', s).replace('a', s)|length }}",
        ),
        ("replace-nothing", "{{ 'aaaa'.replace('', 'b' * 100) }}"),
        ("join", "{{ range(100000)|join('x' * 1000) }}"),
        ("indent", "{{ ('a\n' * 1000)|indent(1000000) }}"),
        ("times", "{{ 'a' * 1000000000 }}"),
        ("center", "{{ 'a'|center(1000000000) }}"),
        ("format", "{{ '%1000000000d'|format(1) }}"),
        (
            "range",
            "{% for x in range(1000000000) %}{{ x }}{% endfor %}",
        ),
        (
            "nested",
            "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}x\
            {% endfor %}{% endfor %}{% endfor %}",
        ),
        (
            "recursive",
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        ),
        (
            "loop-recursive",
            "{% for x in [[[1]]] recursive %}{{ loop(x) }}{% endfor %}",
        ),
        ("include", "{% include 'chat template' %}"),
        ("extends", "{% extends 'chat template' %}"),
        (
            "power",
            "{{ 10 ** 400 }}{{ 2 ** -1 }}{{ -9223372036854775808 // -1 }}",
        ),
        ("remainder", "{{ 1 % 0 }}{{ 1 // 0 }}{{ 1 / 0 }}"),
        (
            "slice",
            "{{ messages[1:0:-1]|length }}{{ 'abc'[::-1] }}{{ 'abc'[::0] }}",
        ),
        (
            "negative",
            "{{ messages[-1].content }}{{ messages[-99] }}{{ 'ü'[0] }}",
        ),
        (
            "methods",
            "{{ 'a b'.split(' ', -1)|length }}{{ 'x'.upper() }}{{ 'x'.zfill(9) }}\
            {{ {'a': 1}.items()|list|length }}{{ 'abc'.find('c') }}{{ 'a'.ljust(1000000000) }}",
        ),
        (
            "clock",
            "{{ strftime_now('%Y-%m-%d %H:%M:%S %j %U %q %1000000000d %') }}",
        ),
        (
            "json",
            "{{ messages|tojson }}{{ {'a': [none, 1.5, true]}|tojson(indent=1000000000) }}",
        ),
        (
            "sort",
            "{{ [3, 'a', none]|sort|list }}{{ messages|map(attribute='role')|join(',') }}",
        ),
        (
            "groupby",
            "{% for k, v in messages|groupby('role') %}{{ k }}{% endfor %}",
        ),
        (
            "raise",
            "{{ raise_exception('a\\u0000\\u001b[31m sentence') }}",
        ),
        ("raise-long", "{{ raise_exception('x' * 100000) }}"),
        ("comment", "{# #}{# {{ #}{% raw %}{{{% endraw %}"),
        (
            "call-block",
            "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
        ),
        (
            "filter-block",
            "{% filter upper %}a{% endfilter %}{% set x %}b{% endset %}{{ x }}",
        ),
        ("undefined", "{{ nothing }}{{ nothing.a }}"),
        ("undefined-deep", "{{ nothing.a.b }}"),
        (
            "autoescape",
            "{% autoescape true %}{{ '<' }}{% endautoescape %}",
        ),
    ];
    let mut inputs: Inputs = fixed
        .iter()
        .map(|(name, source)| ((*name).to_owned(), source.as_bytes().to_vec()))
        .collect();
    // Chains and nests, of as many links as fit.
    for (name, start, link, end) in [
        ("chain-and", "{{ 1", " and 1", " }}"),
        ("chain-not", "{{ ", "not ", "1 }}"),
        ("chain-minus", "{{ ", "-", "1 }}"),
        ("chain-filter", "{{ 'a'", "|upper", " }}"),
        ("chain-dot", "{{ a", ".b", " }}"),
        ("chain-plus", "{{ 1", "+1", " }}"),
        ("chain-concat", "{{ 'a'", "~'a'", " }}"),
        ("chain-brackets", "{{ ", "[", "1 }}"),
        ("chain-parentheses", "{{ ", "(", "1 }}"),
        ("chain-index", "{{ messages", "[0]", " }}"),
        ("chain-call", "{{ a", "()", " }}"),
        ("chain-if", "", "{% if 1 %}", ""),
        ("chain-for", "", "{% for a in [1] %}", ""),
        ("chain-elif", "{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        ("chain-compare", "{{ 1", " < 1", " }}"),
        ("chain-else", "{{ 1", " if 1 else 1", " }}"),
        ("chain-is", "{{ 1", " is defined", " }}"),
        ("chain-braces", "{{ ", "{'a': ", "1 }}"),
    ] {
        let links = (4000 - start.len() - end.len()) / link.len();
        let source = format!("{start}{}{end}", link.repeat(links));
        inputs.push((name.to_owned(), source.into_bytes()));
    }
    inputs
}
