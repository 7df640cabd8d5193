//! Templates that went around a bound of the template engine, and what was found beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use ebb_models::tokenizer::{ChatError, ChatTemplate, Conversation, RenderHost, TemplateTokens};
use serde_json::json;

use crate::chat_hostile::{all_fail, fails, is_limit, on_small_stack, peak_mib, with_message};

/// Renders it in bounded time and memory, whatever comes of it.
fn ends(source: String, content: &str) -> Result<String, ChatError> {
    let shown: String = source.chars().take(150).collect();
    let begun = Instant::now();
    let result = with_message(source, content.to_owned());
    let seconds = begun.elapsed().as_secs_f64();
    assert!(seconds < 3.0, "{shown}: {seconds} s");
    assert!(peak_mib() < 768, "{shown}: {} MiB", peak_mib());
    result
}

#[test]
fn operators_count_wherever_a_tag_ends() {
    let signs = "-".repeat(1_000_000);
    let names = ".b".repeat(500_000);
    for source in [
        format!("{{{{ {{'a':{{}}}}{names} }}}}"),
        format!("{{{{ {{'a':{{}}}} and {signs}1 }}}}"),
        format!("{{% raw %}}{{{{ ' {{% endraw %}}{{{{ {signs}1 }}}}"),
        format!("{{% raw %}}{{% \" {{% endraw %}}{{{{ a{names} }}}}"),
        format!("{{# {{{{ ' #}}{{{{ a{names} }}}}"),
        format!("{{{{ '}}}}' ~ a{names} }}}}"),
        format!("{{% if '%}}' ~ {signs}1 %}}{{% endif %}}"),
        format!("{{% set x = [1] %}}\n{{{{ (x{names}) }}}}"),
    ] {
        let error = fails(source);
        let sentence = error.to_string();
        assert!(sentence.contains("more than 1000 operators"), "{sentence}");
    }
    let error = fails(format!("one\n{{{{\n{signs}1 }}}}")).to_string();
    assert!(error.contains("line 3"), "{error}");
}

#[test]
fn names_and_lists_of_arguments_have_a_length() {
    let name = "a".repeat(255);
    let fine = format!("{{{{ {name} is defined }}}}");
    assert_eq!(on_small_stack(fine).as_deref(), Ok("False"));
    let long = format!("{{{{ {name}a is defined }}}}");
    assert!(fails(long).to_string().contains("255 bytes"));
    let names = |count: usize| (0..count).map(|at| format!("a{at}")).collect::<Vec<_>>();
    let define = |count: usize| {
        let names = names(count).join(",");
        format!("{{% macro f({names}) %}}x{{% endmacro %}}{{{{ f() }}}}")
    };
    assert_eq!(on_small_stack(define(255)).as_deref(), Ok("x"));
    assert!(
        fails(define(120_000))
            .to_string()
            .contains("255 parameters")
    );
    let call = format!("{{{{ f({}) }}}}", names(120_000).join(","));
    assert!(fails(call).to_string().contains("255 arguments"));
    let named = format!("{{{{ f({}=1) }}}}", names(300).join("=1,"));
    assert!(fails(named).to_string().contains("255 arguments"));
    let named = format!("{{{{ f({}=1) }}}}", names(90_000).join("=1,"));
    assert!(fails(named).to_string().contains("1000 operators"));
}

#[test]
fn blocks_and_assignments_of_any_number_are_parsed_in_time() {
    let blocks: String = (0..30_000)
        .map(|at| format!("{{% block b{at} %}}{{% endblock %}}"))
        .collect();
    let begun = Instant::now();
    assert_eq!(on_small_stack(blocks).as_deref(), Ok(""));
    assert!(begun.elapsed() < Duration::from_secs(3));
    let sets: String = (0..60_000).map(|at| format!("{{%set a{at}=1%}}")).collect();
    let nested = "{%if 0%}".repeat(99) + &sets + &"{%endif%}".repeat(99);
    let begun = Instant::now();
    assert_eq!(on_small_stack(nested).as_deref(), Ok(""));
    assert!(begun.elapsed() < Duration::from_secs(6));
}

