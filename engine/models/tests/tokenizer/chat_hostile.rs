//! Templates that try to take the process down: each is refused, or fails its own conversation.

use std::time::{Duration, Instant, UNIX_EPOCH};

use ebb_models::tokenizer::{ChatError, ChatMessage, ChatTemplate, TemplateTokens};

/// From a thread with little stack, as a server's have.
fn on_small_stack(source: String) -> Result<String, ChatError> {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let render = move || {
        let template = ChatTemplate::new(&source, TemplateTokens::default())?;
        let message = ChatMessage {
            role: "user".to_owned(),
            content: "hello".to_owned(),
        };
        template.render(&[message], true, UNIX_EPOCH)
    };
    thread
        .spawn(render)
        .expect("a thread")
        .join()
        .expect("no panic")
}

/// Its peak of memory in MiB, which grows only.
fn peak_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok());
    kib.unwrap_or(0_usize) / 1024
}

fn fails(source: impl Into<String>) -> ChatError {
    let source = source.into();
    let shown: String = source.chars().take(100).collect();
    let begun = Instant::now();
    let error = on_small_stack(source).expect_err(&shown);
    assert!(begun.elapsed() < Duration::from_secs(20), "{shown}: slow");
    assert!(peak_mib() < 512, "{shown}: {} MiB", peak_mib());
    error
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
