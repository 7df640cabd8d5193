//! Stop strings in streamed text against a search in the whole text.

use ebb_serving::sampling::{StopChecker, StopMatch};
use proptest::prelude::*;

/// The match that ends first, of those the longest: (index, start, end).
fn search(text: &str, stops: &[String], armed_from: usize) -> Option<(usize, usize, usize)> {
    for end in armed_from + 1..=text.len() {
        let ending = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        let longest = ending.rev().max_by_key(|(_, stop)| stop.len());
        if let Some((index, stop)) = longest {
            return Some((index, end - stop.len(), end));
        }
    }
    None
}

/// The longest end of `text` that begins a stop string without being all of it.
fn undecided(text: &str, stops: &[String]) -> usize {
    (0..text.len())
        .filter(|&i| text.is_char_boundary(i))
        .find(|&i| {
            let end = &text[i..];
            stops
                .iter()
                .any(|s| s.len() > end.len() && s.starts_with(end))
        })
        .map_or(0, |i| text.len() - i)
}

fn pieces() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[abé]{0,4}", 0..20)
}

fn stops() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[abé]{1,5}", 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn pieces_find_what_the_whole_text_has(
        pieces in pieces(),
        stops in stops(),
        include in any::<bool>(),
        armed_after in 0usize..6,
    ) {
        let whole = pieces.concat();
        let armed_from: usize = pieces.iter().take(armed_after).map(String::len).sum();
        let expected = search(&whole, &stops, armed_from);
        let mut checker = StopChecker::new(&stops, include);
        let mut out = String::new();
        let mut read = String::new();
        let mut found = None;
        for (i, piece) in pieces.iter().enumerate() {
            let matched = checker.push(piece, i >= armed_after, &mut out);
            if found.is_none() {
                read.push_str(piece);
            }
            match matched {
                Some(_) => found = matched,
                // Nothing is held back for longer than it must be.
                None if found.is_none() => {
                    let certain = read.len() - undecided(&read, &stops);
                    prop_assert_eq!(&out, &read[..certain]);
                }
                None => {}
            }
        }
        checker.finish(&mut out);
        match expected {
            Some((index, start, end)) => {
                prop_assert_eq!(found, Some(StopMatch { index }));
                prop_assert_eq!(&out, &whole[..if include { end } else { start }]);
            }
            None => {
                prop_assert_eq!(found, None);
                prop_assert_eq!(&out, &whole);
            }
        }
    }
}

fn run(pieces: &[&str], stops: &[&str]) -> (String, Option<usize>) {
    let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
    let mut checker = StopChecker::new(&stops, false);
    let mut out = String::new();
    let mut found = None;
    for piece in pieces {
        found = found.or(checker.push(piece, true, &mut out));
    }
    checker.finish(&mut out);
    (out, found.map(|m| m.index))
}

#[test]
fn matches_cross_pieces_and_overlap_themselves() {
    assert_eq!(
        run(&["Hello", " wor", "ld\n", "\nUser:"], &["\n\nUser:"]),
        ("Hello world".into(), Some(0))
    );
    assert_eq!(run(&["aab"], &["ab"]), ("a".into(), Some(0)));
    assert_eq!(run(&["aa", "aab"], &["aab"]), ("aa".into(), Some(0)));
    assert_eq!(run(&["ababa", "c"], &["abac"]), ("ab".into(), Some(0)));
    assert_eq!(run(&["abc"], &["bcd", "abc"]), ("".into(), Some(1)));
    assert_eq!(run(&["xabcd"], &["abcd", "bc"]), ("xa".into(), Some(1)));
    assert_eq!(
        run(&["almost sto", "nes"], &["stop"]),
        ("almost stones".into(), None)
    );
    assert_eq!(run(&["a", "b"], &[]), ("ab".into(), None));
    assert_eq!(run(&["日本", "語。x"], &["語。"]), ("日本".into(), Some(0)));
}