#[test]
fn messages_of_undefined_values_are_short_and_paid() {
    let sources = [
        "{{ range(3000)|map('attr', 'a' * 1000000)|list|length }}",
        "{{ range(3000)|map(attribute='a' * 1000000)|list|length }}",
        "{{ range(99999)|map('attr', 'a' * 300)|list|length }}{{ 'x' * 9999999 }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}\
         {% set y = {}[x] %}{% set y = [][x] %}{% set y = i[x] %}{% endfor %}",
        "{% set x = range(9000)|list %}{% for i in range(99999) %}{% set y = {}[x] %}{% endfor %}",
    ];
    for source in sources {
        let _ = ends(source.to_owned(), "hello");
    }
    let name = "b".repeat(200);
    for source in [
        format!("{{{{ {name}.x }}}}"),
        format!("{{{{ {{}}['{name}'].x }}}}"),
        format!("{{{{ '%({name})s' % {{}} }}}}"),
        format!("{{{{ '{{{name}}}'.format() }}}}"),
        format!("{{{{ dict(1, {name}=1) }}}}{{{{ 'a'.upper({name}=1) }}}}"),
        format!("{{% macro f() %}}{{% endmacro %}}{{{{ f({name}=1) }}}}"),
    ] {
        let sentence = fails(source).to_string();
        assert!(!sentence.contains(&name), "{sentence}");
    }
    let sentence = fails("{{ raise_exception('é' * 100000) }}").to_string();
    assert!(
        sentence.len() < 1200 && sentence.ends_with('…'),
        "{sentence}"
    );
}

#[test]
fn filters_of_filters_are_counted() {
    assert!(is_limit(&fails("{{ 'a'|map(*(['map'] * 20000))|list }}")));
    let error = fails("{{ 'a'|map(*(['map'] * 1000))|list }}");
    assert!(
        error.to_string().contains("nested more than 200"),
        "{error}"
    );
    let fine = "{{ 'a'|map(*(['map'] * 150 + ['list']))|list|length }}".to_owned();
    assert_eq!(on_small_stack(fine).as_deref(), Ok("1"));
    for source in [
        "{% set a = ['map'] + ['x' * 9] * 60000 %}{{ 'a'|map(*a)|list }}",
        "{{ range(99999)|select('eq', *([1] * 50000))|list }}",
        "{{ range(99999)|map('format', **{'a' * 300000: 1})|list }}",
    ] {
        let _ = ends(source.to_owned(), "hello");
    }
}

#[test]
fn chains_of_loops_are_taken_apart_one_by_one() {
    let letters = "x".repeat(1_500_000);
    let (times, ends_of) = ("{% for i in range(30000) %}", "{% endfor %}");
    for step in [
        // What a loop compares holds the loop before.
        "{% for j in [1] %}{% if loop.changed(ns.l) %}{% endif %}{% set ns.l = loop %}{% endfor %}",
        // A list is made of the loop before that has anything to hold.
        "{% for j in [1] %}{% set x = [loop] %}{% if loop.changed(ns.l) %}{% endif %}\
         {% set ns.l = x %}{% endfor %}",
        // The scope around a recursive loop holds the loop before.
        "{% set p = ns.l %}{% for j in [1] recursive %}{% set ns.l = loop %}{% endfor %}",
        "{% set p = ns.l %}{% for j in [1] recursive %}{% set ns.l = [loop] %}{% endfor %}",
    ] {
        let source = format!("{{% set ns = namespace(l=1) %}}{times}{step}{ends_of}x");
        assert_eq!(ends(source.clone(), &letters).as_deref(), Ok("x"), "{step}");
        let again = format!("{source}{{% set ns.l = 1 %}}y");
        assert_eq!(ends(again, &letters).as_deref(), Ok("xy"), "{step}");
    }
    let plain = "{% for m in messages %}{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}\
                 {{ loop.changed(m.role) }}{% endfor %}";
    let expected = Ok("TrueFalseTrueTrue");
    assert_eq!(on_small_stack(plain.to_owned()).as_deref(), expected);
}

