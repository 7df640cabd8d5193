//! What a hub says that a repository holds: the first byte says what is wanted of it, the rest is
//! the answer.

use std::path::{Component, Path};

use ebb_models::model::hub::{HubModel, HubSettings, Listing};

use crate::sentence::assert_sentence;

const WANTED: [&str; 3] = [
    "org/name",
    "org/name:Q4_K_M",
    "org/name@v1:x-00001-of-00002",
];

pub(crate) fn run(bytes: &[u8]) {
    let Some((&first, answer)) = bytes.split_first() else {
        return;
    };
    let listing = match Listing::parse(answer) {
        Ok(listing) => listing,
        Err(clause) => return assert_sentence(&clause),
    };
    assert!(listing.commit.bytes().all(|b| b.is_ascii_hexdigit()));
    listing.files.iter().for_each(|file| assert_is_below(file));
    let name = WANTED[usize::from(first) % WANTED.len()];
    let model = HubModel::parse(name, HubSettings::read(|_| None)).expect("a name");
    match model.wanted(&listing) {
        Ok(files) => files.iter().for_each(|file| assert_is_below(file)),
        Err(clause) => assert_sentence(&clause),
    }
}

/// A path that is joined to a folder stays below it.
fn assert_is_below(path: &str) {
    let plain = |part| matches!(part, Component::Normal(_));
    assert!(!path.is_empty() && !path.contains('\0'), "{path:?}");
    assert!(Path::new(path).components().all(plain), "{path:?}");
}
