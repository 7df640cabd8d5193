//! Templates that try to take the process down: each is refused, or fails its own conversation.

use std::time::{Duration, Instant, UNIX_EPOCH};

use ebb_models::tokenizer::{ChatError, ChatMessage, ChatTemplate, Conversation, TemplateTokens};

/// From a thread with little stack, as a server's have.
pub(crate) fn on_small_stack(source: String) -> Result<String, ChatError> {
    with_message(source, "hello".to_owned())
}

/// The same, with what the user says.
pub(crate) fn with_message(source: String, content: String) -> Result<String, ChatError> {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let render = move || {
        let template = ChatTemplate::new(&source, TemplateTokens::default())?;
        let role = "user".to_owned();
        let message = ChatMessage { role, content };
        template.render(&[message], true, UNIX_EPOCH)
    };
    thread
        .spawn(render)
        .expect("a thread")
        .join()
        .expect("no panic")
}

/// Its peak of memory in MiB, which grows only.
pub(crate) fn peak_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok());
    kib.unwrap_or(0_usize) / 1024
}

pub(crate) fn fails(source: impl Into<String>) -> ChatError {
    let source = source.into();
    let shown: String = source.chars().take(100).collect();
    let begun = Instant::now();
    let error = on_small_stack(source).expect_err(&shown);
    assert!(begun.elapsed() < Duration::from_secs(20), "{shown}: slow");
    assert!(peak_mib() < 512, "{shown}: {} MiB", peak_mib());
    error
}

/// Runs each of many sources and says which are slow or end in no error.
pub(crate) fn all_fail(sources: impl IntoIterator<Item = String>) -> Vec<ChatError> {
    let mut errors = Vec::new();
    for source in sources {
        let begun = Instant::now();
        errors.push(fails(source.clone()));
        let seconds = begun.elapsed().as_secs_f64();
        // A second for a debug build that runs alone; tests run beside each other.
        let shown: String = source.chars().take(150).collect();

        assert!(seconds < 3.0, "{shown}: {seconds} s");
    }
    errors
}

pub(crate) fn is_limit(error: &ChatError) -> bool {
    matches!(
        error,
        ChatError::TooManySteps | ChatError::TooLong | ChatError::TooMuchMemory
    )
}

#[test]
fn chains_of_operators_do_not_overflow_the_stack() {
    for (one, before, times) in [
        ("and 1 ", "1 ", 10_000),
        ("or 1 ", "1 ", 10_000),
        ("not ", "", 100_000),
        ("-", "", 100_000),
        ("|upper", "x", 100_000),
        (".b", "a", 100_000),
        ("[0]", "a", 100_000),
        ("()", "a", 100_000),
        ("+1", "1", 100_000),
        ("~1", "1", 100_000),
        ("*1", "1", 100_000),
        ("**1", "1", 100_000),
        ("==1", "1", 100_000),
        (" is defined", "a", 100_000),
        (" if 1", "1", 100_000),
        (" if 1 else 1", "1", 100_000),
        (" in 1", "1", 100_000),
        ("(", "", 100_000),
        ("[", "", 100_000),
        ("{1:", "", 100_000),
    ] {
        let after = if "not -([{1:".contains(one) { "1" } else { "" };
        for (open, close) in [
            ("{{ ", " }}"),
            ("{% set x = ", " %}"),
            ("{% if ", " %}{% endif %}"),
        ] {
            let source = format!("{open}{before}{}{after}{close}", one.repeat(times));
            let error = fails(source);
            assert!(matches!(error, ChatError::Template(_)), "{one}: {error}");
        }
    }
    let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(50_000));
    assert!(matches!(fails(elifs), ChatError::Template(_)));
    let error = fails(format!("{{{{ {}1 }}}}", "not ".repeat(100_000)));
    assert!(
        error.to_string().contains("more than 1000 operators"),
        "{error}"
    );
}