#[test]
fn whole_numbers_never_overflow() {
    let least = "(-(2**126)-(2**126))";
    let most = "((2**126-1)+(2**126))";
    let numbers = [
        "0",
        "1",
        "-1",
        "2",
        "-2",
        "3",
        "10",
        "-331",
        "-1000",
        "2**64",
        "-(2**64)",
        least,
        most,
        "2**100",
        "-(2**100)",
        "1e30",
        "-1e30",
        "1e300",
        "true",
    ];
    let forms = [
        "A in range(0,-5,-1)",
        "A in range(B,5)",
        "A in range(B)[::C]",
        "range(A,B,C)",
        "range(5)[A:B:C]|list",
        "range(5)[::A][::B][C:]|list",
        "range(2**99,2**99+9)[::A][::B]|last",
        "range(0,1)[A:][::B][::C]",
        "range(A)[B]",
        "[1,2][A:B:C]",
        "'abc'[A:B:C]",
        "'äbc'[A:B:C]",
        "[1,2][A]",
        "A+B",
        "A-B",
        "A*B",
        "A/B",
        "A//B",
        "A%B",
        "A**B",
        "-A",
        "+A",
        "A|abs",
        "A|round(B)",
        "A|round(B,'ceil')",
        "A|round(B,'floor')",
        "A|int",
        "A|float",
        "A|filesizeformat",
        "'%d %x %e'|format(A,B,C)",
        "'%*d'|format(A,B)",
        "'%.*f'|format(A,B)",
        "'{:,}'.format(A)",
        "'{:c}'.format(A)",
        "A is divisibleby(B)",
        "A is odd",
        "A==B",
        "A<B",
        "{A:1}[B]",
        "A.bit_length()",
        "A.as_integer_ratio()",
        "[A,B,C]|sum",
        "[A,B,C]|sort",
        "'abc'.find('b',A,B)",
        "'äbc'.rfind('b',A,B)",
        "'abc'.startswith('b',A,B)",
        "[1,2].index(2,A,B)",
        "'abc'.split('b',A)",
        "'abc'.replace('b','',A)",
        "'abc'|truncate(A,true,'',B)",
        "'abc'|wordwrap(A)",
        "'abc'|center(A)",
        "'a\tb'.expandtabs(A)",
        "'7'.zfill(A)",
        "'a'*A",
        "[1]*A",
        "[1,2]|batch(A)|list",
        "[1,2]|slice(A)|list",
        "'z'|int(0,A)",
        "[1]|tojson(indent=A)",
        "'ab'|indent(A)",
        "lipsum(A)",
    ];
    let mut sources = Vec::new();
    for form in forms {
        // Each number in each place, beside others that go round.
        for (at, number) in numbers.iter().enumerate() {
            for (b, c) in [(1, 2), (7, 3), (11, 12), (12, 11), (13, 2), (5, 10)] {
                let other = |by: usize| numbers[(at + by) % numbers.len()];
                let filled = form
                    .replace('A', &format!("({number})"))
                    .replace('B', &format!("({})", other(b)))
                    .replace('C', &format!("({})", other(c)));
                sources.push(format!("{{{{ {filled} }}}}"));
            }
        }
    }
    let thread = std::thread::Builder::new().stack_size(16 << 20);
    let all = move || {
        for source in sources {
            let begun = Instant::now();
            let _ = with_message(source.clone(), "hello".to_owned());
            assert!(begun.elapsed() < Duration::from_secs(3), "{source}");
        }
    };
    thread
        .spawn(all)
        .expect("a thread")
        .join()
        .expect("no panic");
    for (source, expected) in [
        (format!("{{{{ {least} in range(0, -5, -1) }}}}"), "False"),
        ("{{ 10**38 // 2 * 2 % 7 }}".to_owned(), "2"),
        (
            "{{ (7 * 10**37)|round(-38) }}".to_owned(),
            "100000000000000000000000000000000000000",
        ),
        ("{{ (5 * 10**37)|round(-38) }}".to_owned(), "0"),
        (format!("{{{{ 5|round({least}) }}}}"), "0"),
        ("{{ range(9)[::-2]|list }}".to_owned(), "[8, 6, 4, 2, 0]"),
        ("{{ range(9)[7:2:-2][::2]|list }}".to_owned(), "[7, 3]"),
    ] {
        assert_eq!(
            on_small_stack(source.clone()).as_deref(),
            Ok(expected),
            "{source}"
        );
    }
}

