//! What a repository holds, as the hub says it.

use std::collections::BTreeSet;

use serde::Deserialize;

/// The longest answer that is read, in bytes. A repository of 100,000 files needs some 10 MB.
pub(super) const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// The longest path of a file and the longest name in it, in bytes.
const PATH_BYTES_MAX: usize = 1024;
const PART_BYTES_MAX: usize = 200;
/// The most names in a path.
pub(super) const PARTS_MAX: usize = 8;

/// A commit of a repository and the names of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The commit: hexadecimal, in lower case.
    pub commit: String,
    /// Paths of its files with `/` between folders, ascending. Each stays below the folder that it
    /// is joined to.
    pub files: Vec<String>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Listing {
    /// Reads the JSON of `/api/models/ORG/NAME/revision/REVISION`. Names that could be paths to
    /// elsewhere are left out.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let answer: Answer = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let is_hash = matches!(answer.sha.len(), 40 | 64)
            && answer.sha.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_hash {
            return Err("its `sha` is no commit".to_owned());
        }
        let names = answer.siblings.into_iter().map(|file| file.rfilename);
        let names: BTreeSet<String> = names.filter(|name| is_below(name)).collect();
        Ok(Self {
            commit: answer.sha.to_ascii_lowercase(),
            files: names.into_iter().collect(),
        })
    }
}

/// Whether joining `path` to a folder can only name something in it.
pub(super) fn is_below(path: &str) -> bool {
    let plain = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.len() <= PART_BYTES_MAX
            && !part.contains(|c: char| c.is_control() || matches!(c, '\\' | ':'))
    };
    path.len() <= PATH_BYTES_MAX
        && path.split('/').count() <= PARTS_MAX
        && path.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

    fn listing(names: &[&str]) -> Vec<u8> {
        let siblings: Vec<_> = names
            .iter()
            .map(|name| serde_json::json!({"rfilename": name, "size": -1}))
            .collect();
        serde_json::json!({"sha": SHA, "siblings": siblings, "gated": false})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn names_that_lead_elsewhere_are_left_out() {
        let long = "x".repeat(300);
        let bad = [
            "../../x.gguf",
            "/etc/x.gguf",
            "a/../../b",
            "a//b",
            "a\0.gguf",
            "a\\..\\b",
            "C:x",
            "",
            ".",
            "a/",
            &long,
            "1/2/3/4/5/6/7/8/9",
        ];
        let good = ["config.json", "Q4_K_M/x-00001-of-00002.gguf", "…/é b.gguf"];
        let names: Vec<&str> = bad.into_iter().chain(good).chain(good).collect();
        let parsed = Listing::parse(&listing(&names)).expect("a listing");
        let mut expected = good;
        expected.sort_unstable();
        assert_eq!((parsed.commit.as_str(), parsed.files.len()), (SHA, 3));
        assert_eq!(parsed.files, expected);
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            "<html>",
            r#"{"sha": "main", "siblings": []}"#,
            r#"{"sha": "../../../../../../../../../../../../../../etc", "siblings": []}"#,
            r#"{"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [{"size": 1}]}"#,
            r#"{"sha": 5}"#,
        ] {
            Listing::parse(bad.as_bytes()).expect_err(bad);
        }
        let deep = "[".repeat(100_000);
        Listing::parse(deep.as_bytes()).expect_err("deep");
    }

    proptest! {
        #[test]
        fn every_name_that_is_kept_stays_below(parts in prop::collection::vec(
            prop_oneof![Just("..".into()), Just(String::new()), Just(".".into()), ".{0,12}"],
            1..6,
        )) {
            let name = parts.join("/");
            let parsed = Listing::parse(&listing(&[&name])).expect("a listing");
            for kept in parsed.files {
                let below = std::path::Path::new("/root").join(&kept);
                prop_assert!(below.starts_with("/root"));
                prop_assert!(below.components().skip(2).all(
                    |part| matches!(part, std::path::Component::Normal(_))
                ));
            }
        }
    }
}