#[test]
fn long_chains_below_the_limit_render() {
    let sum = format!("{{{{ 1{} }}}}", " + 1".repeat(999));
    assert_eq!(on_small_stack(sum).as_deref(), Ok("1000"));
    let nots = format!("{{{{ {}true }}}}", "not ".repeat(1000));
    assert_eq!(on_small_stack(nots).as_deref(), Ok("True"));
    let elifs = format!(
        "{{% if 0 %}}{}{{% else %}}x{{% endif %}}",
        "{% elif 0 %}".repeat(500)
    );
    assert_eq!(on_small_stack(elifs).as_deref(), Ok("x"));
}

/// What the library's fuel sees: it pays for the bytes that an instruction makes.
#[test]
fn texts_do_not_grow_without_bound() {
    for set in [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = ns.x|replace('x', 'xx') %}",
        "{% set ns.x = ns.x.replace('x', 'xx') %}",
        "{% set ns.x = [ns.x, ns.x]|join %}",
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
    ] {
        let before = "{% set ns = namespace(x='xxxxxxxx') %}";
        let error = fails(format!("{before}{}", set.repeat(34)));
        let limit = matches!(error, ChatError::TooManySteps | ChatError::TooLong);
        assert!(limit, "{set}: {error}");
    }
}

#[test]
fn texts_and_lists_that_double_reach_a_limit() {
    let doubled = |set: &str| {
        let before = "{% set ns = namespace(x='xxxxxxxx', l=[1, 2], t=(1, 2)) %}";
        format!("{before}{}{{{{ ns.l }}}}{{{{ ns.t }}}}", set.repeat(34))
    };
    let sets = [
        "{% set ns.x = 2 * ns.x %}",
        "{% set ns.x = ns.x|replace('', 'x') %}",
        "{% set ns.x = ''.join([ns.x, ns.x]) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}",
        "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
        "{% set ns.x = ns.x.center(ns.x|length * 2) %}",
        "{% set ns.x = ns.x|indent(ns.x|length, true) %}",
        "{% set ns.x = ns.x|tojson|tojson %}",
        "{% set ns.x = [ns.x]|string|string + ns.x %}",
        "{% set ns.x = (ns.x ~ '%%%%%%')|urlencode ~ ns.x %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 2 %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = {1: ns.l, 2: ns.l} %}",
        "{% set ns.l = {'a': ns.l}|dictsort + [ns.l] %}",
        "{% set ns.l = (ns.l|list) + (ns.l|list) %}",
        "{% set ns.l = [ns.l, ns.l]|sum(start=[]) %}",
        "{% set ns.l = [ns.l, ns.l]|batch(2)|list %}",
        "{% set ns.t = ns.t + ns.t %}",
        "{% set ns.t = (ns.t, ns.t) %}",
        "{% set ns.t = 2 * ns.t %}",
    ];
    for (set, error) in sets.iter().zip(all_fail(sets.map(doubled))) {
        assert!(is_limit(&error), "{set}: {error}");
    }
}