#[test]
fn text_after_a_match_is_not_read() {
    let mut checker = StopChecker::new(&["END".to_owned()], true);
    let mut out = String::new();
    assert_eq!(checker.push("the EN", true, &mut out), None);
    assert_eq!(out, "the ");
    let matched = checker.push("D of ENDs", true, &mut out);
    assert_eq!(matched, Some(StopMatch { index: 0 }));
    assert_eq!(checker.push("END", true, &mut out), None);
    checker.finish(&mut out);
    assert_eq!(out, "the END");
}

/// What a client sees and which stop string ended it, byte by byte: stop strings in the text, and
/// those with a `<` in the text with hidden pieces too.
fn search_hidden(pieces: &[(bool, String)], stops: &[String]) -> (String, Option<usize>) {
    let (mut seen, mut all) = (Vec::new(), Vec::new());
    // For each byte of `all`, bytes of `seen` before it.
    let mut seen_before = vec![0];
    for (hidden, piece) in pieces {
        for byte in piece.bytes() {
            all.push(byte);
            if !hidden {
                seen.push(byte);
            }
            seen_before.push(seen.len());
            let in_seen = stops.iter().enumerate().filter_map(|(index, stop)| {
                let ends = !hidden && seen.ends_with(stop.as_bytes());
                Some((index, seen.len().checked_sub(stop.len())?)).filter(|_| ends)
            });
            let in_all = stops.iter().enumerate().filter_map(|(index, stop)| {
                let ends = stop.contains('<') && all.ends_with(stop.as_bytes());
                let begin = seen_before[all.len().checked_sub(stop.len())?];
                Some((index, begin)).filter(|_| ends)
            });
            let found = in_seen.chain(in_all).min_by_key(|&(_, begin)| begin);
            if let Some((index, begin)) = found {
                seen.truncate(begin);
                return (
                    String::from_utf8(seen).expect("whole characters"),
                    Some(index),
                );
            }
        }
    }
    (String::from_utf8(seen).expect("whole characters"), None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn stop_strings_with_special_tokens_read_hidden_text(
        pieces in prop::collection::vec(
            prop_oneof![
                "[abé<]{0,3}".prop_map(|text| (false, text)),
                "<[ab]".prop_map(|text| (true, text)),
            ],
            0..20,
        ),
        stops in prop::collection::vec("[abé<]{1,4}", 0..4),
    ) {
        let mut checker = StopChecker::with_hidden(&stops, false, |stop| stop.contains('<'));
        let (mut out, mut found) = (String::new(), None);
        for (hidden, piece) in &pieces {
            let matched = match hidden {
                true => checker.push_hidden(piece, true, &mut out),
                false => checker.push(piece, true, &mut out),
            };
            found = found.or(matched);
        }
        checker.finish(&mut out);
        let (expected, index) = search_hidden(&pieces, &stops);
        prop_assert_eq!(&out, &expected);
        // Two stop strings that begin at one place of what is seen may both be right.
        prop_assert_eq!(found.is_some(), index.is_some());
    }
}

#[test]
fn hidden_text_stops_and_is_never_handed_out() {
    let stops = ["<|im_start|>".to_owned(), "b<|im_end|>".to_owned()];
    for (include, after) in [(false, "a"), (true, "ab")] {
        let mut checker = StopChecker::with_hidden(&stops, include, |stop| stop.contains("<|"));
        let mut out = String::new();
        assert_eq!(checker.push_hidden("<|other|>", true, &mut out), None);
        assert_eq!(checker.push("ab", true, &mut out), None);
        assert_eq!(out, "a");
        let matched = checker.push_hidden("<|im_end|>", true, &mut out);
        assert_eq!((matched, &*out), (Some(StopMatch { index: 1 }), after));
        checker.finish(&mut out);
        assert_eq!(out, after);
    }
    let mut checker = StopChecker::with_hidden(&stops, true, |stop| stop.contains("<|"));
    let mut out = String::new();
    assert_eq!(checker.push_hidden("<|im_start|>", false, &mut out), None);
    let matched = checker.push_hidden("<|im_start|>", true, &mut out);
    assert_eq!((matched, &*out), (Some(StopMatch { index: 0 }), ""));
}