#[test]
fn lines_are_wrapped_in_time_and_as_python_does() {
    let long = "{{ ('a' * 280000)|wordwrap(1)|length }}";
    assert_eq!(ends(long.to_owned(), ""), Err(ChatError::TooManySteps));
    let shorter = "{{ ('a' * 100000)|wordwrap(1)|length }}";
    assert_eq!(ends(shorter.to_owned(), "").as_deref(), Ok("199999"));
    for unit in ["a-", "ab-", "a ", "  ", "ab-cd ", "é"] {
        for width in [1, 3, 1000] {
            let source = format!("{{{{ ('{unit}' * 9000)|wordwrap({width})|length }}}}");
            ends(source, "").expect("some lines");
        }
    }
    // As `textwrap.wrap(text, width, expand_tabs=False, replace_whitespace=False,
    // break_long_words=…, break_on_hyphens=…)` has them.
    for (call, expected) in [
        ("'the quick-brown fox'|wordwrap(9)", "the|quick-|brown fox"),
        ("'the quick-brown fox'|wordwrap(5)", "the q|uick-|brown|fox"),
        (
            "'the quick-brown fox'|wordwrap(5, false)",
            "the|quick-|brown|fox",
        ),
        (
            "'ab-cd-ef gh'|wordwrap(5, true, none, false)",
            "ab-cd|-ef|gh",
        ),
        ("'abcdefgh ij'|wordwrap(3)", "abc|def|gh|ij"),
        ("'  ab   cd  '|wordwrap(4)", "  ab|cd"),
        ("'a-b --cd x-1-yz'|wordwrap(3)", "a-b|--c|d x|-1-|yz"),
    ] {
        let source = format!("{{{{ ({call}).split('\n')|join('|') }}}}");
        assert_eq!(on_small_stack(source).as_deref(), Ok(expected), "{call}");
    }
}

#[test]
fn what_costs_more_than_a_step_is_paid() {
    let each = |before: &str, read: &str| {
        format!("{before}{{% for i in range(99999) %}}{read}{{% endfor %}}")
    };
    let text = "{% set x = 'x' * 1000000 %}{% set z = 'x' * 999999 + 'y' %}";
    let path = "{% set x = '1.' * 250000 %}";
    let names = "{% set ns = namespace(**d) %}";
    let mut sources = vec![
        "{{ ('x' * 1000000).startswith(('x' * 999999 + 'y',) * 100000) }}".to_owned(),
        "{{ ('x' * 1000000).endswith(('y' + 'x' * 999999,) * 100000) }}".to_owned(),
        each(text, "{% if 'y'.find(x) %}{% endif %}"),
        each(text, "{% if 'y'.count(z) %}{% endif %}"),
        each(text, "{% if 'y'.split(z) %}{% endif %}"),
        each(text, "{% if 'y'.rsplit(z) %}{% endif %}"),
        each(text, "{% if 'y'.partition(z) %}{% endif %}"),
        each(text, "{% if 'y'.replace(z, '') %}{% endif %}"),
        each(text, "{% if 'y'|replace(z, '') %}{% endif %}"),
        each(text, "{% if z in 'y' %}{% endif %}"),
        each(text, "{% if []|tojson(separators=(x, z)) %}{% endif %}"),
        each(text, "{% if dict(**{x: 1}) %}{% endif %}"),
        each(text, "{% if {}|xmlattr(**{x: 1}) %}{% endif %}"),
        each(text, "{% if x is sameas z %}{% endif %}"),
        each(
            text,
            "{% if [x] is sameas [z] or (x, ) is sameas (z, ) %}{% endif %}",
        ),
        each(text, "{% if x is lower %}{% endif %}"),
        // Names as long as each other, which differ at the end.
        each(
            &format!("{text}{{% set ns = namespace(**{{x: 1}}) %}}"),
            "{% if ns|attr(z) %}{% endif %}",
        ),
        each(
            &format!("{text}{{% set ns = namespace(**{{x: 1}}) %}}"),
            "{% set y = namespace(ns, **{z: 1}) %}",
        ),
        // Flags, widths and keys of a format.
        each(
            "{% set f = '%' ~ '#' * 1000000 ~ 'd' %}",
            "{% if f % 1 %}{% endif %}",
        ),
        each(
            "{% set f = '%' ~ '0' * 1000000 ~ 'd' %}",
            "{% if f|format(1) %}{% endif %}",
        ),
        each(
            "{% set f = '%(' ~ 'é' * 400000 ~ ')d' %}",
            "{% if f % 1 %}{% endif %}",
        ),
        each(
            "{% set f = '%.' ~ '0' * 1000000 ~ 'd' %}",
            "{% if f % 1 %}{% endif %}",
        ),
        each(path, "{% if []|groupby(x) %}{% endif %}"),
        each(path, "{% if []|sort(attribute=x) %}{% endif %}"),
        each(path, "{% if []|join('', x) %}{% endif %}"),
        each(path, "{% if []|sum(x) %}{% endif %}"),
        each(path, "{% if []|unique(attribute=x)|list %}{% endif %}"),
        each("", &"{%set x=1%}".repeat(80_000)),
        each("", &"{%macro f()%}{%endmacro%}".repeat(30_000)),
        each(
            "",
            &format!("{{% with {}a=1 %}}{{% endwith %}}", "a=1,".repeat(200_000)),
        ),
        each(
            "",
            &format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(500)),
        ),
        each("", &format!("{{% set x = [{}1] %}}", "1,".repeat(400_000))),
        each("", "{{ '%.1000f' % 1e-300 }}{{ '%.999e'|format(1e300) }}"),
        each("", "{{ '{:.1000f}'.format(1e-300) }}"),
        each("", "{{ 1e-300|round(330) }}"),
        format!(
            "{{% set ns = namespace() %}}{{% set ns.a = ns %}}{}",
            each(
                "{% set f = '{0' + '.a' * 300000 + '}' %}",
                "{{ f.format(ns) }}"
            )
        ),
        "{% set d = dict(range(20000)|map('string')|batch(2)) %}\
         {{ ('{0}' * 250000).replace('0', '19998').format_map(d) }}"
            .to_owned(),
        format!(
            "{{% set d = dict(range(3000)|map('string')|batch(2)) %}}{names}{}",
            each("", "{% if ns.x %}{% endif %}")
        ),
    ];
    let variables: String = (0..1500).map(|at| format!("{{%set a{at}=1%}}")).collect();
    sources.push(each(
        &variables,
        "{% if messages %}{% endif %}{% if b %}{% endif %}",
    ));
    for source in sources {
        let _ = ends(source, "hello");
    }
}