#[test]
fn counts_and_widths_are_paid_before_they_are_made() {
    let sources = [
        "{{ [1]|batch(1000000000, 'x')|list }}",
        "{{ [1]|batch(count=1000000000)|list }}",
        "{{ [1]|slice(1000000000)|list }}",
        "{{ 'x\ny'|indent(1000000000) }}",
        "{{ 'x\ny'|indent(width=1000000000) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '%1000000000s' % 'x' }}",
        "{{ '%99999999999999999999999999999999999999999d' % 1 }}",
        "{{ '%*d'|format(1000000000, 1) }}",
        "{{ '%-*d'|format(-1000000000, 1) }}",
        "{{ '%.1000000000f'|format(1) }}",
        "{{ '%.1000000000d'|format(1) }}",
        "{{ '%.1000000000e' % 1.5 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{:.1000000000f}'.format(1.5) }}",
        "{{ '{:>99999999999999999999999999}'.format(1) }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'.ljust(10 ** 18) }}",
        "{{ 'x'.rjust(10 ** 18, 'y') }}",
        "{{ '1'.zfill(10 ** 18) }}",
        "{{ '\t'.expandtabs(10 ** 9) }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 'x' * 100000000 }}",
        "{{ 'x' * (10000 * 10000) }}",
        "{{ 'x' * 10 ** 30 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ ([1] * 10 ** 18)|length }}",
        "{% set n = 1000000000 %}{{ ([1] * n)|list|length }}",
        "{{ (1,) * 10 ** 9 }}",
        "{{ 2 ** (10 ** 9) }}",
        "{{ 2 ** (2 ** (2 ** (2 ** (2 ** 2)))) }}",
        "{{ 10 ** 100 }}",
        "{{ range(10 ** 9)|list }}",
        "{{ range(-10 ** 37, 10 ** 37) }}",
        "{% for i in range(100001) %}{% endfor %}",
        "{% set j = 'x' * 100000 %}{{ range(99999)|join(j) }}",
        "{{ ('x' * 100000).replace('', 'y' * 1000) }}",
        "{{ ('x' * 100000)|list|map('center', 100000)|list }}",
        "{{ ('x ' * 100000)|wordwrap(1, true, 'y' * 10000) }}",
        "{{ [messages]|tojson(indent=1000000000) }}",
        "{{ range(99999)|list|tojson(separators=('x' * 100000, ':')) }}",
        "{{ strftime_now('%c' * 500000) }}",
    ];
    all_fail(sources.map(str::to_owned));
}

