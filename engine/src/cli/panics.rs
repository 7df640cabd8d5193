//! What a server says of a panic. Messages of panics may repeat texts that were being worked on,
//! and those are clients'.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::panic::PanicHookInfo;

/// From here on panics are told without what their messages quote.
pub(super) fn without_texts() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let place = info.location().map(ToString::to_string);
        let place = place.unwrap_or_else(|| "an unknown place".to_owned());
        eprintln!("thread '{name}' panicked at {place}: {}", message(info));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            eprintln!("{trace}");
        }
    }));
}

fn message<'a>(info: &'a PanicHookInfo<'_>) -> Cow<'a, str> {
    let payload = info.payload();
    if let Some(literal) = payload.downcast_ref::<&'static str>() {
        // Part of the program.
        return Cow::Borrowed(literal);
    }
    match payload.downcast_ref::<String>() {
        Some(text) => Cow::Owned(unquoted(text)),
        None => Cow::Borrowed("(no message)"),
    }
}

/// A message up to its first value in quotes: the standard library and `{:?}` quote texts.
fn unquoted(text: &str) -> String {
    match text.find(['"', '\'', '`', '\n']) {
        Some(at) => format!("{}… (what it quotes may be a client's text)", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn numbers_are_told_and_texts_are_not() {
        let said = |run: fn()| {
            let payload = std::panic::catch_unwind(run).unwrap_err();
            let text = payload.downcast_ref::<String>().expect("a made message");
            unquoted(text)
        };
        let index = said(|| {
            let list = black_box(vec![1]);
            black_box(list[7]);
        });
        assert!(index.contains("the len is 1 but the index is 7"), "{index}");
        for said in [
            said(|| {
                black_box(&black_box("HUSH é".to_owned())[6..]);
            }),
            said(|| {
                black_box(&black_box("HUSH é".to_owned())[70..]);
            }),
            said(|| assert_eq!(black_box("HUSH"), "other")),
            said(|| {
                black_box(Err::<(), _>("HUSH".to_owned())).unwrap();
            }),
        ] {
            assert!(!said.contains("HUSH"), "{said}");
        }
    }
}