#[test]
fn lines_of_a_text_are_not_listed() {
    let lines = "\n".repeat(14_000_000);
    for filter in ["indent(0)", "wordwrap(9)"] {
        let source = format!("{{{{ (messages[0].content * 4)|{filter}|length }}}}");
        assert_eq!(
            ends(source, &lines),
            Err(ChatError::TooManySteps),
            "{filter}"
        );
    }
    for (call, expected) in [
        ("'a\nb\r\n\nc'.splitlines()|join('|')", "a|b||c"),
        ("'a\nb\r\n\nc\n'.splitlines(true)|length", "4"),
        ("''.splitlines()|length", "0"),
        ("'a\n\nb\n'|indent(2)|replace('\n', '|')", "a||  b|"),
        (
            "'a <b>c</b> <!-- d > --> e &amp;lt; &lt;'|striptags",
            "a c e &lt; <",
        ),
        ("' a  <b <c> d'|striptags", "a d"),
        ("'<!-- a'|striptags", "<!-- a"),
    ] {
        let source = format!("{{{{ {call} }}}}");
        assert_eq!(on_small_stack(source).as_deref(), Ok(expected), "{call}");
    }
}

#[test]
fn numbers_are_rounded_as_python_does() {
    for (call, expected) in [
        ("0.6|round(-1)", "0.0"),
        ("0.05|round(-1)", "0.0"),
        ("-0.6|round(-1)", "-0.0"),
        ("5e-324|round(-1)", "0.0"),
        ("1.0|round(-1)", "0.0"),
        ("0.6|round(-1, 'ceil')", "10.0"),
        ("-0.6|round(-1, 'ceil')", "0.0"),
        ("0.6|round(-1, 'floor')", "0.0"),
        ("-0.6|round(-1, 'floor')", "-10.0"),
        ("1.7e308|round(-309)", "0.0"),
        ("-1.7e308|round(-309)", "-0.0"),
        ("-1.7e308|round(-310)", "-0.0"),
        ("1.2e308|round(-308)", "1e+308"),
        ("4e307|round(-308)", "0.0"),
        ("6e307|round(-308)", "1e+308"),
        ("1.7e308|round(-307)", "1.7e+308"),
        ("1234.5|round(-2)", "1200.0"),
        ("50.0|round(-2)", "0.0"),
        ("150.0|round(-2)", "200.0"),
        ("-50.00000000000001|round(-2)", "-100.0"),
        ("250.0|round(-2)", "200.0"),
        ("999.0|round(-1)", "1000.0"),
        ("0.4|round(-1)", "0.0"),
        ("5e22|round(-23)", "0.0"),
        ("1e23|round(-22)", "1e+23"),
    ] {
        let source = format!("{{{{ {call} }}}}");
        assert_eq!(on_small_stack(source).as_deref(), Ok(expected), "{call}");
    }
    let sentence = fails("{{ 1.7e308|round(-308) }}").to_string();
    assert!(sentence.contains("too large to represent"), "{sentence}");
}