#[test]
fn recursion_is_counted() {
    let sources = [
        "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('xxxxxxxx') }}",
        "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f('xxxxxxxx') }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}\
         {{ f(60) }}",
        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
        "{% macro f() %}{% set x %}{{ f() }}{% endset %}{% endmacro %}{{ f() }}",
        "{% macro f() %}{% filter upper %}{{ f() }}{% endfilter %}{% endmacro %}{{ f() }}",
        "{% macro f() %}{% for i in [1] %}{% if i %}{% with a = i %}{{ f() }}{% endwith %}\
         {% endif %}{% endfor %}{% endmacro %}{{ f() }}",
        "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
        "{% macro f(x) %}{{ [[[[{1: f(x)[0:]}]]]] }}{% endmacro %}{{ f(1) }}",
        "{% macro f(x) %}{{ f(x)|upper|lower|upper if f(x) or not f(x) }}{% endmacro %}{{ f(1) }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop([1, 2]) }}{{ loop([1]) }}{% endfor %}",
        "{% set ns = namespace() %}{% macro f() %}{{ ns.f() }}{% endmacro %}\
         {% set ns.f = f %}{{ f() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    ];
    all_fail(sources.map(str::to_owned));
    // A macro that calls itself out of the deepest expression that is accepted.
    let deep = format!(
        "{{% macro f() %}}{{{{ 1{} ~ f() }}}}{{% endmacro %}}{{{{ f() }}}}",
        " + 1".repeat(900)
    );
    let nested = format!(
        "{{% macro f() %}}{{{{ {}f(){} }}}}{{% endmacro %}}{{{{ f() }}}}",
        "[".repeat(90),
        "]".repeat(90)
    );
    let blocks = format!(
        "{{% macro f() %}}{}{{{{ f() }}}}{}{{% endmacro %}}{{{{ f() }}}}",
        "{% for i in [1] %}".repeat(90),
        "{% endfor %}".repeat(90)
    );
    all_fail([deep, nested, blocks]);
}

#[test]
fn values_do_not_nest_without_bound() {
    let nested = |set: &str| {
        format!(
            "{{% set ns = namespace(l=[]) %}}{{% for i in range(50000) %}}{set}{{% endfor %}}\
             {{{{ ns.l|tojson }}}}{{{{ ns.l }}}}"
        )
    };
    let sets = [
        "{% set ns.l = [ns.l] %}",
        "{% set ns.l = (ns.l,) %}",
        "{% set ns.l = {1: ns.l} %}",
        "{% set ns.l = {(ns.l,): 1}.items() %}",
        "{% set ns.l = dict(a=ns.l) %}",
        "{% set ns.l = [ns.l]|list %}",
        "{% set ns.l = [ns.l]|map('list')|first %}{% set ns.l = [ns.l] %}",
        "{% set ns.l = [ns.l]|reverse %}",
        "{% set ns.l = cycler(ns.l) %}",
        "{% set ns.l = joiner(ns.l) %}",
        "{% set ns.l = [ns.l].index %}",
        "{% set ns.l = ns %}",
        "{% set ns.l = [ns] %}",
        "{% set ns.l = namespace(l=ns.l) %}",
        "{% macro f() %}{{ ns }}{% endmacro %}{% set ns.l = [ns.l, f] %}",
        "{% for x in [ns.l] %}{% set ns.l = loop %}{% endfor %}",
        "{% for x in [1] %}{% if loop.changed(loop, ns.l) %}{% set ns.l = loop %}{% endif %}\
         {% endfor %}",
    ];
    all_fail(sets.map(nested));
    let namespaces = "{% set ns = namespace(l=ns) %}".repeat(1000) + "{{ ns }}";
    assert!(matches!(fails(namespaces), ChatError::Failed(_)));
    // What holds itself is taken apart at the end, however long the chain.
    let chain = "{% set ns = namespace() %}{% for i in range(9999) %}\
                 {% set ns.l = namespace(l=ns.l) %}{% endfor %}x";
    assert_eq!(on_small_stack(chain.to_owned()).as_deref(), Ok("x"));
}

#[test]
fn shared_parts_are_paid_each_time_they_are_read() {
    let shared = "{% set ns = namespace(l=[1], t=(1,)) %}".to_owned()
        + &"{% set ns.l = [ns.l, ns.l] %}{% set ns.t = (ns.t, ns.t) %}".repeat(60);
    let other =
        "{% set no = namespace(l=[1]) %}".to_owned() + &"{% set no.l = [no.l, no.l] %}".repeat(60);
    let reads = [
        "{{ ns.l }}",
        "{{ ns.l|string|length }}",
        "{{ ns.l ~ '' }}",
        "{{ ns.l|tojson }}",
        "{{ ns.l|tojson(indent=4, sort_keys=true) }}",
        "{{ ns.l|pprint }}",
        "{{ [ns.l]|join }}",
        "{{ '%s' % ns.l }}",
        "{{ '{}'.format(ns.l) }}",
        "{{ '{!r}'.format(ns.l) }}",
        "{{ ns.l == no.l }}",
        "{{ ns.l < no.l }}",
        "{{ ns.l in [no.l] }}",
        "{{ [ns.l].index(no.l) }}",
        "{{ ns.l is eq no.l }}",
        "{{ [ns.l, no.l]|sort }}",
        "{{ [ns.l, no.l]|max }}",
        "{{ {ns.t: 1} }}",
        "{{ [ns.t]|unique|list }}",
        "{{ [{'a': ns.l}, {'a': no.l}]|groupby('a') }}",
        "{{ raise_exception(ns.l) }}",
        "{% for x in [ns.l, no.l] %}{{ loop.changed(x) }}{% endfor %}",
    ];
    for (read, error) in reads
        .iter()
        .zip(all_fail(reads.map(|r| format!("{shared}{other}{r}"))))
    {
        assert!(is_limit(&error), "{read}: {error}");
    }
}

#[test]
fn what_is_read_again_and_again_is_paid() {
    let list = "{% set x = range(90000)|list %}{% set y = range(90000)|list %}";
    let text = "{% set x = 'x' * 1000000 %}{% set y = 'x' * 999999 ~ 'y' %}";
    let each = |before: &str, read: &str| {
        format!("{before}{{% for i in range(99999) %}}{read}{{% endfor %}}")
    };
    let texts = [
        "{{ x.count('y') }}",
        "{% if x|upper %}{% endif %}",
        "{% if y in x %}{% endif %}",
        "{{ x.find('y') }}",
        "{{ x|length }}{{ ('é' + x)|length }}",
        "{% if x is lower %}{% endif %}",
        "{% if x == y %}{% endif %}",
        "{% if x < y %}{% endif %}",
        "{{ x.strip('y') }}{{ (x + ' ').strip()|length }}",
        "{% if x.replace('y', '') %}{% endif %}",
        "{% if x[::2] %}{% endif %}",
        "{% if ('é' + x)[999999] %}{% endif %}",
        "{% if ('é' + x)[999990:] %}{% endif %}",
        "{% if x.split() %}{% endif %}",
        "{% if x.split('y') %}{% endif %}",
        "{% if x.splitlines() %}{% endif %}",
        "{% if x|list %}{% endif %}",
        "{% if x|int %}{% endif %}",
        "{% if x|float %}{% endif %}",
        "{% if x|escape %}{% endif %}",
        "{% if x|striptags %}{% endif %}",
        "{% if x|wordcount %}{% endif %}",
        "{% if x|urlencode %}{% endif %}",
        "{% if x|trim %}{% endif %}",
        "{% if x|title %}{% endif %}",
        "{% if x|reverse %}{% endif %}",
        "{% if x|truncate(9) %}{% endif %}",
        "{% if {x: 1}[y] %}{% endif %}",
        "{% if x.isalpha() %}{% endif %}",
        "{% if x.partition('y') %}{% endif %}",
        "{% if x.format() %}{% endif %}",
        "{% if x % () %}{% endif %}",
        "{% if [x]|unique|list %}{% endif %}",
    ];
    let lists = [
        "{% if x|list + [1] %}{% endif %}",
        "{% if y == x %}{% endif %}",
        "{% if x == y == x %}{% endif %}",
        "{% if -1 in x %}{% endif %}",
        "{% if x is eq x %}{% endif %}",
        "{% if x[1:] %}{% endif %}",
        "{{ x|max }}",
        "{{ x|sum }}",
        "{{ x|sort|length }}",
        "{{ x|map('string')|list|length }}",
        "{{ x|select('odd')|list|length }}",
        "{{ x|selectattr('y')|list|length }}",
        "{{ x|unique|list|length }}",
        "{{ x|groupby('y')|length }}",
        "{{ x|batch(2)|list|length }}",
        "{{ x|slice(2)|list|length }}",
        "{{ x|reverse|list|length }}",
        "{{ x.count(-1) }}",
        "{{ x.index(89999) }}",
        "{% for j in x %}{% endfor %}",
        "{% for j in x if false %}{% endfor %}",
        "{% set a, b = x, y %}{{ [x, y]|sum(start=[])|length }}",
        "{{ dict(x|map('string')|batch(2))|length }}",
        "{{ range(*x[:3])|length }}{{ '{}'.format(*x) }}",
    ];
    all_fail(texts.map(|read| each(text, read)));
    all_fail(lists.map(|read| each(list, read)));
}

#[test]
fn what_a_rendering_holds_is_bounded() {
    let sources = [
        // Many texts, none of which is long.
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}\
         {% set ns.l = [('x' * 500000) ~ i, ns.l] %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}\
         {% set ns.l = ns.l + ['x' * 9999] %}{% endfor %}",
        "{{ range(99999)|map('string')|map('center', 9999)|list|length }}",
        // Output that macros hold while they call each other.
        "{% macro f(n) %}{{ 'x' * 900000 }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% set x = range(99999)|list %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        // Functions, scopes and names.
        "{% set ns = namespace(l=none) %}{% for i in range(99999) %}\
         {% macro f() %}{% endmacro %}{% set ns.l = namespace(f=f, l=ns.l) %}{% endfor %}\
         {% for i in range(99999) %}{% set ns.l = 1 %}{% endfor %}",
        "{% set d = dict() %}{% for i in range(99999) %}{% set d = dict(d, **{'k' ~ i: i}) %}\
         {{ d|length }}{% endfor %}",
    ];
    for error in all_fail(sources.map(str::to_owned)) {
        assert!(is_limit(&error), "{error}");
    }
    let constants = "{{ ('x' * 1000000)|length }}".repeat(10_000);
    assert_eq!(fails(constants), ChatError::TooManySteps);
    let raw = format!(
        "{{% set x %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}",
        "x".repeat(100_000)
    );
    assert_eq!(fails(raw), ChatError::TooLong);
}

