//! Methods of Python's strings, lists and dictionaries.

use minijinja::value::from_args;
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

/// What `pycompat` has, except `title`, which is Jinja's filter there: it takes a letter after an
/// apostrophe or a digit for the middle of a word.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (method, value.as_str()) {
        ("title", Some(text)) => {
            let () = from_args(arguments)?;
            Ok(title(text).into())
        }
        _ => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

/// Python's `str.title`: each run of letters that have a case begins with a capital.
fn title(text: &str) -> String {
    let cased = |c: char| c.is_lowercase() || c.is_uppercase();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(cased) {
        let (between, from_word) = rest.split_at(start);
        let end = from_word.find(|c| !cased(c)).unwrap_or(from_word.len());
        let (word, after) = from_word.split_at(end);
        out.push_str(between);
        // The whole word in lower case, since the end of a word decides between σ and ς.
        let lower = word.to_lowercase();
        if let Some(first) = word.chars().next() {
            let mut upper = first.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase)); // ß is Ss
            let skipped: usize = first.to_lowercase().map(char::len_utf8).sum();
            out.push_str(&lower[skipped..]);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::title;

    #[test]
    fn titles_are_pythons() {
        let cases = [
            ("3d it's o’neil x1y", "3D It'S O’Neil X1Y"),
            ("straße ΟΔΟΣ ΟΣ Σ", "Straße Οδος Ος Σ"),
            ("a-b_c 日本 tom é éa", "A-B_C 日本 Tom É Éa"),
            ("ÉCOLE d'été", "École D'Été"),
            ("ß x", "Ss X"),
            ("ab12cd E.U.", "Ab12Cd E.U."),
            ("", ""),
            (" ?", " ?"),
        ];
        for (text, expected) in cases {
            assert_eq!(title(text), expected);
        }
    }
}