#[test]
fn small_objects_are_charged() {
    let letters = "x".repeat(1_000_000);
    let sources = [
        // A list in each argument of a macro that calls itself.
        "{% set l = [1] * 600000 %}{% macro f() %}{{ f(*l, **f()) }}{% endmacro %}{{ f() }}"
            .to_owned(),
        format!(
            "{{% macro f() %}}{{% set x = [{}f()] %}}{{% endmacro %}}{{{{ f() }}}}",
            "1,".repeat(300_000)
        ),
        format!(
            "{{% set ns = namespace() %}}{{% set x = [{}] %}}",
            "{},".repeat(300_000)
        ),
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}\
         {% set ns.l = namespace(aaaaaaaa=namespace()) %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% for c in m.content %}\
         {% macro f() %}{% endmacro %}{% set ns.l = [f, dict(), range(9), cycler(1), joiner()] %}\
         {% endfor %}{% endfor %}"
            .to_owned(),
        "{% for m in messages %}{% for c in m.content %}{% for x in [1] %}{% endfor %}\
         {% endfor %}{% endfor %}"
            .to_owned(),
    ];
    for source in sources {
        let _ = ends(source, &letters);
    }
    let recursion = "{% macro f() %}{{ f(*l, **f()) }}{% endmacro %}";
    let error = fails(format!(
        "{{% set l = [1] * 200000 %}}{recursion}{{{{ f() }}}}"
    ));
    assert!(is_limit(&error), "{error}");
    let _ = all_fail([format!(
        "{{{{ range(9)|map('map')|list }}}}{{{{ {} }}}}",
        "[".repeat(99)
    )]);
}

/// Wants a text for so many questions, and gives it so many bytes.
struct Host {
    questions: AtomicUsize,
    bytes: AtomicUsize,
}

impl RenderHost for Host {
    fn is_wanted(&self) -> bool {
        let left = |left: usize| left.checked_sub(1);
        let asked = self
            .questions
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        asked.is_ok()
    }

    fn hold(&self, bytes: usize) -> bool {
        let left = |left: usize| left.checked_sub(bytes);
        let taken = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        taken.is_ok()
    }
}

#[test]
fn a_rendering_asks_its_host_for_memory_and_whether_it_is_wanted() {
    let render = |source: &str, questions: usize, bytes: usize| {
        let template = ChatTemplate::new(source, TemplateTokens::default()).expect("a template");
        let host = Arc::new(Host {
            questions: questions.into(),
            bytes: bytes.into(),
        });
        let given = Conversation {
            messages: &[json!({"role": "user", "content": "x".repeat(100_000)})],
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: None,
            now: UNIX_EPOCH,
        };
        let text = template.render_while(&given, host.clone());
        let left = (&host.questions, &host.bytes);
        let [questions, bytes] = [left.0, left.1].map(|left| left.load(Ordering::Relaxed));
        (text, questions, bytes)
    };
    let plain = "{{ messages[0].content }}";
    let (text, _, left) = render(plain, 1000, 1 << 20);
    assert_eq!(text.map(|text| text.len()), Ok(100_000));
    // The message and its text, and not much more.
    let taken = (1 << 20) - left;
    assert!((200_000..400_000).contains(&taken), "{taken}");
    // What a filter holds on its way is asked for, too.
    let (text, _, left) = render("{{ messages[0].content|striptags|length }}", 1000, 1 << 20);
    assert_eq!(text.as_deref(), Ok("100000"));
    let taken = (1 << 20) - left;
    assert!((400_000..600_000).contains(&taken), "{taken}");
    for bytes in [0, 50_000, 150_000] {
        assert_eq!(render(plain, 1000, bytes).0, Err(ChatError::TooMuchMemory));
    }
    let long = "{% for i in range(99999) %}{% endfor %}";
    let (ended, left, _) = render(long, 10_000, 1 << 30);
    assert!(ended.is_ok() && left < 9_950, "{left}");
    for questions in [0, 1, 50] {
        let (ended, left, _) = render(long, questions, 1 << 30);
        assert_eq!((ended, left), (Err(ChatError::CalledOff), 0));
    }
    // A rendering without a host is not asked for the one before.
    assert_eq!(on_small_stack("x".to_owned()).as_deref(), Ok("x"));
}