#[test]
fn sources_that_are_no_templates_do_not_take_the_parser_down() {
    let nested = |open: &str, close: &str| open.repeat(9999) + &close.repeat(9999);
    let sources = [
        nested("{% if true %}", "{% endif %}"),
        nested("{% for i in x %}", "{% endfor %}"),
        nested("{% macro f() %}", "{% endmacro %}"),
        nested("{% set x %}", "{% endset %}"),
        nested("{% call f() %}", "{% endcall %}"),
        nested("{% with %}", "{% endwith %}"),
        nested("{% filter upper %}", "{% endfilter %}"),
        nested("{% generation %}", "{% endgeneration %}"),
        nested("{% block x %}", "{% endblock %}"),
        format!(
            "{{% for {}x{} in y %}}{{% endfor %}}",
            "(".repeat(900),
            ")".repeat(900)
        ),
        format!("{{{{ {}x{} }}}}", "f(".repeat(900), ")".repeat(900)),
        format!("{{{{ {}x{} }}}}", "a[".repeat(900), "]".repeat(900)),
        format!("{{{{ x{} }}}}", " if x else x".repeat(450)),
        "{{ 'x".to_owned() + &"\\".repeat(99_999),
        "{{ '\\u12' }}".to_owned(),
        "{{ '\\UFFFFFFFF' }}".to_owned(),
        "{{ 99999999999999999999999999999999999999999999 }}".to_owned(),
        "{{ 0x }}{{ 1__0 }}".to_owned(),
        "{# ".to_owned(),
        "{% raw %}{{ ".to_owned(),
        "{% for".to_owned(),
        "{{ (".to_owned(),
        "{{ é- }".to_owned(),
        "{#é#}{%é%}".to_owned(),
        "{{ x is is y }}".to_owned(),
        "{% break %}".to_owned(),
    ];
    for source in sources {
        let shown: String = source.chars().take(60).collect();
        let error = fails(source);
        assert!(matches!(error, ChatError::Template(_)), "{shown}: {error}");
    }
}

