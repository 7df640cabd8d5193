//! Keys and limits, with times of our own.

use std::io::Write as _;
use std::time::{Duration, Instant};

use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn of_file(text: &str) -> Result<Access, String> {
    let file = file(text);
    let access = Access::new(&[], Some(file.path().to_owned()), KeyLimits::default());
    access.map_err(|error| error.to_string())
}

fn key(access: &Access, text: &str) -> Arc<Key> {
    let key = access.key([text].into_iter());
    key.expect("it is known").expect("keys are asked for")
}

#[test]
fn whoever_has_no_key_is_let_in_only_where_there_are_none() {
    assert!(Access::open().key(std::iter::empty()).unwrap().is_none());
    let access = Access::new(&["one".into(), "two".into()], None, KeyLimits::default()).unwrap();
    let denied = |presented: &[&str]| access.key(presented.iter().copied()).err();
    assert_eq!(denied(&["one"]), None);
    assert_eq!(denied(&["two"]), None);
    assert_eq!(denied(&["three", "two"]), None);
    assert_eq!(denied(&[]), Some(Denied::NoKey));
    for wrong in ["", "on", "one ", "onee", "ONE", "three"] {
        assert_eq!(denied(&[wrong]), Some(Denied::WrongKey), "{wrong}");
    }
    assert_eq!(key(&access, "two").name(), "flag-2");
}

#[test]
fn a_file_has_keys_names_and_limits() {
    let access = of_file(
        "# two\n\n  secret-a name=team.a max-concurrency=2 tokens-per-minute=50 # of them\r\n\
         secret-b requests-per-minute=3",
    );
    let access = access.unwrap();
    assert_eq!(access.count(), 2);
    assert_eq!(key(&access, "secret-a").name(), "team.a");
    assert_eq!(key(&access, "secret-b").name(), "line-4");
}

#[test]
fn a_wrong_file_is_refused_with_its_line_and_without_its_words() {
    let long = "k".repeat(513);
    for (text, place) in [
        ("", "has no key"),
        ("# nothing\n", "has no key"),
        ("good\nHUSH-1 HUSH-2", "line 2: word 2"),
        ("HUSH-1 name=", "line 1: word 2"),
        ("HUSH-1 name=HUSH/2", "line 1: word 2"),
        ("HUSH-1 name=a name=b", "line 1: word 3"),
        ("HUSH-1 max-concurrency=0", "line 1: word 2"),
        ("HUSH-1 max-concurrency=HUSH", "line 1: word 2"),
        ("HUSH-1 tokens-per-minute=-1", "line 1: word 2"),
        ("HUSH-1 tokens-per-minute=99999999999", "line 1: word 2"),
        ("HUSH-1\n\nHUSH-1 name=again", "line 3: an earlier line"),
        ("HUSH-1\nschlüssel", "line 2: its key"),
        (&long, "line 1: its key"),
    ] {
        let error = of_file(text).unwrap_err();
        assert!(error.contains(place), "{text}: {error}");
        assert!(!error.contains("HUSH") && !error.contains("kkk"), "{error}");
    }
    let binary = Access::new(&[], Some("/dev/null/keys".into()), KeyLimits::default());
    assert!(binary.unwrap_err().to_string().contains("--api-key-file"));
    for wrong in ["", "two words", "schlüssel"] {
        let error = Access::new(&[wrong.into()], None, KeyLimits::default()).unwrap_err();
        assert!(error.to_string().starts_with("a key of --api-key"));
    }
}

#[test]
fn a_file_read_again_keeps_what_was_used_and_a_wrong_one_changes_nothing() {
    let old = file("a max-concurrency=1\nb");
    let access = Access::new(&[], Some(old.path().to_owned()), KeyLimits::default()).unwrap();
    let now = Instant::now();
    let running = key(&access, "a").begin(now).unwrap();
    assert!(access.load(Some(b"a what")).is_err());
    assert!(access.load(Some(b"")).is_err());
    assert_eq!(access.count(), 2);
    access
        .load(Some(b"a name=again max-concurrency=1\nc"))
        .unwrap();
    assert_eq!(access.key(["b"].into_iter()).err(), Some(Denied::WrongKey));
    let a = key(&access, "a");
    assert_eq!(a.name(), "again");
    assert!(a.begin(now).is_err());
    drop(running);
    assert!(a.begin(now).is_ok());
}