/// Cuts the snippets that jinja2 was asked about into words and puts them together anew.
#[test]
fn templates_of_shuffled_words_never_panic() {
    let text = crate::files::golden("chat/snippets.txt");
    let mut words: Vec<&str> = text
        .split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_'))
        .collect();
    let lines: Vec<&str> = text.lines().collect();
    words.extend([
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "-%}",
        "99999999999",
        "-1",
        "0",
        "none",
        "'é'",
    ]);
    let arguments = serde_json::json!({
        "l": [3, 1, 2], "s": "Hello, Wörld", "n": null, "f": 2.5, "i": 7, "d": {"a": [1], "b": "c"},
        "people": [{"name": "a", "age": 1}, {"name": "b"}], "u": "日本 \u{1f600}", "yes": true,
    });
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    for _ in 0..4000 {
        let mut source = String::new();
        for _ in 0..1 + random(3) {
            let line = lines[random(lines.len())];
            let mut parts: Vec<&str> = line
                .split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_'))
                .collect();
            for _ in 0..random(4) {
                let at = random(parts.len().max(1));
                match random(3) {
                    0 if at < parts.len() => drop(parts.remove(at)),
                    1 if at < parts.len() => parts[at] = words[random(words.len())],
                    _ => parts.insert(at.min(parts.len()), words[random(words.len())]),
                }
            }
            source.extend(parts);
        }
        let Ok(template) = ChatTemplate::new(&source, TemplateTokens::default()) else {
            continue;
        };
        let begun = Instant::now();
        let _ = template.render_conversation(&Conversation {
            messages: &[],
            tools: None,
            documents: None,
            add_generation_prompt: false,
            continue_final_message: false,
            kwargs: arguments.as_object(),
            now: UNIX_EPOCH,
        });
        assert!(begun.elapsed() < Duration::from_secs(3), "{source}: slow");
    }
}