#[test]
fn keys_of_flags_stay_beside_those_of_the_file() {
    let file = file("a name=mine");
    let flags = ["a".into(), "b".into()];
    let access = Access::new(&flags, Some(file.path().to_owned()), KeyLimits::default()).unwrap();
    assert_eq!((access.count(), key(&access, "a").name()), (2, "mine"));
    access.load(Some(b"c")).unwrap();
    assert_eq!((access.count(), key(&access, "a").name()), (3, "flag-1"));
}

#[test]
fn calls_at_once_are_limited_and_come_back() {
    let access = of_file("a max-concurrency=2\nb").unwrap();
    let (a, now) = (key(&access, "a"), Instant::now());
    let (first, _second) = (a.begin(now), a.begin(now));
    let denied = a.begin(now).unwrap_err();
    assert_eq!(denied, Denied::Concurrency { limit: 2 });
    assert_eq!(denied.retry_after(), Some(1));
    assert!(key(&access, "b").begin(now).is_ok());
    drop(first);
    assert!(a.begin(now).is_ok());
}

#[test]
fn requests_come_in_a_burst_and_then_at_their_rate() {
    let access = of_file("a requests-per-minute=6").unwrap();
    let (a, now) = (key(&access, "a"), Instant::now());
    let at = |seconds| now + Duration::from_secs(seconds);
    for _ in 0..6 {
        assert!(a.begin(now).is_ok());
    }
    let denied = a.begin(now).unwrap_err();
    assert_eq!(denied.retry_after(), Some(10), "{denied}");
    assert!(a.begin(at(9)).is_err() && a.begin(at(10)).is_ok());
    let denied = a.begin(at(11)).unwrap_err();
    assert_eq!(denied.retry_after(), Some(9), "{denied}");
    for _ in 0..6 {
        assert!(a.begin(at(1000)).is_ok());
    }
    assert!(a.begin(at(1000)).is_err());
}

#[test]
fn tokens_are_charged_when_they_are_known_and_paid_back() {
    let access = of_file("a tokens-per-minute=60\nb").unwrap();
    let (a, now) = (key(&access, "a"), Instant::now());
    let at = |seconds| now + Duration::from_secs(seconds);
    let running = a.begin(now).unwrap();
    running.charge(59, now);
    assert!(a.begin(now).is_ok());
    running.charge(61, now);
    let denied = a.begin(now).unwrap_err();
    assert_eq!(denied.retry_after(), Some(61), "{denied}");
    assert!(a.begin(at(60)).is_err() && a.begin(at(61)).is_ok());
    let b = key(&access, "b");
    b.begin(now).unwrap().charge(usize::MAX, now);
    assert!(b.begin(now).is_ok());
}

#[test]
fn limits_of_a_key_go_before_those_of_all() {
    let file = file("a max-concurrency=2\nb");
    let all = KeyLimits {
        max_concurrency: Some(1),
        ..KeyLimits::default()
    };
    let access = Access::new(&[], Some(file.path().to_owned()), all).unwrap();
    let now = Instant::now();
    for (name, calls) in [("a", 2), ("b", 1)] {
        let key = key(&access, name);
        let running: Vec<_> = (0..3).filter_map(|_| key.begin(now).ok()).collect();
        assert_eq!(running.len(), calls, "{name}");
    }
}

#[test]
fn nothing_that_is_printed_has_a_key() {
    let access = Access::new(&["HUSH".into()], None, KeyLimits::default()).unwrap();
    assert!(!format!("{access:?}").contains("HUSH"));
}

#[test]
fn calls_under_way_follow_limits_that_are_read_again() {
    let old = file("a");
    let access = Access::new(&[], Some(old.path().to_owned()), KeyLimits::default()).unwrap();
    let now = Instant::now();
    let running = key(&access, "a").begin(now).unwrap();
    access.load(Some(b"a tokens-per-minute=60")).unwrap();
    running.charge(60, now);
    let denied = key(&access, "a").begin(now).unwrap_err();
    assert!(matches!(denied, Denied::Tokens { limit: 60, .. }));
}
